"""The parts of a link for tests: threads that run at once, manual batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import TypeVar

from siltstone.bridge.settings import LinkTopic
from siltstone.bridge.threads import Threads
from siltstone.fs.api import FileSystem
from siltstone.mqtt.publish import PublishBatch
from siltstone.spool import Spool, ensure

Value = TypeVar("Value")

SPOOL, DEAD = PurePath("/data/spool/peer"), PurePath("/data/spool/peer.dead")
OUT = (LinkTopic(pattern="#", qos=2),)


class NoThreads(Threads):
    """Runs all work at once, in the thread of the caller."""

    def __init__(self) -> None:
        pass

    def act(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        work()
        then()

    async def run(self, work: Callable[[], Value]) -> Value:
        return work()

    def close(self) -> None:
        pass


def batch_of(*messages: tuple[str, bytes, int], properties: bytes = b"") -> PublishBatch:
    """Return messages by topic, payload and flags."""
    made = PublishBatch()
    for number, (topic, payload, flags) in enumerate(messages, 1):
        made.topics.append(topic.encode())
        made.values.append(payload)
        made.flags.append(flags)
        made.packet_ids.append(number if flags & 3 else 0)
        if properties:
            made.properties.append(properties)
    return made


def rows(batch: PublishBatch) -> list[tuple[bytes, bytes, int]]:
    """Return topic, payload and flags of the messages of a batch."""
    return list(zip(batch.topics, batch.values, batch.flags, strict=True))


def spool_on(fs: FileSystem) -> Spool:
    """Return the open spool of a link."""
    return ensure(SPOOL, fs=fs)
