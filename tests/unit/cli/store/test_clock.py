"""What needs a broker is in tests/integration/test_clock_commands.py."""

from __future__ import annotations

import pytest

from siltstone.clock import Sighting
from siltstone.store.last_seen import read_last_seen, write_last_seen
from tests.support.command_line import DATA, CommandLine

YEAR_US = 365 * 86_400_000_000


@pytest.fixture
def siltstone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def seen_before(siltstone: CommandLine, time_us: int) -> None:
    siltstone.create("messages")
    seen = Sighting(time_us=siltstone.clock.now_us() - time_us, boot="another")
    write_last_seen(siltstone.fs, DATA, seen)


def test_a_store_in_use_until_now_is_in_order(siltstone: CommandLine) -> None:
    seen_before(siltstone, 0)
    shown = siltstone("clock", "status")
    assert [line.split()[:2] for line in shown.lines][2] == ["state", "ok"]
    assert siltstone("clock", "confirm").out == "the clock is trusted already\n"


def test_a_long_time_off_is_told_with_the_remedy(siltstone: CommandLine) -> None:
    seen_before(siltstone, YEAR_US)
    shown = siltstone("clock", "status").out
    assert "not in use before" in shown
    assert "365d" in shown
    assert "siltstone clock confirm" in shown


def test_a_clock_set_back_is_told_with_the_remedy(siltstone: CommandLine) -> None:
    seen_before(siltstone, -YEAR_US)
    shown = siltstone("clock", "status").out
    assert "365d behind" in shown
    assert "when it has caught up" in shown


def test_confirming_and_resetting_ask_first(siltstone: CommandLine) -> None:
    seen_before(siltstone, YEAR_US)
    before = read_last_seen(siltstone.fs, DATA)
    for args in (("confirm",), ("reset", "messages")):
        assert "pass --yes" in siltstone("clock", *args).err
    assert read_last_seen(siltstone.fs, DATA) == before
