from __future__ import annotations

from siltstone.bridge.dead_letters import DeadLetters
from siltstone.bridge.entries import decode_entry
from siltstone.client.outgoing import Publication
from siltstone.fs.memory import MemoryFileSystem
from tests.support.links import DEAD, rows, spool_on


def test_a_refused_message_is_a_file_with_its_reason_beside_it() -> None:
    fs = MemoryFileSystem()
    spool = spool_on(fs)
    letters = DeadLetters(fs, DEAD, spool)
    path = letters.put(Publication(topic=b"a/b", qos=1, retain=True), b"xy", "refused", 42)
    assert path == DEAD / "0.publish"
    assert rows(decode_entry(fs.read(path), path)) == [(b"a/b", b"xy", 5)]
    assert fs.read(DEAD / "0.publish.reason.txt") == (
        b"refused\ntopic=a/b qos=1 retain=True size_bytes=2 time_us=42\n"
    )
    assert list(spool) == []


def test_an_entry_that_cannot_be_read_is_moved_as_it_is() -> None:
    fs = MemoryFileSystem()
    spool = spool_on(fs)
    entry = spool.store(b"data", "m")
    raw = fs.read(spool.path_of(entry))
    path = DeadLetters(fs, DEAD, spool).put_damaged(entry, "damaged")
    assert (path, fs.read(path), list(spool)) == (DEAD / "0-m", raw, [])
    assert fs.read(DEAD / "0-m.reason.txt") == b"damaged\n"
