"""A key-value store over another one whose writes fail as scripted, for tests.

A write that fails may have been stored or not. The database must survive both, so both can be
scripted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from siltstone.errors import DiskError
from siltstone.store.kv.api import Changes, Engine, View


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFault:
    """The nth write from now on fails; `stored` says whether its changes are stored anyway."""

    nth: int = 1
    stored: bool = False


class FaultyEngine:
    """Forwards all calls to `inner`, except the write that a fault selects."""

    def __init__(self, inner: Engine, fault: WriteFault | None = None) -> None:
        self.inner = inner
        self.fault = fault
        self.writes = 0
        self._left = 0 if fault is None else fault.nth

    def script(self, fault: WriteFault) -> None:
        """Let a write fail; the count begins now."""
        self.fault = fault
        self._left = fault.nth

    def families(self) -> list[str]:
        return self.inner.families()

    def create_family(self, name: str) -> None:
        self.inner.create_family(name)

    def drop_family(self, name: str) -> None:
        self.inner.drop_family(name)

    def get(self, family: str, key: bytes) -> bytes | None:
        return self.inner.get(family, key)

    def view(self, family: str) -> View:
        return self.inner.view(family)

    def write(self, changes: Changes) -> None:
        """Store changes, or fail. Raises: DiskError as scripted."""
        self.writes += 1
        if self.fault is not None:
            self._left -= 1
            if self._left == 0:
                if self.fault.stored:
                    self.inner.write(changes)
                raise DiskError(PurePath("faulty"), "write", "scripted", errno=5)
        self.inner.write(changes)

    def size_bytes(self, family: str | None = None) -> int:
        return self.inner.size_bytes(family)

    def write_back(self) -> None:
        self.inner.write_back()

    def close(self) -> None:
        self.inner.close()
