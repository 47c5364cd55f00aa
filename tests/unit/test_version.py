from __future__ import annotations

import re
from pathlib import Path

from siltstone.store.segment import frame
from siltstone.version import __version__, form


def test_form_names_the_file_that_was_imported() -> None:
    expected = "compiled" if frame.__file__.endswith((".so", ".pyd")) else "pure Python"
    assert form() == expected


def test_the_version_is_that_of_the_newest_heading_of_the_changelog() -> None:
    text = (Path(__file__).parents[2] / "CHANGELOG.md").read_text("utf-8")
    found = re.search(r"^## \[([\d.]+)\] - (\S+)$", text, re.MULTILINE)
    assert found is not None
    number, date = found.groups()
    assert __version__ == (f"{number}.dev0" if date == "unreleased" else number)
