from __future__ import annotations

import io
import logging
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from siltstone.broker.settings.broker import BrokerSettings, ListenerSettings, LogSettings
from siltstone.cli.mqtt.serve import summary
from siltstone.cli.output.output import console_on, print_on
from siltstone.errors import LockedError, UsageError
from siltstone.version import __version__, form
from tests.support.command_line import CommandLine


class FakeServer:
    """Stands for the broker: keeps the settings that it is run with, and ends as it is told."""

    def __init__(self) -> None:
        self.runs: list[BrokerSettings] = []
        self.allows_empty: list[bool] = []
        self.status = 0
        self.beside = 0
        self.error: Exception | None = None

    def __call__(
        self,
        settings: BrokerSettings,
        _early: object,
        *,
        allow_empty: bool,
        started: object,
        beside: Sequence[object],
    ) -> int:
        self.beside = len(beside)
        assert started is None, "nobody sits at a terminal"
        self.runs.append(settings)
        self.allows_empty.append(allow_empty)
        if self.error is not None:
            raise self.error
        return self.status


@pytest.fixture
def server(siltstone: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    fake = FakeServer()
    monkeypatch.setattr("siltstone.cli.mqtt.serve.run_server", fake)
    for module in ("config", "serve"):
        monkeypatch.setattr(f"siltstone.cli.mqtt.{module}.PosixFileSystem", lambda: siltstone.fs)
    root, ours = logging.getLogger(), logging.getLogger("siltstone")
    before, level = list(root.handlers), ours.level
    yield fake
    root.handlers[:] = before
    ours.setLevel(level)


@pytest.mark.usefixtures("server")
def test_settings_of_what_is_off_are_told(
    siltstone: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", "siltstone"):
        siltstone("serve", "--set", "flight.port=1")
    told = [
        getattr(record, "facts", None)
        for record in caplog.records
        if record.message == "settings_without_effect"
    ]
    assert told == [
        {"settings": "flight.port", "remedy": "set flight.enabled = true, or remove them"}
    ]


def test_the_broker_runs_with_the_settings_and_says_where(
    siltstone: CommandLine, server: FakeServer
) -> None:
    outcome = siltstone("serve", "--port", "1884", "--log-level", "info")
    assert (outcome.status, outcome.out) == (0, "")
    assert server.runs == [
        BrokerSettings(
            data="/data",
            listeners=(ListenerSettings(port=1884),),
            log=LogSettings(level="info"),
        )
    ]
    (line,) = outcome.err.splitlines()
    assert line.endswith("data=/data listeners=tcp://127.0.0.1:1884")
    assert line[25:43] == "info    starting v"


def test_an_empty_start_is_allowed_by_a_flag_alone(
    siltstone: CommandLine, server: FakeServer
) -> None:
    siltstone("serve")
    siltstone("serve", "--allow-empty")
    assert server.allows_empty == [False, True]


def test_logs_are_json_by_choice(siltstone: CommandLine, server: FakeServer) -> None:
    outcome = siltstone("serve", "--log-format", "json")
    assert outcome.err.startswith('{"time": ')
    assert '"event": "starting"' in outcome.err


def test_the_status_of_the_broker_is_that_of_the_command(
    siltstone: CommandLine, server: FakeServer
) -> None:
    server.status = 3
    assert siltstone("serve").status == 3


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            LockedError("taken"),
            "data directory /data is in use by another process; stop it first",
        ),
        (UsageError("no such file"), "no such file"),
    ],
)
def test_a_broker_that_cannot_start_ends_with_a_sentence(
    siltstone: CommandLine, server: FakeServer, error: Exception, sentence: str
) -> None:
    server.error = error
    outcome = siltstone("serve", "--log-level", "error")
    assert (outcome.status, outcome.err) == (2, f"siltstone: {sentence}\n")


@pytest.mark.parametrize(
    ("given", "addresses", "lines"),
    [
        (
            {},
            ["tcp://127.0.0.1:1883"],
            [
                "Data directory  siltstone-data",
                "Listening on    tcp://127.0.0.1:1883",
                "Storage         every message is synced to database messages",
                "Publish a message  siltstone pub -t demo/room -m 21.5",
                "Read it back       siltstone read messages",
                "Stop the broker    Ctrl-C",
            ],
        ),
        (
            {"data": "/my data", "storage": {"rules": [{"filter": "a/#", "store": "never"}]}},
            ["tcp://10.0.0.7:1884", "ws://10.0.0.7:8083"],
            [
                "Data directory  /my data",
                "Listening on    tcp://10.0.0.7:1884",
                "Listening on    ws://10.0.0.7:8083",
                "Storage         every message is synced to database messages, except by 1 rule",
                "Publish a message  siltstone pub -h 10.0.0.7 -p 1884 -t demo/room -m 21.5",
                "Read it back       siltstone read messages --data '/my data'",
                "Stop the broker    Ctrl-C",
            ],
        ),
        (
            {"persistence": "snapshot"},
            ["unix:///run/siltstone.sock"],
            [
                "Data directory  siltstone-data",
                "Listening on    unix:///run/siltstone.sock",
                "Storage         in memory, with snapshots on disk",
                "Stop the broker  Ctrl-C",
            ],
        ),
    ],
)
def test_the_summary_says_how_to_begin_and_how_to_stop(
    given: dict[str, Any], addresses: list[str], lines: list[str]
) -> None:
    out = io.StringIO()
    print_on(console_on(out), summary(BrokerSettings.model_validate(given), addresses))
    title, *rest = [line for line in out.getvalue().splitlines() if line]
    assert title == f"Siltstone {__version__} ({form()}) is running."
    assert rest == lines


def test_check_prints_the_settings_and_starts_nothing(
    siltstone: CommandLine, server: FakeServer
) -> None:
    outcome = siltstone("serve", "--check", "--set", "limits.receive_max=7")
    assert (outcome.status, outcome.err, server.runs) == (0, "", [])
    document: dict[str, Any] = {"data": "/data", "limits": {"receive_max": 7}}
    shown = BrokerSettings.model_validate(tomllib.loads(outcome.out))
    assert shown == BrokerSettings.model_validate(document)


@pytest.mark.parametrize("args", [(), ("--check",)])
def test_wrong_settings_start_nothing(
    siltstone: CommandLine, server: FakeServer, args: tuple[str, ...]
) -> None:
    outcome = siltstone("serve", "--host", "192.168.0.1", *args)
    assert (outcome.status, outcome.out, server.runs) == (2, "", [])
    assert outcome.err == (
        "siltstone: --host: listeners.0: accepts no client at tcp://192.168.0.1:1883: "
        "set access.password_file or access.hook, or allow clients without a login with "
        "allow_anonymous = true\n"
    )


@pytest.mark.parametrize("args", [(), ("--check",)])
def test_a_data_directory_that_is_a_file_starts_nothing(
    siltstone: CommandLine, server: FakeServer, args: tuple[str, ...]
) -> None:
    outcome = siltstone("serve", "--data", __file__, *args)
    assert (outcome.status, outcome.out, server.runs) == (2, "", [])
    assert (
        outcome.err
        == f"siltstone: data directory {__file__} is a file; choose another path with --data\n"
    )


def test_check_reads_the_files_that_the_settings_name(siltstone: CommandLine) -> None:
    outcome = siltstone("serve", "--check", "--set", "access.password_file=/nonexistent/users")
    assert (outcome.status, outcome.out) == (2, "")
    assert "/nonexistent/users" in outcome.err


def test_the_tier_job_runs_beside_the_broker_if_it_is_asked_for(
    siltstone: CommandLine, server: FakeServer
) -> None:
    assert siltstone("serve").status == 0
    assert server.beside == 0
    assert siltstone("serve", "--set", "tier.continuous=true").status == 0
    assert server.beside == 1
    done = siltstone("serve", "--set", "tier.continuous=true", "--set", "persistence=snapshot")
    assert (done.status, "tier.continuous" in done.err) == (2, True)
