"""Requests of operators to count and clear retained messages.

Clients that subscribe later do not receive cleared messages. Current subscribers are not notified,
because nothing is published.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from siltstone.broker.broker import Broker
from siltstone.broker.retained.messages import Exchange, RetainedMessages
from siltstone.logs import log
from siltstone.manage.sessions import NameTopics
from siltstone.rows.batch import RETAIN
from siltstone.store.writer.ticket import Ticket
from siltstone.topic.grammar import TopicFilter

# Messages that one append clears, or steps of a search; other work of the loop runs in between.
STEP: Final = 1000


def clear_some(
    retained: RetainedMessages, topics: list[bytes]
) -> tuple[list[Exchange], Ticket | None]:
    """Clear topics; return the changes, and a ticket that is done when they are durable."""
    count = len(topics)
    receipt = retained.put(topics, [b""] * count, [RETAIN] * count, [], [], b"", "synced")
    changed = [exchange for exchange in receipt.exchanges if exchange.before is not None]
    return changed, receipt.ticket


class RetainedManagement:
    """Executes the requests, on the loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.deeds = {"clear-retained": self.clear, "count-retained": self.count}

    async def count(self, request: NameTopics) -> int:
        """Return how many messages match a filter."""
        return len(await self._topics(request))

    async def clear(self, request: NameTopics) -> int:
        """Clear the messages that match a filter; when this is on disk, return their number."""
        topics = await self._topics(request)
        cleared = 0
        for first in range(0, len(topics), STEP):
            cleared += await self._clear(topics[first : first + STEP])
        log(
            self._broker.log,
            logging.WARNING,
            "retained_messages_cleared",
            filter=request.filter,
            messages=cleared,
        )
        return cleared

    async def _topics(self, request: NameTopics) -> list[bytes]:
        """Return the matching topics, without values of the broker itself. Raises: UsageError."""
        topic_filter = TopicFilter.parse(request.filter)
        retained = self._broker.retained
        now_us = self._broker.clock.now_us()
        found: list[bytes] = []
        for number, message in enumerate(retained.walk(topic_filter)):
            if number % STEP == STEP - 1:
                # A message may have to be read from disk.
                await asyncio.sleep(0)
            if message is None or message.is_expired(now_us):
                continue
            if retained.is_kept(message.topic):
                found.append(message.topic)
        return sorted(found)

    async def _clear(self, topics: list[bytes]) -> int:
        changed, ticket = clear_some(self._broker.retained, topics)
        await until_stored(self._broker, ticket)
        return len(changed)


async def until_stored(broker: Broker, ticket: Ticket | None) -> None:
    """Wait until a change of retained messages is on disk; always yield to the loop.

    Raises: the error of the ticket, if the change could not be stored.
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
