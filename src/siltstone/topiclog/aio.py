"""An asyncio client of topic logs: any number of requests may be in progress on one connection."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, Self, cast

from siltstone.errors import ProtocolError, SiltstoneError, UsageError
from siltstone.topiclog.client import DEFAULT_PORT, FETCH_BYTES, lost, not_connected
from siltstone.topiclog.consumer import Message, MessageBatch, TopicReader
from siltstone.topiclog.protocol import (
    HEADER_BYTES,
    Fetch,
    MessageHead,
    RequestKind,
    ResponseStatus,
    decode_bounds,
    decode_count,
    decode_head,
    decode_hello,
    decode_names,
    decode_offset,
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

# The number of SEND requests of one call that may be in progress at once.
_WINDOW: Final = 16


class _Wire(asyncio.BufferedProtocol):
    """Reads replies, each directly into its own buffer, and completes the waiting futures."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.waiting: dict[int, tuple[RequestKind, asyncio.Future[memoryview]]] = {}
        self.ready = asyncio.Event()
        self.ready.set()
        self._head: MessageHead | None = None
        self._place = memoryview(bytearray(HEADER_BYTES))
        self._got = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's
        return self._place[self._got :]

    def buffer_updated(self, nbytes: int) -> None:
        self._got += nbytes
        if self._got < len(self._place):
            return
        try:
            self._filled()
        except ProtocolError as exc:
            self._fail(exc)
            if self.transport is not None:
                self.transport.abort()

    def _filled(self) -> None:
        if self._head is None:
            head = decode_head(self._place, 0)
            if head.size > HEADER_BYTES:
                self._head = head
                self._next(head.size - HEADER_BYTES)
                return
            self._settle(head, memoryview(b""))
        else:
            self._settle(self._head, self._place)
        self._head = None
        self._next(HEADER_BYTES)

    def _next(self, size: int) -> None:
        self._place = memoryview(bytearray(size))
        self._got = 0

    def _settle(self, head: MessageHead, payload: memoryview) -> None:
        error: SiltstoneError | None = None
        if head.status is not ResponseStatus.OK:
            error = error_of(head.status, bytes(payload).decode(errors="replace"))
        if head.status is ResponseStatus.MALFORMED:
            # This frame does not belong to a request, and is the last one of the connection.
            self._fail(error)
            return
        _, future = self.waiting.pop(head.id, (head.kind, None))
        if future is None or future.done():
            # The caller was cancelled.
            return
        if error is None:
            future.set_result(payload)
        else:
            future.set_exception(error)

    def _fail(self, error: SiltstoneError | None) -> None:
        waiting, self.waiting = self.waiting, {}
        for kind, future in waiting.values():
            if not future.done():
                reason = ConnectionResetError("the server has closed the connection")
                future.set_exception(error or lost(kind, reason))

    def pause_writing(self) -> None:
        self.ready.clear()

    def resume_writing(self) -> None:
        self.ready.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self.transport = None
        self.ready.set()
        self._fail(None)


class AsyncTopicLogClient:
    """A connection to a server of topic logs; made by `connect`."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._next_id = 1
        self._rows_max = 1
        self._body_bytes_max = 0
        self._subscription: TopicReader | None = None

    @classmethod
    async def connect(cls, host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> Self:
        """Connect and exchange HELLO.

        Raises: RetryError without a server; UsageError for an invalid host name; ProtocolError.
        """
        loop = asyncio.get_running_loop()
        try:
            _, wire = await loop.create_connection(_Wire, host, port)
        except OSError as exc:
            raise not_connected(host, port, exc) from exc
        except ValueError as exc:
            # Python cannot encode the name, for example one with an empty label.
            raise UsageError(f"invalid host name: {host!r}") from exc
        client = cls(wire)
        try:
            payload = await client._ask(RequestKind.HELLO, payload=encode_version())
            _, client._body_bytes_max, client._rows_max = decode_hello(payload)
        except BaseException:
            client.close()
            raise
        return client

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._wire.transport is not None:
            self._wire.transport.close()

    async def create_topic(self, topic: str) -> None:
        """Create a topic, durably. Raises: ExistsError, UsageError for an invalid name."""
        await self._ask(RequestKind.CREATE, topic)

    async def topics(self) -> list[str]:
        """Return all topics, in the order of their creation."""
        return decode_names(await self._ask(RequestKind.TOPICS))

    async def send(self, topic: str, value: bytes) -> int:
        """Store a message durably and return its offset. See `TopicLogClient.send`."""
        return (await self.send_many(topic, [value] if value else [])).start

    async def send_many(self, topic: str, values: Iterable[bytes]) -> range:
        """Store messages and return their offsets; empty messages are left out."""
        first: int | None = None
        end = 0
        waiting: deque[tuple[asyncio.Future[memoryview], int]] = deque()
        for piece in pieces_of(values, rows_max=self._rows_max, bytes_max=self._body_bytes_max):
            waiting.append((await self._send(topic, piece), len(piece)))
            if len(waiting) >= _WINDOW:
                first, end = await _acknowledged(waiting, first)
        while waiting:
            first, end = await _acknowledged(waiting, first)
        assert first is not None
        return range(first, end)

    async def end_offset(self, topic: str) -> int:
        """Return the offset that the next message will have. Raises: NotFoundError."""
        return (await self.bounds(topic)).stop

    async def bounds(self, topic: str) -> range:
        """Return the offsets of the stored messages. Raises: NotFoundError."""
        return decode_bounds(await self._ask(RequestKind.BOUNDS, topic))

    async def message_length(self, topic: str, offset: int) -> int:
        """Return the size of a message in bytes, 0 if there is none. Raises: NotFoundError."""
        return decode_count(await self._ask(RequestKind.LENGTH, topic, encode_offset(offset)))

    async def subscribe(self, topics: Sequence[str]) -> int:
        """Read these topics from their current ends on; return how many of them exist. Raises:
        UsageError if there is a subscription already.
        """
        if self._subscription is not None:
            raise UsageError("the client has a subscription already: unsubscribe first")
        known = set(await self.topics())
        wanted = [topic for topic in dict.fromkeys(topics) if topic in known]
        ends = {topic: await self.end_offset(topic) for topic in wanted}
        self._subscription = TopicReader(ends)
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

    async def poll(self, timeout: float = 0.0) -> Message | None:  # noqa: ASYNC109 - the server's
        """Return the next message, from each topic in turn; None if none came in time."""
        subscription = self._subscribed()
        message = subscription.next_message()
        if message is None and await self._fetch(subscription, timeout, FETCH_BYTES):
            message = subscription.next_message()
        return message

    async def poll_batch(
        self,
        timeout: float = 0.0,  # noqa: ASYNC109 - the server's
        bytes_max: int = FETCH_BYTES,
    ) -> MessageBatch | None:
        """Return the next messages of one topic, from each topic in turn; None if none came."""
        subscription = self._subscribed()
        batch = subscription.next_batch()
        if batch is None and await self._fetch(subscription, timeout, bytes_max):
            batch = subscription.next_batch()
        return batch

    async def commit(self, client: str, topic: str, offset: int) -> None:
        """Save, durably, the offset at which a client will continue. Raises: NotFoundError,
        UsageError for an offset after the end.
        """
        await self._ask(RequestKind.COMMIT, topic, encode_commit(client, offset))

    async def committed(self, client: str, topic: str) -> int:
        """Return the offset at which a client will continue. Raises: NotFoundError."""
        return decode_offset(await self._ask(RequestKind.COMMITTED, topic, encode_name(client)))

    def _subscribed(self) -> TopicReader:
        if self._subscription is None:
            raise UsageError("the client has not subscribed: subscribe first")
        return self._subscription

    async def _fetch(self, subscription: TopicReader, seconds: float, bytes_max: int) -> bool:
        places = subscription.places()
        if not places:
            return False
        fetch = Fetch(places=places, bytes_max=bytes_max, wait_ms=max(0, int(seconds * 1000)))
        payload = await self._ask(RequestKind.FETCH, payload=encode_fetch(fetch))
        subscription.take_in(places, payload)
        return True

    async def _send(self, topic: str, values: Sequence[bytes]) -> asyncio.Future[memoryview]:
        request_id = self._id()
        data = values[0] if len(values) == 1 else b"".join(values)
        head = send_head(request_id, topic, table=table_of_ends(values), data_bytes=len(data))
        return await self._write(RequestKind.SEND, request_id, [head, data])

    def _id(self) -> int:
        self._next_id = self._next_id % 0xFFFF_FFFF + 1
        return self._next_id

    async def _ask(self, kind: RequestKind, topic: str = "", payload: bytes = b"") -> memoryview:
        request_id = self._id()
        parts = [request(kind, request_id, topic, payload)]
        return await (await self._write(kind, request_id, parts))

    async def _write(
        self, kind: RequestKind, request_id: int, parts: Sequence[bytes]
    ) -> asyncio.Future[memoryview]:
        """Write a request when the connection accepts more; return the future of its reply."""
        await self._wire.ready.wait()
        transport = self._wire.transport
        if transport is None:
            raise lost(kind, ConnectionResetError("the connection is closed"))
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._wire.waiting[request_id] = (kind, future)
        transport.writelines([part for part in parts if part])
        return future


async def _acknowledged(
    waiting: deque[tuple[asyncio.Future[memoryview], int]], first: int | None
) -> tuple[int, int]:
    future, count = waiting.popleft()
    offset = decode_offset(await future)
    return offset if first is None else first, offset + count
