"""The files beside the program: the reference, the example and the unit are true."""

from __future__ import annotations

import configparser
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from siltstone.broker.settings.broker import BrokerSettings, ListenerSettings
from siltstone.cli.mqtt.config import reference_text
from tests.support.loaded_settings import load_settings

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "packaging" / "siltstone.toml"


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in an environment without settings but these."""
    paths = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-m", "siltstone.cli.main", *args],
        capture_output=True,
        text=True,
        check=False,
        env=paths | environment,
    )


def test_the_reference_is_the_one_that_the_settings_make() -> None:
    committed = (ROOT / "docs" / "reference" / "configuration.md").read_text("utf-8")
    assert committed == reference_text(), "make it anew by 'siltstone config reference'"


def test_the_example_loads_as_it_stands() -> None:
    assert load_settings(EXAMPLE, {}, {}) == BrokerSettings(data="/var/lib/siltstone")


def test_every_line_of_the_example_loads_once_it_is_no_comment(tmp_path: Path) -> None:
    lines = EXAMPLE.read_text("utf-8").splitlines()
    text = "\n".join(line.removeprefix("#") for line in lines if not line.startswith("# "))
    copy = tmp_path / "siltstone.toml"
    copy.write_text(text, "utf-8")
    settings = load_settings(copy, {}, {})
    assert [listener.address for listener in settings.listeners] == [
        "tcp://127.0.0.1:1883",
        "tls://0.0.0.0:8883",
        "tls://0.0.0.0:8884",
        "wss://0.0.0.0:8083/mqtt",
        "unix:///run/siltstone/mqtt.sock",
    ]
    assert [rule.filter for rule in settings.storage.rules] == ["debug/#", "telemetry/#"]
    assert settings == BrokerSettings.model_validate(tomllib.loads(text))


@pytest.fixture
def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((ROOT / "packaging" / "siltstone.service").read_text("utf-8"))
    return parser["Service"]


def test_the_unit_starts_the_broker_with_options_that_exist(
    service: configparser.SectionProxy,
) -> None:
    command = shlex.split(service["ExecStart"])
    assert command == [
        "/usr/bin/siltstone",
        "serve",
        "--config",
        "/etc/siltstone/siltstone.toml",
    ]
    checked = run(*command[1:3], str(EXAMPLE), "--check")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert BrokerSettings.model_validate(tomllib.loads(checked.stdout)) == BrokerSettings(
        data=f"/var/lib/{service['StateDirectory']}"
    )


def test_the_unit_reloads_by_signal_and_allows_many_clients(
    service: configparser.SectionProxy,
) -> None:
    keys = ("Type", "ExecReload", "LimitNOFILE", "NoNewPrivileges", "ProtectSystem")
    assert {key: service[key] for key in keys} == {
        "Type": "exec",
        "ExecReload": "/bin/kill -HUP $MAINPID",
        "LimitNOFILE": "200000",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
    }


def test_settings_may_be_reached_by_a_link(tmp_path: Path) -> None:
    link = tmp_path / "siltstone.toml"
    (tmp_path / "real.toml").write_text("[[listeners]]\nport = 1884", "utf-8")
    link.symlink_to("real.toml")
    checked = run("serve", "--check", SILTSTONE_CONFIG=str(link), SILTSTONE_DATA="here")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert BrokerSettings.model_validate(tomllib.loads(checked.stdout)) == BrokerSettings(
        data="here", listeners=(ListenerSettings(port=1884),)
    )


def test_wrong_settings_stop_the_start_with_a_line_each(tmp_path: Path) -> None:
    file = tmp_path / "siltstone.toml"
    file.write_text("[limits]\nreceive_max = 0\n", "utf-8")
    refused = run("serve", "--config", str(file), SILTSTONE_LIMTS__RECEIVE_MAX="1")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.splitlines() == [
        (
            "siltstone: SILTSTONE_LIMTS__RECEIVE_MAX: unknown variable, "
            "did you mean SILTSTONE_LIMITS__RECEIVE_MAX?"
        ),
        (
            f"siltstone: {file}: limits.receive_max: "
            "expected a whole number from 1 to 65535, found 0"
        ),
    ]
