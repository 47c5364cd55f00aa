from __future__ import annotations

import pytest

from tests.support.command_line import CommandLine


@pytest.fixture
def siltstone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)
