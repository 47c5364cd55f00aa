"""Settings of every run: the form under test, hypothesis profiles, time limits of soak tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

from siltstone.version import __version__, form
from tests.support.peers import missing_peers

# No deadline: how long one example takes says more about the machine's load than about the code.
settings.register_profile("siltstone", deadline=None)
# For a second run of the same tests, in the other form.
settings.register_profile("brief", deadline=None, max_examples=30)
settings.register_profile("soak", deadline=None, max_examples=2_000, stateful_step_count=100)
settings.load_profile("siltstone")

FORMS = {"compiled": "compiled", "pure": "pure Python"}
SOAK_TIMEOUT_SECONDS = 3_600


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--form", choices=sorted(FORMS), help="refuse to test any other form")


def pytest_configure(config: pytest.Config) -> None:
    wanted = config.getoption("--form")
    if wanted is not None and FORMS[wanted] != form():
        raise pytest.UsageError(f"--form={wanted}, but the hot modules are {form()}")


def pytest_report_header() -> list[str]:
    missing = ", ".join(missing_peers()) or "none"
    return [f"siltstone {__version__} ({form()})", f"peers that are missing: {missing}"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("soak") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SOAK_TIMEOUT_SECONDS))
