"""A process that stores and discards is killed; what it said it had done, it has done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from siltstone.errors import LockedError
from siltstone.spool import open as open_spool
from tests.support.broker_process import clean_environment
from tests.support.spool_model import contents


def start(directory: Path, first: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.spool_writer", str(directory), str(first)],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )


class Heard:
    """What the process said of itself."""

    def __init__(self) -> None:
        self.stored: dict[int, bytes] = {}
        self.gone: set[int] = set()
        self.perhaps_gone: set[int] = set()
        self.number = 0

    def take(self, line: str) -> None:
        match line.split():
            case ["stored", number, first, second]:
                self.number = int(number)
                self.stored |= {int(first): b"%d" % self.number * 50, int(second): b""}
            case ["discarding", number]:
                self.perhaps_gone.add(int(number))
            case ["discarded", number]:
                self.gone.add(int(number))
            case other:
                assert other in ([], ["open"]) or line[-1] != "\n"

    @property
    def surely_there(self) -> dict[int, bytes]:
        perhaps = self.gone | self.perhaps_gone
        return {number: data for number, data in self.stored.items() if number not in perhaps}


def test_nothing_that_was_acknowledged_is_lost_by_kills(tmp_path: Path) -> None:
    directory = tmp_path / "q"
    rng = Random(7)
    heard = Heard()
    for kills in range(1, 5):
        with start(directory, heard.number + 1) as child:
            assert child.stdout is not None
            for _ in range(rng.randint(5, 80)):
                heard.take(child.stdout.readline())
            with pytest.raises(LockedError, match=f"pid={child.pid}"):
                open_spool(directory)
            child.kill()
            for line in child.stdout.read().splitlines():
                heard.take(line)
        with open_spool(directory) as spool:
            found = {entry.id: data for entry, data in contents(spool).items()}
            assert spool.next_likely_id() > max(heard.stored)
        assert {number: found[number] for number in heard.surely_there} == heard.surely_there
        assert heard.gone.isdisjoint(found)
        # At most a batch for each kill that was under way, and of which nobody heard.
        assert len(found.keys() - heard.stored.keys()) <= 2 * kills
        assert list((directory / "tmp").iterdir()) == []
