from __future__ import annotations

from pathlib import Path

import pytest
import typer

from siltstone.cli.options import converted
from siltstone.errors import UsageError
from tests.support.command_line import DATA

HERE = Path(DATA)


def test_a_complaint_of_a_parser_becomes_one_of_the_option() -> None:
    def refuse(text: str) -> int:
        raise UsageError(f"{text} is odd")

    with pytest.raises(typer.BadParameter) as caught:
        converted(refuse)("7")
    assert caught.value.message == "7 is odd"
    assert converted(int)("8") == 8
