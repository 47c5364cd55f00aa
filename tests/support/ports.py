"""Ports for servers that tests start, and start again."""

from __future__ import annotations

import random
import socket
from typing import Final

# Below those that systems give to sockets that ask for none: one of these, held by some client,
# would keep a server from coming back.
FIRST: Final = 10_000
STOP: Final = 32_000
_TRIES: Final = 100


def free_port() -> int:
    """Return a port that nobody listens on, and that no client will be given."""
    # Not seeded by a test: two processes would ask for the same ones.
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
