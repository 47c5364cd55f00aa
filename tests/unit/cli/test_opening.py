from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.cli.opening import note_recovery, open_reading, open_writing
from siltstone.errors import LockedError, UsageError
from siltstone.store.database import Database
from siltstone.store.shard.shard import LEADING
from siltstone.store.shard.shards import Shards
from tests.support.command_line import DATA, CommandLine

HERE = Path(DATA)


def test_a_missing_directory_is_neither_read_nor_created(siltstone: CommandLine) -> None:
    for opened in (open_reading, open_writing):
        with pytest.raises(UsageError) as caught:
            opened(HERE)
        assert str(caught.value) == (
            "no Siltstone data directory at /data; "
            "name one with --data, or create one with 'siltstone serve' or 'siltstone db create'"
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


def test_a_torn_end_is_told_and_a_whole_one_is_not(
    siltstone: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    siltstone.create("metrics")
    (segment,) = (
        DATA / "data/metrics/0/1" / entry.name
        for entry in siltstone.fs.list(DATA / "data/metrics/0/1")
    )

    def reopened() -> str:
        shards = Shards(siltstone.fs, siltstone.clock, DATA / "data/metrics", LEADING)
        database = Database(shards)
        note_recovery(database)
        database.close()
        return capsys.readouterr().err

    assert reopened() == ""
    with siltstone.fs.open(segment, writable=True) as file:
        end = next(
            offset for offset in range(4096, file.size(), 64) if not any(file.read_at(offset, 64))
        )
        file.write_at(end, b"torn" * 16)
    note_of_tear = reopened()
    assert note_of_tear.startswith("siltstone: recovery removed ")
    assert note_of_tear.endswith(" bytes of an incomplete write: database=metrics slab=0/1\n")
    assert reopened() == ""
