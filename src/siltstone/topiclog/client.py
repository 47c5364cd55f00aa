"""A blocking client of topic logs: one socket, one thread at a time."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from siltstone.errors import OutcomeUnknownError, RetryError, UsageError
from siltstone.topiclog.consumer import Message, MessageBatch, TopicReader
from siltstone.topiclog.protocol import (
    HEADER_BYTES,
    Fetch,
    FetchPlace,
    MessageHead,
    RequestKind,
    ResponseStatus,
    decode_bounds,
    decode_count,
    decode_head,
    decode_hello,
    decode_names,
    decode_offset,
    encode_batch_heads,
    encode_commit,
    encode_fetch,
    encode_name,
    encode_offset,
    encode_version,
    error_of,
    request,
    send_head,
)
from siltstone.topiclog.sending import pieces_of
from siltstone.topiclog.tables import table_of_ends

DEFAULT_PORT: Final = 9410
FETCH_BYTES: Final = 1024 * 1024
# The number of SEND requests that may be in progress at once.
_WINDOW: Final = 16
# If the connection is lost after one of these, the outcome is unknown.
_CHANGES: Final = (RequestKind.CREATE, RequestKind.SEND, RequestKind.COMMIT)

_Frame = tuple[MessageHead, memoryview]


@dataclass(slots=True)
class _Ahead:
    """A fetch that was sent before it was needed, and its reply once that was read."""

    id: int
    places: tuple[FetchPlace, ...]
    reply: _Frame | None = None


class TopicLogClient:
    """A connection to a server of topic logs. Not safe for concurrent threads."""

    def __init__(
        self, host: str = "127.0.0.1", port: int = DEFAULT_PORT, *, timeout: float = 30.0
    ) -> None:
        """Connect and exchange HELLO.

        Raises: RetryError without a server; UsageError for an invalid host name; ProtocolError.
        """
        self._timeout = timeout
        self._next_id = 1
        self._subscription: TopicReader | None = None
        self._ahead: _Ahead | None = None
        # Requests whose replies have not arrived, and replies that were not asked for yet.
        self._open: set[int] = set()
        self._replies: dict[int, _Frame] = {}
        # Requests of a call that failed; their replies are dropped.
        self._abandoned: set[int] = set()
        try:
            self._socket = socket.create_connection((host, port), timeout)
        except OSError as exc:
            raise not_connected(host, port, exc) from exc
        except ValueError as exc:
            # Python cannot encode the name, for example one with an empty label.
            raise UsageError(f"invalid host name: {host!r}") from exc
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            payload = self._ask(RequestKind.HELLO, payload=encode_version())
            _, self._body_bytes_max, self._rows_max = decode_hello(payload)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def create_topic(self, topic: str) -> None:
        """Create a topic, durably. Raises: ExistsError, UsageError for an invalid name."""
        self._ask(RequestKind.CREATE, topic)

    def topics(self) -> list[str]:
        """Return all topics, in the order of their creation."""
        return decode_names(self._ask(RequestKind.TOPICS))

    def send(self, topic: str, value: bytes) -> int:
        """Store a message and return its offset, when it would survive a power cut.

        An empty message is not stored; the offset is then that of the next message. Raises:
        NotFoundError, RetryError if there is no room, OutcomeUnknownError.
        """
        return self.send_many(topic, [value] if value else []).start

    def send_many(self, topic: str, values: Iterable[bytes]) -> range:
        """Store messages and return their offsets; empty messages are left out.

        They are stored in order. They may be split into several requests, with messages of other
        clients between them. Raises: as `send`; some of the messages may then be stored.
        """
        first: int | None = None
        end = 0
        waiting: deque[tuple[int, int]] = deque()
        pieces = pieces_of(values, rows_max=self._rows_max, bytes_max=self._body_bytes_max)
        try:
            for piece in pieces:
                waiting.append((self._send(topic, piece), len(piece)))
                if len(waiting) >= _WINDOW:
                    first, end = self._acknowledged(waiting, first)
            while waiting:
                first, end = self._acknowledged(waiting, first)
        finally:
            self._abandon(request_id for request_id, _ in waiting)
        assert first is not None
        return range(first, end)

    def end_offset(self, topic: str) -> int:
        """Return the offset that the next message will have. Raises: NotFoundError."""
        return self.bounds(topic).stop

    def bounds(self, topic: str) -> range:
        """Return the offsets of the stored messages. Raises: NotFoundError."""
        return decode_bounds(self._ask(RequestKind.BOUNDS, topic))

    def message_length(self, topic: str, offset: int) -> int:
        """Return the size of a message in bytes, 0 if there is none. Raises: NotFoundError."""
        return decode_count(self._ask(RequestKind.LENGTH, topic, encode_offset(offset)))

    def subscribe(self, topics: Sequence[str]) -> int:
        """Read these topics from their current ends on; return how many of them exist. The others
        are left out. Raises: UsageError if there is a subscription already.
        """
        if self._subscription is not None:
            raise UsageError("the client has a subscription already: unsubscribe first")
        known = set(self.topics())
        wanted = [topic for topic in dict.fromkeys(topics) if topic in known]
        self._subscription = TopicReader({topic: self.end_offset(topic) for topic in wanted})
        return len(wanted)

    def unsubscribe(self) -> None:
        """End the subscription. Raises: UsageError if there is none."""
        self._subscribed()
        self._subscription = None

    def position(self, topic: str) -> int:
        """Return the next offset to read. Raises: NotFoundError without a subscription to it."""
        return self._subscribed().position(topic)

    def seek(self, topic: str, offset: int) -> None:
        """Continue at another offset, also an earlier one. Raises: NotFoundError."""
        self._subscribed().seek(topic, offset)

    def poll(self, timeout: float = 0.0) -> Message | None:
        """Return the next message, from each topic in turn; None if none came in time."""
        subscription = self._subscribed()
        message = subscription.next_message()
        if message is None and self._fetch(subscription, timeout, FETCH_BYTES):
            message = subscription.next_message()
        return message

    def poll_batch(self, timeout: float = 0.0, bytes_max: int = FETCH_BYTES) -> MessageBatch | None:
        """Return the next messages of one topic, from each topic in turn; None if none came."""
        subscription = self._subscribed()
        batch = subscription.next_batch()
        if batch is None and self._fetch(subscription, timeout, bytes_max):
            batch = subscription.next_batch()
        return batch

    def commit(self, client: str, topic: str, offset: int) -> None:
        """Save, durably, the offset at which a client will continue. Raises: NotFoundError,
        UsageError for an offset after the end.
        """
        self._ask(RequestKind.COMMIT, topic, encode_commit(client, offset))

    def committed(self, client: str, topic: str) -> int:
        """Return the offset at which a client will continue. Raises: NotFoundError."""
        return decode_offset(self._ask(RequestKind.COMMITTED, topic, encode_name(client)))

    def _subscribed(self) -> TopicReader:
        if self._subscription is None:
            raise UsageError("the client has not subscribed: subscribe first")
        return self._subscription

    def _fetch(self, subscription: TopicReader, timeout: float, bytes_max: int) -> bool:
        places = subscription.places()
        if not places:
            return False
        wait_ms = max(0, int(timeout * 1000))
        fetch = Fetch(places=places, bytes_max=bytes_max, wait_ms=wait_ms)
        self._socket.settimeout(self._timeout + timeout)
        payload = self._asked_ahead(places)
        if payload is None:
            payload = self._ask(RequestKind.FETCH, payload=encode_fetch(fetch))
        subscription.take_in(places, payload)
        if len(payload) >= bytes_max // 2:
            self._ask_ahead(subscription, bytes_max)
        return True

    def _ask_ahead(self, subscription: TopicReader, bytes_max: int) -> None:
        """Send the next fetch now, so that the server works while the caller processes messages."""
        place = subscription.place_ahead()
        if place is not None:
            ahead = _Ahead(self._id(), (place,))
            fetch = Fetch(places=ahead.places, bytes_max=bytes_max, wait_ms=0)
            self._write(
                RequestKind.FETCH,
                [request(RequestKind.FETCH, ahead.id, payload=encode_fetch(fetch))],
            )
            self._ahead = ahead

    def _asked_ahead(self, places: tuple[FetchPlace, ...]) -> memoryview | None:
        """Return the reply to the early fetch; None if it does not fit or has no messages."""
        self._settle_ahead()
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.places != places or ahead.reply is None:
            return None
        payload = _payload(ahead.reply)
        return payload if len(payload) > len(encode_batch_heads([])) else None

    def _settle_ahead(self) -> None:
        """Read the reply to the early fetch: a server that cannot write a reply stops reading."""
        if self._ahead is not None and self._ahead.reply is None:
            self._ahead.reply = self._reply(RequestKind.FETCH, self._ahead.id)

    def _send(self, topic: str, values: Sequence[bytes]) -> int:
        """Write a SEND request, without copying the data if it is one message; return its id."""
        self._settle_ahead()
        request_id = self._id()
        data = values[0] if len(values) == 1 else b"".join(values)
        table = table_of_ends(values)
        head = send_head(request_id, topic, table=table, data_bytes=len(data))
        self._write(RequestKind.SEND, [head, data])
        return request_id

    def _acknowledged(self, waiting: deque[tuple[int, int]], first: int | None) -> tuple[int, int]:
        request_id, count = waiting.popleft()
        offset = decode_offset(self._read(RequestKind.SEND, request_id))
        return offset if first is None else first, offset + count

    def _id(self) -> int:
        self._next_id = self._next_id % 0xFFFF_FFFF + 1
        self._open.add(self._next_id)
        return self._next_id

    def _ask(self, kind: RequestKind, topic: str = "", payload: bytes = b"") -> memoryview:
        self._settle_ahead()
        request_id = self._id()
        self._write(kind, [request(kind, request_id, topic, payload)])
        return self._read(kind, request_id)

    def _write(self, kind: RequestKind, parts: Sequence[bytes]) -> None:
        try:
            views = [memoryview(part) for part in parts if part]
            while views:
                sent = self._socket.sendmsg(views)
                while views and sent >= len(views[0]):
                    sent -= len(views[0])
                    del views[0]
                if sent:
                    views[0] = views[0][sent:]
        except OSError as exc:
            raise lost(kind, exc) from exc

    def _read(self, kind: RequestKind, request_id: int) -> memoryview:
        """Return the payload of the reply. Raises: the error in the reply."""
        return _payload(self._reply(kind, request_id))

    def _reply(self, kind: RequestKind, request_id: int) -> _Frame:
        """Return the reply to a request. Replies arrive in any order, so keep earlier ones."""
        while request_id not in self._replies:
            frame = self._read_frame(kind)
            head = frame[0]
            if head.status is ResponseStatus.MALFORMED:
                # This frame does not belong to a request, and is the last one of the connection.
                return frame
            if head.id in self._abandoned:
                self._abandoned.remove(head.id)
            elif head.id in self._open:
                self._open.remove(head.id)
                self._replies[head.id] = frame
            else:
                raise OutcomeUnknownError(
                    f"the reply belongs to no request: kind={head.kind.name} id={head.id}"
                )
        frame = self._replies.pop(request_id)
        if frame[0].kind is not kind and frame[0].status is not ResponseStatus.MALFORMED:
            raise OutcomeUnknownError(
                f"the reply is of another kind: kind={frame[0].kind.name} id={request_id}"
            )
        return frame

    def _abandon(self, request_ids: Iterable[int]) -> None:
        for request_id in request_ids:
            if self._replies.pop(request_id, None) is None:
                self._open.discard(request_id)
                self._abandoned.add(request_id)

    def _read_frame(self, kind: RequestKind) -> _Frame:
        head = decode_head(self._receive(kind, HEADER_BYTES), 0)
        return head, self._receive(kind, head.size - HEADER_BYTES)

    def _receive(self, kind: RequestKind, size: int) -> memoryview:
        view = memoryview(bytearray(size))
        got = 0
        try:
            while got < size:
                read = self._socket.recv_into(view[got:])
                if not read:
                    raise ConnectionResetError("the server has closed the connection")
                got += read
        except OSError as exc:
            raise lost(kind, exc) from exc
        return view


def _payload(frame: _Frame) -> memoryview:
    """Return the payload of a reply. Raises: the error in the reply."""
    head, payload = frame
    if head.status is not ResponseStatus.OK:
        raise error_of(head.status, bytes(payload).decode(errors="replace"))
    return payload


def not_connected(host: str, port: int, cause: OSError) -> RetryError:
    """Return the error for a server that cannot be reached."""
    reason = cause.strerror or str(cause)
    reason = reason[:1].lower() + reason[1:]
    return RetryError(f"cannot connect to topic logs at {host}:{port}: {reason}")


def lost(kind: RequestKind, error: OSError) -> OutcomeUnknownError | RetryError:
    """Return the error for a request whose connection was lost."""
    if kind in _CHANGES:
        return OutcomeUnknownError(f"the connection was lost, and the request may be done: {error}")
    return RetryError(f"the connection was lost: {error}")
