"""Write the data directory that `tests/integration/test_old_stores.py` opens.

Run it with the version whose files are to be kept, never with a newer one:

    python tools/write_old_store.py DIRECTORY PORT TOPICLOG_PORT

DIRECTORY then holds `store/` (a data directory), `memory/` (one of a broker in memory) and
`expected.json` (what a reader must find). The broker is killed with SIGKILL at the end, so the
directory is one that a crash left.
"""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import siltstone
from siltstone import spool
from siltstone.topiclog.client import TopicLogClient

SITES = 4
DEVICES = 15


def properties(**values: Any) -> Properties:
    """Return properties of a CONNECT."""
    made = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(made, name, value)
    return made


class Client:
    """A synchronous MQTT 5 client."""

    def __init__(self, port: int, name: str, *, expiry: int, clean: bool = False) -> None:
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5)
        self.subscribed = 0
        self.connected = False
        self.client.on_connect = lambda *_: setattr(self, "connected", True)
        self.client.on_subscribe = lambda *_: setattr(self, "subscribed", self.subscribed + 1)
        self.client.connect(
            "127.0.0.1",
            port,
            clean_start=clean,
            properties=properties(SessionExpiryInterval=expiry),
        )
        self.client.loop_start()
        self.wait(lambda: self.connected)

    @staticmethod
    def wait(condition: Any) -> None:
        until = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < until, "it takes too long"
            time.sleep(0.01)

    def subscribe(self, topic: str, qos: int) -> None:
        wanted = self.subscribed + 1
        self.client.subscribe(topic, qos=qos)
        self.wait(lambda: self.subscribed == wanted)

    def publish(
        self, topic: str, payload: str, qos: int, *, retain: bool = False, **more: Any
    ) -> None:
        made = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        for name, value in more.items():
            setattr(made, name, value)
        self.client.publish(
            topic, payload, qos=qos, retain=retain, properties=made
        ).wait_for_publish(20)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def serve(data: Path, port: int, *settings: str) -> subprocess.Popen[bytes]:
    """Start a broker and wait until it listens."""
    command = [sys.executable, "-m", "siltstone.cli.main", "serve", "--data", str(data)]
    command += ["--port", str(port)]
    for each in settings:
        command += ["--set", each]
    process = subprocess.Popen(command)
    for _ in range(200):
        probe = mqtt.Client(CallbackAPIVersion.VERSION2)
        try:
            probe.connect("127.0.0.1", port)
        except OSError:
            time.sleep(0.1)
        else:
            probe.disconnect()
            return process
    raise AssertionError("the broker does not listen")


def write_messages(port: int) -> dict[str, Any]:
    """Publish, subscribe and leave messages for sessions that are away."""
    away = Client(port, "away", expiry=0xFFFFFFFE)
    away.subscribe("plant/+/oven/#", 2)
    away.close()
    for name in ("member-1", "member-2"):
        member = Client(port, name, expiry=0xFFFFFFFE)
        member.subscribe("$share/workers/plant/1/#", 1)
        member.close()
    publisher = Client(port, "publisher", expiry=0, clean=True)
    sent = []
    for site in range(SITES):
        for device in range(DEVICES):
            qos = device % 3
            payload = json.dumps({"site": site, "n": device})
            topic = f"plant/{site}/oven/{device}"
            publisher.publish(topic, payload, qos, ContentType="application/json")
            sent.append([topic, payload, qos])
    publisher.publish("state/one", "kept", 1, retain=True, UserProperty=[("a", "1"), ("a", "2")])
    publisher.publish("state/two", "gone", 1, retain=True)
    publisher.publish("state/two", "", 1, retain=True)
    publisher.close()
    return {"sent": sent, "retained": [["state/one", "kept"]]}


def main(directory: Path, port: int, topiclog_port: int) -> None:
    """Write everything."""
    store = directory / "store"
    broker = serve(
        store,
        port,
        "storage.segment_bytes=1 MiB",
        "storage.shards=2",
        "storage.thresholds=[3, 3]",
        "topiclog.enabled=true",
        f"topiclog.port={topiclog_port}",
        "topiclog.segment_bytes=1 MiB",
        "sys_interval=0",
    )
    expected = write_messages(port)
    with TopicLogClient("127.0.0.1", topiclog_port) as client:
        client.create_topic("orders/new")
        client.create_topic("orders/ü")
        client.send_many("orders/new", [b"order %d" % n for n in range(50)])
        client.send("orders/new", b"x" * 70_000)
        client.commit("billing", "orders/new", 20)
    time.sleep(2.0)  # positions of sessions are saved within a second
    broker.send_signal(signal.SIGKILL)
    broker.wait()
    with siltstone.open(store) as opened:
        messages = opened.database("messages")
        messages.seal()
        messages.append(
            [siltstone.Row(topic=f"bulk/{n % 7}", value=b"%d" % n) for n in range(1_000)]
        )
        plain = opened.keyvalue("bank", siltstone.KeyValueSettings(timed=False))
        with plain.transaction() as tx:
            tx.write("account/alice", b"100")
            tx.add("visits", 3)
        timed = opened.keyvalue("history", siltstone.KeyValueSettings(timed=True))
        with timed.transaction() as tx:
            tx.write("door/1", b"open", 1_000)
            tx.write("door/1", b"shut", 2_000)
    with siltstone.open(store, read_only=True) as opened:
        rows = [row for batch in opened.database("messages").read("#") for row in batch.to_pylist()]
    expected["rows"] = [
        {
            key: base64.b64encode(value).decode() if isinstance(value, bytes) else value
            for key, value in row.items()
        }
        for row in rows
    ]
    with spool.create(store / "spool" / "reports") as queue:
        queue.store(b"a report", "2026 report.txt")
    memory = directory / "memory"
    broker = serve(memory, port, "persistence=snapshot", "sys_interval=0")
    expected["memory"] = write_messages(port)
    broker.send_signal(signal.SIGTERM)
    broker.wait()
    (directory / "expected.json").write_text(json.dumps(expected, indent=1, default=str))


main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
