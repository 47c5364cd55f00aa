"""A log in a list, and one site at it: for unit tests of replicated shards."""

from __future__ import annotations

from siltstone.store.writer.replication.actions import Action, PublishMessage
from siltstone.store.writer.replication.codec import encode
from siltstone.store.writer.replication.follower import Follower
from siltstone.store.writer.replication.messages import (
    Genesis,
    LogIdentity,
    MessageKind,
    ProducerCall,
    Term,
)
from siltstone.store.writer.replication.producers import Producers
from siltstone.store.writer.replication.rule import LogPosition
from siltstone.store.writer.replication.shard import ReplicatedShard

IDENTITY = LogIdentity(database=b"d" * 16, shard=0, epoch=1)
NONCE = b"n" * 16
GENESIS = encode(Genesis(IDENTITY, NONCE))
P, Q = b"p" * 16, b"q" * 16


def follower() -> Follower:
    return Follower(LogPosition(identity=IDENTITY), Producers())


def published(actions: list[Action]) -> list[bytes]:
    return [action.data for action in actions if isinstance(action, PublishMessage)]


def others(actions: list[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, PublishMessage)]


class OneSite:
    """A shard at site "a", boot 1, and a log that stores what a test wants."""

    def __init__(self, *, window: int = 4, part_bytes: int = 1000) -> None:
        self.log: list[bytes] = []
        self.shard = ReplicatedShard("a", 1, follower(), window=window, part_bytes=part_bytes)
        self.store(GENESIS)

    def store(self, data: bytes) -> list[Action]:
        """Store a message in the log, and let the site read it."""
        self.log.append(data)
        return self.shard.read(len(self.log), data)

    def term(self, site: str = "a", boot: int = 1) -> bytes:
        """Return the next TERM, for any site."""
        position = self.shard.position
        return encode(
            Term(epoch=1, term=position.term + 1, root=position.root, site=site, boot=boot)
        )

    def lead(self) -> OneSite:
        self.store(self.term())
        return self

    def call(self, request: int, number: int, previous: int, producer: bytes = P) -> list[bytes]:
        """Admit one call and publish it; return what was published."""
        self.shard.admit(request, ProducerCall(producer=producer, number=number, previous=previous))
        return published(self.shard.freeze(MessageKind.ROWS, b"row"))
