"""What a client keeps to itself: which topics it reads, how far it is, and whose turn it is.

Nothing of it is known to the server; what shall outlive the client is committed. Messages come in
batches and are handed out one of each topic in turn, so that no topic waits behind a long one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from siltstone.errors import NotFoundError, UsageError
from siltstone.topiclog.protocol import Place, decode_batches
from siltstone.topiclog.tables import offsets_of_table, values_at


@dataclass(frozen=True, slots=True)
class Message:
    """One message, and where it stands."""

    topic: str
    offset: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Messages of one topic that follow each other; value i is data[ends[i] : ends[i + 1]]."""

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
        """The offset behind the last message."""
        return self.first_offset + len(self)

    def message(self, number: int) -> Message:
        """Return a message by its place in the batch."""
        value = bytes(self.data[self.ends[number] : self.ends[number + 1]])
        return Message(self.topic, self.first_offset + number, value)

    def values(self) -> list[bytes]:
        """Return what all messages say."""
        return values_at(self.ends, self.data)


class Subscription:
    """Positions in some topics, and what was fetched and not yet handed out."""

    def __init__(self, positions: dict[str, int]) -> None:
        self._positions = positions
        # In the order of their turns: the first is next.
        self._turns = deque(positions)
        self._held: dict[str, deque[Batch]] = {topic: deque() for topic in positions}
        # How many messages of the first batch that is held were handed out.
        self._taken = dict.fromkeys(positions, 0)

    @property
    def topics(self) -> list[str]:
        """The topics, as they were given."""
        return list(self._positions)

    def position(self, topic: str) -> int:
        """Return the offset of the message that comes next. Raises: NotFoundError."""
        self._check(topic)
        return self._positions[topic]

    def seek(self, topic: str, offset: int) -> None:
        """Go on from another offset. Raises: NotFoundError, UsageError."""
        self._check(topic)
        if offset < 0:
            raise UsageError(f"offset must be 0 or more, got {offset}")
        self._positions[topic] = offset
        self._held[topic].clear()
        self._taken[topic] = 0

    def places(self) -> tuple[Place, ...]:
        """Return from where to fetch: the topics of which nothing is held, in their turns."""
        return tuple(
            Place(topic=topic, offset=self._positions[topic])
            for topic in self._turns
            if not self._held[topic]
        )

    def place_ahead(self) -> Place | None:
        """Return from where the one topic goes on behind what is held; None of several, whose
        turns are not known before.
        """
        if len(self._turns) != 1:
            return None
        topic = self._turns[0]
        held = self._held[topic]
        return Place(topic=topic, offset=held[-1].next_offset) if held else None

    def take_in(self, places: Sequence[Place], payload: memoryview) -> None:
        """Keep what a fetch brought. Raises: ProtocolError."""
        for head, table, data in decode_batches(payload):
            topic = places[head.place].topic
            if not self._held[topic] and head.first != self._positions[topic]:
                # What was asked for is gone, or was never there: it goes on where the log says.
                self._positions[topic] = head.first
            if head.count:
                batch = Batch(
                    topic=topic,
                    first_offset=head.first,
                    ends=offsets_of_table(table),
                    data=data,
                )
                self._held[topic].append(batch)

    def next_message(self) -> Message | None:
        """Hand out the next message of the topic whose turn it is; None where nothing is held."""
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

    def next_batch(self) -> Batch | None:
        """Hand out the rest of a batch of the topic whose turn it is; None where none is held."""
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
        return Batch(
            topic=topic,
            first_offset=batch.first_offset + taken,
            ends=[end - start for end in batch.ends[taken:]],
            data=batch.data[start:],
        )

    def _skip_gap(self, topic: str) -> None:
        """Pass over what damage has taken between two batches."""
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
