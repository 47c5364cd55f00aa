"""A moment in which a broker stores nothing: for a backup that is of one moment.

Connected clients are not read, what was read is stored, and then the store is looked at. A client
that connects meanwhile may still publish, and so may a will: `end` tells whether anything was
stored since `reach`, and then the look is worth nothing and is repeated.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from siltstone.broker.broker import Broker, Peer
from siltstone.logs import log

# So long the last rows may take, and so long the look.
STANDSTILL_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.002
# At the end nothing is waited for that has not moved for so long.
_STALL_SECONDS: Final = 5.0
_LOG: Final = logging.getLogger("siltstone.server")


class Standstill:
    """Lets the clients of a broker wait, once."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stopped: list[Peer] = []
        self._rows = -1

    async def reach(self) -> bool:
        """Stop; tell whether everything was stored within the time."""
        self._stopped = list(self._broker.clients.values())
        for client in self._stopped:
            client.stop()
        bridge = self._broker.bridge
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STANDSTILL_SECONDS
        # Threads of the store tell the bridge, which tells nobody.
        while bridge.pending_bytes and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        self._rows = bridge.rows
        return bridge.pending_bytes == 0

    def end(self) -> bool:
        """Go on; tell whether nothing was stored since it was reached. A second call tells no."""
        stopped, self._stopped = self._stopped, []
        for client in stopped:
            client.go_on()
        bridge = self._broker.bridge
        was_still = bridge.rows == self._rows and bridge.pending_bytes == 0
        self._rows = -1
        return was_still


async def until_settled(broker: Broker, seconds: float) -> None:
    """Wait until everything is on disk, for so long, and only as long as something moves there."""
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
