"""Ports for servers that tests start and restart."""

from __future__ import annotations

import random
import socket
from typing import Final

# Below the ephemeral ports: a client could hold one of those and prevent the restart of a server.
FIRST: Final = 10_000
STOP: Final = 32_000
_TRIES: Final = 100


def free_port() -> int:
    """Return a port without a listener, which no client will be given."""
    # Not seeded by a test: two processes would choose the same ports.
    chosen = random.SystemRandom()
    for _ in range(_TRIES):
        port = chosen.randrange(FIRST, STOP)
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
