"""A topic log server without a network: its channel, on a loop that runs step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, cast

from siltstone.errors import SiltstoneError
from siltstone.topiclog.connection import TopicLogConnection
from siltstone.topiclog.hub import Hub, HubLimits, Publisher
from siltstone.topiclog.log import TopicLogs
from tests.support.topiclog import WAIT_SECONDS, LogWorld

Act = Callable[[], object]


class Timer:
    """A timer that fires when the test says so."""

    def __init__(self, seconds: float, act: Act) -> None:
        self.seconds = seconds
        self.act = act
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class TurnedLoop:
    """A loop and the shell of a hub in one; everything happens in `turn`."""

    def __init__(self) -> None:
        self.due: deque[Act] = deque()
        self.from_threads: SimpleQueue[Act] = SimpleQueue()
        self.timers: list[Timer] = []
        self.now = 0.0
        # The pending recovery of topics, which continues when a test says so.
        self.openings: list[Act] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, act: Callable[..., object], *args: object) -> None:
        self.due.append(lambda: act(*args))

    def call_soon_threadsafe(self, act: Callable[..., object], *args: object) -> None:
        self.from_threads.put(lambda: act(*args))

    def call_later(self, seconds: float, act: Act) -> Timer:
        self.timers.append(Timer(seconds, act))
        return self.timers[-1]

    def soon(self, act: Act) -> None:
        self.call_soon(act)

    def soon_from_thread(self, act: Act) -> None:
        self.call_soon_threadsafe(act)

    def in_thread(self, work: Act, then: Callable[[Exception | None], None]) -> None:
        try:
            work()
        except SiltstoneError as exc:
            error: Exception = exc
            self.call_soon(lambda: then(error))
        else:
            self.call_soon(lambda: then(None))

    def open_in_thread(self, work: Act, then: Callable[[Exception | None], None]) -> None:
        self.openings.append(lambda: self.in_thread(work, then))

    def open_all(self) -> int:
        """Recover the requested topics; return their number."""
        openings, self.openings = self.openings, []
        for each in openings:
            each()
        self.turn()
        return len(openings)

    def later(self, seconds: float, act: Act) -> Callable[[], None]:
        return self.call_later(seconds, act).cancel

    def turn(self) -> None:
        """Run everything that is due; do not wait for threads."""
        while True:
            while self.due:
                self.due.popleft()()
            try:
                self.due.append(self.from_threads.get_nowait())
            except Empty:
                return

    def turn_until(self, holds: Callable[[], bool]) -> None:
        """Run what is due and what threads post, until a condition holds."""
        self.turn()
        while not holds():
            self.due.append(self.from_threads.get(timeout=WAIT_SECONDS))
            self.turn()

    def pass_time(self) -> None:
        """Fire all timers."""
        timers, self.timers = self.timers, []
        for timer in timers:
            if not timer.is_cancelled:
                timer.act()
        self.turn()


class Line:
    """The transport of a channel; it records what was written."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.pieces: list[bytes | memoryview] = []
        self.is_reading = True
        self.end = ""

    def writelines(self, parts: Sequence[bytes | memoryview]) -> None:
        self.pieces += parts
        for part in parts:
            self.out += part

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return bool(self.end)

    def close(self) -> None:
        self.end = self.end or "closed"

    def abort(self) -> None:
        self.end = "aborted"


@dataclass
class Wired:
    """A channel and its environment."""

    loop: TurnedLoop
    hub: Hub
    logs: TopicLogs
    line: Line
    channel: TopicLogConnection
    gone: list[TopicLogConnection] = field(default_factory=list)

    def feed(self, data: bytes) -> None:
        """Deliver bytes while the channel reads, as many at a time as it has space for."""
        left = memoryview(data)
        while left:
            self.loop.turn()
            if not self.line.is_reading:
                self.loop.turn_until(lambda: self.line.is_reading)
            view = self.channel.get_buffer(-1)
            count = min(len(view), len(left))
            view[:count] = left[:count]
            left = left[count:]
            self.channel.buffer_updated(count)
        self.loop.turn()

    def answer(self, size: int) -> bytes:
        """Return this number of bytes of the output; wait for them."""
        self.loop.turn_until(lambda: len(self.line.out) >= size)
        said = bytes(self.line.out[:size])
        del self.line.out[:size]
        return said


@contextmanager
def wired(
    *,
    limits: HubLimits | None = None,
    publisher: Publisher | None = None,
    world: LogWorld | None = None,
) -> Iterator[Wired]:
    """Connect to topic logs on a disk in memory."""
    loop = TurnedLoop()
    with (world or LogWorld()).logs() as (logs, _):
        hub = Hub(logs, loop, limits or HubLimits(), publisher)
        gone: list[TopicLogConnection] = []
        channel = TopicLogConnection(cast("Any", loop), hub, body_timeout=30.0, gone=gone.append)
        line = Line()
        channel.connection_made(cast("Any", line))
        yield Wired(loop, hub, logs, line, channel, gone)
        channel.connection_lost(None)
        loop.turn()


class WiredSocket:
    """A socket whose other end is a channel."""

    def __init__(self, server: Wired) -> None:
        self.server = server
        self.sent: list[int] = []
        self.timeout: float | None = None
        self.is_closed = False
        self.is_cut = False

    def setsockopt(self, *_: object) -> None:
        pass

    def settimeout(self, seconds: float) -> None:
        self.timeout = seconds

    def sendmsg(self, parts: Sequence[memoryview]) -> int:
        if self.is_cut:
            raise BrokenPipeError("cut")
        # Never all at once, like a real socket with full buffers.
        data = b"".join(parts)[:100_000]
        self.server.feed(data)
        self.sent.append(len(data))
        return len(data)

    def recv_into(self, view: memoryview) -> int:
        if self.is_cut:
            return 0
        said = self.server.answer(1)
        rest = bytes(self.server.line.out[: len(view) - 1])
        del self.server.line.out[: len(rest)]
        view[: len(rest) + 1] = said + rest
        return len(rest) + 1

    def close(self) -> None:
        self.is_closed = True
