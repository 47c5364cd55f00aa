"""Snapshots for tests: records of every kind, strategies of states, a disk to keep them on."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import PurePath

from hypothesis import strategies as st

from siltstone.clock import ManualClock
from siltstone.fs.api import File, FileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.snapshot.directory import KEEP, Loaded, SnapshotDirectory
from siltstone.snapshot.format.contents import BoundedContents, ContentsInMemory
from siltstone.snapshot.format.records import (
    About,
    FilePart,
    Handshakes,
    KeyValueFamily,
    KeyValuePair,
    LearnedStructure,
    QueuedMessage,
    ReaderPosition,
    Record,
    RetainedMessage,
    SessionState,
    StoredFile,
    SubscriptionState,
    WaitingWill,
)
from siltstone.snapshot.loader import SnapshotReader
from siltstone.snapshot.writer import write_snapshot

DIRECTORY = PurePath("/snapshots")
QUARANTINE = PurePath("/quarantine")
ABOUT = About(serial=7, created_us=1_700_000_000_000_000, source="broker", writer="siltstone 1")


def in_memory(memory_max: int = 1 << 40) -> BoundedContents:
    """Return contents for which there is so much memory; beyond it they are in a file."""
    create = partial(MemoryFileSystem().create, PurePath("/contents"))
    return BoundedContents(memory_max, create)


def retained(topic: str, payload: bytes) -> RetainedMessage:
    return RetainedMessage(
        topic=topic.encode(),
        payload=payload,
        flags=5,
        properties=b"",
        stored_us=1,
        expires_us=0,
        publisher=b"p",
    )


def session(client_id: str) -> SessionState:
    return SessionState(client_id=client_id, user="", expiry_seconds=60, last_active_us=5)


def subscription(text: str) -> SubscriptionState:
    return SubscriptionState(
        filter=text,
        qos=1,
        no_local=False,
        retain_as_published=False,
        retain_handling=0,
        identifier=0,
    )


def queued(topic: str, payload: bytes, *, packet_id: int = 0) -> QueuedMessage:
    return QueuedMessage(
        topic=topic.encode(),
        payload=payload,
        flags=1,
        properties=b"",
        expires_us=0,
        packet_id=packet_id,
    )


# One record of every kind, in a legal order.
EVERY_KIND: tuple[Record, ...] = (
    retained("plant/é", b"hot"),
    session("c1"),
    SubscriptionState(
        filter="$share/g/plant/+",
        qos=2,
        no_local=True,
        retain_as_published=False,
        retain_handling=1,
        identifier=268_435_455,
    ),
    queued("plant/é", b"hot", packet_id=65_535),
    Handshakes(received=(1, 65_535), released=()),
    WaitingWill(topic=b"gone", payload=b"", flags=6, properties=b"\x01\x01", due_us=9),
    ReaderPosition(owner="spark", name="messages", value=b"\0\xff"),
    LearnedStructure(
        database="messages",
        shard=1,
        generation=2,
        stream_id=2**64 - 1,
        pattern="plant/+",
        rows=3,
    ),
    StoredFile(path="data/messages/manifest", size_bytes=2**40),
    FilePart(offset=4096, data=b"frames"),
    KeyValueFamily(database="kv/sessions", family="default"),
    KeyValuePair(key=b"", value=b"frames"),
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# Few distinct payloads, so that many are equal, and some random ones.
payloads = st.one_of(st.sampled_from([b"", b"a", b"b" * 3000]), st.binary(max_size=40))
times = st.integers(-(2**63), 2**63 - 1)
packet_ids = st.integers(0, 65_535)
_message = {
    "topic": texts.map(str.encode),
    "payload": payloads,
    "flags": st.integers(0, 7),
    "properties": payloads,
}
retained_messages = st.builds(
    RetainedMessage,
    **_message,
    stored_us=times,
    expires_us=times,
    publisher=texts.map(str.encode),
)
_parts: st.SearchStrategy[Record] = st.one_of(
    st.builds(
        SubscriptionState,
        filter=texts,
        qos=st.integers(0, 2),
        no_local=st.booleans(),
        retain_as_published=st.booleans(),
        retain_handling=st.integers(0, 2),
        identifier=st.integers(0, 268_435_455),
    ),
    st.builds(QueuedMessage, **_message, expires_us=times, packet_id=packet_ids),
    st.builds(
        Handshakes,
        received=st.lists(packet_ids, max_size=5).map(tuple),
        released=st.lists(packet_ids, max_size=5).map(tuple),
    ),
    st.builds(WaitingWill, **_message, due_us=times),
)
_sessions: st.SearchStrategy[list[Record]] = st.builds(
    lambda first, rest: [first, *rest],
    st.builds(
        SessionState,
        client_id=texts,
        user=texts,
        expiry_seconds=st.integers(0, 2**32 - 1),
        last_active_us=times,
    ),
    st.lists(_parts, max_size=8),
)
states: st.SearchStrategy[list[Record]] = st.builds(
    lambda messages, sessions: [*messages, *(part for each in sessions for part in each)],
    st.lists(retained_messages, max_size=5),
    st.lists(_sessions, max_size=5),
)


class ListSink:
    """Records what it receives."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def apply(self, record: Record) -> None:
        self.records.append(record)


def written(records: Iterable[Record], about: About = ABOUT) -> tuple[MemoryFileSystem, PurePath]:
    """Return a disk with one snapshot of these records."""
    fs, path = MemoryFileSystem(), PurePath("/x.gz")
    with fs.create(path) as file:
        write_snapshot(file, about, records)
    return fs, path


def opened(data: bytes) -> File:
    """Return an open file with these bytes."""
    fs, path = MemoryFileSystem(), PurePath("/x.gz")
    with fs.create(path) as file:
        file.write(data)
    return fs.open(path, writable=False)


def bytes_of(records: Iterable[Record]) -> bytes:
    """Return a snapshot of these records."""
    fs, path = written(records)
    return fs.read(path)


def records_in(file: File) -> list[Record]:
    return list(SnapshotReader(file, ContentsInMemory()).records())


def keeper_on(
    fs: FileSystem, *, keep: int = KEEP, clock: ManualClock | None = None
) -> SnapshotDirectory:
    return SnapshotDirectory(fs, clock or ManualClock(), DIRECTORY, QUARANTINE, keep=keep)


def loaded(fs: FileSystem, *, allow_empty: bool = False) -> tuple[list[Record], Loaded]:
    """Load as a start does, and release the directory."""
    keeper = keeper_on(fs)
    sink = ListSink()
    try:
        result = keeper.load(sink, ContentsInMemory(), allow_empty=allow_empty)
    finally:
        keeper.close()
    return sink.records, result


def names_in(fs: FileSystem, directory: PurePath = DIRECTORY) -> list[str]:
    return [entry.name for entry in fs.list(directory)]
