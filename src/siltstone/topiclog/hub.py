"""The request handling of a server, without sockets: the hub answers a peer, which writes.

Everything runs on the event loop; the shell provides time and threads. Blocking work runs in a
thread: the creation of a topic, and the recovery of a topic at its first use. Requests for a topic
that is being recovered wait, in order.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from siltstone.errors import NotFoundError, OverloadedError, ProtocolError, SiltstoneError
from siltstone.guard import contain
from siltstone.store.segment.writer import Room
from siltstone.store.shard.block_log import BlockRun
from siltstone.topiclog.append_queue import TopicQueue
from siltstone.topiclog.log import Log, TopicLogs
from siltstone.topiclog.protocol import (
    VERSION,
    BatchHead,
    Fetch,
    MessageHead,
    RequestKind,
    decode_commit,
    decode_fetch,
    decode_name,
    decode_offset,
    decode_version,
    encode_batch_heads,
    encode_bounds,
    encode_count,
    encode_hello,
    encode_names,
    encode_offset,
    refusal,
    reply,
    reply_head,
    status_of,
)
from siltstone.topiclog.tables import table_of_offsets

Act = Callable[[], None]
Refuse = Callable[[Exception], None]

FETCH_BYTES_MAX: Final = 64 * 1024 * 1024
WAITING_MAX: Final = 100_000


class HubShell(Protocol):
    """The functions of the event loop that the hub needs."""

    def soon(self, act: Act) -> None:
        """Run a function when the current work is done."""

    def soon_from_thread(self, act: Act) -> None:
        """Run a function on the event loop; may be called from any thread."""

    def in_thread(self, work: Act, then: Callable[[Exception | None], None]) -> None:
        """Run work in a thread, then `then` on the event loop, with the error that work raised."""

    def open_in_thread(self, work: Act, then: Callable[[Exception | None], None]) -> None:
        """Run work as `in_thread` does, in parallel with other work that may take long."""

    def later(self, seconds: float, act: Act) -> Act:
        """Run a function after some time; return the function that cancels it."""


class Publisher(Protocol):
    """Publishes stored messages elsewhere."""

    def rule(self, topic: str) -> object | None:
        """Return the rule for a topic; None if its messages are not published."""

    def publish(self, topic: str, values: list[bytes]) -> None:
        """Publish messages of a topic."""


class RequestSender(Protocol):
    """The sender of a request."""

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write these parts in order; the caller must not change them before they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubLimits:
    """Limits in bytes: one send, data that waits for the disk, and large sends coming in."""

    body_bytes_max: int = 256 * 1024 * 1024
    pending_bytes_max: int = 64 * 1024 * 1024
    reserved_bytes_max: int = 1024 * 1024 * 1024


@dataclass(slots=True, eq=False)
class _Waiter:
    """A fetch that waits for a message."""

    peer: RequestSender
    id: int
    fetch: Fetch
    forget: Act = field(default=lambda: None)


class Hub:
    """All state of a running server of topic logs."""

    def __init__(
        self,
        logs: TopicLogs,
        shell: HubShell,
        limits: HubLimits,
        publisher: Publisher | None = None,
    ) -> None:
        self._logs = logs
        self._shell = shell
        self.limits = limits
        self._publisher = publisher
        self._lanes: dict[str, TopicQueue] = {}
        # Requests that wait for a topic that is being recovered, each with a callback for an error.
        self._opening: dict[str, list[tuple[Act, Refuse]]] = {}
        self._waiting: dict[str, list[_Waiter]] = {}
        self._waiting_count = 0
        self._room_waits: list[Act] = []
        self.pending_bytes = 0
        self.reserved_bytes = 0
        # The number of sends that have arrived and are not acknowledged yet.
        self.storing = 0

    @property
    def is_full(self) -> bool:
        """Whether so many bytes wait for the disk that sockets should not be read."""
        return self.pending_bytes >= self.limits.pending_bytes_max

    def when_room(self, resume: Act) -> None:
        """Call `resume` once when there is room again."""
        self._room_waits.append(resume)

    def handle(
        self, peer: RequestSender, head: MessageHead, topic: str, payload: memoryview
    ) -> None:
        """Answer a request other than SEND. Raises: ProtocolError."""
        try:
            answer = self._answer(peer, head, topic, payload)
        except ProtocolError:
            raise
        except SiltstoneError as exc:
            self.refuse(peer, head.kind, head.id, exc)
            return
        if answer is not None:
            peer.send([reply(head.kind, head.id, answer)])

    def _answer(
        self, peer: RequestSender, head: MessageHead, topic: str, payload: memoryview
    ) -> bytes | None:
        """Return the reply; None if it is sent later."""
        match head.kind:
            case RequestKind.HELLO:
                if (version := decode_version(payload)) != VERSION:
                    raise ProtocolError(
                        f"unknown version {version} of the protocol (supported: {VERSION})"
                    )
                return encode_hello(body_bytes_max=self.limits.body_bytes_max)
            case RequestKind.CREATE:
                self._create(peer, head.id, topic)
            case RequestKind.TOPICS:
                return encode_names(self._logs.topics())
            case RequestKind.BOUNDS:
                return self._answer_of(
                    peer, head, [topic], lambda: encode_bounds(self._logs.log(topic).bounds())
                )
            case RequestKind.LENGTH:
                at = decode_offset(payload)
                return self._answer_of(
                    peer, head, [topic], lambda: encode_count(self._logs.log(topic).length(at))
                )
            case RequestKind.FETCH:
                fetch = decode_fetch(payload)
                topics = [place.topic for place in fetch.places]
                self._answer_of(peer, head, topics, lambda: self._fetch(peer, head.id, fetch))
            case RequestKind.COMMIT:
                client, offset = decode_commit(payload)
                done = partial(self._committed, peer, head.id)
                self._answer_of(
                    peer, head, [topic], lambda: self._logs.commit(client, topic, offset, done)
                )
            case RequestKind.COMMITTED:
                client = decode_name(bytes(payload))
                return self._answer_of(
                    peer,
                    head,
                    [topic],
                    lambda: encode_offset(self._logs.committed(client, topic)),
                )
            case RequestKind.SEND:
                raise ProtocolError("internal error: expected a SEND frame on this connection")
        return None

    def _answer_of(
        self,
        peer: RequestSender,
        head: MessageHead,
        topics: Sequence[str],
        answer: Callable[[], bytes | None],
    ) -> bytes | None:
        """Return the reply of `answer`; None if it is sent later, when all topics are open."""
        logs = [self._logs.log(topic) for topic in topics]
        cold = next((log for log in logs if not log.is_open), None)
        if cold is None:
            return answer()

        def act() -> None:
            try:
                made = self._answer_of(peer, head, topics, answer)
            except SiltstoneError as exc:
                refuse(exc)
                return
            if made is not None:
                peer.send([reply(head.kind, head.id, made)])

        refuse = partial(self.refuse, peer, head.kind, head.id)
        self._once_open(cold, act, refuse)
        return None

    def _once_open(self, log: Log, act: Act, refuse: Refuse) -> None:
        """Run `act` when a log is open: now, or after its recovery and after earlier requests."""
        waiting = self._opening.get(log.topic)
        if waiting is not None:
            waiting.append((act, refuse))
        elif log.is_open:
            act()
        else:
            self._opening[log.topic] = [(act, refuse)]
            self._shell.open_in_thread(log.open, partial(self._opened, log))

    def _opened(self, log: Log, error: Exception | None) -> None:
        for act, refuse in self._opening.pop(log.topic):
            contain(act if error is None else partial(refuse, error))

    def refuse(
        self, peer: RequestSender, kind: RequestKind, request_id: int, error: Exception
    ) -> None:
        """Send an error reply."""
        peer.send([refusal(kind, request_id, status_of(error), str(error))])

    def find(self, topic: str) -> Log:
        """Return the log of a topic. Raises: NotFoundError."""
        return self._logs.log(topic)

    def send(
        self, peer: RequestSender, request_id: int, topic: str, offsets: bytes, values: bytes
    ) -> None:
        """Store a small send, together with others."""
        try:
            log = self._logs.log(topic)
        except NotFoundError as exc:
            self.refuse(peer, RequestKind.SEND, request_id, exc)
            return
        if not values:
            # There is nothing to store, which is not an error.
            self._once_open(
                log,
                lambda: self._acknowledge(peer, request_id, log.bounds().stop),
                partial(self.refuse, peer, RequestKind.SEND, request_id),
            )
            return
        lane = self._lane(log)
        self.pending_bytes += len(values)
        self.storing += 1

        def settle(outcome: int | Exception) -> None:
            self.storing -= 1
            self._release(len(values))
            self._stored(peer, request_id, log, offsets, memoryview(values), outcome)

        self._once_open(log, partial(lane.add, offsets, values, settle), settle)

    def reserve(
        self, log: Log, size: int, rows: int, then: Callable[[Room | Exception], None]
    ) -> None:
        """Allocate room for a large send. `then` is called, in any thread, with the room or an
        error. In both cases the caller must later call `give_up` or `commit_room`.
        """
        self.reserved_bytes += size
        if self.reserved_bytes > self.limits.reserved_bytes_max:
            then(
                OverloadedError(
                    f"too many bytes wait to be stored, try again: "
                    f"reserved_bytes={self.reserved_bytes}"
                )
            )
            return

        def take() -> None:
            try:
                log.take_room(size, rows, then)
            except SiltstoneError as exc:
                then(exc)

        self._once_open(log, take, then)

    def give_up(self, log: Log, size: int, room: Room | None) -> None:
        """Release the room of a large send, and its share of the limit."""
        self.reserved_bytes -= size
        if room is not None:
            log.give_up_room(room)

    def commit_room(
        self, peer: RequestSender, request_id: int, log: Log, offsets: bytes, room: Room
    ) -> None:
        """Store a large send that has arrived completely, after the small sends before it."""
        self.storing += 1

        def settle(outcome: int | Exception) -> None:
            self.storing -= 1
            self.give_up(log, room.size, room if isinstance(outcome, Exception) else None)
            self._stored(peer, request_id, log, offsets, room.contents(), outcome)

        self._lane(log).add_room(offsets, room, settle)

    def _lane(self, log: Log) -> TopicQueue:
        lane = self._lanes.get(log.topic)
        if lane is None:
            lane = TopicQueue(log, self._shell.soon, self._shell.soon_from_thread)
            self._lanes[log.topic] = lane
        return lane

    def forget(self, peer: RequestSender) -> None:
        """Cancel the waiting fetches of a peer that has disconnected."""
        for waiters in list(self._waiting.values()):
            for waiter in [each for each in waiters if each.peer is peer]:
                self._end_wait(waiter)

    def has_waiting(self, peer: RequestSender) -> bool:
        """Tell whether a peer has a fetch that waits for messages."""
        return any(waiter.peer is peer for waiters in self._waiting.values() for waiter in waiters)

    def _create(self, peer: RequestSender, request_id: int, topic: str) -> None:
        def then(error: Exception | None) -> None:
            if error is None:
                peer.send([reply(RequestKind.CREATE, request_id)])
            else:
                self.refuse(peer, RequestKind.CREATE, request_id, error)

        self._shell.in_thread(partial(self._logs.create_topic, topic), then)

    def _committed(self, peer: RequestSender, request_id: int, error: Exception | None) -> None:
        def tell() -> None:
            if error is None:
                peer.send([reply(RequestKind.COMMIT, request_id)])
            else:
                self.refuse(peer, RequestKind.COMMIT, request_id, error)

        self._shell.soon_from_thread(tell)

    def _acknowledge(self, peer: RequestSender, request_id: int, offset: int) -> None:
        peer.send([reply(RequestKind.SEND, request_id, encode_offset(offset))])

    def _stored(
        self,
        peer: RequestSender,
        request_id: int,
        log: Log,
        offsets: bytes,
        values: memoryview,
        outcome: int | Exception,
    ) -> None:
        if isinstance(outcome, Exception):
            self.refuse(peer, RequestKind.SEND, request_id, outcome)
            return
        self._acknowledge(peer, request_id, outcome)
        self._wake(log.topic)
        publisher = self._publisher
        if publisher is not None and publisher.rule(log.topic) is not None:
            publisher.publish(log.topic, values_of(offsets, values))

    def _release(self, size: int) -> None:
        self.pending_bytes -= size
        if self._room_waits and not self.is_full:
            waits, self._room_waits = self._room_waits, []
            for resume in waits:
                resume()

    def _fetch(self, peer: RequestSender, request_id: int, fetch: Fetch) -> None:
        parts = self._read(request_id, fetch)
        if parts is not None or not fetch.wait_ms:
            peer.send(parts or [reply(RequestKind.FETCH, request_id, encode_batch_heads([]))])
            return
        if self._waiting_count >= WAITING_MAX:
            raise OverloadedError(
                f"too many fetches wait for messages, try again: waiting={self._waiting_count}"
            )
        waiter = _Waiter(peer=peer, id=request_id, fetch=fetch)
        for topic in {place.topic for place in fetch.places}:
            self._waiting.setdefault(topic, []).append(waiter)
        self._waiting_count += 1
        waiter.forget = self._shell.later(
            fetch.wait_ms / 1000, partial(self._answer_waiter, waiter)
        )

    def _answer_waiter(self, waiter: _Waiter) -> None:
        self._end_wait(waiter)
        try:
            parts = self._read(waiter.id, waiter.fetch)
        except SiltstoneError as exc:
            self.refuse(waiter.peer, RequestKind.FETCH, waiter.id, exc)
            return
        waiter.peer.send(parts or [reply(RequestKind.FETCH, waiter.id, encode_batch_heads([]))])

    def _end_wait(self, waiter: _Waiter) -> None:
        waiter.forget()
        self._waiting_count -= 1
        for topic in {place.topic for place in waiter.fetch.places}:
            waiters = self._waiting[topic]
            waiters.remove(waiter)
            if not waiters:
                del self._waiting[topic]

    def _wake(self, topic: str) -> None:
        for waiter in list(self._waiting.get(topic, ())):
            self._answer_waiter(waiter)

    def _read(self, request_id: int, fetch: Fetch) -> list[bytes | memoryview] | None:
        """Return the reply to a fetch, as views of the mapped file; None if there are no messages.

        With several places, each gets an equal share of the limit, in order, until the limit is
        used up.
        """
        left = min(fetch.bytes_max, FETCH_BYTES_MAX)
        share = max(1, left // max(1, len(fetch.places)))
        heads: list[BatchHead] = []
        parts: list[bytes | memoryview] = []
        for number, place in enumerate(fetch.places):
            log = self._logs.log(place.topic)
            bounds = log.bounds()
            offset = min(max(place.offset, bounds.start), bounds.stop)
            runs = log.read(offset, bytes_max=share) if left > 0 else []
            if not runs and offset != place.offset:
                # Reply at once with the offset at which the client may continue.
                heads.append(_head(number, offset, bounds.stop, None))
                parts.append(bytes(4))
            for run in runs:
                heads.append(_head(number, run.first_offset, bounds.stop, run))
                parts += (table_of_offsets(run.offsets), run.data)
                left -= len(run.data)
        if not heads:
            return None
        packed = encode_batch_heads(heads)
        size = len(packed) + sum(map(len, parts))
        return [reply_head(RequestKind.FETCH, request_id, size) + packed, *parts]


def _head(place: int, first: int, end: int, run: BlockRun | None) -> BatchHead:
    count, data_bytes = (0, 0) if run is None else (run.count, len(run.data))
    return BatchHead(place=place, first=first, end=end, count=count, data_bytes=data_bytes)


def values_of(offsets: bytes, values: memoryview) -> list[bytes]:
    """Return the messages one by one, as copies."""
    ends = array("i", offsets)
    return [bytes(values[ends[i] : ends[i + 1]]) for i in range(len(ends) - 1)]
