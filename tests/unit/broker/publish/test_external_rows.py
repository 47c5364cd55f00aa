from __future__ import annotations

from siltstone.broker.publish.external_rows import batch_of, publish_rows
from siltstone.mqtt.packets import Publish
from siltstone.store.log.write.partition import Columns
from tests.support.broker_core import Core, over_quota

EXPIRY = b"\x02\x00\x00\x00\x3c"


def test_rows_become_a_batch_of_messages() -> None:
    batch = batch_of(Columns([b"a", b"b"], [b"1", b"2"], b"p", 1, [EXPIRY, b""]))
    assert (batch.topics, batch.values) == ([b"a", b"b"], [b"1", b"2"])
    assert (batch.flags, batch.packet_ids) == ([1, 1], [0, 0])
    assert (batch.properties, batch.expiries) == ([EXPIRY, b""], [60, -1])


def test_rows_without_expiry_have_none() -> None:
    assert batch_of(Columns([b"a"], [b"1"], b"p", [1], None)).expiries == []
    assert batch_of(Columns([b"a"], [b"1"], b"p", 0, [b"\x01\x01"])).expiries == []


def test_subscribers_get_rows_that_are_not_stored_again() -> None:
    core = Core()
    wire = core.connect("s")
    wire.subscribe("a/#")
    publish_rows(core.broker, Columns([b"a/b", b"c"], [b"1", b"2"], b"p", 0, None))
    core.run()
    got = [packet for packet in wire.take() if isinstance(packet, Publish)]
    assert [(packet.topic, packet.payload) for packet in got] == [(b"a/b", b"1")]
    assert core.database.rows == []


def test_retained_rows_are_kept_by_their_publishers() -> None:
    core = Core()
    rows = Columns([b"a", b"b", b"c"], [b"1", b"2", b"3"], [b"p", b"q", b"p"], [4, 4, 0], None)
    publish_rows(core.broker, rows)
    core.run()
    assert [(append.topics, append.columns.publisher) for append in core.retained_log.stored] == [
        ([b"a"], [b"p"]),
        ([b"b"], [b"q"]),
    ]


def test_rows_that_cannot_be_retained_are_sent_all_the_same() -> None:
    core = Core()
    wire = core.connect("s")
    wire.subscribe("a")
    core.retained_log.refusals.append(over_quota())
    publish_rows(core.broker, Columns([b"a"], [b"1"], b"p", 4, None))
    core.run()
    got = [packet for packet in wire.take() if isinstance(packet, Publish)]
    assert [packet.payload for packet in got] == [b"1"]
