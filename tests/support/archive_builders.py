"""Archives in memory, and session states to store in them: complete, random and manual ones."""

from __future__ import annotations

from dataclasses import asdict

from hypothesis import strategies as st

from siltstone.session.archive.records import (
    NEVER_EXPIRES,
    NOT_STORED,
    RELEASED,
    SavedGroup,
    SavedInflight,
    SavedMessage,
    SavedReceived,
    SavedSession,
    SavedSubscription,
    SavedWill,
    SerialRange,
)
from siltstone.session.archive.store import ARCHIVE_SETTINGS, SessionArchive
from siltstone.store.feed.position import Position
from siltstone.store.slab.identity import DatabaseIdentity
from tests.support.tx_builders import World

SECOND_US = 1_000_000

WHOLE = SavedSession(
    client_id="client/1",
    user="ann",
    version=4,
    expiry_seconds=3600,
    connected=False,
    unclean=True,
    run=7,
    away_since_us=5 * SECOND_US,
    will=SavedWill(
        topic=b"will",
        payload=b"gone",
        qos=2,
        retain=True,
        properties=b"\x01\x01",
        delay_seconds=60,
        expiry_seconds=5,
    ),
    dropped=3,
    subscriptions=(
        SavedSubscription(filter="$share/g/a/+", qos=1, identifier=9, since=Position({0: 4})),
        SavedSubscription(
            filter="b/#", qos=2, no_local=True, retain_as_published=True, retain_handling=2
        ),
    ),
    position=Position({0: 10, 3: 1 << 40}, "5eed"),
    done=(SerialRange(0, 12, 15), SerialRange(3, 1 << 41, 1 << 42)),
    inflight=(
        SavedInflight(2, 0, 10, 1),
        SavedInflight(3, NOT_STORED, 0, 1),
        SavedInflight(1, 3, 1 << 40, 2 | RELEASED),
    ),
    next_packet_id=4,
    received=(SavedReceived(5), SavedReceived(65_535, 1 << 63, 7)),
    extra=(SavedMessage(3, b"r", b"retained", 5, b"\x01\x01", 4 * SECOND_US),),
)
GROUP = SavedGroup(
    name="g",
    filter="a/+",
    strategy="sticky",
    expiry_seconds=60,
    created_us=1,
    empty_since_us=2 * SECOND_US,
    since=Position({0: 4}),
    position=Position({0: 10}, "5eed"),
    done=(SerialRange(0, 11, 12),),
)


class ArchiveWorld(World):
    """A clock, an engine, and an archive on it."""

    def __init__(self, *, shards: int = 1, origin: DatabaseIdentity | None = None) -> None:
        super().__init__(**asdict(ARCHIVE_SETTINGS) | {"shards": shards})
        self.archive = SessionArchive(self.database, self.clock, origin)

    def restart(self, origin: DatabaseIdentity | None = None) -> SessionArchive:
        """Open the state that a broker finds after this one was killed."""
        self.crash()
        self.archive = SessionArchive(self.database, self.clock, origin)
        return self.archive

    def topics(self, topic_filter: str = "#") -> list[str]:
        """Return the topics of the stored rows."""
        return [topic for topic, _, _ in self.rows(topic_filter)]


def away(
    client_id: str, *filters: str, since: int = 1, expiry: int = NEVER_EXPIRES
) -> SavedSession:
    """Return a session that has been away for this many seconds, with QoS 1 subscriptions."""
    return SavedSession(
        client_id=client_id,
        expiry_seconds=expiry,
        away_since_us=since * SECOND_US,
        subscriptions=tuple(SavedSubscription(filter=text, qos=1) for text in filters),
    )


_u8 = st.integers(0, 255)
_u16 = st.integers(0, 65_535)
_u32 = st.integers(0, (1 << 32) - 1)
_u64 = st.integers(0, (1 << 64) - 1)
_texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
_bytes = st.binary(max_size=20)
places = st.dictionaries(_u32, _u64, max_size=3).map(Position)
ranges = st.lists(st.builds(SerialRange, _u32, _u64, _u64), max_size=3).map(tuple)
wills = st.builds(
    SavedWill,
    topic=_bytes,
    payload=_bytes,
    qos=st.integers(0, 2),
    retain=st.booleans(),
    properties=_bytes,
    delay_seconds=_u32,
    expiry_seconds=st.none() | _u32,
)
subscriptions = st.builds(
    SavedSubscription,
    filter=_texts,
    qos=st.integers(0, 2),
    no_local=st.booleans(),
    retain_as_published=st.booleans(),
    retain_handling=st.integers(0, 2),
    identifier=_u32,
    since=places,
)
inflight = st.lists(st.builds(SavedInflight, _u16, _u32, _u64, _u8), max_size=4).map(tuple)
# Encoded properties: none, a content type, a user property; no invalid bytes.
_properties = st.sampled_from([b"", b"\x03\x00\x01a", b"\x26\x00\x01k\x00\x01v"])
messages = st.builds(SavedMessage, _u16, _bytes, _bytes, _u8, _properties, _u64)
metas = st.builds(
    SavedSession,
    client_id=_texts,
    user=_texts,
    version=_u8,
    expiry_seconds=_u32,
    connected=st.booleans(),
    unclean=st.booleans(),
    run=_u64,
    away_since_us=st.none() | _u64,
    will=st.none() | wills,
    dropped=_u64,
)
groups = st.builds(
    SavedGroup,
    name=_texts,
    filter=_texts,
    strategy=_texts,
    expiry_seconds=_u32,
    created_us=_u64,
    empty_since_us=st.none() | _u64,
    since=places,
)
received = st.lists(st.builds(SavedReceived, _u16, _u64, _u32), max_size=5).map(tuple)
revisions = _u64
packet_ids = _u16
