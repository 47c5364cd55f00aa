"""The other end of an outbox: outboxes for tests, and a client that reads from them."""

from __future__ import annotations

from typing import Any

from siltstone.mqtt.splitter import PacketSplitter
from siltstone.mqtt.wire import Version
from siltstone.session.sending.delivery import Budget
from siltstone.session.sending.outbox import Outbox, Ready
from tests.support.packets import V5, Ack, Message, Raw, Refused, flat

PACKET_SIZE_MAX = 1 << 28
ALIAS_MAX = 65_535
PLENTY = 1 << 30


def make_outbox(
    *,
    ready: Ready | None = None,
    budget: Budget | None = None,
    messages_max: int = 1_000,
    bytes_max: int = PLENTY,
    drop_old: bool = True,
) -> Outbox:
    """Return an outbox with limits that tests do not reach by chance."""
    return Outbox(
        ready or Ready(lambda: None), budget or Budget(PLENTY), messages_max, bytes_max, drop_old
    )


class Receiver:
    """A connection of an outbox, seen from the client."""

    def __init__(
        self,
        outbox: Outbox,
        *,
        version: Version = V5,
        window: int = 100,
        packet_size_max: int = 0,
        buffer_max: int = PLENTY,
        alias_max: int = 0,
        now: float = 0.0,
    ) -> None:
        self._outbox = outbox
        self._splitter = PacketSplitter(PACKET_SIZE_MAX, from_server=True)
        self._splitter.begin(version, ALIAS_MAX)
        outbox.attach(version, window, packet_size_max, buffer_max, alias_max, now)

    def read(self) -> list[Message | Ack | Raw | Refused]:
        """Return what was written since the last call."""
        return flat(self._splitter.feed(self._outbox.take()))

    def messages(self) -> list[Message]:
        """Return the messages that were written since; nothing else may have been written."""
        items = self.read()
        found = [item for item in items if isinstance(item, Message)]
        assert found == items
        return found

    def payloads(self) -> list[bytes]:
        """Return the payloads of the messages that were written since."""
        return [message.payload for message in self.messages()]


def connected(**terms: Any) -> tuple[Outbox, Receiver]:
    """Return an outbox with its first connection."""
    outbox = make_outbox()
    return outbox, Receiver(outbox, **terms)


def reconnected(outbox: Outbox, **terms: Any) -> Receiver:
    """Return the next connection of an outbox."""
    outbox.detach()
    return Receiver(outbox, **terms)
