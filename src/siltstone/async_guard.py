"""Containment of internal errors in coroutines.

An error ends the coroutine, not its task. The tasks run as long as the broker, and the end of one
would end the broker. The store imports `guard` and may not import asyncio, so this is a module of
its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

_LOG: Final = logging.getLogger("siltstone")


async def contain_async(
    act: Callable[[], Awaitable[object]], *expected: type[Exception]
) -> BaseException | None:
    """Await the result of `act`; return its exception, None if there is none.

    An exception that is not `expected` is logged with its traceback. Cancellation of the caller
    passes through; a CancelledError that `act` raises itself is an exception like the others.
    """
    [outcome] = await asyncio.gather(_do(act), return_exceptions=True)
    if outcome is not None and not isinstance(outcome, expected):
        _LOG.error("internal_error", exc_info=outcome)
    return outcome


async def _do(act: Callable[[], Awaitable[object]]) -> None:
    await act()
