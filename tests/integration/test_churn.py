"""Clients that come and go all the time: memory, descriptors and sessions stay as they are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from siltstone.clock import SystemClock
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import Connect, Disconnect, Publish, Subscribe, Subscription
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.wire import Version
from siltstone.session.archive.records import NEVER_EXPIRES
from siltstone.session.archive.store import ARCHIVE_NAME, ARCHIVE_SETTINGS, SessionArchive
from siltstone.store.directory import open_store
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_process import MIB, BrokerProcess, broker_process
from tests.support.mqtt_socket import MqttSocket

THREADS = 4
CLIENTS = 20
LIVES = 2000
DISTINCT = 500
# Only gross growth is found: the table in memory of RocksDB alone takes up to 64 MiB in the end.
GROWTH_MAX = 40 * MIB


def hello(client_id: str, expiry_seconds: int = 300) -> bytes:
    """Return what a client sends at once: it connects, subscribes and publishes."""
    wanted = Subscription(filter=TopicFilter.parse(f"{client_id}/#"), qos=1)
    connect = Connect(
        version=Version.V5,
        client_id=client_id,
        clean_start=False,
        properties=Properties(session_expiry_interval=expiry_seconds),
    )
    subscribe = Subscribe(packet_id=1, subscriptions=(wanted,))
    publish = Publish(topic=b"other/x", payload=b"x" * 100, qos=1, packet_id=2)
    return b"".join(encode(Version.V5, packet) for packet in (connect, subscribe, publish))


def churn(broker: BrokerProcess, lives: int, number: int) -> None:
    """Live so many lives of a few clients: taken over, cut off, or with a goodbye."""
    rng = Random(number)
    former: MqttSocket | None = None
    for _ in range(lives):
        client = MqttSocket(broker.port)
        client.send_bytes(hello(f"{number}-{rng.randrange(CLIENTS)}"))
        if rng.random() < 0.5:
            client.receive()
        if former is not None:
            # It may have been taken over, and closed.
            with suppress(ConnectionError):
                if rng.random() < 0.3:
                    former.send(Disconnect())
            former.close()
        former = client
    if former is not None:
        former.close()


def anonymous_bytes(broker: BrokerProcess) -> int:
    lines = Path(f"/proc/{broker.pid}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_memory_and_owners_stay_as_they_are(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as broker, ThreadPoolExecutor(THREADS) as pool:
        sizes: list[int] = []
        for lives in (500, LIVES):
            list(pool.map(partial(churn, broker, lives), range(THREADS)))
            sizes.append(anonymous_bytes(broker))
        assert [each for each in broker.events() if each.get("level") == "error"] == []
        assert sizes[1] - sizes[0] < GROWTH_MAX


def churn_distinct(broker: BrokerProcess, lives: range, expiry_seconds: int, number: int) -> None:
    """Live a life of each of many clients, which are then gone for good."""
    for life in lives:
        with MqttSocket(broker.port) as client:
            client.send_bytes(hello(f"{number}-{life}", expiry_seconds))
            # CONNACK, SUBACK and PUBACK: the session is on disk where it is to be.
            for _ in range(3):
                client.receive()


def kept(data: Path) -> int:
    """Return how many sessions the archive of a stopped broker has."""
    with open_store(data) as store:
        clock = SystemClock()
        return SessionArchive(store.keyvalue(ARCHIVE_NAME, ARCHIVE_SETTINGS), clock).count()


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("expiry_seconds", [0, 300, NEVER_EXPIRES])
def test_distinct_clients_leave_what_the_archive_keeps(tmp_path: Path, expiry_seconds: int) -> None:
    lives = (0, 100, 100 + DISTINCT, 100 + 2 * DISTINCT)
    sizes: list[int] = []
    with broker_process(tmp_path / "data") as broker, ThreadPoolExecutor(THREADS) as pool:
        for first, last in pairwise(lives):
            some = partial(churn_distinct, broker, range(first, last), expiry_seconds)
            list(pool.map(some, range(THREADS)))
            sizes.append(anonymous_bytes(broker))
        assert [each for each in broker.events() if each.get("level") == "error"] == []
    assert max(sizes) - sizes[0] < GROWTH_MAX
    assert kept(tmp_path / "data") == (THREADS * lives[-1] if expiry_seconds else 0)
