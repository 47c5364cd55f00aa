"""Settings of every run: the form under test, hypothesis profiles, time limits of soak tests."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator

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

# A broker that a test runs in this process catches these, and leaves them ignored.
BROKER_SIGNALS = (signal.SIGHUP, signal.SIGUSR1)
FORMS = {"compiled": "compiled", "pure": "pure Python"}
SOAK_TIMEOUT_SECONDS = 3_600


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--form", choices=sorted(FORMS), help="refuse to test any other form")


def pytest_configure(config: pytest.Config) -> None:
    wanted = config.getoption("--form")
    if wanted is not None and FORMS[wanted] != form():
        raise pytest.UsageError(f"--form={wanted}, but the hot modules are {form()}")


def compares_forms(config: pytest.Config) -> bool:
    """Say whether both forms must be there: they must, unless the pure one alone is asked for."""
    return config.getoption("--form") != "pure" and os.environ.get("SILTSTONE_PURE") != "1"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, and keep it away from the tests that were collected.

    Thousands of tests stay until the end. A collection of garbage would visit them all each time.
    Tests make many objects and few cycles: with rarer collections, the unit tests take a tenth less
    processor time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(100_000, 20, 20)
        gc.enable()


def pytest_report_header(config: pytest.Config) -> list[str]:
    missing = ", ".join(missing_peers()) or "none"
    compared = "yes" if compares_forms(config) else "no, the pure one alone is asked for"
    return [
        f"siltstone {__version__} ({form()})",
        f"both forms are compared: {compared}",
        f"peers that are missing: {missing}",
    ]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not compares_forms(config):
        left_out = [item for item in items if item.get_closest_marker("forms")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("forms")]
    for item in items:
        if item.get_closest_marker("soak") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SOAK_TIMEOUT_SECONDS))


@pytest.fixture(autouse=True)
def _signals_as_found() -> Iterator[None]:
    """Give the broker's signals back as they were, so that no test changes the next one."""
    before = {number: signal.getsignal(number) for number in BROKER_SIGNALS}
    yield
    for number in BROKER_SIGNALS:
        signal.signal(number, before[number])


@pytest.fixture(autouse=True)
def _logs_as_found() -> Iterator[None]:
    """Give the log back as it was: `siltstone serve` in this process sets a level and a handler."""
    root, ours = logging.getLogger(), logging.getLogger("siltstone")
    handlers, level = list(root.handlers), ours.level
    yield
    root.handlers[:] = handlers
    ours.setLevel(level)
