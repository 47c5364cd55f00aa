from __future__ import annotations

from pathlib import PurePath
from queue import SimpleQueue

import pytest

from siltstone.errors import ClosedError, StorageFullError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.publish import create_directories
from siltstone.store.kv.api import DEFAULT_FAMILY, Changes
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.shard.replicated.copying import CopyStaging, Offer
from siltstone.store.shard.replicated.kv import copying
from siltstone.store.shard.replicated.kv.copying import Exports, load
from siltstone.store.shard.replicated.mark_file import Marked
from siltstone.store.tx.commit.committer import Room
from siltstone.store.writer.replication.messages import LogIdentity
from siltstone.store.writer.replication.producers import Producers
from siltstone.store.writer.replication.rule import LogPosition

PLACE = PurePath("/m/0")
MARKED = Marked(
    position=LogPosition(identity=LogIdentity(database=b"d" * 16, shard=0, epoch=1)),
    producers=Producers(),
    next_serial=0,
)


def exports_of(fs: MemoryFileSystem, engine: MemoryEngine, room: Room | None = None) -> Exports:
    return Exports(fs, PLACE, engine, 0, room)


def offered(exports: Exports) -> Offer | None:
    answers: SimpleQueue[Offer | None] = SimpleQueue()
    exports.offer(MARKED, answers.put)
    return answers.get(timeout=20.0)


def test_an_offer_that_cannot_begin_does_not_prevent_the_next_one() -> None:
    fs, engine = MemoryFileSystem(), MemoryEngine()
    exports = exports_of(fs, engine)
    engine.closed = True
    with pytest.raises(ClosedError):
        offered(exports)
    engine.closed = False
    assert offered(exports) is not None


def test_an_offer_that_is_read_outlives_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(copying, "monotonic", lambda: now[0])
    fs = MemoryFileSystem()
    exports = exports_of(fs, MemoryEngine())
    first = offered(exports)
    assert first is not None
    for _ in range(3):
        now[0] += copying.OFFER_SECONDS
        exports.note_read(first.files[0].path)
        assert offered(exports) is not None
        assert fs.exists(PLACE / first.files[0].path)
    # The second one was never read.
    assert len(fs.list(PLACE)) == 2
    now[0] += copying.OFFER_SECONDS
    assert offered(exports) is not None
    assert not fs.exists(PLACE / first.files[0].path)
    assert len(fs.list(PLACE)) == 1


def test_an_offer_without_room_leaves_nothing_on_the_disk() -> None:
    fs, asked = MemoryFileSystem(), list[int]()

    def lacks(needed_bytes: int) -> StorageFullError | None:
        asked.append(needed_bytes)
        return None if len(asked) == 1 else StorageFullError(PLACE, needed_bytes=needed_bytes)

    exports = exports_of(fs, MemoryEngine(), lacks)
    assert offered(exports) is None
    assert len(asked) == 2
    assert fs.list(PLACE) == []


def test_a_copy_without_room_is_not_written_and_is_loaded_later() -> None:
    fs, source, target = MemoryFileSystem(), MemoryEngine(), MemoryEngine()
    source.create_family("0.1")
    changes = Changes()
    changes.put("0.1", b"key", b"value")
    source.write(changes)
    offer = offered(exports_of(fs, source))
    assert offer is not None
    staging = CopyStaging(fs, PLACE.parent, 0)
    copied = staging.place / offer.files[0].path
    create_directories(fs, copied.parent)
    with fs.create(copied) as file:
        file.write(fs.read(PLACE / offer.files[0].path))
    staging.commit(offer)
    full = StorageFullError(PLACE, needed_bytes=1)
    with pytest.raises(StorageFullError):
        load(fs, PLACE.parent, target, 0, lambda _: full)
    assert target.families() == [DEFAULT_FAMILY]
    load(fs, PLACE.parent, target, 0, lambda _: None)
    assert target.get("0.1", b"key") == b"value"
