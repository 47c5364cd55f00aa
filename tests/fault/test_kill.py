"""kill -9 of a process that writes: what it said is stored is there, once and in order."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

import siltstone
from tests.support.writer import CALL_ROWS, NAME, numbers_in

PRODUCERS = 4
ROOT = Path(__file__).parent.parent.parent


def killed(path: Path, after_lines: int) -> dict[int, int]:
    """Run a writer, kill it after it has said so many things; return what it said last of each."""
    command = [sys.executable, "-m", "tests.support.writer", str(path), str(PRODUCERS)]
    told: dict[int, int] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for _ in range(after_lines):
            producer, number = process.stdout.readline().split()
            told[int(producer)] = int(number)
        process.kill()
        # What was said before the kill counts, whether we had read it or not.
        for line in process.stdout:
            if line.endswith("\n"):
                producer, number = line.split()
                told[int(producer)] = int(number)
    return told


def check(path: Path, told: dict[int, int]) -> dict[int, int]:
    """Check the store against what was acknowledged; return how many rows each producer has."""
    with siltstone.open(path) as store:
        stored = numbers_in(store.database(NAME))
    for numbers in stored.values():
        assert numbers == list(range(len(numbers)))
        # A call is stored whole or not at all.
        assert len(numbers) % CALL_ROWS == 0
    for producer, number in told.items():
        assert len(stored[producer]) >= number
    return {producer: len(numbers) for producer, numbers in stored.items()}


def run_rounds(path: Path, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    before: dict[int, int] = {}
    for _ in range(rounds):
        told = killed(path, rng.randrange(20, 400))
        after = check(path, before | told)
        assert all(after[producer] >= count for producer, count in before.items())
        before = after


@pytest.mark.timeout(180)
def test_what_was_acknowledged_survives_kills_once_and_in_order(tmp_path: Path) -> None:
    run_rounds(tmp_path / "data", rounds=4, seed=1)


@pytest.mark.soak
def test_what_was_acknowledged_survives_fifty_kills(tmp_path: Path) -> None:
    run_rounds(tmp_path / "data", rounds=50, seed=2)


@pytest.mark.timeout(180)
def test_a_reader_beside_a_writer_sees_whole_calls_in_order_and_outlives_its_kill(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data"
    command = [sys.executable, "-m", "tests.support.writer", str(path), "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with siltstone.open(path, read_only=True) as store:
            database = store.database(NAME)
            seen = 0
            for _ in range(10):
                for _ in range(20):
                    process.stdout.readline()
                found = numbers_in(database)
                count = sum(map(len, found.values()))
                assert all(numbers == list(range(len(numbers))) for numbers in found.values())
                assert count >= seen
                seen = count
            process.kill()
            assert process.wait() == -9
            found = numbers_in(database)
            assert sum(map(len, found.values())) >= seen
            assert all(numbers == list(range(len(numbers))) for numbers in found.values())
