"""Look again when files went under a look, because their slab was dropped, here or elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from siltstone.errors import CorruptionError, NotFoundError, SlabDroppedError
from siltstone.store.shard.readable_slabs import ReadableSlabs
from siltstone.store.shard.writable_slabs import WritableSlabs


class Looks(Protocol):
    """Whoever looks at slabs."""

    _slabs: WritableSlabs | ReadableSlabs


P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", bound=Looks)


def again_when_dropped(look: Callable[Concatenate[L, P], T]) -> Callable[Concatenate[L, P], T]:
    """Repeat a look for as long as the manifest changes under it."""

    @wraps(look)
    def looked(self: L, /, *args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            known = self._slabs.manifest
            try:
                return look(self, *args, **kwargs)
            except (NotFoundError, SlabDroppedError, CorruptionError):
                # Whoever drops a slab takes it out of the manifest first.
                self._slabs.refresh()
                if self._slabs.manifest == known:
                    raise

    return looked
