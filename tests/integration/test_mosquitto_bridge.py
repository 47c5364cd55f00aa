"""A stock Mosquitto that bridges to our broker, configured as its manual begins: nothing but a
name, an address and topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess, broker_process, stored
from tests.support.mosquitto import Mosquitto
from tests.support.watcher import Watcher, watching

STATE = "$SYS/broker/connection/+/state"


def bridged(
    directory: Path, broker: BrokerProcess, *topics: str, more: Sequence[str] = ()
) -> Mosquitto:
    """Return a Mosquitto with a bridge to a broker."""
    return Mosquitto(
        directory,
        listener=(
            "connection site",
            f"address 127.0.0.1:{broker.port}",
            *(f"topic {topic}" for topic in topics),
            *more,
        ),
    )


def wait_until_bridged(broker: BrokerProcess, mosquitto: Mosquitto) -> None:
    """Return when the bridge takes messages both ways."""
    with watching(broker.port) as here, watching(mosquitto.port, "ready/#") as there:
        here.publish("ready/here", b"here", retain=True)
        # What is retained comes with the subscription, if it did not come live.
        assert there.wait_for(lambda payloads: b"here" in payloads)


def values_of(watcher: Watcher) -> list[tuple[str, bytes, int, bool]]:
    return [row for row in watcher.messages if not row[0].startswith("ready/")]


@pytest.mark.parametrize("version", ["", "mqttv311", "mqttv50"])
def test_a_default_bridge_takes_messages_both_ways_once(tmp_path: Path, version: str) -> None:
    more = [f"bridge_protocol_version {version}"] if version else []
    with (
        broker_process(tmp_path / "data") as broker,
        bridged(tmp_path, broker, "# both 2", more=more) as mosquitto,
    ):
        wait_until_bridged(broker, mosquitto)
        with watching(broker.port, "#") as here, watching(mosquitto.port, "#") as there:
            for number in range(50):
                here.publish(f"from/here/{number}", b"%d" % number, qos=number % 3)
                there.publish(f"from/there/{number}", b"%d" % number, qos=number % 3)
            here.publish("end/here", b"end-here", qos=2)
            there.publish("end/there", b"end-there", qos=2)
            ends = {b"end-here", b"end-there"}
            here.wait_for(lambda payloads: ends <= set(payloads))
            there.wait_for(lambda payloads: ends <= set(payloads))
        expected = sorted(
            [
                (f"from/{side}/{number}", b"%d" % number)
                for side in ("here", "there")
                for number in range(50)
            ]
            + [("end/here", b"end-here"), ("end/there", b"end-there")]
        )
        for watcher in (here, there):
            seen = sorted((topic, payload) for topic, payload, _, _ in values_of(watcher))
            assert seen == expected


def test_each_direction_alone(tmp_path: Path) -> None:
    with (
        broker_process(tmp_path / "data") as broker,
        bridged(tmp_path, broker, "up/# out 1", "down/# in 1", "ready/# in 1") as mosquitto,
    ):
        wait_until_bridged(broker, mosquitto)
        with watching(broker.port, "#") as here, watching(mosquitto.port, "#") as there:
            here.publish("up/1", b"stays here")
            there.publish("down/1", b"stays there")
            there.publish("up/2", b"goes up")
            here.publish("down/2", b"goes down")
            here.wait_for(lambda payloads: b"goes up" in payloads)
            there.wait_for(lambda payloads: b"goes down" in payloads)
        assert sorted(values_of(here)) == [
            ("down/2", b"goes down", 1, False),
            ("up/1", b"stays here", 1, False),
            ("up/2", b"goes up", 1, False),
        ]
        assert sorted(values_of(there)) == [
            ("down/1", b"stays there", 1, False),
            ("down/2", b"goes down", 1, False),
            ("up/2", b"goes up", 1, False),
        ]
    assert ("up/2", b"goes up") in stored(tmp_path / "data", "up/#")


def test_what_is_retained_on_one_side_is_retained_on_the_other(tmp_path: Path) -> None:
    with (
        broker_process(tmp_path / "data") as broker,
        bridged(tmp_path, broker, "# both 1") as mosquitto,
    ):
        wait_until_bridged(broker, mosquitto)
        with watching(broker.port, "#") as here, watching(mosquitto.port, "#") as there:
            here.publish("kept/here", b"one", retain=True)
            there.publish("kept/there", b"two", retain=True)
            here.wait_for(lambda payloads: b"two" in payloads)
            there.wait_for(lambda payloads: b"one" in payloads)
        for port in (broker.port, mosquitto.port):
            with watching(port, "kept/#") as late:
                late.wait_for(lambda payloads: len(payloads) == 2)
                assert sorted(late.messages) == [
                    ("kept/here", b"one", 1, True),
                    ("kept/there", b"two", 1, True),
                ]


def test_the_state_of_a_bridge_is_retained_and_its_will_ends_it(tmp_path: Path) -> None:
    with (
        broker_process(tmp_path / "data") as broker,
        bridged(tmp_path, broker, "# both 1") as mosquitto,
    ):
        wait_until_bridged(broker, mosquitto)
        with watching(broker.port, STATE) as states:
            states.wait_for(lambda payloads: payloads[-1:] == [b"1"])
            mosquitto.kill()
            states.wait_for(lambda payloads: payloads[-1:] == [b"0"])
        assert [row[1:] for row in states.messages] == [(b"1", 1, True), (b"0", 1, False)]
        assert len({row[0] for row in states.messages}) == 1


@pytest.mark.parametrize("restarted", ["ours", "theirs"])
def test_a_bridge_goes_on_after_a_restart_of_either_side(tmp_path: Path, restarted: str) -> None:
    with (
        broker_process(tmp_path / "data") as broker,
        bridged(tmp_path, broker, "# both 1", more=["restart_timeout 1"]) as mosquitto,
    ):
        wait_until_bridged(broker, mosquitto)
        if restarted == "ours":
            broker.kill()
            with watching(mosquitto.port) as there:
                # Retained: the bridge may be quicker than the client that watches for it.
                there.publish("meanwhile", b"waits there", retain=True)
            broker.start()
        else:
            mosquitto.kill()
            with watching(broker.port) as here:
                here.publish("meanwhile", b"waits here", retain=True)
            mosquitto.start()
        with watching(broker.port, "#") as here, watching(mosquitto.port, "#") as there:
            side, kept = (here, b"waits there") if restarted == "ours" else (there, b"waits here")
            assert kept in side.wait_for(lambda payloads: kept in payloads)
            here.publish("again/here", b"1")
            there.publish("again/there", b"2")
            here.wait_for(lambda payloads: b"2" in payloads)
            there.wait_for(lambda payloads: b"1" in payloads)
        for watcher in (here, there):
            rows = [row[:2] for row in values_of(watcher) if row[0].startswith("again/")]
            assert sorted(rows) == [("again/here", b"1"), ("again/there", b"2")]
