"""Rows that retention took before a session read them: log, counter and client are told."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from siltstone.mqtt.packets import Publish
from tests.support.durable_desk import DurableDesk, durable_desk, lose


@pytest.fixture
def desk() -> Iterator[DurableDesk]:
    with durable_desk() as desk:
        yield desk


def test_a_session_that_came_to_an_empty_store_is_told_of_rows_that_retention_took(
    desk: DurableDesk, caplog: pytest.LogCaptureFixture
) -> None:
    wire = desk.come()
    wire.subscribe("t")
    lose(wire)
    desk.publish("t", "1")
    desk.publish("t", "2")
    desk.core.real.seal()
    desk.core.real.drop_slab(desk.core.real.slabs()[0].slab)
    desk.publish("t", "3")
    desk.publish("t", "4")
    with caplog.at_level(logging.WARNING, "siltstone.sessions"):
        wire = desk.come()
        desk.wait()
    told = [each for each in wire.take() if isinstance(each, Publish)]
    assert [(each.payload, each.properties.user_properties) for each in told] == [
        (b"3", (("siltstone-lost-rows", "2"),)),
        (b"4", ()),
    ]
    assert [record.__dict__["facts"] for record in caplog.records] == [
        {"client_id": "s", "serials": 2}
    ]
    lose(wire)
    saved = desk.core.peek("s")
    assert saved is not None
    assert saved.dropped == 2
