"""One connection: reads requests, passes them to the hub, and writes replies.

A large send is received directly into the store: after its head was read, the socket is read into
the mapped segment, and only the bytes that arrived together with the head are copied. A client that
stops in the middle of a send leaves nothing in the log. A client that is too slow is disconnected,
and it has not delayed other clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Final, cast

from siltstone.errors import NotFoundError, ProtocolError, SiltstoneError
from siltstone.logs import log
from siltstone.store.segment.writer import Room
from siltstone.topiclog.hub import Hub
from siltstone.topiclog.log import Log
from siltstone.topiclog.protocol import (
    HEADER_BYTES,
    ROWS_MAX,
    MessageHead,
    RequestKind,
    ResponseStatus,
    decode_count,
    decode_head,
    decode_name,
    refusal,
)
from siltstone.topiclog.tables import offsets_of_ends

_LOG: Final = logging.getLogger("siltstone.topiclog")

# Smaller sends have usually arrived together with their head.
DIRECT_BYTES_MIN: Final = 64 * 1024
_BUFFER_BYTES: Final = 64 * 1024
_NOTHING: Final = memoryview(b"")
# The bytes of a large send that must arrive within each `body_timeout`.
_PROGRESS_BYTES_MIN: Final = 16 * 1024
# The largest request other than a send: a fetch of many topics.
_REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024


@dataclass(slots=True, eq=False)
class _Inflow:
    """A large send that is being received."""

    id: int
    log: Log
    offsets: bytes
    size: int
    room: Room | None = None
    view: memoryview = _NOTHING
    got: int = 0
    # The value of `got` at the last check.
    seen: int = -_PROGRESS_BYTES_MIN


class TopicLogConnection(asyncio.BufferedProtocol):
    """A connection of a client."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        hub: Hub,
        *,
        body_timeout: float,
        gone: Callable[[TopicLogConnection], None],
    ) -> None:
        self._loop = loop
        self._hub = hub
        self._body_timeout = body_timeout
        self._gone = gone
        self._thread = get_ident()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(_BUFFER_BYTES)
        self._start = 0
        self._end = 0
        self._inflow: _Inflow | None = None
        self._timer: asyncio.TimerHandle | None = None
        # The bytes of a refused send that have not arrived yet.
        self._skip = 0
        self._greeted = False
        self._holds = 0
        self._out: list[bytes | memoryview] = []
        # The time of the last received bytes or the last reply.
        self._active_at = loop.time()

    @property
    def is_open(self) -> bool:
        """Whether the connection can still be written to."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's
        inflow = self._inflow
        if inflow is not None and inflow.room is not None:
            return inflow.view[inflow.got :]
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._active_at = self._loop.time()
        inflow = self._inflow
        if inflow is not None and inflow.room is not None:
            inflow.got += nbytes
            if inflow.got == inflow.size:
                self._finish(inflow)
            return
        self._end += nbytes
        self._parse()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._transport = None
        self._out.clear()
        inflow, self._inflow = self._inflow, None
        if inflow is not None:
            self._stop_timer()
            if inflow.room is not None:
                self._give_up(inflow)
        self._hub.forget(self)
        self._gone(self)

    def pause_writing(self) -> None:
        # Read no more requests from a client that does not read its replies.
        self._hold()

    def resume_writing(self) -> None:
        self._unhold()

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write these parts, together with the other replies of this turn of the event loop."""
        self._active_at = self._loop.time()
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += parts

    def is_idle(self, idle_timeout: float, greeting_timeout: float) -> bool:
        """Tell whether nothing was received or answered for the timeout. A connection that waits
        for messages is not idle, and none is idle while the hub is full.
        """
        silent = self._loop.time() - self._active_at
        if not self._greeted:
            return silent >= greeting_timeout
        if idle_timeout == 0 or silent < idle_timeout:
            return False
        return not self._hub.is_full and not self._hub.has_waiting(self)

    def stop_reading(self) -> None:
        """Accept no more requests; requests that have arrived are still answered."""
        self._hold()

    def close(self) -> None:
        """Close the connection after the replies were written."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and self._transport is not None and self.is_open:
            self._transport.writelines(out)

    def _hold(self) -> None:
        self._holds += 1
        if self._holds == 1 and self._transport is not None:
            self._transport.pause_reading()

    def _unhold(self) -> None:
        self._holds -= 1
        if self._holds == 0 and self._transport is not None and self.is_open:
            self._transport.resume_reading()
            self._loop.call_soon(self._parse)

    def _parse(self) -> None:
        """Process every complete request, and begin to receive an incomplete large send."""
        try:
            while self._inflow is None and not self._holds and self._take():
                pass
        except ProtocolError as exc:
            self._end_with(exc)
            return
        self._compact()
        if self._hub.is_full and not self._holds and self.is_open:
            self._hold()
            self._hub.when_room(self._unhold)

    def _end_with(self, error: ProtocolError) -> None:
        log(_LOG, logging.INFO, "topiclog_protocol_error", error=str(error))
        self._start = self._end = 0
        self.send([refusal(RequestKind.HELLO, 0, ResponseStatus.MALFORMED, str(error))])
        self.close()

    def _compact(self) -> None:
        """Move the remaining bytes to the front, so that there is room after them."""
        left = self._end - self._start
        if self._start:
            self._buffer[:left] = self._buffer[self._start : self._end]
            self._start, self._end = 0, left
        if left == len(self._buffer):
            # Rare, and limited by the size of a request: double the buffer for a longer table.
            self._buffer = self._buffer + bytearray(left)

    def _take(self) -> bool:
        """Process one request; return False if more bytes are needed. Raises: ProtocolError."""
        available = self._end - self._start
        if self._skip:
            skipped = min(self._skip, available)
            self._skip -= skipped
            self._start += skipped
            return not self._skip
        if available < HEADER_BYTES:
            return False
        head = decode_head(self._buffer, self._start)
        if not self._greeted and head.kind is not RequestKind.HELLO:
            raise ProtocolError("the first frame must be HELLO")
        if head.kind is RequestKind.SEND:
            return self._take_send(head, available)
        if head.size > _REQUEST_BYTES_MAX:
            raise ProtocolError(f"the request is too large: size_bytes={head.size}")
        if available < head.size:
            return False
        data = bytes(memoryview(self._buffer)[self._start : self._start + head.size])
        self._start += head.size
        name_end = HEADER_BYTES + head.name_size
        topic = decode_name(data[HEADER_BYTES:name_end])
        self._hub.handle(self, head, topic, memoryview(data)[name_end:])
        self._greeted = True
        return True

    def _take_send(self, head: MessageHead, available: int) -> bool:
        """Process a send, or begin to receive it directly into the store. Raises: ProtocolError."""
        counted = HEADER_BYTES + head.name_size + 4
        if available < counted:
            return False
        start = self._start
        view = memoryview(self._buffer)
        count = decode_count(view[start + counted - 4 : start + counted])
        data_bytes = head.size - counted - 4 * count
        if count > ROWS_MAX or data_bytes < 0 or data_bytes > self._hub.limits.body_bytes_max:
            raise ProtocolError(f"the SEND is too large: messages={count} size_bytes={head.size}")
        direct = data_bytes >= DIRECT_BYTES_MIN
        if available < (counted + 4 * count if direct else head.size):
            return False
        topic = decode_name(bytes(view[start + HEADER_BYTES : start + counted - 4]))
        data_start = start + counted + 4 * count
        offsets = offsets_of_ends(view[start + counted : data_start])
        if int.from_bytes(offsets[-4:], "little") != data_bytes:
            raise ProtocolError(
                f"the sizes of the messages do not add up to the size of the SEND: "
                f"size_bytes={head.size}"
            )
        if not direct:
            values = bytes(view[data_start : start + head.size])
            self._start = start + head.size
            self._hub.send(self, head.id, topic, offsets, values)
            return True
        self._start = data_start
        self._receive(head.id, topic, offsets, data_bytes)
        return self._inflow is None

    def _receive(self, request_id: int, topic: str, offsets: bytes, size: int) -> None:
        """Begin to receive a large send directly into the store."""
        try:
            found = self._hub.find(topic)
        except NotFoundError as exc:
            self._refuse(request_id, size, exc)
            return
        inflow = _Inflow(id=request_id, log=found, offsets=offsets, size=size)
        self._inflow = inflow
        self._hold()

        def then(place: Room | Exception) -> None:
            if get_ident() == self._thread:
                self._begin(inflow, place)
            else:
                self._loop.call_soon_threadsafe(self._begin, inflow, place)

        self._hub.reserve(found, size, len(offsets) // 4 - 1, then)

    def _refuse(self, request_id: int, size: int, error: Exception) -> None:
        """Refuse a send, and skip its bytes."""
        self._hub.refuse(self, RequestKind.SEND, request_id, error)
        self._skip = size

    def _begin(self, inflow: _Inflow, place: Room | Exception) -> None:
        """Copy the bytes that have arrived into the room, and read the rest into it."""
        if self._inflow is not inflow:
            # The client disconnected while the room was being allocated.
            room = place if isinstance(place, Room) else None
            self._hub.give_up(inflow.log, inflow.size, room)
            return
        if isinstance(place, Exception):
            self._inflow = None
            self._hub.give_up(inflow.log, inflow.size, None)
            self._refuse(inflow.id, inflow.size, place)
            self._unhold()
            return
        inflow.room = place
        inflow.view = place.contents()
        got = min(inflow.size, self._end - self._start)
        inflow.view[:got] = memoryview(self._buffer)[self._start : self._start + got]
        self._start += got
        inflow.got = got
        if got == inflow.size:
            self._finish(inflow)
        else:
            self._watch()
        self._unhold()

    def _finish(self, inflow: _Inflow) -> None:
        self._stop_timer()
        self._inflow = None
        room = inflow.room
        assert room is not None
        room.filled = max(room.filled, inflow.size)
        self._hub.commit_room(self, inflow.id, inflow.log, inflow.offsets, room)
        self._compact()

    def _watch(self) -> None:
        """Check at intervals whether the send makes progress; disconnect a slow client."""
        inflow = self._inflow
        if inflow is None:
            return
        if inflow.got - inflow.seen < _PROGRESS_BYTES_MIN:
            log(_LOG, logging.WARNING, "topiclog_send_too_slow", topic=inflow.log.topic)
            self.abort()
            return
        inflow.seen = inflow.got
        self._timer = self._loop.call_later(self._body_timeout, self._watch)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self, inflow: _Inflow) -> None:
        room = inflow.room
        assert room is not None
        room.filled = max(room.filled, inflow.got)
        inflow.view = _NOTHING
        try:
            self._hub.give_up(inflow.log, inflow.size, room)
        except SiltstoneError as exc:
            # Only the space of the room is lost: no frame refers to it.
            log(_LOG, logging.WARNING, "topiclog_space_not_released", error=str(exc))
