"""Real traffic for a long time: small frames, compaction, every kind of reader, and kills.

Devices publish a few messages each, so frames are small. Meanwhile segments are compacted, four
feeds and two Spark streams read, and a session comes and goes. The broker is killed again and
again. In the end each of the readers has what is in the store, once and in the order of each topic,
and the store has what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import siltstone
from siltstone import Database
from siltstone.mqtt.packets import PubAck, Publish
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.wire import Version
from siltstone.pipeline import register
from tests.support.broker_process import BrokerProcess, Settings, broker_process, run_command
from tests.support.builders import naive_match
from tests.support.mqtt_socket import MqttSocket
from tests.support.publishers import Pace, Publisher, numbers_of

RATE = 5000.0
DEVICES = 20
SESSION = "kill/d3/#"
FEEDS = ("kill/#", "kill/+/3", "kill/d1/#", "kill/+/+")
STREAMS = ("kill/#", "kill/d2/#")
SETTINGS: Settings = {"storage.rotate_bytes": "16 MiB", "storage.shards": 1}
KEPT = Properties(session_expiry_interval=3600)
# The numbers of the messages of each topic.
Numbers = dict[str, list[int]]
# A feed that gets nothing for so long gets no more. A loaded machine needs some of it.
SILENT_SECONDS = 120
VISITS_MAX = 30


def add(found: Numbers, topic: str, value: bytes) -> None:
    found.setdefault(topic, []).append(int(value))


def count(numbers: Numbers) -> int:
    return sum(map(len, numbers.values()))


def only(numbers: Mapping[str, list[int]], topic_filter: str) -> Numbers:
    """Return what a filter selects, by topic; a device sends number n to its topic n modulo 7.

    Only the messages of one topic have an order: those of one flush are stored by stream.
    """
    found: Numbers = {}
    for device, all_of_it in numbers.items():
        for number in all_of_it:
            topic = f"kill/{device}/{number % 7}"
            if naive_match(topic_filter, topic):
                found.setdefault(topic, []).append(number)
    return found


class Follower:
    """A feed in a thread; it counts what it has read."""

    def __init__(self, database: Database, topic_filter: str) -> None:
        self.topic_filter = topic_filter
        self.found: Numbers = {}
        self._database = database
        self._wanted = -1
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        silent = 0
        with self._database.feed(self.topic_filter) as feed:
            while True:
                read = feed.next(1.0)
                if read is None:
                    silent += 1
                    done = count(self.found) >= self._wanted or silent > SILENT_SECONDS
                    if self._wanted >= 0 and done:
                        return
                    continue
                silent = 0
                assert not read.lost
                for row in read.rows():
                    add(self.found, row.topic, row.value)
                feed.ack(read.position)

    def finish(self, wanted: Numbers) -> None:
        """Read until there are as many rows as wanted, and no more for a second; then stop."""
        self._wanted = count(wanted)
        self._thread.join()


class Wanderer:
    """A durable session that connects for a moment, and is away for a moment."""

    def __init__(self, broker: BrokerProcess, rng: Random) -> None:
        self.found: Numbers = {}
        self._met: set[tuple[str, int]] = set()
        self._broker, self._rng = broker, rng
        self._end = Event()
        self.visit(0, subscribe=True)
        self._thread = Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(self._rng.uniform(0.5, 5)):
            if self._broker.listens.wait(1):
                self.visit(self._rng.randrange(1, 20_000))

    def visit(self, most: int, *, subscribe: bool = False) -> None:
        """Connect and take up to so many messages, each acknowledged."""
        try:
            with closing(MqttSocket(self._broker.port, Version.V5)) as client:
                client.connect(
                    "wanderer",
                    clean_start=False,
                    properties=Properties(session_expiry_interval=3600),
                )
                if subscribe:
                    client.subscribe(SESSION, 1)
                client.socket.settimeout(2.0)
                for _ in range(most):
                    self._take(client)
        except (EOFError, OSError):
            return

    def _take(self, client: MqttSocket) -> None:
        message = client.expect(Publish)
        topic, number = message.topic.decode(), int(message.payload)
        if (topic, number) in self._met:
            assert message.dup, "only a resent message may come again"
        else:
            self._met.add((topic, number))
            add(self.found, topic, message.payload)
        client.send(PubAck(packet_id=message.packet_id))

    def finish(self, wanted: Numbers) -> None:
        """Take all that is left; a loaded broker may need several visits."""
        self._end.set()
        self._thread.join()
        self.visit(1 << 30)
        for _ in range(VISITS_MAX):
            if count(self.found) >= count(wanted):
                return
            self.visit(1 << 30)


@contextmanager
def stream(
    spark: SparkSession, data: Path, topic_filter: str, to: Path
) -> Iterator[StreamingQuery]:
    """Write what a filter selects to Parquet, all the time."""
    rows = spark.readStream.format("siltstone").option("filter", topic_filter).load(str(data))
    writer = rows.select("topic", "payload", "serial").writeStream.format("parquet")
    query = (
        writer.option("path", str(to / "rows")).option("checkpointLocation", str(to / "at")).start()
    )
    try:
        yield query
    finally:
        query.stop()


def streamed(rows: DataFrame) -> Numbers:
    found: Numbers = {}
    for row in rows.orderBy("serial").collect():
        add(found, row["topic"], bytes(row["payload"]))
    return found


def run_until_killed(broker: BrokerProcess, devices: list[Publisher], seconds: float) -> None:
    pace = Pace(int(RATE * seconds), RATE)
    threads = [Thread(target=each.run, args=(broker.port, pace)) for each in devices]
    for thread in threads:
        thread.start()
    assert pace.is_enough.wait(20 * seconds)
    broker.kill()
    for thread in threads:
        thread.join()


def run(spark: SparkSession, path: Path, *, kills: int, seconds: float, seed: int) -> None:
    register(spark)
    rng, data = Random(seed), path / "data"
    devices = [Publisher(f"d{number}", Version.V5, 1, window=3) for number in range(DEVICES)]
    with ExitStack() as stack:
        broker = stack.enter_context(broker_process(data, settings=SETTINGS))
        wanderer = Wanderer(broker, rng)
        store = stack.enter_context(siltstone.open(data, read_only=True))
        followers = [Follower(store.database("messages"), each) for each in FEEDS]
        queries = [
            stack.enter_context(stream(spark, data, each, path / f"stream {number}"))
            for number, each in enumerate(STREAMS)
        ]
        wanderer.start()
        for _ in range(kills):
            run_until_killed(broker, devices, rng.uniform(0.2, 1.8) * seconds)
            broker.start()
            compacted = run_command("compact", "messages", "--data", str(data))
            assert compacted.returncode == 0, compacted.stderr
        # The broker stores nothing any more.
        numbers = dict(numbers_of(data))
        wanderer.finish(only(numbers, SESSION))
        broker.stop()
        for follower in followers:
            follower.finish(only(numbers, follower.topic_filter))
        for query in queries:
            query.processAllAvailable()
        slabs = store.database("messages").slabs()
        assert sum(slab.compacted for slab in slabs), "nothing was compacted"
        assert dict(numbers_of(data)) == numbers
        for device in devices:
            device.check(numbers[device.name])
        assert wanderer.found == only(numbers, SESSION)
        for follower in followers:
            assert follower.found == only(numbers, follower.topic_filter)
        for number, each in enumerate(STREAMS):
            rows = spark.read.parquet(str(path / f"stream {number}" / "rows"))
            assert streamed(rows) == only(numbers, each)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_small_frames_are_read_once_through_twenty_kills(spark: SparkSession, path: str) -> None:
    run(spark, Path(path), kills=20, seconds=10.0, seed=1)
