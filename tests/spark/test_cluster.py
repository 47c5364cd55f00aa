"""A standalone cluster reads a store by path and by url; it writes and tiers exactly once though
executors are killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import siltstone
from siltstone.store.log.read.pieces import Row
from tests.support.builders import settings_of
from tests.support.flight import served
from tests.support.rows import rows_of
from tests.support.spark_cluster import spark_cluster

ROOT = Path(__file__).parent.parent.parent
ROWS = 3_000


@pytest.mark.timeout(600)
def test_a_cluster_reads_writes_and_tiers_though_executors_are_killed(tmp_path: Path) -> None:
    mark = tmp_path / "killed"
    with siltstone.open(tmp_path / "source") as store:
        database = store.create("messages", settings_of(shards=2, shard_by="topic"))
        rows = [Row(f"plant/{number % 9}", b"%d" % number) for number in range(ROWS)]
        for start in range(0, ROWS, 300):
            database.append(rows[start : start + 300]).wait()
        with (
            served(store) as node,
            spark_cluster(tmp_path, workers=2) as master,
        ):
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "tests.support.cluster_driver", master),
                    *(str(store.path), node.url, str(tmp_path / "target"), str(mark)),
                ],
                cwd=ROOT,
                env=os.environ | {"TMPDIR": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1"},
                capture_output=True,
                text=True,
                check=False,
            )
        assert done.returncode == 0, done.stderr
        mapped, fetched, tiered, report = json.loads(done.stdout)
        stored = [row for batch in database.read() for row in rows_of(batch)]
    shards = sorted({row.shard for row in stored})
    expected = [
        [
            shard,
            sum(row.shard == shard for row in stored),
            sum(row.serial for row in stored if row.shard == shard),
        ]
        for shard in shards
    ]
    assert (mapped, fetched) == (expected, expected)
    assert (mark.exists(), tmp_path.joinpath("killed-tiering").exists()) == (True, True)
    assert done.stderr.count("Lost executor") >= 2
    told = [report[name] for name in ("sound", "missing", "duplicates", "waiting")]
    assert (tiered, told) == (ROWS, [True, 0, 0, 0])
    assert sum(report["tables"].values()) == ROWS
    with siltstone.open(tmp_path / "target", read_only=True) as copy:
        copied = [
            (row.topic, row.value)
            for batch in copy.database("copy").read()
            for row in rows_of(batch)
        ]
    assert Counter(copied) == Counter((row.topic, row.value) for row in rows)
