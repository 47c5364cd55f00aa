from __future__ import annotations

from pathlib import Path

import pytest
import typer

from siltstone.cli.options import converted, open_reading, open_writing, parse_slab
from siltstone.errors import LockedError, UsageError
from siltstone.store.manifest import SlabId
from tests.support.command_line import DATA, CommandLine

HERE = Path(DATA)


def test_a_complaint_of_a_parser_becomes_one_of_the_option() -> None:
    def refuse(text: str) -> int:
        raise UsageError(f"{text} is odd")

    with pytest.raises(typer.BadParameter) as caught:
        converted(refuse)("7")
    assert caught.value.message == "7 is odd"
    assert converted(int)("8") == 8


def test_a_slab_is_written_as_it_is_shown() -> None:
    assert parse_slab("3/17") == SlabId(3, 17)
    assert parse_slab(str(SlabId(0, 1))) == SlabId(0, 1)


@pytest.mark.parametrize("text", ["", "1", "1/", "/1", "1/2/3", "-1/2", "a/b", "1.5/2", "²/1"])
def test_what_is_no_slab_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_slab(text)
    assert str(caught.value) == (
        f"{text!r} is no slab; write SHARD/GENERATION, as 'siltstone slabs' does"
    )


def test_a_missing_directory_is_neither_read_nor_created(siltstone: CommandLine) -> None:
    for opened in (open_reading, open_writing):
        with pytest.raises(UsageError) as caught:
            opened(HERE)
        assert str(caught.value) == (
            "there is no Siltstone data directory at /data; "
            "name one with --data, or begin one with 'siltstone db create'"
        )
    assert not siltstone.fs.exists(DATA)


def test_a_directory_that_is_being_written_can_be_read_but_not_written(
    siltstone: CommandLine,
) -> None:
    siltstone.create("metrics")
    with siltstone.store():
        with open_reading(HERE) as reading:
            assert (reading.read_only, reading.names()) == (True, ["metrics"])
        with pytest.raises(LockedError):
            open_writing(HERE)
    with open_writing(HERE) as writing:
        assert (writing.read_only, writing.names()) == (False, ["metrics"])
