from __future__ import annotations

import subprocess
import sys

import pytest

import siltstone
from siltstone import public
from siltstone.database import Database
from siltstone.directory import open_store


def loaded_by(statements: str) -> set[str]:
    """Run statements in a fresh interpreter; return the modules that it has loaded then."""
    script = f"{statements}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(run.stdout.split())


def test_the_package_offers_the_public_names() -> None:
    assert siltstone.__all__ == public.__all__
    assert set(dir(siltstone)) >= set(public.__all__)
    for name in public.__all__:
        assert getattr(siltstone, name) is getattr(public, name)
        assert vars(siltstone)[name] is getattr(public, name)
    assert siltstone.Database is Database
    assert siltstone.open is open_store


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'siltstone' has no attribute 'nothing'"):
        _ = siltstone.nothing  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from siltstone import nothing  # type: ignore[attr-defined] # noqa: F401, PLC0415


@pytest.mark.parametrize(
    "statement",
    [
        "from siltstone import *",
        "from siltstone import Row, spool, errors; spool.Spool, errors.UsageError",
        "import siltstone; siltstone.open",
    ],
)
def test_names_and_modules_are_there_at_the_first_word(statement: str) -> None:
    assert "siltstone.public" in loaded_by(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "import siltstone.cli.main, siltstone.cli.pub",
        "import siltstone.cli.main, siltstone.cli.sub",
        "import siltstone; hasattr(siltstone, '__warningregistry__')",
    ],
)
def test_the_store_is_not_loaded_for_those_who_do_not_use_it(statement: str) -> None:
    modules = loaded_by(statement)
    assert "siltstone" in modules
    assert not modules & {"pyarrow", "numpy", "siltstone.database", "siltstone.public"}
