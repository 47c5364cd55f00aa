"""`siltstone kv` and `siltstone verify` on a RocksDB that another part of the process has open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import siltstone
from siltstone.cli.main import execute
from siltstone.clock import SystemClock
from siltstone.session.archive.store import ARCHIVE_NAME, SessionArchive
from tests.support.archive_builders import WHOLE, away


def filled(path: Path) -> siltstone.Store:
    """Return an open store with sessions and a key-value database."""
    store = siltstone.open(path)
    archive = SessionArchive(store.keyvalue(ARCHIVE_NAME), SystemClock())
    archive.begin_run()
    archive.create_many([WHOLE, *(away(f"c{number}", "a/#") for number in range(20))])
    bank = store.keyvalue("bank", siltstone.KeyValueSettings(timed=False))
    for number in range(20):
        with bank.transaction() as tx:
            tx.write(f"account/{number}", b"%d" % number)
    return store


def test_they_look_beside_the_process_that_has_it_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with filled(tmp_path):
        assert execute(["kv", "get", "bank", "account/7", "--data", str(tmp_path)]) == 0
        assert capsys.readouterr().out == "7"
        read = ["kv", "read", "commits", "--filter", "count/sessions", "--json"]
        assert execute([*read, "--data", str(tmp_path)]) == 0
        assert json.loads(capsys.readouterr().out)["topic"] == "count/sessions"
        assert execute(["verify", "--all", "--data", str(tmp_path)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split(";")[0] for line in lines] == ["kv/bank: whole", "commits: whole"]


def test_damage_to_what_was_synced_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path).close()
    for table in (tmp_path / "kv" / "bank").glob("*.sst"):
        data = bytearray(table.read_bytes())
        data[10] ^= 1
        table.write_bytes(data)
    assert execute(["verify", "kv/bank", "--data", str(tmp_path), "--json"]) == 1
    (document,) = json.loads(capsys.readouterr().out)
    assert {finding["severity"] for finding in document["findings"]} == {"damage"}
    assert "checksum mismatch" in document["findings"][0]["problem"]
