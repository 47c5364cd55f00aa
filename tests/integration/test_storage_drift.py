"""`[storage]` that was edited after the broker made its database."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.support.broker_process import broker_process, run_command

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
