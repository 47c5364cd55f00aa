"""A key-value database in memory that a test can open, hold, break and open again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePath
from types import TracebackType
from typing import Any, Self

from siltstone.clock import Clock, ManualClock
from siltstone.errors import SiltstoneError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.kv.api import Engine
from siltstone.store.kv.faulty import FaultyEngine, WriteFault
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.log.check.findings import Finding
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.tx.verify import verify_keyvalue
from tests.support.tx_model import opened

START_US = 1_000_000
_PLACE = PurePath("/kv")


def problems_in(engine: Engine) -> list[Finding]:
    """Verify the database in an engine; return the findings."""
    fs = MemoryFileSystem()
    fs.make_directory(_PLACE)
    return [*verify_keyvalue(fs, _PLACE, lambda path: engine).findings]


class World:
    """A clock, an engine, and the database on it."""

    def __init__(self, clock: Clock | None = None, **settings: Any) -> None:
        self.clock = ManualClock(START_US)
        self.memory = MemoryEngine()
        self.engine = FaultyEngine(self.memory)
        self.database = opened(self.engine, clock or self.clock, KeyValueSettings(**settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.database.close()

    def reopen(self) -> KeyValueDatabase:
        """Close the database and open it again."""
        self.database.close()
        return self.crash()

    def crash(self) -> KeyValueDatabase:
        """Open the state that a process finds after this one was killed."""
        self.memory = self.memory.reopened()
        left, self.engine = self.database, FaultyEngine(self.memory)
        self.database = opened(self.engine, self.clock)
        with suppress(SiltstoneError):
            left.close()
        return self.database

    def fail_write(self, *, nth: int = 1, stored: bool = False) -> None:
        """Make a later write fail, the next one by default."""
        self.engine.script(WriteFault(nth=nth, stored=stored))

    def write(self, topic: str, value: bytes = b"", **times: int) -> int:
        """Write one row in a transaction of its own; return the serial."""
        with self.database.transaction() as tx:
            tx.write(topic, value, **times)
        return tx.serial

    def rows(self, topic_filter: str = "#") -> list[tuple[str, int, bytes]]:
        """Return the stored rows, sorted."""
        return sorted(
            (row.topic, row.timestamp_us, row.value) for row in self.database.read(topic_filter)
        )
