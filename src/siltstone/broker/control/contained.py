"""Coroutines of a task that runs as long as the broker: a mistake of ours ends one of them, and not
the task, with which the broker would end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from siltstone.guard import contain_with


async def contain_async(act: Callable[[], Awaitable[object]]) -> None:
    """Await something; if it raises, log that with its trace. That the caller is cancelled passes
    through.
    """
    [outcome] = await asyncio.gather(_do(act), return_exceptions=True)
    if isinstance(outcome, Exception):
        contain_with(_raise, outcome)


async def _do(act: Callable[[], Awaitable[object]]) -> None:
    await act()


def _raise(error: Exception) -> None:
    raise error
