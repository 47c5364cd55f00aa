"""A proxy that cuts connections while they transfer data."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Lock, Thread
from types import TracebackType
from typing import Final, Self

_CHUNK_BYTES: Final = 4096


class CuttingProxy:
    """Forwards bytes to a port, and cuts each of the first connections after a number of bytes."""

    def __init__(self, port: int, *, cuts: int, after_bytes: int) -> None:
        self.cuts_left = cuts
        self._after_bytes = after_bytes
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [Thread(target=self._accept)]

    def _accept(self) -> None:
        # Closing the listener ends it.
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open.append(server)
                link = _Link(self, client, server, self._after_bytes)
                for source, sink in ((client, server), (server, client)):
                    thread = Thread(target=link.pass_on, args=(source, sink))
                    self._threads.append(thread)
                    thread.start()

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Only a shutdown wakes a thread that is blocked in accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for end in self._open:
            end.close()


class _Link:
    """Both ends of one connection."""

    def __init__(
        self, proxy: CuttingProxy, client: socket.socket, server: socket.socket, after_bytes: int
    ) -> None:
        self._proxy = proxy
        self._ends = (client, server)
        self._left = after_bytes
        self._lasts = proxy.cuts_left == 0
        self._lock = Lock()

    def pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(_CHUNK_BYTES):
                if self._ends_within(len(chunk)):
                    # Half of the last chunk still arrives.
                    sink.sendall(chunk[: len(chunk) // 2])
                    self._cut()
                    return
                sink.sendall(chunk)
            sink.shutdown(socket.SHUT_WR)

    def _ends_within(self, size: int) -> bool:
        with self._lock:
            before, self._left = self._left, self._left - size
            return not self._lasts and self._left < 0 <= before

    def _cut(self) -> None:
        self._proxy.cuts_left -= 1
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
