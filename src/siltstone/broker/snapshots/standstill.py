"""A pause in which a broker stores nothing, so that a backup shows the store at one moment.

The broker stops reading from connected clients, and stores everything that it has read. Then the
backup reads the state of the store. A client that connects meanwhile may still publish, and a will
may be published: `end` returns whether nothing was stored since `reach`. Otherwise the backup must
repeat the read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from siltstone.broker.broker import Broker, Peer
from siltstone.logs import log

# The time limit for storing the last rows, and for the pause on the control socket.
STANDSTILL_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.002
# When the broker stops, it does not wait for work without progress in this time.
_STALL_SECONDS: Final = 5.0
_LOG: Final = logging.getLogger("siltstone.server")


class Standstill:
    """One pause of the clients of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stopped: list[Peer] = []
        self._rows = -1

    async def reach(self) -> bool:
        """Stop reading; return whether everything was stored within `STANDSTILL_SECONDS`."""
        self._stopped = list(self._broker.clients.values())
        for client in self._stopped:
            client.stop()
        bridge = self._broker.bridge
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STANDSTILL_SECONDS
        # Poll: the append batcher has no callback for the end of all appends.
        while bridge.pending_bytes and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        self._rows = bridge.rows
        return bridge.pending_bytes == 0

    def end(self) -> bool:
        """Read again; return whether nothing was stored since `reach`.

        A second call returns False.
        """
        stopped, self._stopped = self._stopped, []
        for client in stopped:
            client.go_on()
        bridge = self._broker.bridge
        was_still = bridge.rows == self._rows and bridge.pending_bytes == 0
        self._rows = -1
        return was_still


async def until_settled(broker: Broker, seconds: float) -> None:
    """Wait until everything is on disk, at most `seconds`, and only while there is progress."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    deadline, stalls_at = now + seconds, now + _STALL_SECONDS
    before = broker.settling
    while not broker.is_settled and loop.time() < min(deadline, stalls_at):
        await asyncio.sleep(_POLL_SECONDS)
        if broker.settling != before:
            before, stalls_at = broker.settling, loop.time() + _STALL_SECONDS
    if not broker.is_settled:
        log(
            _LOG,
            logging.ERROR,
            "stop_incomplete",
            pending_bytes=broker.bridge.pending_bytes,
            sessions=0 if broker.durables is None else len(broker.durables.turns),
        )
