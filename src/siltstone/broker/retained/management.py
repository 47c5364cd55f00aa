"""Retained messages, looked at and cleared for the people who run the broker.

Clients that subscribe later do not get what was cleared. Those that are subscribed hear nothing of
it, for nothing is published.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from siltstone.broker.broker import RETAIN, Broker
from siltstone.broker.retained.messages import Exchange, RetainedMessages
from siltstone.logs import log
from siltstone.store.writer.ticket import Ticket
from siltstone.topic.grammar import TopicFilter

# So many are cleared in one append, between which others have their turns.
STEP: Final = 1000


def clear_some(
    retained: RetainedMessages, topics: list[bytes]
) -> tuple[list[Exchange], Ticket | None]:
    """Clear topics; return what that changed, and when it is durable."""
    count = len(topics)
    receipt = retained.put(topics, [b""] * count, [RETAIN] * count, [], [], b"", "synced")
    changed = [exchange for exchange in receipt.exchanges if exchange.before is not None]
    return changed, receipt.ticket


class RetainedManagement:
    """Carries requests out, on the loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.deeds = {"clear-retained": self.clear, "count-retained": self.count}

    async def count(self, request: Mapping[str, Any]) -> int:
        """Return how many messages a filter has."""
        return len(self._topics(request))

    async def clear(self, request: Mapping[str, Any]) -> int:
        """Clear the messages of a filter; return how many there were, when all of it is on disk."""
        topics = self._topics(request)
        cleared = 0
        for first in range(0, len(topics), STEP):
            cleared += await self._clear(topics[first : first + STEP])
        log(
            self._broker.log,
            logging.WARNING,
            "retained_messages_cleared",
            filter=str(request["filter"]),
            messages=cleared,
        )
        return cleared

    def _topics(self, request: Mapping[str, Any]) -> list[bytes]:
        """Return the topics of a filter, without the broker's own values. Raises: UsageError."""
        topic_filter = TopicFilter.parse(str(request["filter"]))
        retained = self._broker.retained
        found = retained.find(topic_filter, self._broker.clock.now_us())
        return [message.topic for message in found if retained.is_kept(message.topic)]

    async def _clear(self, topics: list[bytes]) -> int:
        changed, ticket = clear_some(self._broker.retained, topics)
        await until_stored(self._broker, ticket)
        return len(changed)


async def until_stored(broker: Broker, ticket: Ticket | None) -> None:
    """Wait until a change of retained messages is on disk, and let others have their turns.

    Raises: what kept it from there.
    """
    if ticket is None:
        await asyncio.sleep(0)
        return
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ticket.on_done(lambda _: broker.shell.soon_from_thread(partial(done.set_result, None)))
    await done
    broker.retained.settled(ticket)
    if ticket.error is not None:
        raise ticket.error
