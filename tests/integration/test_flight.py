"""Arrow Flight beside a broker: rows out, rows in, users and rights, TLS."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight
from pyspark.sql.streaming.datasource import ReadAllAvailable

import siltstone
from siltstone.cli.main import execute
from siltstone.errors import (
    InvalidTopicError,
    LockedError,
    NotFoundError,
    RetryError,
    SiltstoneError,
    SlabDroppedError,
    UsageError,
)
from siltstone.flight.connection import Appended, RemoteStream
from siltstone.flight.origin import NodeOrigin
from siltstone.flight.reading import Reads
from siltstone.flight.target import DirectoryTarget
from siltstone.fs.posix import PosixFileSystem
from siltstone.mqtt.packets import Publish
from siltstone.pipeline.source.schema import spark_schema
from siltstone.pipeline.source.stream_reader import SiltstoneStreamReader
from siltstone.scan.columns.schema import SCHEMA
from siltstone.scan.ingest.columns import Given, rows_of
from siltstone.scan.ingest.staging import WriteBatch
from siltstone.scan.options import ReadOptions
from siltstone.store.feed.position import Position
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.manifest import SlabId
from tests.support.broker_process import (
    BrokerProcess,
    Settings,
    broker_process,
    run_command,
    stored,
)
from tests.support.builders import settings_of
from tests.support.certificates import Authority
from tests.support.flight import served
from tests.support.mqtt_socket import connected
from tests.support.sites import until

PASSWORD = "rock"  # noqa: S105 - of a broker that lives as long as a test
SERVED: Settings = {"flight.enabled": "true", "flight.port": 0}
ACL = """
user alice
topic readwrite plant/#
topic deny plant/keys/#
topic subscribe #
"""


def url_of(broker: BrokerProcess) -> str:
    """Return where a broker serves Flight, as of its last start."""
    broker.wait_for("flight_listening")
    address: str = broker.events("flight_listening")[-1]["address"]
    return address


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("flight") / "data", settings=SERVED) as running:
        yield running


def test_what_mqtt_publishes_is_read_by_flight(broker: BrokerProcess) -> None:
    with connected(broker.port, "p") as client:
        client.publish("read/1/t", b"21")
        client.publish("read/2/t", b"22")
    with siltstone.connect(url_of(broker)) as node:
        assert node.databases() == ["messages"]
        assert RemoteStream(pattern="read/1/t", rows=1) in node.streams("messages")
        rows = node.read("read/#", columns=["topic", "levels", "payload", "publisher", "qos"])
        assert sorted(rows.arrow().to_pylist(), key=lambda row: str(row["topic"])) == [
            {
                "topic": f"read/{number}/t",
                "levels": ["read", f"{number}", "t"],
                "payload": b"2%d" % number,
                "publisher": "p",
                "qos": 1,
            }
            for number in (1, 2)
        ]
        assert node.read(["read/1/#", "read/+/t"]).arrow().num_rows == 2
        assert node.read("read/#").arrow().schema == SCHEMA
        assert node.read("nowhere/#").arrow().to_pylist() == []


def test_rows_put_by_flight_are_stored_and_published(broker: BrokerProcess) -> None:
    with connected(broker.port, "s") as subscriber, siltstone.connect(url_of(broker)) as node:
        subscriber.subscribe("put/#", 1)
        rows = [
            {"topic": "put/a", "payload": b"1", "publisher": "me", "qos": 1},
            {"topic": "put/b", "payload": "2", "properties": {"mqtt.content_type": "n", "k": "v"}},
        ]
        assert node.append(rows) == Appended(rows=2, duplicate=False)
        first, second = subscriber.receive_many(Publish, 2)
        assert (first.topic, first.payload, first.qos) == (b"put/a", b"1", 1)
        assert (second.topic, second.payload, second.qos) == (b"put/b", b"2", 0)
        assert second.properties.content_type == "n"
        assert second.properties.user_properties == (("k", "v"),)
        subscriber.acknowledge(first)
        subscriber.disconnect()
    assert stored(broker.data, "put/#") == [("put/a", b"1"), ("put/b", b"2")]


def test_a_call_of_a_producer_is_stored_and_published_once(broker: BrokerProcess) -> None:
    with connected(broker.port, "s1") as subscriber, siltstone.connect(url_of(broker)) as node:
        subscriber.subscribe("once/#")
        row = [{"topic": "once/a", "payload": b"1"}]
        assert node.append(row, producer=("p", 7)) == Appended(rows=1, duplicate=False)
        assert node.append(row, producer=("p", 7)) == Appended(rows=1, duplicate=True)
        node.append([{"topic": "once/b", "payload": b"2"}], producer=("p", 8))
        got = subscriber.receive_many(Publish, 2)
        assert [each.topic for each in got] == [b"once/a", b"once/b"]
    assert stored(broker.data, "once/#") == [("once/a", b"1"), ("once/b", b"2")]


def test_a_retained_row_is_kept_for_later_subscribers(broker: BrokerProcess) -> None:
    with siltstone.connect(url_of(broker)) as node, connected(broker.port, "s2") as before:
        before.subscribe("kept/#")
        node.append([{"topic": "kept/a", "payload": b"1", "retain": True}])
        # When a subscriber has it, the broker has kept it too.
        assert before.expect(Publish).payload == b"1"
        with connected(broker.port, "s3") as later:
            later.subscribe("kept/#")
            assert later.expect(Publish).retain


def test_staged_rows_of_a_directory_are_committed_by_the_broker_that_has_it(
    broker: BrokerProcess,
) -> None:
    target = DirectoryTarget(PosixFileSystem(), broker.data, "")
    batch = WriteBatch(write="w", number=0)
    rows = pa.RecordBatch.from_pylist([{"topic": "staged/a", "payload": b"1"}])
    with connected(broker.port, "s4") as subscriber:
        subscriber.subscribe("staged/#")
        name = target.stage(batch, rows_of(rows, Given()))
        assert name is not None
        assert target.commit(batch, [name], forget=False).rows == 1
        assert target.commit(batch, [name], forget=False).repeated
        assert subscriber.expect(Publish).topic == b"staged/a"
    assert stored(broker.data, "staged/#") == [("staged/a", b"1")]


def test_a_batch_is_committed_once_though_the_broker_is_killed_in_between(tmp_path: Path) -> None:
    batch = WriteBatch(write="w", number=0)
    rows = pa.RecordBatch.from_pylist([{"topic": "a", "payload": b"%d" % n} for n in range(3)])
    target = DirectoryTarget(PosixFileSystem(), tmp_path / "data", "")
    with broker_process(tmp_path / "data", settings=SERVED) as running:
        url_of(running)
        name = target.stage(batch, rows_of(rows, Given()))
        assert name is not None
        assert target.commit(batch, [name], forget=False).rows == 3
        running.kill()
        # Nobody has the directory now, though the socket is still there.
        assert target.commit(batch, [name], forget=False).repeated
        running.start()
        assert target.commit(batch, [name], forget=False).repeated
    assert [value for _, value in stored(tmp_path / "data")] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"filter": "a/#/b"}, UsageError, "filter must be an MQTT topic filter"),
        ({"database": "other"}, NotFoundError, "database 'other' does not exist"),
        ({"columns": ["colour"]}, UsageError, "unknown column colour"),
        ({"since": "noon"}, UsageError, "startTime must be a time"),
    ],
    ids=str,
)
def test_a_wrong_read_is_refused_with_a_sentence(
    broker: BrokerProcess, options: dict[str, str], error: type[SiltstoneError], message: str
) -> None:
    with siltstone.connect(url_of(broker)) as node, pytest.raises(error, match=message):
        node.read(**options)


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        (
            {"topic": "a/+", "payload": b""},
            InvalidTopicError,
            "topic must not have the wildcards",
        ),
        ({"topic": "a"}, UsageError, "column payload is missing"),
        ({"topic": "a", "payload": None}, UsageError, "payload must not be null: row"),
        ({"topic": "a", "payload": b"", "qos": 3}, UsageError, "qos must be 0, 1 or 2"),
        ({"topic": "a", "payload": b"", "colour": 1}, UsageError, "unknown column colour"),
        (
            {"topic": "a", "payload": b"", "properties": {"mqtt.colour": "x"}},
            UsageError,
            "unknown property mqtt.colour",
        ),
    ],
    ids=str,
)
def test_a_wrong_row_is_refused_with_a_sentence(
    broker: BrokerProcess, row: dict[str, object], error: type[SiltstoneError], message: str
) -> None:
    with siltstone.connect(url_of(broker)) as node, pytest.raises(error, match=message):
        node.append([row])


def test_any_flight_client_can_plan_and_read(broker: BrokerProcess) -> None:
    with siltstone.connect(url_of(broker)) as node:
        node.append([{"topic": "any/1", "payload": b"x"}, {"topic": "any/2", "payload": b"y"}])
    with flight.FlightClient(url_of(broker)) as client:
        command = flight.FlightDescriptor.for_command(b'{"filter": "any/#", "columns": "payload"}')
        path = flight.FlightDescriptor.for_path("messages", "any/1")
        found = [
            client.do_get(endpoint.ticket).read_all()
            for descriptor in (command, path)
            for endpoint in client.get_flight_info(descriptor).endpoints
        ]
        assert sorted(found[0].column("payload").to_pylist()) == [b"x", b"y"]
        assert found[1].column("topic").to_pylist() == ["any/1"]
        actions = [action.type for action in client.list_actions()]
        manage = ["manage-begin", "manage", "manage-end"]
        assert actions == ["admit", "commit", "discard", "extents", "seek", *manage]


def test_what_no_parser_can_take_is_answered_with_a_sentence(broker: BrokerProcess) -> None:
    deep = b'{"filter": ' + b"[" * 100_000
    with flight.FlightClient(url_of(broker)) as client:
        for call, sentence in (
            (lambda: client.get_flight_info(flight.FlightDescriptor.for_command(deep)), "command"),
            (lambda: client.do_get(flight.Ticket(deep)).read_all(), "ticket"),
            (lambda: [*client.do_action(flight.Action("extents", deep))], "request"),
        ):
            with pytest.raises(flight.FlightServerError) as caught:
                call()
            assert str(caught.value).startswith(f"{sentence} is nested too deeply")
            assert "Traceback" not in str(caught.value)
        with pytest.raises(flight.FlightServerError, match="criteria is not valid UTF-8"):
            list(client.list_flights(b"\xff"))
        for name in (b"a\0b", b"../messages", b"m" * 300):
            descriptor = flight.FlightDescriptor.for_path(name)
            for ask in (
                partial(client.get_flight_info, descriptor),
                partial(list_all, client, name),
            ):
                with pytest.raises(flight.FlightServerError, match=r"^the name of a database must"):
                    ask()


def list_all(client: flight.FlightClient, criteria: bytes) -> list[flight.FlightInfo]:
    return list(client.list_flights(criteria))


@pytest.mark.parametrize("error", [RecursionError("deep"), KeyError("ours"), pa.ArrowInvalid("x")])
def test_an_error_of_ours_is_logged_and_no_traceback_is_sent(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Reads, "plan", fail)
    with (
        siltstone.open(tmp_path) as store,
        served(store) as node,
        flight.FlightClient(node.url) as client,
        pytest.raises(flight.FlightServerError) as caught,
    ):
        client.get_flight_info(flight.FlightDescriptor.for_path("messages"))
    assert str(caught.value).startswith("internal error: see the log of the broker")
    assert "Traceback" not in str(caught.value)
    [record] = [each for each in caplog.records if each.message == "internal_error"]
    assert record.exc_info is not None
    assert record.exc_info[1] is error


# A client that ends while its call is under way.
_LEAVES = """
import os, sys
import pyarrow as pa
from pyarrow import flight
client = flight.FlightClient(sys.argv[1])
request = flight.FlightDescriptor.for_command(b'{"append": {"database": "messages"}}')
rows = pa.record_batch({"topic": ["a"], "payload": [b"1"]})
writer, _ = client.do_put(request, rows.schema)
writer.write_batch(rows)
input()
os._exit(0)
"""


def test_a_client_that_leaves_in_the_middle_of_its_rows_is_not_an_error_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "siltstone.flight")

    def told() -> list[str]:
        return [each.message for each in caplog.records if each.name == "siltstone.flight"]

    with siltstone.open(tmp_path) as store:
        database = store.create("messages", settings_of())
        with served(store) as node:
            with subprocess.Popen(
                [sys.executable, "-c", _LEAVES, node.url], stdin=subprocess.PIPE
            ) as client:
                until(lambda: database.count() == 1, "the row")
                client.communicate(b"\n")
            until(lambda: bool(told()), "the end of the call")
    assert told() == ["flight_call_failed"]


def test_damage_and_rows_that_were_dropped_are_told_to_who_reads_them(tmp_path: Path) -> None:
    marker = b"a payload that is nowhere else"
    with siltstone.open(tmp_path / "data") as store:
        database = store.create("messages", settings_of())
        database.append([Row("a", b"1")]).wait()
        database.seal()
        database.append([Row("b", marker)]).wait()
        (segment,) = (file for file in tmp_path.rglob("*.seg") if marker in file.read_bytes())
        segment.write_bytes(segment.read_bytes().replace(marker, marker.upper()))
        with served(store) as known, siltstone.connect(known.url) as node:
            planned = node.read("a")
            assert planned.arrow().num_rows == 1
            with pytest.raises(
                SiltstoneError, match=f"does not match its checksum: path={segment}"
            ):
                node.read("b").arrow()
            database.drop_slab(SlabId(0, 1))
            with pytest.raises(SlabDroppedError, match="dropped"):
                planned.arrow()


def test_a_database_that_was_created_again_is_told_from_the_former_one(tmp_path: Path) -> None:
    with siltstone.open(tmp_path / "data") as store, served(store) as known:
        former = store.create("messages", settings_of())
        former.append([Row("a", b"1"), Row("a", b"2")]).wait()
        options = ReadOptions(node=known, filters=("a",))
        fields = spark_schema(options.columns)
        with siltstone.connect(known.url) as node:
            planned = node.read("a")
            stream = SiltstoneStreamReader(options, fields, PosixFileSystem())
            saved = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
            assert saved == Position({0: 2}, identity=former.identity).to_json()
            origin = NodeOrigin(known, options)
            assert origin.identity() == former.origin
            store.drop("messages")
            later = store.create("messages", settings_of())
            later.append([Row("a", b"%d" % number) for number in range(3)]).wait()
            told = f"={former.identity} database={later.identity}"
            with pytest.raises(SlabDroppedError, match=f"ticket{told}"):
                planned.arrow()
            with pytest.raises(SlabDroppedError, match=f"step{told}"):
                origin.plan_micro_batch({0: 0}, {0: 2})
            origin.close()
            with pytest.raises(SlabDroppedError, match=f"offsets{told}"):
                stream.latestOffset(saved, ReadAllAvailable())
            stream.stop()
        lossy = SiltstoneStreamReader(
            replace(options, fails_on_loss=False), fields, PosixFileSystem()
        )
        end = lossy.latestOffset(saved, ReadAllAvailable())
        assert end == Position({0: 3}, identity=later.identity).to_json()
        read = [row for part in lossy.partitions(saved, end) for row in lossy.read(part)]
        assert sum(batch.num_rows for batch in read) == 3
        lossy.stop()


def test_nobody_answers_where_flight_is_not_served(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as quiet:
        assert quiet.events("flight_listening") == []
        target = DirectoryTarget(PosixFileSystem(), quiet.data, "")
        with pytest.raises(
            LockedError,
            match=(
                r"a broker writes this directory and does not accept rows from Spark: set "
                r"flight\.enabled = true in its settings: path"
            ),
        ):
            target.commit_once(WriteBatch(write="w", number=0), [], forget=False)
    with (
        siltstone.connect("grpc+tcp://127.0.0.1:1") as node,
        pytest.raises(
            RetryError, match=r"cannot connect to the node at grpc\+tcp://127\.0\.0\.1:1"
        ),
    ):
        node.databases()


def no_session(**_: object) -> None:
    """Stand for the start of Spark."""
    raise UsageError("Spark starts")


@pytest.mark.parametrize(
    "job",
    [
        ("replay",),
        ("import", "files", "--topic", "a/{b}"),
        ("rollup", "ovens", "--topics", "rollup/{plant}"),
    ],
    ids=" ".join,
)
def test_a_job_that_appends_needs_flight_and_says_so_before_spark_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    job: tuple[str, ...],
) -> None:
    monkeypatch.setattr("siltstone.pipeline.spark.session.start_session", no_session)
    with broker_process(tmp_path / "data") as quiet:
        assert execute(["pipeline", *job, "--data", str(quiet.data)]) == 2
    assert capsys.readouterr().err == (
        f"siltstone: the broker of {tmp_path / 'data'} does not accept rows from this job; set "
        "flight.enabled = true in its settings and start it again, or stop it first\n"
    )


def test_jobs_that_append_start_beside_flight_and_without_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("siltstone.pipeline.spark.session.start_session", no_session)
    with broker_process(tmp_path / "data", settings=SERVED) as broker:
        broker.wait_for("flight_listening")
        for job in (["replay"], ["rollup", "ovens"]):
            assert execute(["pipeline", *job, "--data", str(broker.data)]) == 2
            assert capsys.readouterr().err.endswith("siltstone: Spark starts\n")
        broker.kill()
        assert execute(["pipeline", "replay", "--data", str(broker.data)]) == 2
        assert capsys.readouterr().err.endswith("siltstone: Spark starts\n")


def test_who_does_not_read_what_it_asked_for_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", settings=SERVED) as running:
        with siltstone.connect(url_of(running)) as node:
            node.append([{"topic": "a", "payload": bytes(200_000)}] * 100)
        with flight.FlightClient(url_of(running)) as client:
            command = b'{"maxBytesPerPartition": "1g", "rowsPerBatch": 1}'
            info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
            readers = [client.do_get(endpoint.ticket) for endpoint in info.endpoints]
            assert readers[0].read_chunk().data.num_rows == 1
            running.stop()
            assert len(running.events("flight_calls_abandoned")) == 1


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Authority]]:
    """Yield a broker with users, rights and TLS, and with rows on four topics."""
    directory = tmp_path_factory.mktemp("strict")
    authority = Authority(directory)
    server = authority.server()
    (directory / "acl").write_text(ACL, "utf-8")
    file = str(directory / "passwords")
    for user in ("alice", "bob"):
        done = run_command("passwd", file, user, "--stdin", stdin=PASSWORD.encode())
        assert done.returncode == 0, done.stderr
    with siltstone.open(directory / "data") as store:
        topics = ("plant/1", "plant/keys/1", "office/1", "plant/2")
        store.create("messages").append([Row(topic, b"x") for topic in topics]).wait()
    settings: Settings = {
        **SERVED,
        "flight.certificate": server.certificate,
        "flight.key": server.key,
        "flight.allow_anonymous": "false",
        "access.password_file": file,
        "access.acl_file": str(directory / "acl"),
        "access.login_delay": 0.05,
    }
    with broker_process(directory / "data", settings=settings) as running:
        yield running, authority


def test_a_user_reads_what_its_rights_allow(strict: tuple[BrokerProcess, Authority]) -> None:
    broker, authority = strict
    with siltstone.connect(
        url_of(broker), username="alice", password=PASSWORD, root_certificates=authority.file
    ) as node:
        rows = node.read("#", columns=["topic"]).arrow()
        assert sorted(rows.column("topic").to_pylist()) == ["plant/1", "plant/2"]
        with pytest.raises(
            UsageError,
            match="this user may not read the topics of the filter: filter='plant/keys/#'",
        ):
            node.read("plant/keys/#")
        with pytest.raises(
            UsageError, match="this user may not write to the topic: topic='office/2'"
        ):
            node.append([{"topic": "office/2", "payload": b""}])
        assert node.append([{"topic": "plant/3", "payload": b""}]).rows == 1


@pytest.mark.parametrize(
    ("login", "message"),
    [
        ({"username": "bob", "password": "sand"}, "the user is unknown, or the password wrong"),
        ({"username": "carol", "password": PASSWORD}, "the user is unknown, or the password wrong"),
        ({}, "a login is needed"),
        ({"token": "sand"}, "the token is unknown or has expired: log in again"),
    ],
    ids=str,
)
def test_who_cannot_show_a_login_is_refused(
    strict: tuple[BrokerProcess, Authority], login: dict[str, str], message: str
) -> None:
    broker, authority = strict
    with (
        siltstone.connect(url_of(broker), root_certificates=authority.file, **login) as node,
        pytest.raises(UsageError, match=message),
    ):
        node.databases()


def test_a_login_gives_a_token_that_stands_for_it(
    strict: tuple[BrokerProcess, Authority],
) -> None:
    broker, authority = strict
    trust = {"root_certificates": authority.file}
    with siltstone.connect(url_of(broker), username="alice", password=PASSWORD, **trust) as node:
        token = node.log_in()
    with siltstone.connect(url_of(broker), token=token, **trust) as node:
        rows = node.read(["plant/1", "office/1"], columns=["topic"]).arrow()
        assert rows.column("topic").to_pylist() == ["plant/1"]
    with (
        siltstone.connect(url_of(broker), username="alice", password="sand", **trust) as node,  # noqa: S106 - nobody's
        pytest.raises(UsageError, match="the user is unknown, or the password wrong"),
    ):
        node.log_in()
    assert broker.reload()["event"] == "reloaded"
    with (
        siltstone.connect(url_of(broker), token=token, **trust) as node,
        pytest.raises(UsageError, match="the token is unknown or has expired: log in again"),
    ):
        node.databases()
    assert all(token not in str(event) and PASSWORD not in str(event) for event in broker.events())


def test_tokens_are_revoked_only_if_the_users_were_read_again(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.server()
    passwords = tmp_path / "passwords"
    done = run_command("passwd", str(passwords), "alice", "--stdin", stdin=PASSWORD.encode())
    assert done.returncode == 0, done.stderr
    settings: Settings = {
        **SERVED,
        "flight.certificate": server.certificate,
        "flight.key": server.key,
        "flight.allow_anonymous": "false",
        "access.password_file": str(passwords),
    }
    trust = {"root_certificates": authority.file}
    with broker_process(tmp_path / "data", settings=settings) as running:
        url = url_of(running)
        with siltstone.connect(url, username="alice", password=PASSWORD, **trust) as node:
            token = node.log_in()
        good = passwords.read_bytes()
        passwords.write_text("no hash", "ascii")
        assert running.reload()["event"] == "access_reload_failed"
        with siltstone.connect(url, token=token, **trust) as node:
            assert node.databases() == ["messages"]
        # Users that were read are in effect, also if the certificates are refused.
        passwords.write_bytes(good)
        Path(server.key).write_text("no key", "ascii")
        assert running.reload()["event"] == "certificates_reload_failed"
        with (
            siltstone.connect(url, token=token, **trust) as node,
            pytest.raises(UsageError, match="the token is unknown or has expired: log in again"),
        ):
            node.databases()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"Digest abc", "the authorization header must be Basic or Bearer"),
        (b"Basic abc", "the login must be user:password in base64"),
        (b"Bearer ", "the authorization header must be Basic or Bearer"),
    ],
)
def test_a_header_that_says_nothing_is_not_taken_for_none(
    broker: BrokerProcess, header: bytes, message: str
) -> None:
    options = flight.FlightCallOptions(headers=[(b"authorization", header)])
    with flight.FlightClient(url_of(broker)) as client:
        with pytest.raises(flight.FlightUnauthenticatedError, match=message):
            list(client.list_flights(b"", options))
        with pytest.raises(flight.FlightUnauthenticatedError, match=message):
            list(client.list_actions(options))


def test_certificates_are_read_again_and_calls_that_run_go_on(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    shown = old.server()
    settings: Settings = {
        **SERVED,
        "flight.certificate": shown.certificate,
        "flight.key": shown.key,
    }
    with broker_process(tmp_path / "data", settings=settings) as running:
        url = url_of(running)
        with siltstone.connect(url, root_certificates=old.file) as node:
            node.append([{"topic": "a", "payload": bytes(100_000)}] * 100)
            command = flight.FlightDescriptor.for_command(b'{"rowsPerBatch": 1}')
            client = flight.FlightClient(url, tls_root_certs=Path(old.file).read_bytes())
            endpoints = client.get_flight_info(command).endpoints
            under_way = [client.do_get(endpoint.ticket) for endpoint in endpoints]
            count = sum(reader.read_chunk().data.num_rows for reader in under_way)
            replaced = new.server()
            for name, value in (("certificate", shown.certificate), ("key", shown.key)):
                Path(value).write_bytes(Path(getattr(replaced, name)).read_bytes())
            assert running.reload()["event"] == "reloaded"
            with siltstone.connect(url, root_certificates=new.file) as other:
                assert other.databases() == ["messages"]
            assert count + sum(reader.read_all().num_rows for reader in under_way) == 100
            client.close()
            with pytest.raises(RetryError, match="cannot connect to the node at"):
                node.databases()
        Path(shown.key).write_text("no key", "ascii")
        assert running.reload()["event"] == "certificates_reload_failed"
        with siltstone.connect(url, root_certificates=new.file) as other:
            assert other.databases() == ["messages"]


def test_a_node_that_wants_a_certificate_is_shown_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, ours = authority.server(), authority.client("panel")
    settings: Settings = {
        **SERVED,
        "flight.certificate": server.certificate,
        "flight.key": server.key,
        "flight.client_ca": authority.file,
    }
    trust = {"root_certificates": authority.file}
    with broker_process(tmp_path / "data", settings=settings) as running:
        url = url_of(running)
        with siltstone.connect(url, certificate=ours.certificate, key=ours.key, **trust) as node:
            assert node.databases() == ["messages"]
        with (
            siltstone.connect(url, **trust) as node,
            pytest.raises(RetryError, match="cannot connect to the node at"),
        ):
            node.databases()
    with pytest.raises(NotFoundError, match="/nowhere"):
        siltstone.connect(url, root_certificates="/nowhere")


def test_a_node_with_a_certificate_of_a_stranger_is_not_believed(
    strict: tuple[BrokerProcess, Authority], tmp_path: Path
) -> None:
    broker, _ = strict
    other = Authority(tmp_path, "other")
    with (
        siltstone.connect(url_of(broker), root_certificates=other.file) as node,
        pytest.raises(RetryError, match="cannot connect to the node at"),
    ):
        node.databases()
