"""The state of a subscription in the client: its topics, its positions, and whose turn is next.

The server does not know this state; a position that must outlive the client has to be committed.
Messages arrive in batches and are returned from each topic in turn, so that no topic waits for
another one with many messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from siltstone.errors import NotFoundError, UsageError
from siltstone.topiclog.protocol import FetchPlace, decode_batches
from siltstone.topiclog.tables import offsets_of_table, values_at


@dataclass(frozen=True, slots=True)
class Message:
    """One message, with its topic and offset."""

    topic: str
    offset: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageBatch:
    """Consecutive messages of one topic; value i is data[ends[i] : ends[i + 1]]."""

    topic: str
    first_offset: int
    ends: Sequence[int]
    data: memoryview

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.ends) - 1

    def __iter__(self) -> Iterator[Message]:
        """Yield the messages one by one."""
        for number in range(len(self)):
            yield self.message(number)

    @property
    def next_offset(self) -> int:
        """The offset after the last message."""
        return self.first_offset + len(self)

    def message(self, number: int) -> Message:
        """Return a message by its index in the batch."""
        value = bytes(self.data[self.ends[number] : self.ends[number + 1]])
        return Message(self.topic, self.first_offset + number, value)

    def values(self) -> list[bytes]:
        """Return the values of all messages."""
        return values_at(self.ends, self.data)


class TopicReader:
    """Positions in some topics, and the messages that were fetched and not yet returned."""

    def __init__(self, positions: dict[str, int]) -> None:
        self._positions = positions
        # The topics in the order of their turns: the first is next.
        self._turns = deque(positions)
        self._held: dict[str, deque[MessageBatch]] = {topic: deque() for topic in positions}
        # How many messages of the first held batch were returned.
        self._taken = dict.fromkeys(positions, 0)

    @property
    def topics(self) -> list[str]:
        """The topics, in the order in which they were given."""
        return list(self._positions)

    def position(self, topic: str) -> int:
        """Return the offset of the next message. Raises: NotFoundError."""
        self._check(topic)
        return self._positions[topic]

    def seek(self, topic: str, offset: int) -> None:
        """Continue at another offset. Raises: NotFoundError, UsageError."""
        self._check(topic)
        if not 0 <= offset < 1 << 64:
            raise UsageError(f"offset must be from 0 to 2**64 - 1, got {offset}")
        self._positions[topic] = offset
        self._held[topic].clear()
        self._taken[topic] = 0

    def places(self) -> tuple[FetchPlace, ...]:
        """Return the places to fetch from: topics without held messages, in the order of turns."""
        return tuple(
            FetchPlace(topic=topic, offset=self._positions[topic])
            for topic in self._turns
            if not self._held[topic]
        )

    def place_ahead(self) -> FetchPlace | None:
        """Return the place after the held messages of the only topic; None if there are several
        topics, because their turns are not known in advance.
        """
        if len(self._turns) != 1:
            return None
        topic = self._turns[0]
        held = self._held[topic]
        return FetchPlace(topic=topic, offset=held[-1].next_offset) if held else None

    def take_in(self, places: Sequence[FetchPlace], payload: memoryview) -> None:
        """Add the batches of a fetch reply. Raises: ProtocolError."""
        for head, table, data in decode_batches(payload):
            topic = places[head.place].topic
            if not self._held[topic] and head.first != self._positions[topic]:
                # The requested offset was dropped or never existed: continue where the log says.
                self._positions[topic] = head.first
            if head.count:
                batch = MessageBatch(
                    topic=topic,
                    first_offset=head.first,
                    ends=offsets_of_table(table),
                    data=data,
                )
                self._held[topic].append(batch)

    def next_message(self) -> Message | None:
        """Return the next message of the topic whose turn it is; None if no messages are held."""
        topic = self._next_topic()
        if topic is None:
            return None
        batch = self._held[topic][0]
        message = batch.message(self._taken[topic])
        self._taken[topic] += 1
        self._positions[topic] = message.offset + 1
        if self._taken[topic] == len(batch):
            self._held[topic].popleft()
            self._taken[topic] = 0
            self._skip_gap(topic)
        return message

    def next_batch(self) -> MessageBatch | None:
        """Return the rest of a batch of the topic whose turn it is; None if nothing is held."""
        topic = self._next_topic()
        if topic is None:
            return None
        batch = self._held[topic].popleft()
        taken, self._taken[topic] = self._taken[topic], 0
        self._positions[topic] = batch.next_offset
        self._skip_gap(topic)
        if not taken:
            return batch
        start = batch.ends[taken]
        return MessageBatch(
            topic=topic,
            first_offset=batch.first_offset + taken,
            ends=[end - start for end in batch.ends[taken:]],
            data=batch.data[start:],
        )

    def _skip_gap(self, topic: str) -> None:
        """Skip offsets that were lost to damage between two batches."""
        if self._held[topic]:
            self._positions[topic] = self._held[topic][0].first_offset

    def _next_topic(self) -> str | None:
        for _ in range(len(self._turns)):
            topic = self._turns[0]
            self._turns.rotate(-1)
            if self._held[topic]:
                return topic
        return None

    def _check(self, topic: str) -> None:
        if topic not in self._positions:
            raise NotFoundError(f"the client has not subscribed to topic {topic!r}")
