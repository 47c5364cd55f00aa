from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.errors import CorruptionError
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.fs.publish import create_directories
from siltstone.store.shard.replicated.mark_file import (
    Marked,
    decode_marked,
    encode_marked,
    mark_path,
    read_mark,
    write_mark,
)
from siltstone.store.writer.replication.messages import (
    LogIdentity,
    MessageKind,
    ProducerCall,
    RecordChange,
)
from siltstone.store.writer.replication.producers import Producers
from siltstone.store.writer.replication.rule import LogPosition

DATABASE = PurePath("/store/data/m")


def marked(index: int = 5) -> Marked:
    producers = Producers()
    call = ProducerCall(producer=b"p" * 16, number=9, previous=8)
    producers.count(RecordChange(kind=MessageKind.ROWS, calls=(call,), payload=b""))
    position = LogPosition(
        identity=LogIdentity(database=b"d" * 16, shard=3, epoch=1),
        sequence=index + 1,
        marked=index + 1,
        term=2,
        site="a",
        boot=4,
        index=index,
    )
    return Marked(position=position, producers=producers, next_serial=17)


def same(one: Marked, other: Marked) -> bool:
    return encode_marked(one) == encode_marked(other)


def files() -> MemoryFileSystem:
    made = MemoryFileSystem()
    create_directories(made, DATABASE)
    return made


def test_a_mark_is_read_as_it_was_written() -> None:
    disk = files()
    write_mark(disk, DATABASE, 3, marked())
    found = read_mark(disk.crash_clone(), DATABASE, 3)
    assert found is not None
    assert found.position == marked().position
    assert found.producers.last(b"p" * 16) == 9
    assert found.next_serial == 17


def test_a_shard_that_was_never_marked_has_no_mark() -> None:
    assert read_mark(files(), DATABASE, 3) is None


@pytest.mark.parametrize("operations", range(12))
def test_a_power_cut_at_any_step_leaves_a_whole_mark(operations: int) -> None:
    disk = files()
    write_mark(disk, DATABASE, 3, marked(5))
    disk.operations_left = operations
    try:
        write_mark(disk, DATABASE, 3, marked(6))
        written = True
    except PowerCut:
        written = False
    found = read_mark(disk.crash_clone(), DATABASE, 3)
    assert found is not None
    assert same(found, marked(6)) or (not written and same(found, marked(5)))


def test_any_changed_byte_is_found() -> None:
    data, path = encode_marked(marked()), mark_path(DATABASE, 3)
    for at in range(len(data)):
        broken = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(CorruptionError):
            decode_marked(broken, path)
    with pytest.raises(CorruptionError):
        decode_marked(data[:-1], path)
