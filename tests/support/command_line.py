"""The command line in the process of the test, on a file system and a clock in memory."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import pytest

from siltstone.cli.main import execute
from siltstone.clock import ManualClock
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.directory import Store

DATA = PurePath("/data")
START_US = 1_700_000_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a command: its status, its output, its notes."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Keyboard(io.TextIOWrapper):
    """A stdin that is a terminal, or not."""

    def __init__(self, typed: bytes, *, terminal: bool) -> None:
        super().__init__(io.BytesIO(typed), "utf-8")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class CommandLine:
    """Runs commands on a data directory in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.fs = MemoryFileSystem()
        self.clock = ManualClock(START_US)
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        for module in ("siltstone.store.directory", "siltstone.cli.store.verify"):
            monkeypatch.setattr(f"{module}.PosixFileSystem", lambda **_: self.fs)
        monkeypatch.setattr("siltstone.store.directory.SystemClock", lambda: self.clock)
        monkeypatch.setattr("siltstone.cli.store.read.SystemClock", lambda: self.clock)
        monkeypatch.setenv("SILTSTONE_DATA", str(DATA))

    def __call__(self, *args: str, stdin: bytes = b"", terminal: bool = False) -> Outcome:
        """Run one command."""
        self._monkeypatch.setattr("sys.stdin", Keyboard(stdin, terminal=terminal))
        self._capsys.readouterr()
        status = execute(args)
        captured = self._capsys.readouterr()
        return Outcome(status=status, out=captured.out, err=captured.err)

    def create(self, name: str, *args: str) -> None:
        """Create a database with small files, because they are in memory."""
        assert self("db", "create", name, "--segment-bytes", "64KiB", *args).status == 0

    def store(self, *, read_only: bool = False) -> Store:
        """Open the same directory as the commands."""
        return Store(DATA, read_only=read_only, fs=self.fs, clock=self.clock)
