"""The commands for sessions and groups, on a store in memory with sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath

import pytest

from siltstone.errors import NotFoundError
from siltstone.fs.publish import create_directories
from siltstone.session.archive.store import ARCHIVE_NAME, ARCHIVE_SETTINGS, SessionArchive
from siltstone.store.directory import Store
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.log.read.pieces import Row
from tests.support.builders import NAME, settings_of
from tests.support.command_line import DATA, CommandLine
from tests.support.engines import Engines


class SessionCommands:
    """A command line whose archive is in memory too."""

    def __init__(self, siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.siltstone = siltstone
        self._engines = Engines()
        defaults = Store.__init__.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "open_engine", self._engines.open_writing)
        monkeypatch.setattr("siltstone.cli.sessions.sessions.open_engine", self._open_reading)
        for module in ("siltstone.cli.sessions.sessions", "siltstone.cli.sessions.groups"):
            monkeypatch.setattr(f"{module}.SystemClock", lambda: siltstone.clock)

    def _open_reading(self, path: PurePath) -> MemoryEngine:
        if path not in self._engines.opened:
            raise NotFoundError(f"there is nothing at {path}")
        return self._engines.open_reading(path)

    @contextmanager
    def archive(self) -> Iterator[SessionArchive]:
        """Open the archive as a broker does."""
        with self.siltstone.store() as store:
            # RocksDB would create this directory and this file.
            create_directories(self.siltstone.fs, DATA / ARCHIVE_NAME)
            if not self.siltstone.fs.exists(DATA / ARCHIVE_NAME / "CURRENT"):
                self.siltstone.fs.create(DATA / ARCHIVE_NAME / "CURRENT").close()
            keyvalue = store.keyvalue(ARCHIVE_NAME, ARCHIVE_SETTINGS)
            origin = store.ensure(NAME, settings_of()).origin
            yield SessionArchive(keyvalue, self.siltstone.clock, origin)

    @property
    def identity(self) -> str:
        """The identity of the messages database."""
        with self.siltstone.store(read_only=True) as store:
            return store.database(NAME).identity

    def append(self, *values: bytes, topic: str = "t/1") -> None:
        """Store QoS 1 messages, one each second."""
        with self.siltstone.store() as store:
            database = store.ensure(NAME, settings_of())
            for value in values:
                database.append([Row(topic, value, qos=1)]).wait()
                self.siltstone.clock.advance(1)
