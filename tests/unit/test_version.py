from __future__ import annotations

from siltstone.segment import frame
from siltstone.version import form


def test_form_names_the_file_that_was_imported() -> None:
    expected = "compiled" if frame.__file__.endswith((".so", ".pyd")) else "pure Python"
    assert form() == expected
