"""Containment of internal errors in coroutines.

An error ends the coroutine, not its task. The tasks run as long as the broker, and the end of one
would end the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from siltstone.guard import contain_with


async def contain_async(act: Callable[[], Awaitable[object]]) -> None:
    """Await the result of `act`; if it raises, log the exception with its traceback.

    Cancellation of the caller passes through.
    """
    [outcome] = await asyncio.gather(_do(act), return_exceptions=True)
    if isinstance(outcome, Exception):
        contain_with(_raise, outcome)


async def _do(act: Callable[[], Awaitable[object]]) -> None:
    await act()


def _raise(error: Exception) -> None:
    raise error
