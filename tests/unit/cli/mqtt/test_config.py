from __future__ import annotations

import tomllib
from pathlib import PurePath

import pytest

from siltstone.broker.settings.broker import BrokerSettings, ListenerSettings
from siltstone.broker.settings.load import known_keys, model_of, variable_name
from siltstone.broker.settings.storage import Storage, StoreRule
from siltstone.cli.mqtt.config import effective_toml, reference_text
from tests.support.command_line import CommandLine


@pytest.fixture
def siltstone(siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setattr("siltstone.cli.mqtt.config.PosixFileSystem", lambda: siltstone.fs)
    monkeypatch.delenv("SILTSTONE_DATA")
    return siltstone


def put(siltstone: CommandLine, name: str, toml: str) -> None:
    with siltstone.fs.create(PurePath(name)) as file:
        file.write(toml.encode())


EVERYTHING = BrokerSettings(
    data='a "quoted" place',
    listeners=(
        ListenerSettings(port=1),
        ListenerSettings(kind="unix", path="/run/s.sock", mode=0o600),
    ),
    storage=Storage(
        quota_bytes=5 * 1024**3,
        thresholds=(7, 0),
        rules=(StoreRule(filter="a/#", store="never"), StoreRule(filter="#", durability="none")),
    ),
)


@pytest.mark.parametrize("settings", [BrokerSettings(), EVERYTHING])
def test_the_settings_in_effect_are_a_file_that_gives_them_again(settings: BrokerSettings) -> None:
    document = tomllib.loads(effective_toml(settings))
    assert BrokerSettings.model_validate(document) == settings
    assert set(document) == set(BrokerSettings.model_fields)
    assert set(document["limits"]) == set(type(settings.limits).model_fields)


def test_the_settings_are_shown_with_where_each_came_from(
    siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(siltstone, "/my.toml", "data = '/file'\n[limits]\nreceive_max = 7\n")
    monkeypatch.setenv("SILTSTONE_LIMITS__RECEIVE_MAX", "8")
    args = ("--config", "/my.toml", "--port", "1884", "--set", "limits.packet-size-max=4MiB")
    outcome = siltstone("config", "show", *args)
    assert (outcome.status, outcome.err) == (0, "")
    assert [line for line in outcome.lines if "#" in line] == [
        'data = "/file"  # /my.toml',
        'packet_size_max = "4 MiB"  # --set limits.packet_size_max',
        "receive_max = 8  # SILTSTONE_LIMITS__RECEIVE_MAX",
        "port = 1884  # --port",
    ]
    changes = {
        "data": "/file",
        "limits": {"receive_max": 8, "packet_size_max": 4 * 1024**2},
        "listeners": [{"port": 1884}],
    }
    shown = BrokerSettings.model_validate(tomllib.loads(outcome.out))
    assert shown == BrokerSettings.model_validate(changes)


def test_every_flag_is_a_setting(siltstone: CommandLine) -> None:
    flags = {
        "--data": "/d",
        "--host": "::1",
        "--port": "7",
        "--log-level": "debug",
        "--log-format": "json",
        "--set": "log.level=error",
    }
    outcome = siltstone("config", "show", *(text for pair in flags.items() for text in pair))
    assert [line for line in outcome.lines if "#" in line] == [
        'data = "/d"  # --data',
        'level = "debug"  # --log-level',
        'format = "json"  # --log-format',
        'host = "::1"  # --host',
        "port = 7  # --port",
    ]


def test_the_file_here_is_read_unless_another_is_named(
    siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def origin(*args: str) -> str:
        return siltstone("config", "show", *args).lines[0]

    assert origin() == 'data = "siltstone-data"'
    put(siltstone, "siltstone.toml", "data = 'here'")
    put(siltstone, "/two.toml", "data = 'two'")
    put(siltstone, "/three.toml", "data = 'three'")
    assert origin() == 'data = "here"  # siltstone.toml'
    monkeypatch.setenv("SILTSTONE_CONFIG", "/two.toml")
    assert origin() == 'data = "two"  # /two.toml'
    assert origin("--config", "/three.toml") == 'data = "three"  # /three.toml'


def test_every_wrong_setting_has_its_line(siltstone: CommandLine) -> None:
    put(siltstone, "/my.toml", "flavour = 'red'\n[limits]\nreceive_max = 0\n")
    outcome = siltstone("config", "show", "--config", "/my.toml", "--port", "high")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.splitlines() == [
        (
            "siltstone: /my.toml: limits.receive_max: "
            "expected a whole number from 1 to 65535, found 0"
        ),
        (
            "siltstone: --port: listeners.0.port: "
            "expected a whole number from 0 to 65535, found 'high'"
        ),
        "siltstone: /my.toml: flavour: unknown key; 'siltstone config reference' lists all keys",
    ]


def test_an_assignment_has_a_value(siltstone: CommandLine) -> None:
    outcome = siltstone("config", "show", "--set", "limits.receive_max")
    assert (outcome.status, outcome.err) == (
        2,
        "siltstone: --set limits.receive_max: expected KEY=VALUE, as in limits.receive_max=100\n",
    )


def test_a_value_may_hold_an_equals_sign_and_blanks(siltstone: CommandLine) -> None:
    outcome = siltstone("config", "show", "--set", "data = a=b c ")
    assert outcome.lines[0] == 'data = " a=b c "  # --set data'


def test_the_reference_has_a_row_for_every_setting(siltstone: CommandLine) -> None:
    outcome = siltstone("config", "reference")
    assert (outcome.status, outcome.out) == (0, reference_text())
    rows = [line for line in outcome.lines if line.startswith("| `")]
    keys = [key for key in known_keys() if model_of(key) is None]
    tables = list(dict.fromkeys(key[:-1] for key in known_keys()))
    keys.sort(key=lambda key: tables.index(key[:-1]))
    assert [row.split(" | ")[3] for row in rows] == [f"`{variable_name(key)}`" for key in keys]
    assert (
        '| `packet_size_max` | a size from 128 to 268435460 | `"16 MiB"` '
        "| `SILTSTONE_LIMITS__PACKET_SIZE_MAX` "
        "| Largest packet that a client may send. CONNACK announces it as Maximum Packet Size. |"
    ) in rows
    assert [line for line in outcome.lines if line.startswith("## ")] == [
        "## Top level",
        "## `[limits]`",
        "## `[storage]`",
        "## `[[storage.rules]]`",
        "## `[access]`",
        "## `[share]`",
        "## `[sessions]`",
        "## `[snapshot]`",
        "## `[log]`",
        "## `[flight]`",
        "## `[tier]`",
        "## `[topiclog]`",
        "## `[[topiclog.publish]]`",
        "## `[cluster]`",
        "## `[[listeners]]`",
        "## `[[bridge]]`",
        "## `[[bridge.topics]]`",
    ]
