"""What needs a broker, or a store of one, is in tests/integration/test_retained_commands.py."""

from __future__ import annotations

import pytest

from tests.support.command_line import CommandLine


@pytest.fixture
def siltstone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


@pytest.mark.parametrize("args", [("list", "a/#/b"), ("clear", "a/#/b", "--yes")])
def test_what_is_no_filter_is_refused(siltstone: CommandLine, args: tuple[str, ...]) -> None:
    siltstone.create("messages")
    assert siltstone("retained", *args).status == 2


@pytest.mark.parametrize("args", [("list",), ("clear", "#", "--yes")])
def test_a_store_without_a_broker_has_no_retained_messages(
    siltstone: CommandLine, args: tuple[str, ...]
) -> None:
    siltstone.create("messages")
    refused = siltstone("retained", *args)
    assert (refused.status, refused.out) == (2, "")
    assert "/data has no retained messages on disk" in refused.err
