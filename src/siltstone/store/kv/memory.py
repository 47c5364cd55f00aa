"""A key-value store in memory, for tests; a view copies nothing."""

from __future__ import annotations

from bisect import bisect_left

from siltstone.errors import ClosedError, ExistsError, NotFoundError
from siltstone.store.kv.api import DEFAULT_FAMILY, Changes, Item


class MemoryView:
    """A family at one moment; the dictionary is never changed, only replaced."""

    def __init__(self, engine: MemoryEngine, values: dict[bytes, bytes]) -> None:
        self._engine: MemoryEngine | None = engine
        self._values = values
        self._keys: list[bytes] | None = None

    def get(self, key: bytes) -> bytes | None:
        self._check()
        return self._values.get(key)

    def items(self, start: bytes, stop: bytes, limit: int) -> list[Item]:
        keys = self._sorted()
        first = bisect_left(keys, start)
        end = min(bisect_left(keys, stop), first + limit)
        return [(key, self._values[key]) for key in keys[first:end]]

    def last(self, start: bytes, stop: bytes) -> Item | None:
        keys = self._sorted()
        place = bisect_left(keys, stop) - 1
        if place < 0 or keys[place] < start:
            return None
        return keys[place], self._values[keys[place]]

    def release(self) -> None:
        self._engine = None

    def _sorted(self) -> list[bytes]:
        self._check()
        if self._keys is None:
            self._keys = sorted(self._values)
        return self._keys

    def _check(self) -> None:
        if self._engine is None or self._engine.closed:
            raise ClosedError("the snapshot view or its database is closed")


class MemoryEngine:
    """Families in dictionaries."""

    def __init__(self) -> None:
        self.closed = False
        self._families: dict[str, dict[bytes, bytes]] = {DEFAULT_FAMILY: {}}

    def families(self) -> list[str]:
        self._check()
        return sorted(self._families)

    def create_family(self, name: str) -> None:
        self._check()
        if name in self._families:
            raise ExistsError(f"the column family exists already: name={name}")
        self._families[name] = {}

    def drop_family(self, name: str) -> None:
        self._family(name)
        del self._families[name]

    def get(self, family: str, key: bytes) -> bytes | None:
        return self._family(family).get(key)

    def view(self, family: str) -> MemoryView:
        return MemoryView(self, self._family(family))

    def write(self, changes: Changes) -> None:
        self._check()
        names = {family for family, _, _ in changes.ranges} | changes.values.keys()
        changed = {name: dict(self._family(name)) for name in names}
        for family, start, stop in changes.ranges:
            values = changed[family]
            for key in [key for key in values if start <= key < stop]:
                del values[key]
        for family, news in changes.values.items():
            for key, value in news.items():
                if value is None:
                    changed[family].pop(key, None)
                else:
                    changed[family][key] = value
        self._families |= changed

    def size_bytes(self, family: str | None = None) -> int:
        self._check()
        families = self._families.values() if family is None else [self._family(family)]
        return sum(len(key) + len(value) for values in families for key, value in values.items())

    def write_back(self) -> None:
        self._check()

    def close(self) -> None:
        self.closed = True

    def reopened(self) -> MemoryEngine:
        """Return the engine that the next process would open."""
        engine = MemoryEngine()
        engine._families = dict(self._families)
        return engine

    def _family(self, name: str) -> dict[bytes, bytes]:
        self._check()
        if name not in self._families:
            raise NotFoundError(f"unknown column family: name={name}")
        return self._families[name]

    def _check(self) -> None:
        if self.closed:
            raise ClosedError("the database is closed")
