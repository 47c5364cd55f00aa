"""Modules of the pipeline that the command line is given instead of the real ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest


class FakeJobs:
    """Hands out fake modules by name, and a session that is only a word."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
        self.modules: dict[str, Any] = {}
        self.masters: list[tuple[str, str]] = []
        monkeypatch.setattr(f"{module}.pipeline", self.modules.__getitem__)
        monkeypatch.setattr(f"{module}.session", self._session, raising=False)

    def put(self, name: str, **content: Any) -> None:
        """Make a module known."""
        self.modules[name] = SimpleNamespace(**content)

    @contextmanager
    def _session(self, master: str, memory: str) -> Iterator[str]:
        self.masters.append((master, memory))
        yield "spark"
