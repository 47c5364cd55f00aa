"""kill -9 of a process in the middle of group commits: what was committed is there, what was not is
not, and what nobody knows is told by its id.
"""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

import siltstone
from siltstone.fs.posix import PosixFileSystem
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.kv.rocks import RocksEngine
from siltstone.store.tx.verify import verify_keyvalue
from tests.support.tx_writer import ACCOUNTS, NAME, START, transfer

ROOT = Path(__file__).parent.parent.parent


@dataclass
class Told:
    """What a writer has said before it was killed."""

    begun: set[str] = field(default_factory=set)
    done: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    def hear(self, line: str) -> None:
        match line.split():
            case ["begin", name]:
                self.begun.add(name)
            case ["done", name, serial]:
                self.done[name] = int(serial)
            case ["refused", name]:
                self.refused.add(name)
            case other:
                raise AssertionError(other)


def killed(path: Path, seed: int, after_lines: int) -> Told:
    """Run a writer and kill it after it has said so much."""
    command = [sys.executable, "-m", "tests.support.tx_writer", str(path), str(seed)]
    told = Told()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for _ in range(after_lines):
            told.hear(process.stdout.readline())
        process.kill()
        # What was said before the kill counts, whether we had read it or not.
        for line in process.stdout:
            if line.endswith("\n"):
                told.hear(line)
    return told


def check(database: KeyValueDatabase, told: Told) -> None:
    traces = {
        row.topic.removeprefix("trace/"): row.value.decode() for row in database.read("trace/+")
    }
    # Every transfer is there whole or not at all: the accounts are what the traces make of them.
    balances = dict.fromkeys(ACCOUNTS, START)
    for trace in traces.values():
        source, target, amount = trace.split()
        balances[source] -= int(amount)
        balances[target] += int(amount)
    found = {row.topic: int(row.value) for row in database.read("account/+")}
    assert found == balances
    for name, serial in told.done.items():
        assert name in traces
        assert database.outcome(name) == serial
    for name in told.refused:
        assert name not in traces
        assert database.outcome(name) is None
    unknown = told.begun - told.done.keys() - told.refused
    for name in unknown:
        assert (database.outcome(name) is not None) == (name in traces)


def resolve(database: KeyValueDatabase, told: Told) -> None:
    """Send what nobody knows of again; afterwards each has happened once."""
    unknown = told.begun - told.done.keys() - told.refused
    before = {row.topic: row.value for row in database.read("#")}
    for name in sorted(unknown):
        known = database.outcome(name)
        again = database.transact(transfer(ACCOUNTS[0], ACCOUNTS[1], 1, name), id=name)
        assert again.duplicate == (known is not None)
        if known is not None:
            assert again.serial == known
        told.done[name] = again.serial
    after = {row.topic: row.value for row in database.read("trace/+")}
    assert {topic: before[topic] for topic in after if topic in before} == {
        topic: value for topic, value in after.items() if topic in before
    }


def run_rounds(path: Path, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    serial = 0
    for number in range(rounds):
        told = killed(path, seed * 1_000 + number, rng.randrange(1, 400))
        with siltstone.open(path) as store:
            database = store.keyvalue(NAME)
            check(database, told)
            resolve(database, told)
            check(database, told)
            # Serials go on behind all that was told.
            with database.transaction() as tx:
                tx.write("last", b"%d" % number)
            assert tx.serial > max([serial, *told.done.values()])
            serial = tx.serial
        place = path / "kv" / NAME
        opener = partial(RocksEngine, read_only=True)
        assert verify_keyvalue(PosixFileSystem(), place, opener).findings == ()


@pytest.mark.timeout(180)
def test_kills_leave_what_was_committed_and_nothing_else(tmp_path: Path) -> None:
    run_rounds(tmp_path / "data", rounds=4, seed=1)


@pytest.mark.soak
def test_fifty_kills_leave_what_was_committed_and_nothing_else(tmp_path: Path) -> None:
    run_rounds(tmp_path / "data", rounds=50, seed=2)
