from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from siltstone.errors import OverloadedError, UsageError
from siltstone.fs.api import EntryKind
from siltstone.fs.memory import MemoryFileSystem
from siltstone.scan.ingest.columns import Given, rows_of, store_columns
from siltstone.scan.ingest.staging import Append, Staging, StagingResult, WriteBatch
from siltstone.store.writer.ticket import Ticket
from tests.support.builders import PATH

FIRST, SECOND = WriteBatch(write="w", number=0), WriteBatch(write="w", number=1)


@dataclass
class Taken:
    """Takes appends as the store would: a sequence that a producer has used is not stored again."""

    rows: list[tuple[bytes, bytes]] = field(default_factory=list)
    calls: list[tuple[str, int]] = field(default_factory=list)
    left: int = 1000

    def append(self, rows: pa.RecordBatch, producer: tuple[str, int]) -> Ticket:
        if self.left == 0:
            raise OverloadedError("the batch is too large, write smaller batches: pieces")
        self.left -= 1
        if producer not in self.calls:
            columns = store_columns(rows)
            self.rows += zip(columns.topics, columns.values, strict=True)
        self.calls.append(producer)
        return Ticket(rows.num_rows, 0, waits=True)


def staging() -> tuple[MemoryFileSystem, Staging]:
    fs = MemoryFileSystem()
    return fs, Staging(fs, PATH)


def rows(*payloads: bytes) -> list[pa.RecordBatch]:
    """Return an append for each payload."""
    return [
        part
        for payload in payloads
        for part in rows_of(
            pa.RecordBatch.from_pydict({"topic": ["t"], "payload": [payload]}), Given()
        )
    ]


def staged(area: Staging, batch: WriteBatch, *payloads: bytes) -> str:
    name = area.stage(batch, rows(*payloads))
    assert name is not None
    return name


def files(fs: MemoryFileSystem) -> list[str]:
    found: list[str] = []
    todo = [PATH]
    while todo:
        path = todo.pop()
        for entry in fs.list(path):
            if entry.kind is EntryKind.DIRECTORY:
                todo.append(path / entry.name)
            else:
                found.append(entry.name)
    return sorted(found)


def append_of(taken: Taken) -> Append:
    return taken.append


def test_what_was_staged_is_appended_in_the_order_of_its_names() -> None:
    fs, area = staging()
    names = [staged(area, FIRST, b"1", b"2"), staged(area, FIRST, b"3")]
    staged(area, FIRST, b"of a task that was done twice")
    taken = Taken()
    assert area.commit(FIRST, names, append_of(taken)) == StagingResult(rows=3, repeated=False)
    assert taken.rows == [(b"t", b"1"), (b"t", b"2"), (b"t", b"3")]
    assert taken.calls == [("w", 0), ("w", 1), ("w", 2)]
    assert files(fs) == ["committed"]


def test_a_batch_that_was_committed_is_not_appended_again() -> None:
    fs, area = staging()
    taken = Taken()
    area.commit(FIRST, [staged(area, FIRST, b"1")], append_of(taken))
    again = [staged(area, FIRST, b"0"), staged(area, FIRST, b"1")]
    assert area.commit(FIRST, again, append_of(taken)) == StagingResult(rows=0, repeated=True)
    assert taken.rows == [(b"t", b"1")]
    assert files(fs) == ["committed"]


def test_the_sequences_of_batches_rise() -> None:
    _, area = staging()
    taken = Taken()
    for batch in (FIRST, SECOND):
        area.commit(batch, [staged(area, batch, b"%d" % batch.number)], append_of(taken))
    assert taken.calls == [("w", 0), ("w", 1 << 24)]


def test_a_commit_that_failed_goes_on_with_the_files_of_the_first() -> None:
    fs, area = staging()
    taken = Taken(left=1)
    first = [staged(area, FIRST, b"1", b"2")]
    with pytest.raises(OverloadedError):
        area.commit(FIRST, first, append_of(taken))
    area.discard(FIRST, first)
    taken.left = 1000
    again = [staged(area, FIRST, b"2", b"1")]
    assert area.commit(FIRST, again, append_of(taken)) == StagingResult(rows=2, repeated=False)
    assert taken.rows == [(b"t", b"1"), (b"t", b"2")]
    assert files(fs) == ["committed"]


def test_what_was_staged_and_is_not_wanted_is_removed() -> None:
    fs, area = staging()
    name = staged(area, FIRST, b"1")
    area.discard(FIRST, [name])
    area.discard(FIRST, [name])
    assert files(fs) == []


def test_a_write_that_is_forgotten_leaves_nothing() -> None:
    fs, area = staging()
    taken = Taken()
    area.commit(FIRST, [staged(area, FIRST, b"1")], append_of(taken), forget=True)
    assert (taken.rows, files(fs)) == ([(b"t", b"1")], [])


def test_no_rows_are_no_file_and_no_trace() -> None:
    fs, area = staging()
    fs.make_directory(PATH)
    assert area.stage(FIRST, []) is None
    assert area.commit(FIRST, [], append_of(Taken())) == StagingResult(rows=0, repeated=False)
    assert files(fs) == []


@pytest.mark.parametrize("name", ["../x.arrow", "x", "0" * 32, "/etc/passwd"])
def test_a_name_that_no_task_was_given_is_refused(name: str) -> None:
    _, area = staging()
    with pytest.raises(UsageError, match="invalid name of a staged file: name"):
        area.commit(FIRST, [name], append_of(Taken()))


def test_a_batch_has_a_name_and_a_number() -> None:
    with pytest.raises(UsageError, match="must have a name"):
        WriteBatch(write="", number=0)
    with pytest.raises(UsageError, match="out of range: batch=-1"):
        WriteBatch(write="w", number=-1)
