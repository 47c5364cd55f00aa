"""kill -9 of a process that writes, again and again on one store, and a process that follows it.

The writer's producers are idempotent: what they got no answer for they send again. The follower is
one process from the first round to the last; it keeps its positions through kills, recoveries,
rolls and turns of the generation.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

import siltstone
from siltstone.store.database import Database
from tests.support.following import NAME, SETTINGS, batches_in
from tests.support.reading import check_everything, read_rows

ROOT = Path(__file__).parent.parent.parent
PRODUCERS = range(4)
CHILD = (sys.executable, "-m", "tests.support.following")


def write_until_killed(directory: Path, firsts: list[int], lines: int) -> list[int]:
    """Kill a writer when it has acknowledged so many batches; return the number of each producer's
    first batch that nobody was told of.
    """
    with subprocess.Popen(
        [*CHILD, "write", str(directory), *map(str, firsts)], cwd=ROOT, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        acknowledged = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        # What it had told before it died is in the pipe; the last line may be cut short.
        rest = child.stdout.read()
        acknowledged += rest[: rest.rfind(b"\n") + 1].splitlines()
    assert child.returncode == -signal.SIGKILL
    nexts = list(firsts)
    for line in acknowledged:
        producer, number = map(int, line.split())
        assert number == nexts[producer]
        nexts[producer] = number + 1
    return nexts


def check_found(database: Database, acknowledged: list[int]) -> None:
    """Check that all acknowledged batches are there, once, in order, and behind them at most those
    that were sent next.
    """
    rows = read_rows(database, "#")
    stored = [batches_in(rows, producer) for producer in PRODUCERS]
    for told, found in zip(acknowledged, stored, strict=True):
        # A producer sends a batch when the one before it was acknowledged.
        assert found in (told, told + 1)


def kill_and_reopen(directory: Path, rounds: int) -> None:
    with siltstone.open(directory) as store:
        store.create(NAME, SETTINGS)
    rng = Random(rounds)
    firsts = [0] * len(PRODUCERS)
    with subprocess.Popen(
        [*CHILD, "follow", str(directory)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        for _ in range(rounds):
            firsts = write_until_killed(directory, firsts, rng.randint(1, 150))
            assert reader.poll() is None, "the reader has failed"
            with siltstone.open(directory) as store:
                check_found(store.database(NAME), firsts)
        output, _ = reader.communicate()
    assert reader.returncode == 0
    with siltstone.open(directory) as store:
        rows = check_everything(store.database(NAME))
        assert len({info.slab.generation for info in store.database(NAME).slabs()}) > 1
    topics = Counter(row.topic for row in rows)
    seen = [b"%d %d" % (producer, topics[f"producers/{producer}"]) for producer in PRODUCERS]
    assert output.splitlines() == seen


def test_a_follower_meets_each_row_once_through_kills_and_repetitions(tmp_path: Path) -> None:
    kill_and_reopen(tmp_path / "data", rounds=5)


@pytest.mark.soak
def test_a_follower_meets_each_row_once_through_fifty_kills(tmp_path: Path) -> None:
    kill_and_reopen(tmp_path / "data", rounds=50)
