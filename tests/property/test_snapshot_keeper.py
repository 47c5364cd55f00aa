"""Random saves, loads, faults and crashes: what is loaded is always a state that was saved last."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from siltstone.errors import LockedError, SiltstoneError
from siltstone.fs.faulty import Fault, FaultyFileSystem, Operation
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.snapshot.directory import SnapshotDirectory
from siltstone.snapshot.format.contents import ContentsInMemory
from siltstone.snapshot.format.records import Record, SessionState
from tests.support.snapshots import DIRECTORY, ListSink, keeper_on, names_in, session

# Each step of a save and of a load, by the end of the path that it is done to.
FAILPOINTS: list[tuple[Operation, str]] = [
    ("create", ".tmp"),
    ("write_at", ".tmp"),
    ("sync", ".tmp"),
    ("rename", ".gz"),
    ("sync_directory", "snapshots"),
    ("symlink", "state.tmp"),
    ("rename", "state"),
    ("list", "snapshots"),
    ("remove", ".gz"),
    ("remove", ".tmp"),
    ("readlink", "state"),
    ("open", ".gz"),
    ("read_at", ".gz"),
    ("size", ".gz"),
]


class Snapshots(RuleBasedStateMachine):
    """Saves states that are numbered, and looks at what a start would load."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryFileSystem()
        self.fs = FaultyFileSystem(self.memory)
        self.keeper: SnapshotDirectory | None = None
        self.number = 0
        # What a load may give: the last that was saved, and what was tried after it.
        self.possible: set[int] = {0}

    @initialize(keep=st.integers(0, 3))
    def begin(self, keep: int) -> None:
        self.keep = keep
        self.open()
        self.save()

    def open(self) -> None:
        if self.keeper is None:
            try:
                self.keeper = keeper_on(self.fs, keep=self.keep)
            except SiltstoneError as exc:
                assert not isinstance(exc, LockedError), "a keeper that fails lets go"  # noqa: PT017

    @rule()
    def save(self) -> None:
        self.open()
        if self.keeper is None:
            return
        self.number += 1
        try:
            self.keeper.save([session(str(self.number))], source="broker")
        except SiltstoneError:
            self.possible.add(self.number)
        else:
            self.possible = {self.number}

    @rule()
    def load(self) -> None:
        self.open()
        if self.keeper is None:
            return
        sink = ListSink()
        try:
            self.keeper.load(sink, ContentsInMemory())
        except SiltstoneError:
            return
        self.possible = {self.check(sink.records)}

    def check(self, records: list[Record]) -> int:
        (found,) = records or [session("0")]
        assert isinstance(found, SessionState)
        assert int(found.client_id) in self.possible
        return int(found.client_id)

    @rule(point=st.sampled_from(FAILPOINTS), times=st.integers(1, 10), full=st.booleans())
    def arm(self, point: tuple[Operation, str], times: int, full: bool) -> None:
        # Not EIO, by which a medium says that a snapshot is lost for good.
        number = errno.ENOSPC if full else errno.EROFS
        for nth in range(1, times + 1):
            self.fs.add(Fault(operation=point[0], errno=number, path_suffix=point[1], nth=nth))

    @rule()
    def disarm(self) -> None:
        self.fs.clear()

    @rule(seed=st.integers(0, 1 << 32))
    def cut_power(self, seed: int) -> None:
        self.restart(self.memory.crash_clone(Random(seed)))

    @rule()
    def kill(self) -> None:
        self.restart(self.memory.kill_clone())

    def restart(self, memory: MemoryFileSystem) -> None:
        self.memory = memory
        self.fs = FaultyFileSystem(memory)
        self.keeper = None

    @rule(operations=st.integers(0, 14), seed=st.integers(0, 1 << 32))
    def cut_power_during_a_save(self, operations: int, seed: int) -> None:
        self.open()
        if self.keeper is None:
            return
        self.fs.clear()
        self.memory.operations_left = operations
        self.number += 1
        self.possible.add(self.number)
        with suppress(PowerCut):
            self.keeper.save([session(str(self.number))], source="broker")
            self.possible = {self.number}
        self.memory.operations_left = None
        self.restart(self.memory.crash_clone(Random(seed)))

    @invariant()
    def without_faults_a_start_finds_a_state(self) -> None:
        clone = self.memory.kill_clone()
        keeper, sink = keeper_on(clone), ListSink()
        result = keeper.load(sink, ContentsInMemory())
        self.check(sink.records)
        assert result.bad == []

    @invariant()
    def old_snapshots_do_not_pile_up(self) -> None:
        if self.memory.exists(DIRECTORY):
            files = [name for name in names_in(self.memory) if name.startswith("state.")]
            assert len(files) <= self.keep + 25


TestSnapshots = Snapshots.TestCase
TestSnapshots.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
