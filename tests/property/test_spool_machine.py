"""A spool and a dictionary do the same, over kills, power cuts and full disks."""

from __future__ import annotations

from pathlib import PurePath
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from siltstone.errors import StorageFullError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.spool import Entry, NoSuchEntryError, Spool, ensure
from tests.support.spool_model import SpoolModel, contents

ROOT, OUT = PurePath("/s"), PurePath("/out")
CAPACITY_BYTES = 32 * 1024

data = st.one_of(st.binary(max_size=40), st.integers(0, 3000).map(bytes))
metadata = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=19)


class SpoolMachine(RuleBasedStateMachine):
    """Whatever is acknowledged is in the model."""

    entries: Bundle[Entry] = Bundle("entries")

    @initialize()
    def begin(self) -> None:
        self.fs = MemoryFileSystem(capacity_bytes=CAPACITY_BYTES)
        self.fs.make_directory(OUT)
        self.fs.sync_directory(PurePath("/"))
        self.model = SpoolModel()
        self.spool: Spool = ensure(ROOT, fs=self.fs)
        self.moves = 0

    @rule(target=entries, items=st.lists(st.tuples(data, metadata), max_size=4))
    def store(self, items: list[tuple[bytes, str | None]]) -> MultipleResults[Entry]:
        below = self.spool.next_likely_id()
        try:
            stored = self.spool.store_many(items)
        except StorageFullError:
            return multiple()
        assert [entry.metadata for entry in stored] == [said for _, said in items]
        assert all(entry.id >= below for entry in stored)
        assert stored == sorted(stored)
        for entry, (kept, _) in zip(stored, items, strict=True):
            self.model.stored[entry] = kept
            self.model.highest_id = entry.id
        return multiple(*stored)

    @rule(entry=consumes(entries))
    def discard(self, entry: Entry) -> None:
        if entry not in self.model.stored:
            return
        self.spool.discard(Entry(entry.id, entry.metadata))
        del self.model.stored[entry]
        with pytest.raises(NoSuchEntryError):
            self.spool.discard(entry)

    @rule(entry=consumes(entries))
    def move_out(self, entry: Entry) -> None:
        if entry not in self.model.stored:
            return
        self.moves += 1
        path = OUT / str(self.moves)
        try:
            self.spool.discard(entry, path, reason="moved")
        except StorageFullError:
            assert entry in list(self.spool)
            return
        self.model.moved[path] = self.model.stored.pop(entry)

    @rule(seed=st.integers(0, 1000), power=st.booleans())
    def crash(self, seed: int, power: bool) -> None:
        rng = Random(seed) if seed else None
        self.fs = self.fs.crash_clone(rng) if power else self.fs.kill_clone()
        self.spool = ensure(ROOT, fs=self.fs)
        self.model.check(self.spool, self.fs)

    @rule()
    def reopen(self) -> None:
        self.spool.close()
        self.spool = ensure(ROOT, fs=self.fs)

    @invariant()
    def they_agree(self) -> None:
        assert contents(self.spool) == self.model.stored
        assert self.spool.stats().unexpected == 0
        for path, moved in self.model.moved.items():
            assert self.fs.read(path) == moved


TestSpoolMachine = SpoolMachine.TestCase
TestSpoolMachine.settings = settings(max_examples=25, stateful_step_count=20)
