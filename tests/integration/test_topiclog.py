"""Topic logs over real sockets and a real disk: what a client asks for is what it gets."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

import siltstone
from siltstone.errors import (
    ExistsError,
    InvalidTopicError,
    NotFoundError,
    OutcomeUnknownError,
    OverloadedError,
    RetryError,
    UsageError,
)
from siltstone.mqtt.packets import Publish
from siltstone.topiclog.aio import AsyncTopicLogClient
from siltstone.topiclog.client import TopicLogClient
from siltstone.topiclog.hub import HubLimits
from siltstone.topiclog.log import DATABASE
from tests.support.builders import SEGMENT_BYTES
from tests.support.mqtt_socket import connected
from tests.support.rows import rows_of
from tests.support.topiclog import half_send, log_port, served, served_by_process

MB = 1024 * 1024


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with served(tmp_path / "d") as found:
        yield found


@pytest.fixture
def client(port: int) -> Iterator[TopicLogClient]:
    with TopicLogClient(port=port) as connected:
        yield connected


def values_of(client: TopicLogClient, topic: str) -> list[bytes]:
    """Return what a topic holds, from its beginning."""
    client.subscribe([topic])
    client.seek(topic, 0)
    values: list[bytes] = []
    while batch := client.poll_batch():
        values += batch.values()
    client.unsubscribe()
    return values


class TestTheCalls:
    def test_topics_are_created_once_and_counted(self, client: TopicLogClient) -> None:
        for topic in ("1", "2", "3"):
            client.create_topic(topic)
        with pytest.raises(ExistsError, match="'1'"):
            client.create_topic("1")
        assert client.topics() == ["1", "2", "3"]

    def test_messages_get_offsets_from_0_on_and_keep_their_bytes(
        self, client: TopicLogClient
    ) -> None:
        client.create_topic("1")
        values = [b"\x00", b"a\x00", b"abc", bytes(256)]
        assert [client.send("1", value) for value in values] == [0, 1, 2, 3]
        assert [client.message_length("1", offset) for offset in range(6)] == [1, 2, 3, 256, 0, 0]
        assert client.end_offset("1") == 4
        assert values_of(client, "1") == values

    def test_an_empty_message_is_nothing_and_no_mistake(self, client: TopicLogClient) -> None:
        client.create_topic("1")
        assert client.send("1", b"") == 0
        assert client.send_many("1", [b"", b"x", b""]) == range(1)
        assert client.send("1", b"") == 1
        assert values_of(client, "1") == [b"x"]

    def test_what_is_unknown_is_refused_and_the_connection_goes_on(
        self, client: TopicLogClient
    ) -> None:
        for ask in (
            lambda: client.send("no", b"x"),
            lambda: client.send("no", bytes(MB)),
            lambda: client.end_offset("no"),
            lambda: client.message_length("no", 0),
            lambda: client.commit("c", "no", 0),
            lambda: client.committed("c", "no"),
        ):
            with pytest.raises(NotFoundError, match="'no'"):
                ask()
        client.create_topic("yes")
        with pytest.raises(NotFoundError, match="'c' has not committed"):
            client.committed("c", "yes")
        assert client.send("yes", bytes(MB)) == 0

    def test_a_subscription_begins_at_the_ends_and_leaves_out_what_does_not_exist(
        self, client: TopicLogClient
    ) -> None:
        for topic in ("1", "2", "3"):
            client.create_topic(topic)
        client.send_many("1", [b"a", b"b"])
        assert client.subscribe(["1", "2", "3", "1", "no"]) == 3
        with pytest.raises(UsageError, match="unsubscribe first"):
            client.subscribe(["1"])
        assert [client.position(topic) for topic in ("1", "2", "3")] == [2, 0, 0]
        with pytest.raises(NotFoundError):
            client.position("no")
        client.unsubscribe()
        for ask in (client.unsubscribe, client.poll, lambda: client.seek("1", 0)):
            with pytest.raises(UsageError, match="the client has not subscribed: subscribe first"):
                ask()

    def test_polling_takes_one_message_of_each_topic_in_turn(self, client: TopicLogClient) -> None:
        for topic in ("1", "2", "3"):
            client.create_topic(topic)
        client.send("1", b"1A")
        client.subscribe(["1", "2", "3"])
        for topic, value in (("1", b"1B"), ("3", b"3A"), ("1", b"1C"), ("3", b"3B")):
            client.send(topic, value)
        found = [client.poll() for _ in range(5)]
        assert [message.value if message else None for message in found] == [
            b"1B",
            b"3A",
            b"1C",
            b"3B",
            None,
        ]
        client.seek("1", 0)
        again = [message.value for message in iter(client.poll, None)]
        assert again == [b"1A", b"1B", b"1C"]
        assert client.position("1") == 3

    def test_a_poll_waits_for_the_next_message_of_any_topic(
        self, client: TopicLogClient, port: int
    ) -> None:
        for topic in ("1", "2"):
            client.create_topic(topic)
        client.subscribe(["1", "2"])

        def send() -> None:
            with TopicLogClient(port=port) as other:
                other.send("2", b"late")

        thread = Thread(target=send)
        thread.start()
        message = client.poll(timeout=15.0)
        thread.join()
        assert message is not None
        assert (message.topic, message.offset, message.value) == ("2", 0, b"late")
        assert client.poll(timeout=0.01) is None

    def test_offsets_are_committed_for_each_client_and_topic(self, client: TopicLogClient) -> None:
        for topic in ("1", "2"):
            client.create_topic(topic)
            client.send_many(topic, [b"a", b"b", b"c"])
        client.commit("one", "1", 1)
        client.commit("one", "2", 2)
        client.commit("two/+#", "1", 3)
        client.commit("one", "1", 0)
        assert client.committed("one", "1") == 0
        assert client.committed("one", "2") == 2
        assert client.committed("two/+#", "1") == 3
        with pytest.raises(
            UsageError, match="offset must not be greater than the end of the topic: offset=4 end=3"
        ):
            client.commit("one", "1", 4)
        for name in ("", "c" * 1025):
            with pytest.raises(UsageError, match="1 to 1024 bytes"):
                client.commit(name, "1", 1)

    @pytest.mark.parametrize("topic", ["a/b/c", "../../etc", ".hidden", "/", "\u00e9", "n" * 300])
    def test_no_name_of_a_topic_becomes_one_of_a_file(
        self, client: TopicLogClient, tmp_path: Path, topic: str
    ) -> None:
        client.create_topic(topic)
        client.send(topic, b"x")
        assert client.topics() == [topic]
        database = tmp_path / "d" / "data" / DATABASE
        assert sorted(entry.name for entry in database.iterdir()) == ["0", "manifest", "reserve"]

    def test_forms_of_one_word_that_unicode_calls_equal_are_two_topics(
        self, client: TopicLogClient
    ) -> None:
        forms = ("\u00e9", "e\u0301")
        for number, topic in enumerate(forms):
            client.create_topic(topic)
            client.send_many(topic, [b"x"] * (number + 1))
        assert [client.end_offset(topic) for topic in forms] == [1, 2]

    @pytest.mark.parametrize("topic", ["", "a/+", "#", "nul\0", "x" * 65_536])
    def test_what_is_no_topic_of_the_store_is_refused(
        self, client: TopicLogClient, topic: str
    ) -> None:
        with pytest.raises((UsageError, InvalidTopicError)):
            client.create_topic(topic)
        assert client.topics() == []


class TestSizes:
    @pytest.mark.parametrize(
        "size", [1, 65_535, 65_536, 65_537, SEGMENT_BYTES - 4096, 3 * SEGMENT_BYTES, 5 * MB + 3]
    )
    def test_a_message_of_any_size_finds_its_place(self, client: TopicLogClient, size: int) -> None:
        client.create_topic("t")
        value = os.urandom(size)
        assert client.send("t", value) == 0
        assert client.send("t", b"after") == 1
        assert client.message_length("t", 0) == size
        assert values_of(client, "t") == [value, b"after"]

    def test_segments_roll_and_offsets_go_on(self, client: TopicLogClient, tmp_path: Path) -> None:
        client.create_topic("t")
        values = [os.urandom(size) for size in (100, 40_000, 70_000, 7, 66_000, 30_000, 30_000, 9)]
        assert [client.send("t", value) for value in values] == list(range(8))
        assert values_of(client, "t") == values
        segments = sorted((tmp_path / "d" / "data" / DATABASE / "0" / "1").glob("*.seg"))
        assert len(segments) > 3
        assert {path.read_bytes()[:4] for path in segments} == {b"KASK"}

    def test_a_message_above_the_limit_is_not_sent(self, tmp_path: Path) -> None:
        limits = HubLimits(body_bytes_max=100_000)
        with served(tmp_path / "d", limits=limits) as port, TopicLogClient(port=port) as client:
            client.create_topic("t")
            assert client.send("t", bytes(100_000)) == 0
            with pytest.raises(UsageError, match="too large: size_bytes=100001 max=100000"):
                client.send("t", bytes(100_001))
            assert client.end_offset("t") == 1

    def test_a_server_that_is_sent_more_than_it_takes_says_so_and_closes(
        self, tmp_path: Path
    ) -> None:
        limits = HubLimits(body_bytes_max=100_000)
        with served(tmp_path / "d", limits=limits) as port, TopicLogClient(port=port) as client:
            client.create_topic("t")
            with half_send(port, "t", 200_000, 10) as peer:
                said = b"".join(iter(lambda: peer.recv(4096), b""))
            assert b"the SEND is too large" in said
            assert client.end_offset("t") == 0

    def test_more_than_may_be_on_its_way_is_refused_and_passed_over(self, tmp_path: Path) -> None:
        limits = HubLimits(reserved_bytes_max=200_000)
        with served(tmp_path / "d", limits=limits) as port, TopicLogClient(port=port) as client:
            client.create_topic("t")
            with pytest.raises(OverloadedError, match="too many bytes wait to be stored"):
                client.send("t", bytes(200_001))
            assert client.send("t", bytes(200_000)) == 0


class TestSenders:
    def test_two_that_send_to_one_topic_do_not_mix(self, client: TopicLogClient, port: int) -> None:
        client.create_topic("t")

        def send(letter: bytes) -> None:
            with TopicLogClient(port=port) as other:
                for size in (10, 70_000, 20, 90_000):
                    other.send("t", letter * size)

        threads = [Thread(target=send, args=(letter,)) for letter in (b"a", b"b", b"c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = values_of(client, "t")
        for letter in (b"a", b"b", b"c"):
            sizes = [len(value) for value in found if value[:1] == letter]
            assert sizes == [10, 70_000, 20, 90_000]
        assert all(value == value[:1] * len(value) for value in found)

    def test_one_that_dies_within_a_message_leaves_nothing(
        self, client: TopicLogClient, port: int, tmp_path: Path
    ) -> None:
        client.create_topic("t")
        client.send("t", b"before")
        with half_send(port, "t", MB, 300_000):
            assert client.send("t", b"meanwhile") == 1
        assert client.send("t", b"after") == 2
        assert values_of(client, "t") == [b"before", b"meanwhile", b"after"]

    def test_one_that_stops_holds_up_nobody_and_is_cut_off(self, tmp_path: Path) -> None:
        with (
            served(tmp_path / "d", body_timeout=0.2) as port,
            TopicLogClient(port=port) as client,
        ):
            client.create_topic("t")
            with half_send(port, "t", 4 * MB, 2 * MB) as peer:
                assert client.send("t", bytes(MB)) == 0
                assert client.send("t", b"small") == 1
                # It ends, with a FIN or a reset; a socket that stays open would time out.
                with suppress(ConnectionResetError):
                    while peer.recv(4096):
                        pass
            assert client.send("t", b"after") == 2

    def test_a_client_that_does_not_greet_is_told_so(self, port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.sendall(bytes(64))
            said = b"".join(iter(lambda: peer.recv(4096), b""))
        assert b"unknown request or status: kind=0" in said

    def test_nobody_there_is_an_error_to_try_again_after(self, port: int, tmp_path: Path) -> None:
        with served(tmp_path / "other") as other:
            pass
        with pytest.raises(RetryError, match="cannot connect to topic logs at"):
            TopicLogClient(port=other)


class TestRows:
    def test_messages_are_rows_of_the_store(self, tmp_path: Path) -> None:
        with served(tmp_path / "d") as port, TopicLogClient(port=port) as client:
            client.create_topic("plant/1")
            client.create_topic("plant/2")
            client.send_many("plant/1", [b"a", b"b"])
            client.send("plant/2", bytes(100_000))
            with siltstone.open(tmp_path / "d", read_only=True) as store:
                database = store.database(DATABASE)
                rows = [row for batch in database.read("plant/+") for row in rows_of(batch)]
                assert database.count("plant/1") == 2
        assert [(row.topic, row.serial, row.value) for row in rows] == [
            ("plant/1", 0, b"a"),
            ("plant/1", 1, b"b"),
            ("plant/2", 0, bytes(100_000)),
        ]

    def test_a_reader_that_was_there_first_follows_a_segment_that_is_replaced(
        self, tmp_path: Path
    ) -> None:
        with served(tmp_path / "d") as port, TopicLogClient(port=port) as client:
            client.create_topic("t")
            with siltstone.open(tmp_path / "d", read_only=True) as store:
                database = store.database(DATABASE)
                assert database.count("t") == 0
                client.send("t", bytes(2 * SEGMENT_BYTES))
                client.send("t", b"x")
                assert database.count("t") == 2

    def test_rows_come_to_it_by_its_own_way_only(self, tmp_path: Path) -> None:
        with siltstone.open(tmp_path / "d") as store:
            database = store.create(DATABASE)
            database.block_logs().add("t")
            with pytest.raises(UsageError, match="has topic logs: send messages to a topic log"):
                database.append([siltstone.Row("t", b"v")])

    def test_topics_that_are_mapped_go_to_subscribers_of_the_broker(self, tmp_path: Path) -> None:
        rules = '[{"filter": "orders/+", "prefix": "log/", "qos": 1}]'
        with (
            served_by_process(tmp_path / "d", **{"topiclog.publish": rules}) as broker,
            connected(broker.port, client_id="c") as device,
            TopicLogClient(port=log_port(broker)) as client,
        ):
            device.subscribe("log/#", qos=1)
            for topic in ("orders/new", "other"):
                client.create_topic(topic)
                client.send(topic, b"payload of " + topic.encode())
            client.send("orders/new", b"l" * 70_000)
            packets = device.receive_many(Publish, 2)
        found = [(packet.topic.decode(), packet.payload) for packet in packets]
        assert found == [
            ("log/orders/new", b"payload of orders/new"),
            ("log/orders/new", b"l" * 70_000),
        ]


def test_the_asyncio_client_has_many_requests_on_their_way(port: int) -> None:
    async def run() -> list[bytes]:
        async with await AsyncTopicLogClient.connect(port=port) as client:
            await client.create_topic("t")
            with pytest.raises(ExistsError):
                await client.create_topic("t")
            await client.subscribe(["t"])
            small = asyncio.gather(*(client.send("t", b"%d" % number) for number in range(50)))
            many = await client.send_many("t", [b"x" * 30_000] * 10)
            offsets = await small
            assert sorted([*offsets, *many]) == list(range(60))
            assert len(many) == 10
            assert await client.end_offset("t") == 60
            assert await client.message_length("t", many.start) == 30_000
            await client.commit("c", "t", 5)
            assert await client.committed("c", "t") == 5
            found: list[bytes] = []
            while message := await client.poll():
                found.append(message.value)
            client.seek("t", 0)
            assert client.position("t") == 0
            batch = await client.poll_batch(timeout=1.0)
            assert batch is not None
            client.unsubscribe()
            return found

    found = asyncio.run(run())
    assert sorted(found) == sorted([b"%d" % number for number in range(50)] + [b"x" * 30_000] * 10)


def test_small_and_large_messages_of_one_client_keep_their_order(
    client: TopicLogClient, port: int
) -> None:
    # Small sends are gathered, and large ones go to their segment directly.
    values = [b"%d" % number * (1 if number % 3 else 20_000) for number in range(100, 400)]

    async def run() -> list[int]:
        async with await AsyncTopicLogClient.connect(port=port) as sender:
            await sender.create_topic("t")
            return await asyncio.gather(*(sender.send("t", value) for value in values))

    assert asyncio.run(run()) == list(range(300))
    assert values_of(client, "t") == values


def test_the_asyncio_client_is_told_when_the_server_goes(tmp_path: Path) -> None:
    async def run() -> None:
        with served(tmp_path / "d") as port:
            client = await AsyncTopicLogClient.connect(port=port)
            await client.create_topic("t")
            await client.subscribe(["t"])
            waiting = asyncio.ensure_future(client.poll(timeout=15.0))
            await client.topics()
        with pytest.raises(RetryError, match="the connection was lost"):
            await waiting
        with pytest.raises(OutcomeUnknownError):
            await client.send("t", b"x")

    asyncio.run(run())


CHILD = """
import os, sys
from siltstone.topiclog.client import TopicLogClient
with TopicLogClient(port=int(sys.argv[1])) as client:
    value = bytes(range(256)) * 40_000
    for line in sys.stdin:
        if line == "send\\n":
            client.send("t", value)
        else:
            client.subscribe(["t"])
            client.seek("t", 0)
            assert client.poll().value == value
        print("done", flush=True)
"""


def test_no_copy_of_a_large_message_is_made_on_either_way(port: int) -> None:
    with TopicLogClient(port=port) as client:
        client.create_topic("t")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for order in ("send", "read"):
            tracemalloc.start()
            child.stdin.write(f"{order}\n")
            child.stdin.flush()
            assert child.stdout.readline() == "done\n"
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < MB, f"{order}: the server took {peak} bytes for 10,240,000"
        child.stdin.close()
        assert child.wait() == 0
