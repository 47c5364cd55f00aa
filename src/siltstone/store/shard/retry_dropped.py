"""Repeat a read whose files disappeared because a slab was dropped, here or in another process."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from siltstone.errors import CorruptionError, NotFoundError, SlabDroppedError
from siltstone.store.shard.shards import Shards


class Looks(Protocol):
    """An object that reads slabs."""

    @property
    def _log(self) -> Shards | None:
        """The shards whose slabs it reads; None if they have no files of their own."""


P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", bound=Looks)


def retry_when_dropped(look: Callable[Concatenate[L, P], T]) -> Callable[Concatenate[L, P], T]:
    """Repeat a read as long as the manifest changes meanwhile."""

    @wraps(look)
    def looked(self: L, /, *args: P.args, **kwargs: P.kwargs) -> T:
        shards = self._log
        if shards is None:
            return look(self, *args, **kwargs)
        while True:
            known = shards.manifest
            try:
                return look(self, *args, **kwargs)
            except (NotFoundError, SlabDroppedError, CorruptionError):
                # A slab is removed from the manifest before its files are removed.
                shards.refresh()
                if shards.manifest == known:
                    raise

    return looked
