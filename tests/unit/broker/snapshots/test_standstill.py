from __future__ import annotations

import asyncio

import pytest

from siltstone.broker.sessions.turns import Turn
from siltstone.broker.snapshots import standstill
from siltstone.broker.snapshots.standstill import Standstill, until_settled
from tests.support.durable_desk import durable_desk
from tests.support.group_core import group_core, join, publish


def test_clients_are_not_read_until_it_ends_and_it_tells_that_nothing_was_stored() -> None:
    with group_core() as core:
        wire = join(core, "a", "t/#")
        still = Standstill(core.broker)
        assert asyncio.run(still.reach())
        reading = [wire.is_reading]
        assert still.end()
        reading.append(wire.is_reading)
        assert reading == [False, True]
        # It has ended.
        assert not still.end()


def test_what_is_stored_meanwhile_is_told() -> None:
    with group_core() as core:
        still = Standstill(core.broker)
        assert asyncio.run(still.reach())
        publish(core, "1")
        assert not still.end()


def test_the_end_waits_for_no_turn_that_does_not_move(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(standstill, "_STALL_SECONDS", 0.0)
    with durable_desk() as desk:
        broker = desk.core.broker
        asyncio.run(until_settled(broker, 60.0))
        assert caplog.records == []
        desk.core.durables.turns.begin(Turn("s", lambda: None))
        asyncio.run(until_settled(broker, 60.0))
        [told] = caplog.records
        assert (told.getMessage(), told.__dict__["facts"]) == (
            "stop_incomplete",
            {"pending_bytes": 0, "sessions": 1},
        )
