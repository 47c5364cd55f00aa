"""Copy a shard from another site, through NATS: the requests of both sides.

A request is JSON: `do` (offer, digest, part, rows, state), `shard`, and `path`, `end`, `offset`,
`length`, `index` and `rate` as far as they are needed. `rows` asks for the digest of the rows of a
sealed segment, and `state` for that of a key-value shard at an index; its answer is empty while it
is being computed. An answer is `+` and the bytes, or `-` and a text. Only sites with the secret of
the cluster can send either.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Event
from time import monotonic
from typing import Any, Final

from siltstone.errors import RetryError, SiltstoneError, UsageError
from siltstone.store.shard.replicated.copying import (
    CopyFile,
    Offer,
    checked_path,
    digest_of_file,
    read_part,
)
from siltstone.store.shard.replicated.damage import digest_of_rows
from siltstone.store.shard.replicated.log import ReplicatedLog

PART_BYTES: Final = 512 * 1024
# The parts that are under way at a time.
_WINDOW: Final = 6
_OFFER_SECONDS: Final = 10.0

# Sends a request to the source; the future gets the answer.
Request = Callable[[dict[str, Any]], Future[bytes]]


async def answer_request(shard: ReplicatedLog, values: dict[str, Any]) -> bytes:
    """Return the answer to a request of a site that copies. On the loop of the site."""
    try:
        return b"+" + await _answer(shard, values)
    except (TimeoutError, SiltstoneError, ValueError, KeyError, TypeError) as exc:
        return b"-" + (str(exc) or type(exc).__name__).encode()


async def _answer(shard: ReplicatedLog, values: dict[str, Any]) -> bytes:
    match values["do"]:
        case "offer":
            offered: Future[Offer | None] = Future()
            shard.ask_for_offer(offered.set_result)
            offer = await asyncio.wait_for(asyncio.wrap_future(offered), _OFFER_SECONDS)
            if offer is None:
                raise RetryError("this site has nothing to offer now")
            return offer.encode()
        case "digest":
            path, end = str(values["path"]), int(values["end"])
            shard.note_read(checked_path(path))
            return await asyncio.to_thread(digest_of_file, shard.fs, shard.place, path, end)
        case "rows":
            path = checked_path(str(values["path"]))
            return await asyncio.to_thread(digest_of_rows, shard.fs, shard.place, path)
        case "state":
            index, rate = int(values["index"]), max(1, int(values["rate"]))
            state = shard.state(index, rate)
            return b"" if state is None else state.encode()
        case "part":
            path, offset, length = str(values["path"]), int(values["offset"]), int(values["length"])
            if not 0 <= length <= PART_BYTES:
                raise UsageError(f"a part must have at most {PART_BYTES} bytes, got {length}")
            shard.note_read(checked_path(path))
            return await asyncio.to_thread(read_part, shard.fs, shard.place, path, offset, length)
        case other:
            raise UsageError(f"unknown request {other!r}")


class PeerFiles:
    """The files of another site. On a thread of its own, which waits for the answers."""

    def __init__(self, shard: str, request: Request, *, bytes_per_second: int, stop: Event) -> None:
        self._shard = shard
        self._request = request
        self._bytes_per_second = bytes_per_second
        self._stop = stop
        self._due = monotonic()
        self.fetched_bytes = 0

    def offer(self) -> Offer:
        """Return the current offer of the source. Raises: SiltstoneError."""
        return Offer.decode(_data_of(self._ask("offer")))

    def digest(self, file: CopyFile) -> bytes:
        """Return the digest of a file. Raises: SiltstoneError."""
        return _data_of(self._ask("digest", path=file.path, end=file.end))

    def read(self, file: CopyFile, start: int) -> Iterator[bytes]:
        """Yield the bytes of a file from a position to its end. Raises: SiltstoneError."""
        under_way: deque[Future[bytes]] = deque()
        for offset in range(start, file.end, PART_BYTES):
            length = min(PART_BYTES, file.end - offset)
            self._pause(length)
            under_way.append(self._ask("part", path=file.path, offset=offset, length=length))
            if len(under_way) == _WINDOW:
                yield self._next(under_way)
        while under_way:
            yield self._next(under_way)

    def _next(self, under_way: deque[Future[bytes]]) -> bytes:
        data = _data_of(under_way.popleft())
        if not data:
            raise RetryError("a file of the source is shorter than it said")
        self.fetched_bytes += len(data)
        return data

    def _ask(self, what: str, **values: object) -> Future[bytes]:
        return self._request({"do": what, "shard": self._shard, **values})

    def _pause(self, length: int) -> None:
        """Wait until these bytes are within the rate. Raises: RetryError if the site stops."""
        now = monotonic()
        self._due = max(self._due, now) + length / self._bytes_per_second
        if self._stop.wait(max(0.0, self._due - now - 0.1)):
            raise RetryError("the site is being stopped")


def _data_of(answer: Future[bytes]) -> bytes:
    data = answer.result()
    if data[:1] != b"+":
        raise RetryError(f"another site refused: {data[1:].decode(errors='replace')}")
    return data[1:]
