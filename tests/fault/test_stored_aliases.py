"""Topic aliases in what version 0.1.0 has stored: no receiver sees them, however they are read.

Its compiled form took a message with two topic aliases, and kept all but the last among the
properties of the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import pytest

from siltstone.bridge.entries import decode_entry
from siltstone.broker.publish.external_rows import publish_rows
from siltstone.mqtt.packets import Publish
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.publish import encode_publishes
from siltstone.mqtt.wire import Version
from siltstone.scan.columns.properties import decode as decode_attributes
from siltstone.session.archive.codec import decode_message, encode_message
from siltstone.session.archive.records import SavedMessage
from siltstone.snapshot.format.records import QueuedMessage, RetainedMessage, SessionState
from siltstone.store.log.write.partition import Columns
from tests.support.broker_core import NOW_US, V3, V5
from tests.support.durable_core import DurableCore
from tests.support.group_core import NEVER, come, join, make_core, taken
from tests.support.memory_core import MemoryCore

ALIAS = b"\x23\x00\x01"
CONTENT_TYPE = b"\x03\x00\x01t"
EXPIRY = b"\x02\x00\x00\x03\xe8"
# Before, between and behind others: where an alias is taken for a string, all behind it is lost.
LEFTOVERS = (
    ALIAS + CONTENT_TYPE,
    CONTENT_TYPE + ALIAS,
    CONTENT_TYPE + ALIAS + ALIAS + EXPIRY,
    ALIAS,
)
CLEAN = (
    Properties(content_type="t"),
    Properties(content_type="t"),
    Properties(content_type="t", message_expiry_interval=1_000),
    Properties(),
)
COUNT = len(LEFTOVERS)


@pytest.fixture
def core() -> Iterator[DurableCore]:
    core = make_core()
    yield core
    core.close()


def rows(*, retain: bool = False, qos: int = 1) -> Columns:
    topics = [f"t/{number}".encode() for number in range(COUNT)]
    return Columns(topics, [b"x"] * COUNT, b"", qos | (4 if retain else 0), list(LEFTOVERS))


def properties_of(packets: list[Any]) -> list[Properties]:
    assert all(isinstance(packet, Publish) for packet in packets), packets
    return [packet.properties for packet in sorted(packets, key=lambda packet: packet.topic)]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("text", ["t/#", "$share/g/t/#"])
def test_a_durable_session_gets_stored_messages_without_them(
    core: DurableCore, text: str, qos: int
) -> None:
    wire = join(core, "reader", text, qos=qos)
    core.real.append(rows(qos=qos)).wait()
    assert properties_of(taken(wire)) == list(CLEAN)


def test_a_client_of_3_1_1_gets_stored_messages(core: DurableCore) -> None:
    wire = join(core, "reader", "t/#", version=V3)
    core.real.append(rows()).wait()
    assert properties_of(taken(wire)) == [Properties()] * COUNT


def test_a_client_that_was_away_gets_stored_messages_without_them(core: DurableCore) -> None:
    wire = join(core, "reader", "t/#")
    wire.drop()
    core.run()
    core.real.append(rows()).wait()
    assert properties_of(taken(come(core, "reader"))) == list(CLEAN)


@pytest.mark.parametrize("session_expiry_interval", [0, NEVER])
def test_retained_messages_are_loaded_without_them(session_expiry_interval: int) -> None:
    first = make_core()
    first.retained_log._real.append(rows(retain=True)).wait()  # noqa: SLF001 - as 0.1.0 wrote it
    core = first.crash()
    try:
        wire = core.connect("reader", session_expiry_interval=session_expiry_interval)
        found = wire.subscribe("t/#")
        # The log holds the expiry beside the properties; a row of others never expires.
        assert properties_of(found) == list(CLEAN)
    finally:
        core.close()


def test_rows_that_others_append_are_sent_without_them(core: DurableCore) -> None:
    wire = core.connect("reader")
    wire.subscribe("t/#")
    publish_rows(core.broker, rows(retain=True))
    assert properties_of(wire.take()) == list(CLEAN)
    again = core.connect("another")
    assert properties_of(again.subscribe("t/#")) == list(CLEAN)


@pytest.mark.parametrize("packet_id", [0, 7])
def test_a_snapshot_is_loaded_without_them(packet_id: int) -> None:
    core = MemoryCore()
    session = SessionState(client_id="reader", user="", expiry_seconds=600, last_active_us=NOW_US)
    common: dict[str, Any] = {"topic": b"t", "payload": b"x", "flags": 5}
    queued = [
        QueuedMessage(
            properties=properties,
            expires_us=0,
            packet_id=packet_id + number if packet_id else 0,
            **common | {"topic": f"t/{number}".encode()},
        )
        for number, properties in enumerate(LEFTOVERS)
    ]
    retained = RetainedMessage(
        properties=LEFTOVERS[1], stored_us=NOW_US, expires_us=0, publisher=b"", **common
    )
    core.load([retained, session, *queued])
    wire = core.connect("reader", clean_start=False, session_expiry_interval=600)
    assert properties_of(wire.take()) == list(CLEAN)
    assert properties_of(wire.subscribe("t", qos=1)) == [CLEAN[1]]


def test_a_message_saved_with_its_session_is_read_without_them() -> None:
    saved = [SavedMessage(1, b"t", b"x", 1, properties, 0) for properties in LEFTOVERS]
    assert [decode_message(encode_message(each)).properties for each in saved] == [
        CONTENT_TYPE,
        CONTENT_TYPE,
        CONTENT_TYPE + EXPIRY,
        b"",
    ]


@pytest.mark.parametrize("flags", [0, 1])
def test_an_entry_of_a_spool_is_read_without_them(flags: int) -> None:
    topics = [b"t"] * COUNT
    data = encode_publishes(
        Version.V5,
        topics,
        [b"x"] * COUNT,
        [flags] * COUNT,
        list(range(1, COUNT + 1)),
        list(LEFTOVERS),
    )
    batch = decode_entry(data, PurePath("entry"))
    assert (batch.topics, batch.values, batch.flags) == (topics, [b"x"] * COUNT, [flags] * COUNT)
    assert batch.properties == [CONTENT_TYPE, CONTENT_TYPE, CONTENT_TYPE + EXPIRY, b""]
    assert batch.expiries == [-1, -1, 1_000, -1]


def test_tables_show_the_other_properties() -> None:
    assert [dict(decode_attributes(properties)) for properties in LEFTOVERS] == [
        {"mqtt.content_type": "t"},
        {"mqtt.content_type": "t"},
        {"mqtt.content_type": "t", "mqtt.message_expiry_interval": "1000"},
        {},
    ]


def test_a_client_that_allows_aliases_gets_only_those_of_its_own_connection(
    core: DurableCore,
) -> None:
    wire = core.connect(
        "reader",
        clean_start=False,
        session_expiry_interval=NEVER,
        topic_alias_maximum=COUNT,
    )
    wire.subscribe("t/#", qos=1)
    core.real.append(rows()).wait()
    aliases = [packet.properties.topic_alias for packet in taken(wire)]
    assert sorted(alias or 0 for alias in aliases) == list(range(1, COUNT + 1))
    assert wire.version is V5
