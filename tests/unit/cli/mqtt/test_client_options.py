from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated

import pytest
import typer

from siltstone.cli.mqtt.client_options import (
    ClientOptions,
    encoded_topic,
    parse_seconds,
    parse_version,
    plan,
    takes_client_options,
)
from siltstone.client.settings import ClientSettings
from siltstone.client.target import TcpTarget, UnixTarget, parse_url
from siltstone.errors import InvalidTopicError, UsageError
from siltstone.mqtt.packets import Will
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.wire import Version

NOBODYS = "secret"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("5", Version.V5),
        ("mqttv5", Version.V5),
        ("3.1.1", Version.V3_1_1),
        ("311", Version.V3_1_1),
        ("MQTTv311", Version.V3_1_1),
    ],
)
def test_a_version_is_written_as_people_or_mosquitto_write_it(text: str, version: Version) -> None:
    assert parse_version(text) is version


def test_another_version_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"unknown MQTT version '3\.1' \(supported: 3\.1\.1 and 5\)"
    ):
        parse_version("3.1")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1h", 3600), ("forever", 0xFFFF_FFFF), ("0", 0)]
)
def test_seconds_are_written_with_or_without_a_unit(text: str, seconds: int) -> None:
    assert parse_seconds(text) == seconds


def test_more_seconds_than_mqtt_holds_are_refused() -> None:
    with pytest.raises(UsageError, match="too long"):
        parse_seconds("4294967296")


def test_a_plan_without_options_is_a_local_server_and_a_random_id() -> None:
    first, second = plan(ClientOptions(), role="pub"), plan(ClientOptions(), role="pub")
    assert (first.target, first.tls, first.topic) == (TcpTarget("localhost", 1883), None, None)
    client_id = first.settings.client_id
    assert first.settings == ClientSettings(client_id=client_id)
    assert client_id.startswith("siltstone-pub-")
    assert client_id != second.settings.client_id


def test_every_option_reaches_the_settings() -> None:
    options = ClientOptions(
        host="there",
        port=1,
        username="u",
        password=NOBODYS,
        client_id="me",
        version=Version.V5,
        keep_alive=7,
        keep_session=True,
        session_expiry=60,
        reconnect=True,
        reconnect_timeout=2.5,
        will_topic="w",
        will_message="gone",
        will_qos=2,
        will_retain=True,
        will_delay=5,
    )
    made = plan(options, role="sub", window=9)
    assert made.target == TcpTarget("there", 1)
    assert made.settings == ClientSettings(
        client_id="me",
        version=Version.V5,
        username="u",
        password=NOBODYS.encode(),
        keep_alive_seconds=7,
        keep_session=True,
        session_expiry_seconds=60,
        will=Will(
            topic=b"w",
            payload=b"gone",
            qos=2,
            retain=True,
            properties=Properties(will_delay_interval=5),
        ),
        window=9,
        reconnect=True,
        reconnect_seconds=2.5,
    )


def test_a_url_names_all_and_options_beside_it_stand_first() -> None:
    url = parse_url("mqtts://u:p@there/a/b")
    made = plan(ClientOptions(url=url), role="pub")
    assert (made.target, made.topic) == (TcpTarget("there", 8883), "a/b")
    assert (made.settings.username, made.settings.password) == ("u", b"p")
    assert made.tls is not None
    other = plan(ClientOptions(url=url, username="v", password=NOBODYS), role="pub").settings
    assert (other.username, other.password) == ("v", NOBODYS.encode())


def test_a_password_file_stands_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"from file\r\nsecond line\n")
    made = plan(ClientOptions(password=NOBODYS, password_file=file), role="pub")
    assert made.settings.password == b"from file"


def test_a_socket_file_is_a_target() -> None:
    assert plan(ClientOptions(unix="/s"), role="pub").target == UnixTarget("/s")


@pytest.mark.parametrize("option", ["tls", "insecure"])
def test_tls_checks_the_name_unless_told_not_to(option: str) -> None:
    options = ClientOptions(tls=option == "tls", insecure=option == "insecure")
    made = plan(options, role="pub")
    assert made.tls is not None
    assert (made.target, made.tls.verify_mode, made.tls.check_hostname) == (
        TcpTarget("localhost", 8883),
        ssl.CERT_REQUIRED,
        option == "tls",
    )


def test_an_empty_id_leaves_the_choice_to_the_server() -> None:
    assert plan(ClientOptions(client_id=""), role="pub").settings.client_id == ""


def test_a_kept_session_starts_its_packet_ids_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siltstone.cli.mqtt.client_options.randbelow", lambda below: below - 1)
    kept = plan(ClientOptions(keep_session=True, client_id="me"), role="pub")
    assert kept.session().ids.take(2) == [65_535, 1]
    assert plan(ClientOptions(), role="pub").session().ids.take(1) == [1]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (ClientOptions(keep_session=True), "name one with --id"),
        (ClientOptions(session_expiry=1), "needs --keep-session; pass both"),
        (
            ClientOptions(
                session_expiry=1, keep_session=True, client_id="c", version=Version.V3_1_1
            ),
            "--session-expiry needs MQTT 5",
        ),
        (ClientOptions(reconnect_timeout=1.0), "--reconnect-timeout needs --reconnect"),
        (ClientOptions(host="h", unix="/s"), "exclude each other; use one way"),
        (ClientOptions(port=1, url=parse_url("mqtt://h")), "exclude each other; use one way"),
        (ClientOptions(unix="/s", tls=True), "a Unix socket has no TLS"),
        (ClientOptions(will_message="x"), "name it with --will-topic"),
        (ClientOptions(will_topic="#"), "topic must not have the wildcards"),
        (
            ClientOptions(will_topic="w", will_delay=1, version=Version.V3_1_1),
            "--will-delay needs MQTT 5",
        ),
        (ClientOptions(key=Path("k")), "name it with --cert"),
        (ClientOptions(cafile=Path("/none")), "cannot use --cafile /none: no such file"),
        (
            ClientOptions(cert=Path("/none")),
            "cannot use --cert /none: the file cannot be read: no such file or directory",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: ClientOptions, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        plan(options, role="pub")


def test_a_topic_of_the_command_line_is_checked() -> None:
    assert encoded_topic("é") == "é".encode()
    with pytest.raises(InvalidTopicError, match="not valid UTF-8"):
        encoded_topic("\udcff")


def test_a_command_gets_the_shared_options_as_one_value() -> None:
    seen: list[tuple[ClientOptions, str]] = []

    @takes_client_options
    def command(client: ClientOptions, own: Annotated[str, typer.Option("--own", "-o")]) -> None:
        """Do it."""
        seen.append((client, own))

    app = typer.Typer()
    app.command()(command)
    arguments = ["-o", "mine", "-h", "there", "-V", "3.1.1", "-L", "mqtt://x", "-x", "1h", "-c"]
    typer.main.get_command(app).main(arguments, standalone_mode=False)
    options = ClientOptions(
        host="there",
        version=Version.V3_1_1,
        url=parse_url("mqtt://x"),
        session_expiry=3600,
        keep_session=True,
    )
    assert seen == [(options, "mine")]
