"""siltstone.connect: another process manages, appends and transacts in a running broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import siltstone
from siltstone import COMMIT_SERIAL, DatabaseSettings, KeyValueSettings, Row
from siltstone.manage.transactions import CONNECTIONS_MAX
from siltstone.mqtt.packets import Publish
from tests.support.broker_process import (
    BrokerProcess,
    Settings,
    broker_process,
    clean_environment,
    run_command,
)
from tests.support.mqtt_socket import connected

SMALL = DatabaseSettings(segment_bytes=1 << 20)
PLAIN = KeyValueSettings(timed=False)
MIB = 1 << 20

PROGRAM = """
import sys
from pathlib import Path
import siltstone

with siltstone.connect(Path(sys.argv[1])) as store:
    sensors = store.create("sensors", siltstone.DatabaseSettings(segment_bytes=1 << 20))
    print(sensors.append([siltstone.Row("t/1", b"21"), siltstone.Row("t/2", b"22")]))
    sensors.seal()
    bank = store.keyvalue("bank", siltstone.KeyValueSettings(timed=False))

    def pay(tx):
        balance = int(tx.get("account/ann") or b"100")
        tx.write("account/ann", b"%d" % (balance - 10))
        return balance

    print(bank.transact(pay, id="pay-1").value, bank.transact(pay, id="pay-1").duplicate)
    print(bank.get("account/ann"))
"""


PASSWORD = "rock"  # noqa: S105 - of a broker that lives as long as a test


def with_flight(file: Path, **others: float) -> Settings:
    """Return settings of a broker that serves Flight to the users admin and reader."""
    for user in ("admin", "reader"):
        done = run_command("passwd", str(file), user, "--stdin", stdin=PASSWORD.encode())
        assert done.returncode == 0, done.stderr
    return {
        "access.password_file": str(file),
        "flight.enabled": "true",
        "flight.port": 0,
        "flight.managers": '["admin"]',
        **others,
    }


def node_of(broker: BrokerProcess, user: str = "admin") -> siltstone.RunningNode:
    """Connect to the broker over Flight."""
    broker.wait_for("flight_listening")
    url: str = broker.events("flight_listening")[-1]["address"]
    return siltstone.connect(url, username=user, password=PASSWORD if user else "")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    place = tmp_path_factory.mktemp("running")
    with broker_process(place / "data", settings=with_flight(place / "users")) as process:
        yield process


@pytest.fixture(params=["socket", "flight"])
def store(
    broker: BrokerProcess, request: pytest.FixtureRequest
) -> Iterator[siltstone.RunningStore]:
    if request.param == "socket":
        with siltstone.connect(broker.data) as connection:
            yield connection
    else:
        with node_of(broker) as node:
            yield node.store


@pytest.fixture
def bank(store: siltstone.RunningStore) -> Iterator[siltstone.RunningKeyValue]:
    yield store.keyvalue("accounts", PLAIN)
    store.drop_keyvalue("accounts")


def test_another_process_manages_appends_and_transacts(broker: BrokerProcess) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(broker.data)],
        capture_output=True,
        check=False,
        env=clean_environment(),
        text=True,
    )
    assert (done.stderr, done.stdout.splitlines()) == (
        "",
        ["Appended(rows=2, duplicate=False)", "100 True", "b'90'"],
    )
    with siltstone.open(broker.data, read_only=True) as store:
        sensors = store.database("sensors")
        assert [slab.state for slab in sensors.slabs()] == ["sealed", "current"]
        assert sensors.count() == 2


def test_without_a_broker_there_is_nothing_to_connect_to(tmp_path: Path) -> None:
    with pytest.raises(siltstone.NotFoundError, match=r"no broker is running on .*siltstone\.open"):
        siltstone.connect(tmp_path)


def test_the_socket_itself_can_be_named(broker: BrokerProcess) -> None:
    with siltstone.connect(broker.data / "control.sock") as store:
        assert store.path == broker.data
    with pytest.raises(siltstone.ClosedError):
        store.drop("x")


def test_a_database_is_created_configured_and_dropped(store: siltstone.RunningStore) -> None:
    made = store.create("metrics", SMALL)
    with pytest.raises(siltstone.ExistsError):
        store.create("metrics")
    assert made.configure(retain_seconds=60.0).retain_seconds == 60.0
    with pytest.raises(siltstone.UsageError, match="cannot change after"):
        made.configure(shards=2)
    made.append([Row("a", b"1")])
    made.seal()
    made.drop_slab(siltstone.SlabId(0, 1))
    with pytest.raises(siltstone.SlabDroppedError):
        made.drop_slab(siltstone.SlabId(0, 1))
    store.drop("metrics")
    with pytest.raises(siltstone.NotFoundError):
        store.database("metrics").append([Row("a", b"1")])
    with pytest.raises(siltstone.UsageError, match="the running broker stores messages in it"):
        store.drop("messages")


def test_appended_rows_reach_subscribers_and_a_producer_is_stored_once(
    broker: BrokerProcess, store: siltstone.RunningStore
) -> None:
    messages = store.database("messages")
    rows = [Row("row/1", b"\x00", "me", 1, properties=b""), Row("row/2", b"x" * (2 * MIB), qos=1)]
    with connected(broker.port, "subscriber") as client:
        client.subscribe("row/#", 0)
        producer = (str(store.path), 1)
        first, again = (messages.append(rows, producer=producer) for _ in range(2))
        assert [message.payload for message in client.receive_many(Publish, 2)] == [
            b"\x00",
            b"x" * (2 * MIB),
        ]
        with connected(broker.port, "publisher") as publisher:
            publisher.publish("row/end", b"")
        assert client.expect(Publish).topic == b"row/end"
    assert ((first.rows, first.duplicate), (again.rows, again.duplicate)) == ((2, False), (2, True))
    with pytest.raises(siltstone.InvalidTopicError):
        messages.append([Row("row/#", b"")])
    with pytest.raises(siltstone.UsageError, match="cannot be changed"):
        store.database("_retained").append(rows)


def test_a_transaction_sees_its_own_changes_and_others_do_not(
    bank: siltstone.RunningKeyValue,
) -> None:
    with bank.transaction() as tx:
        tx.write("a", b"1")
        tx.write("b", b"2")
        assert (tx.get("a"), tx.get("c")) == (b"1", None)
        tx.delete("b")
        assert [(row.topic, row.value) for row in tx.read("#")] == [("a", b"1")]
        assert bank.get("a") is None
    assert (bank.get("a"), tx.serial, tx.committed, tx.duplicate) == (b"1", 1, True, False)
    with bank.transaction() as tx:
        tx.write("a", b"3")
        tx.discard()
    assert bank.get("a") == b"1"


def test_the_second_of_two_transactions_conflicts(bank: siltstone.RunningKeyValue) -> None:
    first, second = bank.transaction(), bank.transaction()
    assert (first.get("a"), second.get("a")) == (None, None)
    first.write("a", b"first")
    second.write("a", b"second")
    first.commit()
    with pytest.raises(siltstone.ConflictError):
        second.commit()
    assert bank.get("a") == b"first"
    with pytest.raises(siltstone.UsageError, match="has ended"):
        second.commit()


def test_requirements_are_told_with_what_was_found(bank: siltstone.RunningKeyValue) -> None:
    with bank.transaction() as tx:
        tx.write("a", b"\xff")
        tx.write("guard", COMMIT_SERIAL)
    tx = bank.transaction()
    tx.require_present("a", value=b"2")
    tx.require_absent("b")
    with pytest.raises(siltstone.PreconditionError) as caught:
        tx.commit()
    (unmet,) = caught.value.unmet
    assert (unmet.topic, unmet.expected, unmet.found) == ("a", b"2", b"\xff")
    tx = bank.transaction()
    tx.require_owner("guard", 77)
    tx.write("a", b"3")
    with pytest.raises(siltstone.FencedError):
        tx.commit()


def test_an_id_is_committed_once_and_its_outcome_is_known(bank: siltstone.RunningKeyValue) -> None:
    def add(tx: siltstone.RunningTransaction) -> None:
        tx.add("count", 1)

    first, again = bank.transact(add, id="x"), bank.transact(add, id="x")
    assert (first.duplicate, again.duplicate) == (False, True)
    assert (bank.outcome("x"), bank.outcome("y")) == (first.serial, None)
    assert siltstone.count_in(bank.get("count")) == 1


def test_threads_that_count_lose_nothing(bank: siltstone.RunningKeyValue) -> None:
    def count(tx: siltstone.RunningTransaction) -> None:
        tx.write("n", b"%d" % (int(tx.get("n") or b"0") + 1))

    def work() -> None:
        for _ in range(10):
            bank.transact(count, retries=1000)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bank.get("n") == b"40"


def test_a_large_transaction_is_sent_in_parts_and_read_in_parts(
    bank: siltstone.RunningKeyValue,
) -> None:
    values = {f"k/{number:05}": b"v" * (number % 700) for number in range(5000)}
    with bank.transaction() as tx:
        for topic, value in values.items():
            tx.write(topic, value)
        tx.write("large", b"x" * (6 * MIB))
    with bank.transaction() as tx:
        found = {row.topic: row.value for row in tx.read("k/#")}
        assert (found == values, tx.get("large") == b"x" * (6 * MIB)) == (True, True)
    tx = bank.transaction()
    for number in range(15):
        tx.write(f"large/{number}", b"x" * (4 * MIB + 1))
    with pytest.raises(siltstone.UsageError, match="too large, split it"):
        tx.write("large/15", b"x" * (4 * MIB + 1))


def test_owned_maps_belong_to_the_last_that_took_them(bank: siltstone.RunningKeyValue) -> None:
    mine = bank.take("c1")
    mine.map("m")["k"] = b"1"
    assert mine.save() > 0
    theirs = bank.take("c1")
    assert theirs.map("m").items() == [("k", b"1")]
    mine.map("m")["k"] = b"2"
    with pytest.raises(siltstone.FencedError):
        mine.save()
    theirs.map("m")["k"] = b"3"
    theirs.save()
    theirs.drop()
    assert bank.take("c1").names() == []


@pytest.mark.parametrize(
    "wrong",
    [
        lambda tx: tx.write("a/#", b""),
        lambda tx: tx.write("a", "text"),
        lambda tx: tx.get("a", 7),
        lambda tx: tx.read("a/#/b"),
        lambda tx: tx.delete(7),
        lambda tx: tx.add("a", "1"),
    ],
)
def test_a_wrong_call_is_refused_and_the_connection_goes_on(
    bank: siltstone.RunningKeyValue, wrong: object
) -> None:
    assert callable(wrong)
    with pytest.raises(siltstone.UsageError), bank.transaction() as tx:
        wrong(tx)
    assert bank.get("a") is None


def test_a_database_that_is_dropped_ends_its_transactions(store: siltstone.RunningStore) -> None:
    brief = store.keyvalue("brief", PLAIN)
    tx = brief.transaction()
    assert tx.get("a") is None
    store.drop_keyvalue("brief")
    tx.write("a", b"1")
    with pytest.raises(siltstone.ClosedError):
        tx.commit()
    with pytest.raises(siltstone.NotFoundError):
        brief.transaction().get("a")
    with pytest.raises(siltstone.NotFoundError):
        store.keyvalue("brief")


def test_only_managers_manage_over_flight(broker: BrokerProcess) -> None:
    for user in ("reader", ""):
        broker.wait_for("flight_listening")
        with node_of(broker, user) as node:
            assert "messages" in node.databases()
            with pytest.raises(siltstone.UsageError, match=r"may not manage .* flight\.managers"):
                node.store.create("mine")
    with node_of(broker) as node:
        replaced = siltstone.connect(str(node.store.path), token=node.log_in())
        with pytest.raises(siltstone.NotFoundError):
            replaced.store.drop("mine")
        replaced.close()
    with pytest.raises(siltstone.ClosedError):
        node.store.drop("mine")


def test_a_link_over_flight_ends_when_it_is_not_used(tmp_path: Path) -> None:
    settings = with_flight(tmp_path / "users", control_timeout=1e-6)
    with (
        broker_process(tmp_path / "data", settings=settings) as broker,
        node_of(broker) as node,
        pytest.raises(siltstone.RetryError, match="has ended: connect again"),
    ):
        node.store.drop("none")


def test_a_broker_that_stops_does_not_wait_for_links_over_flight(tmp_path: Path) -> None:
    settings = with_flight(tmp_path / "users")
    with broker_process(tmp_path / "data", settings=settings) as broker, node_of(broker) as node:
        tx = node.store.keyvalue("bank", PLAIN).transaction()
        assert tx.get("a") is None
        broker.stop()
        assert broker.events("flight_calls_abandoned") == []
        with pytest.raises(siltstone.RetryError, match="the broker did not answer"):
            tx.get("a")
        broker.start()


def test_a_commit_over_flight_without_an_answer_has_an_unknown_outcome(tmp_path: Path) -> None:
    settings = with_flight(tmp_path / "users")
    with broker_process(tmp_path / "data", settings=settings) as broker, node_of(broker) as node:
        bank = node.store.keyvalue("bank", PLAIN)
        os.kill(broker.pid, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(bank.transact, lambda tx: tx.write("b", b"2"), id="during")
            with pytest.raises(TimeoutError):
                asked.result(0.5)
            broker.kill()
            with pytest.raises(siltstone.OutcomeUnknownError):
                asked.result()


def test_too_many_open_transactions_are_refused_until_some_end(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as broker, siltstone.connect(broker.data) as store:
        bank = store.keyvalue("bank", PLAIN)
        opened = [bank.transaction() for _ in range(CONNECTIONS_MAX)]
        assert [tx.get("a") for tx in opened] == [None] * CONNECTIONS_MAX
        with pytest.raises(siltstone.OverloadedError, match="too many connections"):
            bank.transaction().get("a")
        for tx in opened:
            tx.discard()
        assert bank.get("a") is None


def test_a_broker_that_is_killed_leaves_an_outcome_that_its_successor_knows(
    tmp_path: Path,
) -> None:
    with broker_process(tmp_path / "data") as broker, siltstone.connect(broker.data) as store:
        bank = store.keyvalue("bank", PLAIN)
        bank.transact(lambda tx: tx.write("a", b"1"), id="before")
        os.kill(broker.pid, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(bank.transact, lambda tx: tx.write("b", b"2"), id="during")
            with pytest.raises(TimeoutError):
                asked.result(0.5)
            broker.kill()
            # The request was sent, and the attempts after it find no broker.
            with pytest.raises(siltstone.OutcomeUnknownError):
                asked.result()
        tx = bank.transaction()
        with pytest.raises(siltstone.RetryError, match="the broker did not answer"):
            tx.get("a")
        broker.start()
        assert (bank.get("a"), bank.outcome("before") is None) == (b"1", False)
        again = bank.transact(lambda tx: tx.write("b", b"2"), id="during")
        assert (again.serial, bank.get("b")) == (bank.outcome("during"), b"2")


def test_clients_are_served_while_the_store_is_managed(
    broker: BrokerProcess, store: siltstone.RunningStore
) -> None:
    ended = threading.Event()

    def work() -> None:
        rows = siltstone.Columns([b"t"] * 10_000, [b"x" * 100] * 10_000)
        for number in range(5):
            made = store.create(f"load{number}", SMALL)
            made.append(rows)
            made.seal()
            store.drop(f"load{number}")
        ended.set()

    worker = threading.Thread(target=work)
    waits: list[float] = []
    with connected(broker.port, "pinging") as client:
        worker.start()
        while not ended.is_set():
            before = time.monotonic()
            client.subscribe("none", 0)
            waits.append(time.monotonic() - before)
    worker.join()
    # A shared machine adds to it; the loop itself waits for no verb.
    assert sorted(waits)[int(len(waits) * 0.99)] < 0.5
