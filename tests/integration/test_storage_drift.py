"""`[storage]` that was edited after the broker made its database."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.broker_process import BrokerProcess, broker_process, run_command

WARNED = "storage_settings_ignored"


def test_the_start_tells_the_command_that_applies_what_was_edited(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker_process(data) as broker:
        assert broker.events(WARNED) == []
    edited: dict[str, str | float] = {
        "storage.retain_seconds": "30d",
        "storage.quota_bytes": "1GiB",
    }
    with broker_process(data, settings=edited) as broker:
        (told,) = broker.events(WARNED)
    words = shlex.split(told["command"])
    assert words == [
        *("siltstone", "db", "set", "messages", "quota_bytes=1073741824"),
        *("retain_seconds=2592000.0", "--data", str(data)),
    ]
    done = run_command(*words[1:])
    assert done.returncode == 0, done.stderr
    with broker_process(data, settings=edited) as broker:
        assert broker.events(WARNED) == []


def test_the_start_tells_the_command_for_topic_logs_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with topic_log_process(data) as broker:
        assert broker.events(WARNED) == []
    edited = {"topiclog.retain_bytes": "1GiB", "topiclog.idle_timeout": "2h"}
    with topic_log_process(data, **edited) as broker:
        (told,) = broker.events(WARNED)
        assert told["database"] == "topics"
    words = shlex.split(told["command"])
    assert words == [
        *("siltstone", "db", "set", "topics", "retain_bytes=1073741824", "--data", str(data))
    ]
    done = run_command(*words[1:])
    assert done.returncode == 0, done.stderr
    with topic_log_process(data, **edited) as broker:
        assert broker.events(WARNED) == []


@contextmanager
def topic_log_process(data: Path, **edited: str) -> Iterator[BrokerProcess]:
    served = {"topiclog.enabled": "true", "topiclog.port": "0"}
    with broker_process(data, settings=served | edited) as broker:
        # The second to listen: its database was opened before.
        broker.wait_for("listening", count=2)
        yield broker
