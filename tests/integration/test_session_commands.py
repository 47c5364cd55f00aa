"""`siltstone sessions` and `siltstone groups` beside a broker that runs, and after it."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from siltstone.cli.main import execute
from siltstone.errors import RetryError, UsageError
from siltstone.manage.running import ask_broker, is_served
from siltstone.mqtt.packets import Disconnect, Publish
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from tests.support.broker_process import BrokerProcess, Settings, broker_process, run_command
from tests.support.mqtt_socket import MqttSocket, connected

KEPT = Properties(session_expiry_interval=3600)
GROUP = "$share/g/t/#"
IN_MEMORY = (
    "this broker has its sessions and share groups only in memory, where commands cannot reach "
    'them; sessions.durable = true with persistence = "store" stores them'
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "data") as process:
        yield process


def come(broker: BrokerProcess, client_id: str) -> MqttSocket:
    client = MqttSocket(broker.port)
    client.connect(client_id, clean_start=False, properties=KEPT)
    return client


class Commands:
    """The command line on the broker's directory, in this process."""

    def __init__(self, broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
        self._data = str(broker.data)
        self._capsys = capsys

    def __call__(self, *args: str, status: int = 0) -> str:
        """Run a command; return what it says."""
        assert execute([*args, "--data", self._data]) == status
        captured = self._capsys.readouterr()
        return captured.err if status else captured.out

    def document(self, *args: str) -> Any:
        return json.loads(self(*args, "--json"))


@pytest.fixture
def command(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(broker, capsys)


def publish(broker: BrokerProcess, *values: bytes) -> None:
    with connected(broker.port, "publisher") as client:
        for value in values:
            assert client.publish("t/1", value) is Reason.SUCCESS


def read(client: MqttSocket, count: int) -> list[bytes]:
    found = client.receive_many(Publish, count)
    for message in found:
        client.acknowledge(message)
    return [message.payload for message in found]


def test_sessions_are_listed_moved_and_dropped_while_the_broker_runs(
    broker: BrokerProcess, command: Commands
) -> None:
    client = come(broker, "a")
    client.subscribe("t/#", qos=1)
    publish(broker, b"1", b"2")
    assert read(client, 2) == [b"1", b"2"]
    client.disconnect()
    publish(broker, b"3")
    [session] = command.document("sessions", "list")
    assert {key: session[key] for key in ("client_id", "connected", "behind", "dropped")} == {
        "client_id": "a",
        "connected": False,
        "behind": 1,
        "dropped": 0,
    }
    command("sessions", "move", "a", "--to", "earliest")
    client = come(broker, "a")
    assert read(client, 3) == [b"1", b"2", b"3"]
    assert command("sessions", "kick", "a") == "disconnected a\n"
    assert client.rest() == [Disconnect(reason=Reason.ADMINISTRATIVE_ACTION)]
    client.close()
    assert json.loads(command("sessions", "export", "a"))["client_id"] == "a"
    command("sessions", "drop", "a", "--yes")
    assert command.document("sessions", "list") == []
    with MqttSocket(broker.port) as again:
        answer = again.connect("a", clean_start=False, properties=KEPT)
        assert not answer.session_present


def test_groups_are_listed_and_reset_while_they_have_members_and_when_not(
    broker: BrokerProcess, command: Commands
) -> None:
    client = come(broker, "a")
    client.subscribe(GROUP, qos=1)
    publish(broker, b"1", b"2")
    assert read(client, 2) == [b"1", b"2"]
    command("groups", "reset", GROUP, "--to", "earliest")
    assert read(client, 2) == [b"1", b"2"]
    assert "the share group has members" in command("groups", "drop", GROUP, "--yes", status=2)
    client.disconnect()
    publish(broker, b"3")
    assert command.document("groups", "show", GROUP)["behind"] == 1
    command("groups", "reset", GROUP, "--to", "latest")
    assert command.document("groups", "show", GROUP)["behind"] == 0
    command("groups", "drop", GROUP, "--yes")
    assert command.document("groups", "list") == []


def test_a_group_without_durable_members_is_listed_while_it_has_members(
    broker: BrokerProcess, command: Commands
) -> None:
    come(broker, "durable").close()
    with connected(broker.port, "a") as client:
        client.subscribe(GROUP, qos=1)
        publish(broker, b"1", b"2")
        assert read(client, 2) == [b"1", b"2"]
        [group] = command.document("groups", "list")
        assert {key: group[key] for key in ("group", "kept", "behind", "empty_seconds")} == {
            "group": GROUP,
            "kept": False,
            "behind": 0,
            "empty_seconds": None,
        }
        assert command.document("groups", "show", GROUP)["kept"] is False
    assert command.document("groups", "list") == []


def test_after_the_broker_the_commands_do_it_themselves(
    broker: BrokerProcess, command: Commands
) -> None:
    client = come(broker, "a")
    client.subscribe("t/#", qos=1)
    client.subscribe(GROUP, qos=1)
    client.disconnect()
    publish(broker, b"1")
    broker.stop()
    assert command.document("sessions", "show", "a")["behind"] == 1
    command("sessions", "move", "a", "--to", "latest")
    command("groups", "reset", GROUP, "--to", "latest")
    assert command.document("sessions", "show", "a")["behind"] == 0
    assert command.document("groups", "show", GROUP)["behind"] == 0
    assert "no broker is running on" in command("sessions", "kick", "a", status=2)
    # As the shell has it.
    done = run_command("sessions", "drop", "a", "--yes", "--data", str(broker.data))
    assert (done.returncode, done.stdout) == (0, b"dropped the session of a\n")
    broker.start()
    assert command.document("sessions", "list") == []


def test_the_socket_is_for_the_brokers_user_and_answers_nonsense_with_a_sentence(
    broker: BrokerProcess,
) -> None:
    place = broker.data / "control.sock"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert is_served(broker.data)
    with pytest.raises(UsageError, match="the broker does not know this request"):
        ask_broker(broker.data, {"do": "dance"})
    with pytest.raises(UsageError, match="a share group has the form"):
        ask_broker(broker.data, {"do": "move-group", "group": "x", "to": "latest"})
    broker.kill()
    # What a killed broker leaves behind is no broker.
    assert (place.exists(), is_served(broker.data)) == (True, False)
    with pytest.raises(RetryError, match="the broker did not answer"):
        ask_broker(broker.data, {"do": "kick", "client_id": "a"})
    broker.start()
    assert is_served(broker.data)


@pytest.mark.parametrize(
    "settings", [{"sessions.durable": "false"}, {"persistence": "snapshot"}], ids=str
)
def test_commands_say_that_sessions_and_groups_in_memory_are_not_stored(
    tmp_path: Path, settings: Settings
) -> None:
    with (
        broker_process(tmp_path / "data", settings=settings) as broker,
        connected(broker.port, "a") as client,
    ):
        client.subscribe(GROUP, qos=1)
        for args in (
            ("sessions", "drop", "a", "--yes"),
            ("groups", "list"),
            ("groups", "reset", GROUP, "--to", "latest"),
            ("groups", "drop", GROUP, "--yes"),
        ):
            done = run_command(*args, "--data", str(broker.data))
            assert (done.returncode, done.stderr.decode()) == (
                2,
                f"siltstone: {IN_MEMORY}\n",
            )
        with pytest.raises(UsageError, match="the broker does not know this request"):
            ask_broker(broker.data, {"do": "dance"})


def test_a_command_that_reads_creates_nothing(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", settings={"persistence": "snapshot"}) as broker:
        for args in (("sessions", "list"), ("groups", "show", GROUP)):
            done = run_command(*args, "--data", str(broker.data))
            assert (done.returncode, done.stderr.decode()) == (
                2,
                f"siltstone: {broker.data} has no durable sessions\n",
            )
        assert list((broker.data / "commits").iterdir()) == []
