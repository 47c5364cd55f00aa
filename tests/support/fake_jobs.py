"""Fake modules of the pipeline for tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest


class FakeJobs:
    """Returns fake modules by name, and a fake session."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
        self.modules: dict[str, Any] = {}
        self.masters: list[tuple[str, str]] = []
        monkeypatch.setattr(f"{module}.pipeline", self.modules.__getitem__)
        monkeypatch.setattr(f"{module}.session", self._session, raising=False)

    def put(self, name: str, **content: Any) -> None:
        """Add a module."""
        self.modules[name] = SimpleNamespace(**content)

    @contextmanager
    def _session(self, master: str, memory: str) -> Iterator[str]:
        self.masters.append((master, memory))
        yield "spark"
