"""Bridges between real brokers: ours to Mosquitto, ours to ours; away, back, killed, refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Condition
from typing import IO, Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.broker_process import BrokerProcess, broker_process, stored
from tests.support.mosquitto import Mosquitto
from tests.support.ports import free_port
from tests.support.watcher import WAIT_SECONDS, watching


def bridge(port: int, *topics: dict[str, Any], **settings: Any) -> dict[str, str]:
    """Return the setting of one bridge to a port of this machine."""
    made = {"name": "peer", "server": f"mqtt://127.0.0.1:{port}", "topics": list(topics)}
    return {"bridge": json.dumps([made | settings])}


def spooled(broker: BrokerProcess) -> list[str]:
    return sorted(path.name for path in (broker.data / "spool" / "peer" / "q").iterdir())


def send_last(near: BrokerProcess, far: BrokerProcess) -> None:
    """Send a last message over the bridge, and return when nothing waits any more."""
    with watching(far.port, "t/#") as there, watching(near.port) as here:
        here.publish("t/x", b"end", qos=2)
        assert b"end" in there.wait_for(lambda payloads: b"end" in payloads)
    while spooled(near):
        assert near.is_running


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_messages_go_both_ways_under_their_prefixes(tmp_path: Path, version: str) -> None:
    topics = (
        {"filter": "temp/#", "qos": 2, "local_prefix": "plant/", "remote_prefix": "site/7/"},
        {"filter": "cmd/#", "direction": "in", "local_prefix": "do/", "remote_prefix": "site/7/"},
    )
    with (
        Mosquitto(tmp_path) as mosquitto,
        broker_process(
            tmp_path / "data", settings=bridge(mosquitto.port, *topics, version=version)
        ) as broker,
    ):
        broker.wait_for("bridge_connected")
        with watching(mosquitto.port, "#") as remote, watching(broker.port, "do/#") as local:
            local.publish("plant/temp/1", b"hot", qos=2)
            # One of QoS 1 may overtake it.
            remote.wait_for(bool)
            local.publish("plant/other", b"no")
            local.publish("plant/temp/2", b"kept", qos=1, retain=True)
            remote.wait_for(lambda payloads: len(payloads) >= 2)
            remote.publish("site/7/cmd/stop", b"now", qos=2)
            remote.publish("site/7/temp/1", b"not back")
            local.wait_for(bool)
        assert remote.messages[:2] == [
            ("site/7/temp/1", b"hot", 2, False),
            ("site/7/temp/2", b"kept", 1, False),
        ]
        assert local.messages == [("do/cmd/stop", b"now", 1, False)]
        with watching(mosquitto.port, "site/7/temp/2") as late:
            late.wait_for(bool)
            assert late.messages == [("site/7/temp/2", b"kept", 1, True)]
    assert ("do/cmd/stop", b"now") in stored(tmp_path / "data")


def test_what_goes_both_ways_goes_round_no_circle(tmp_path: Path) -> None:
    with (
        broker_process(tmp_path / "far") as far,
        broker_process(
            tmp_path / "near", settings=bridge(far.port, {"filter": "#", "direction": "both"})
        ) as near,
    ):
        near.wait_for("bridge_connected")
        with watching(near.port, "#") as here, watching(far.port, "#") as there:
            here.publish("a", b"from here")
            there.wait_for(lambda payloads: b"from here" in payloads)
            there.publish("b", b"from there")
            here.wait_for(lambda payloads: b"from there" in payloads)
            here.publish("c", b"last")
            there.wait_for(lambda payloads: b"last" in payloads)
            there.publish("d", b"very last")
            here.wait_for(lambda payloads: b"very last" in payloads)
        everything = [b"from here", b"from there", b"last", b"very last"]
        assert [payload for _, payload, _, _ in here.messages] == everything
        assert [payload for _, payload, _, _ in there.messages] == everything


def test_a_peer_that_comes_later_gets_everything_in_order(tmp_path: Path) -> None:
    port = free_port()
    wanted = [b"%d" % number for number in range(50)]
    with broker_process(
        tmp_path / "near", settings=bridge(port, {"filter": "t/#", "qos": 2})
    ) as near:
        with watching(near.port) as device:
            for payload in wanted:
                device.publish("t/x", payload, qos=2)
        near.kill()
        near.start()
        with broker_process(tmp_path / "far", listeners={"tcp": {"port": port}}) as far:
            near.wait_for("bridge_connected")
            send_last(near, far)
        assert [value for _, value in stored(tmp_path / "far")] == [*wanted, b"end"]


def test_nothing_acknowledged_is_lost_by_kills_of_either_side(tmp_path: Path) -> None:
    acknowledged: list[bytes] = []
    with (
        broker_process(tmp_path / "far") as far,
        broker_process(tmp_path / "near", settings=bridge(far.port, {"filter": "t/#"})) as near,
    ):
        for first, victim in enumerate((near, far, near)):
            with device(near.port, first * 100_000) as numbers:
                acknowledged += [numbers.readline().strip().encode() for _ in range(60)]
                victim.kill()
            with numbers:
                acknowledged += numbers.read().encode().split()[:-1]
            victim.start()
        send_last(near, far)
    assert len(acknowledged) >= 180
    assert set(acknowledged) - {value for _, value in stored(tmp_path / "far")} == set()


@contextmanager
def device(port: int, first: int) -> Iterator[IO[str]]:
    """Run a client that publishes numbers for ever; yield where it writes those that were
    acknowledged, of which the rest can be read when it is gone.
    """
    command = [sys.executable, "-m", "tests.support.counting_device", str(port), str(first)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.kill()
        process.wait()


def test_what_the_peer_refuses_is_a_dead_letter_and_the_rest_goes_on(tmp_path: Path) -> None:
    rights = tmp_path / "acl"
    rights.write_text("topic readwrite ok/#\n")
    with (
        broker_process(
            tmp_path / "far",
            settings={"access.acl_file": str(rights), "limits.packet_size_max": 2000},
        ) as far,
        broker_process(tmp_path / "near", settings=bridge(far.port, {"filter": "#"})) as near,
    ):
        near.wait_for("bridge_connected")
        with watching(near.port) as here, watching(far.port, "ok/x") as there:
            here.publish("secret/x", b"forbidden")
            here.publish("ok/large", bytes(3000))
            here.publish("ok/x", b"fine")
            assert there.wait_for(bool) == [b"fine"]
        near.wait_for("bridge_message_refused", count=2)
        dead = tmp_path / "near" / "spool" / "peer.dead"
        reasons = sorted(path.read_text().splitlines()[0] for path in dead.glob("*.reason.txt"))
        assert reasons == [
            "message is too large for the server: size_bytes=3000 packet_size_max=2000",
            "refused by the server: not authorized (0x87)",
        ]
        letters = sorted(path.read_bytes() for path in dead.glob("*.publish"))
        assert [len(letters), letters[0].endswith(b"forbidden")] == [2, True]
    assert [topic for topic, _ in stored(tmp_path / "far")] == ["ok/x"]


def test_a_full_spool_refuses_what_could_not_be_kept(tmp_path: Path) -> None:
    settings = bridge(free_port(), {"filter": "t/#"}, spool_bytes_max="1 MiB")
    with broker_process(tmp_path / "near", settings=settings) as near:
        client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        answers: list[int] = []
        changed = Condition()

        def on_publish(_c: Any, _u: Any, _mid: int, reason: Any, _p: Any) -> None:
            with changed:
                answers.append(reason.value)
                changed.notify_all()

        client.on_publish = on_publish
        client.connect("127.0.0.1", near.port)
        client.loop_start()
        for topic in ("t/1", "t/2", "t/3", "other"):
            client.publish(topic, bytes(400_000), 1)
        with changed:
            assert changed.wait_for(lambda: len(answers) == 4, WAIT_SECONDS)
        client.disconnect()
        client.loop_stop()
        assert answers == [0, 0, 0x97, 0]
    # The publisher sends it again: it must not be stored twice then.
    assert [topic for topic, _ in stored(tmp_path / "near")] == ["t/1", "t/2", "other"]
