"""Publishes that are refused to MQTT 3.1.1, which has no way to say no."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.broker.access.access import Access
from siltstone.broker.access.acl import Acl
from siltstone.errors import PoisonedError, UsageError
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import Disconnect, PubAck, Publish, PubRec
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.support.broker_core import V3, V5, Core, message, over_quota


def allowing(*lines: str) -> Access:
    return Access(None, Acl.parse(lines, PurePath("/acl")), None)


@pytest.mark.parametrize("refused_publish", ["acknowledge", "close"])
@pytest.mark.parametrize(
    "error", [over_quota(), PoisonedError("a sync failed"), UsageError("closed"), OSError()]
)
def test_mqtt_3_1_1_is_held_then_closed_and_gets_no_puback(
    error: Exception, refused_publish: str
) -> None:
    core = Core(automatic=False, refused_publish=refused_publish, refusal_delay=3.0)
    client = core.connect("c", version=V3)
    client.send(message("a", "1", 1, 1))
    core.settle(error)
    core.advance(2.9)
    assert (client.take(), client.is_closed, client.reads()) == ([], False, False)
    core.advance(0.1)
    assert (client.take(), client.is_closed) == ([], True)


def test_nothing_is_taken_from_a_client_that_is_held() -> None:
    core = Core(automatic=False)
    client = core.connect("c", version=V3)
    client.send(message("a", "1", 1, 1))
    core.settle(over_quota())
    # It was read already, behind the first one.
    client.client.receive(encode(V3, message("a", "2", 1, 2)))
    core.settle()
    core.advance(core.broker.limits.refusal_delay)
    assert (client.take(), client.is_closed, core.database.rows) == ([], True, [])


def test_a_client_that_is_held_may_be_taken_over_before_it_is_closed() -> None:
    core = Core(automatic=False)
    client = core.connect("c", version=V3)
    client.send(message("a", "1", 1, 1))
    core.settle(over_quota())
    again = core.connect("c", version=V3)
    assert (client.is_closed, again.publish("a", "1", 1, 1, dup=True)) == (True, [])
    core.settle()
    core.advance(core.broker.limits.refusal_delay)
    assert (again.take(), again.is_closed) == ([PubAck(packet_id=1)], False)


def test_mqtt_3_1_1_is_closed_for_it_where_that_is_set() -> None:
    core = Core(access=allowing("topic write a/#"), refused_publish="close")
    client = core.connect("c", version=V3)
    client.send(message("a/1", "1", 1, 1), message("b", "2", 1, 2))
    core.advance(core.broker.limits.refusal_delay)
    assert (client.take(), client.is_closed) == ([], True)
    assert core.database.rows == []


def refusals(caplog: pytest.LogCaptureFixture, event: str = "publish_refused") -> list[str]:
    told = [record for record in caplog.records if record.message == event]
    return [record.__dict__["facts"]["text"] for record in told]


@pytest.mark.parametrize("version", [V3, V5])
def test_refused_messages_are_told_in_one_line_for_a_while(
    version: Version, caplog: pytest.LogCaptureFixture
) -> None:
    core = Core(access=allowing("topic write a/#"))
    client = core.connect("c", version=version)
    for number in range(1, 6):
        client.publish("b", "2", 1, number)
        core.advance(4.0)
    core.advance(20.0)
    assert refusals(caplog) == [
        "messages since the last line: 1",
        "messages since the last line: 2",
        "messages since the last line: 2",
    ]
    core.advance(10.0)
    client.publish("b", "2", 1, 6)
    assert refusals(caplog)[3:] == ["messages since the last line: 1"]


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("ends", ["disconnect", "lost", "shutdown"])
def test_the_rest_of_the_refused_messages_is_told_when_the_connection_ends(
    version: Version, ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    core = Core(access=allowing("topic write a/#"))
    client = core.connect("c", version=version)
    for number in range(1, 302):
        client.publish("b", "2", 1, number)
    if ends == "disconnect":
        client.send(Disconnect())
    elif ends == "lost":
        client.client.lost()
    else:
        client.client.end(Reason.SERVER_SHUTTING_DOWN)
    assert refusals(caplog) == [
        "messages since the last line: 1",
        "messages since the last line: 300",
    ]
    core.advance(60.0)
    assert len(refusals(caplog)) == 2


def test_messages_that_are_only_not_retained_are_counted_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core = Core(access=allowing("topic write a/#"), retained_messages_max=0)
    client = core.connect("c", version=V3)
    for number in range(1, 6):
        client.publish("b", "2", 1, number)
    client.publish("a/1", "1", 1, 6, retain=True)
    client.send(Disconnect())
    assert refusals(caplog) == [
        "messages since the last line: 1",
        "messages since the last line: 4",
    ]
    assert refusals(caplog, "publish_not_retained") == ["messages since the last line: 1"]


def test_mqtt_3_1_1_is_kept_and_dispatched_but_not_retained() -> None:
    core = Core(retained_messages_max=0)
    reader = core.connect("r")
    reader.subscribe("a", qos=0)
    client = core.connect("c", version=V3)
    client.send(message("a", "1", 1, 1, retain=True), message("b", "2", 2, 2))
    assert client.take() == [PubAck(packet_id=1), PubRec(packet_id=2)]
    assert core.database.rows == [(b"a", b"1"), (b"b", b"2")]
    assert [packet.payload for packet in reader.take() if isinstance(packet, Publish)] == [b"1"]
    assert (len(core.broker.retained), core.broker.statistics.publishes_refused) == (0, 1)


def test_mqtt_3_1_1_gets_no_puback_from_a_log_that_takes_nothing() -> None:
    core = Core()
    core.retained_log.refusals.append(PoisonedError("a sync failed"))
    client = core.connect("c", version=V3)
    client.send(message("a", "1", 1, 1, retain=True))
    core.advance(core.broker.limits.refusal_delay)
    assert (client.take(), client.is_closed, core.database.rows) == ([], True, [])
