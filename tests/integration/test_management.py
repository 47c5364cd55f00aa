"""The commands that manage a store, beside a broker that runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import siltstone
from siltstone.cli.main import execute
from siltstone.mqtt.packets import Publish
from tests.support.broker_process import BrokerProcess, broker_process, run_command
from tests.support.mqtt_socket import connected

SMALL = ("--segment-bytes", "1MiB")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "data") as process:
        yield process


class Commands:
    """The command line on the broker's directory, in this process."""

    def __init__(self, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._data = str(data)
        self._capsys = capsys

    def __call__(self, *args: str, status: int = 0) -> str:
        """Run a command; return its output, or its message if it fails."""
        assert execute([*args, "--data", self._data]) == status
        captured = self._capsys.readouterr()
        return captured.err if status else captured.out

    def document(self, *args: str) -> Any:
        return json.loads(self(*args, "--json"))


@pytest.fixture
def command(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(broker.data, capsys)


def names(data: Path) -> list[str]:
    with siltstone.open(data, read_only=True) as store:
        return sorted(store.names())


def test_another_process_creates_a_database_in_a_running_broker(broker: BrokerProcess) -> None:
    done = run_command("db", "create", "sensors", *SMALL, "--data", str(broker.data))
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"created database sensors in {broker.data}\n".encode(),
        b"",
    )
    assert names(broker.data) == ["_retained", "messages", "sensors"]
    again = run_command("db", "create", "sensors", "--data", str(broker.data))
    assert (again.returncode, again.stderr) == (
        2,
        b"siltstone: database 'sensors' exists already\n",
    )


def test_the_same_command_works_when_the_broker_has_stopped_or_was_killed(
    broker: BrokerProcess, command: Commands
) -> None:
    command("db", "create", "first", *SMALL)
    broker.kill()
    command("db", "create", "second", *SMALL)
    command("seal", "first")
    broker.start()
    command("db", "create", "third", *SMALL)
    assert names(broker.data) == ["_retained", "first", "messages", "second", "third"]


def test_settings_change_in_a_running_broker_and_stay(
    broker: BrokerProcess, command: Commands
) -> None:
    shown = command.document("db", "set", "messages", "retain=7d", "flush-interval=20ms")
    assert (shown["settings"]["retain_seconds"], shown["settings"]["flush_interval"]) == (
        604_800.0,
        0.02,
    )
    said = command("db", "set", "messages", "shards=2", status=2)
    assert said.startswith("siltstone: shards is fixed when a database is created")
    said = command("db", "set", "messages", "flush-interval=2h", status=2)
    assert said == (
        "siltstone: flush-interval must be a time from 0 to 3600 seconds: flush-interval=7200.0\n"
    )
    broker.stop()
    assert command.document("db", "info", "messages")["settings"] == shown["settings"]


def test_a_generation_is_sealed_and_dropped_while_clients_publish(
    broker: BrokerProcess, command: Commands
) -> None:
    with connected(broker.port, "a") as client:
        client.publish("t/1", b"old")
        sealed = command.document("seal", "messages")
        assert [(slab["slab"], slab["state"]) for slab in sealed] == [
            ("0/1", "sealed"),
            ("0/2", "current"),
        ]
        client.publish("t/1", b"new")
        said = command("drop", "messages", "0/2", "--yes", status=2)
        assert "slab 0/2 is current" in said
        command("drop", "messages", "0/1", "--yes")
        assert [slab["slab"] for slab in command.document("slabs", "messages")] == ["0/2"]
        client.publish("t/1", b"newer")
    broker.stop()
    rows = [json.loads(line) for line in command("read", "messages", "--json").splitlines()]
    assert [row["value"] for row in rows] == ["new", "newer"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("messages", "the running broker stores messages in it"),
        ("_retained", "the running broker stores retained messages in it"),
    ],
)
def test_a_database_that_the_broker_needs_is_not_dropped(
    broker: BrokerProcess, command: Commands, name: str, reason: str
) -> None:
    said = command("db", "drop", name, "--yes", status=2)
    assert said == f"siltstone: database {name!r} cannot be dropped: {reason}\n"
    with connected(broker.port, "a") as client:
        client.publish("t/1", b"1")
    assert names(broker.data) == ["_retained", "messages"]


@pytest.mark.parametrize(
    "args", [("db", "set", "_retained", "retain=1d"), ("seal", "_retained")], ids=" ".join
)
def test_the_databases_of_the_broker_are_not_changed(
    command: Commands, args: tuple[str, ...]
) -> None:
    assert "the running broker stores retained messages in it" in command(*args, status=2)


def test_another_database_is_dropped_and_created_again(
    broker: BrokerProcess, command: Commands
) -> None:
    command("db", "create", "sensors", *SMALL)
    command("db", "drop", "sensors", "--yes")
    assert "does not exist" in command("db", "drop", "sensors", "--yes", status=2)
    command("db", "create", "sensors", *SMALL)
    assert names(broker.data) == ["_retained", "messages", "sensors"]
    broker.wait_for("store_managed", count=3)
    events = [(each["verb"], each["level"]) for each in broker.events("store_managed")]
    assert events == [("db-create", "warning"), ("db-drop", "warning"), ("db-create", "warning")]


def test_a_broker_with_snapshots_gets_no_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"persistence": "snapshot"}
    with broker_process(tmp_path / "data", settings=settings) as broker:
        said = Commands(broker.data, capsys)("db", "create", "sensors", status=2)
        assert 'this broker has persistence = "snapshot"' in said
        broker.stop()
        broker.start()


def test_rows_are_appended_in_a_running_broker_and_sent_to_subscribers(
    broker: BrokerProcess, command: Commands, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    lines = [{"topic": f"t/{number}", "value": str(number), "qos": 1} for number in range(2500)]
    rows.write_text("\n".join(map(json.dumps, lines)))
    with connected(broker.port, "a") as client:
        client.subscribe("t/#", 0)
        loaded = command.document("append", "messages", str(rows), "--batch", "1000")
        assert (loaded["rows"], loaded["duplicates"]) == (2500, 0)
        received = client.receive_many(Publish, 2500)
    assert [message.payload for message in received] == [b"%d" % n for n in range(2500)]
    assert len(command("read", "messages", "--json").splitlines()) == 2500


@pytest.mark.parametrize("durability", ["synced", "written", "none"])
def test_a_load_with_a_name_is_stored_once_with_and_without_a_broker(
    broker: BrokerProcess, command: Commands, tmp_path: Path, durability: str
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"topic": "t", "value": n}) for n in range(50)))
    command("db", "create", "sensors", *SMALL)
    load = ["append", "sensors", str(rows), "--producer", "load-1", "--batch", "20"]
    load += ["--durability", durability]
    assert command.document(*load)["duplicates"] == 0
    assert command.document(*load)["duplicates"] == 50
    broker.stop()
    assert command.document(*load)["duplicates"] == 50
    broker.start()
    assert command.document("db", "info", "sensors")["rows"] == 50


def test_rows_that_are_refused_are_told_with_the_number_of_stored_ones(
    command: Commands, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"topic":"a","value":1}\n{"topic":"a/#","value":2}\n')
    said = command("append", "messages", str(rows), "--batch", "1", status=2)
    assert "1 row before it was stored" in said
    rows.write_text('{"topic":"a","value":1}')
    assert "cannot be changed" in command("append", "_retained", str(rows), status=2)
    assert "does not exist" in command("append", "absent", str(rows), status=2)


def test_a_keyvalue_database_lives_in_a_running_broker(
    broker: BrokerProcess, command: Commands
) -> None:
    command("kv", "create", "bank", "--map")
    assert "exists already" in command("kv", "create", "bank", status=2)
    assert command.document("kv", "put", "bank", "a/1", "10", "--id", "x")["duplicate"] is False
    assert command.document("kv", "put", "bank", "a/1", "11", "--id", "x")["duplicate"] is True
    assert command("kv", "get", "bank", "a/1") == "10"
    command("kv", "put", "bank", "a/2", "20")
    command("kv", "delete", "bank", "a/1", "--yes")
    rows = [json.loads(line) for line in command("kv", "read", "bank", "--json").splitlines()]
    assert [(row["topic"], row["value"]) for row in rows] == [("a/2", "20")]
    assert "must not have" in command("kv", "put", "bank", "a/#", "1", status=2)
    assert "does not exist" in command("kv", "put", "absent", "a", "1", status=2)
    broker.stop()
    command("kv", "put", "bank", "a/3", "30")
    broker.start()
    assert command("kv", "get", "bank", "a/3") == "30"
    command("kv", "drop", "bank", "--yes")
    assert command("kv", "list").splitlines()[0].startswith("database")
    assert "does not exist" in command("kv", "drop", "bank", "--yes", status=2)


@pytest.mark.parametrize(
    "args",
    [("create", "commits"), ("drop", "commits", "--yes"), ("put", "commits", "a", "1")],
    ids=" ".join,
)
def test_positions_of_sessions_are_not_changed(command: Commands, args: tuple[str, ...]) -> None:
    assert "holds the positions of sessions" in command("kv", *args, status=2)


@pytest.mark.parametrize(
    "args",
    [
        ("sessions", "drop", "c1", "--yes"),
        ("sessions", "move", "c1", "--to", "latest"),
        ("groups", "drop", "$share/g/t", "--yes"),
    ],
    ids=" ".join,
)
def test_a_directory_of_snapshots_gets_no_archive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    settings = {"persistence": "snapshot"}
    with broker_process(tmp_path / "data", settings=settings) as broker:
        broker.stop()
        before = sorted(broker.data.rglob("*"))
        assert "has no durable sessions" in Commands(broker.data, capsys)(*args, status=2)
        assert sorted(broker.data.rglob("*")) == before


def test_reclaim_begins_when_it_is_set_in_a_running_broker(
    broker: BrokerProcess, command: Commands
) -> None:
    with connected(broker.port, "a") as client:
        client.publish("t/1", b"1")
    command("seal", "messages")
    command("db", "set", "messages", "reclaim=delivered")
    dropped = broker.wait_for("slab_dropped")
    assert (dropped["database"], dropped["slab"], dropped["why"]) == (
        "messages",
        "0/1",
        "delivered",
    )
