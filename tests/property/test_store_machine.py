"""The store against a naive model: writing, sealing, dropping, and losing power at any moment.

After every restart the survivors are a prefix, per shard, of what was submitted and hold all that
was acknowledged; a reader that kept its positions meets no row twice and passes over none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import PurePath
from random import Random

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from siltstone.clock import ManualClock
from siltstone.errors import InvalidTopicError, OutcomeUnknownError, PoisonedError
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.store.database import Database, Durability
from siltstone.store.directory import Store
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.write.partition import batch_of, columns_of
from siltstone.store.shard import compaction
from siltstone.store.slab.manifest import SlabId
from siltstone.store.slab.settings import COMPRESSIONS, SHARD_KEYS, DatabaseSettings
from siltstone.store.writer.ticket import Ticket
from tests.support.reading import check_everything, check_filter
from tests.support.store_model import Follower, StoreModel

PATH = PurePath("/data")
NAME = "messages"

TOPICS = (
    *(f"a/{word}/c" for word in "123456"),
    *(f"a/{word}" for word in "12é4"),
    *("a", "/", "b//", "b//x", "c/d/e/f", "$SYS/a/c", "$SYS/b/c", "$SYS/b"),
)
FILTERS = (
    *("#", "+", "a/#", "a/+", "a/+/c", "a/3/c", "a/é", "+/+", "/", "b//+", "b/#", "c/+/e/#"),
    *("+/1/#", "$SYS/#", "$SYS/+/c", "missing/+"),
)
BAD_TOPICS = ("", "a/+/c", "a/#", "a\0")
# Few sizes, so that a frame written after a crash often ends where a lost one began.
SIZES = (0, 8, 100, 100, 100, 100, 3_000, 10_000)

DURABILITIES: tuple[Durability, ...] = ("synced", "written", "none")

# What is drawn is little, and never depends on the state: a history may only draw so much, and two
# threads race for the operations before a power cut, so that equal histories may differ a little.
numbers = st.integers(0, 2**32)
call_seeds = st.lists(numbers, min_size=1, max_size=8)
seeds = st.none() | numbers
database_settings = st.builds(
    DatabaseSettings,
    shards=st.sampled_from((1, 2)),
    shard_by=st.sampled_from(SHARD_KEYS),
    thresholds=st.sampled_from(((100, 10), (2, 1), (1, 2, 3), (0,), (-1,))),
    segment_bytes=st.sampled_from((64 * 1024, 192 * 1024)),
    compression=st.sampled_from(COMPRESSIONS),
    sync_interval=st.sampled_from((0.0, 3600.0)),
    topic_cache=st.sampled_from((2, 1000)),
)

Producer = tuple[str, int]


@dataclass(frozen=True)
class Call:
    """One append."""

    rows: list[Row]
    durability: Durability
    producer: Producer | None


class StoreMachine(RuleBasedStateMachine):
    """One store with its writer and a reader beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.fs = MemoryFileSystem()
        self.counter = count()
        self.last_call = Call([], "synced", None)
        self.store = Store(PATH, fs=self.fs, clock=self.clock)
        self.reading = Store(PATH, fs=self.fs, read_only=True)

    @initialize(values=database_settings)
    def create(self, values: DatabaseSettings) -> None:
        self.database = self.store.create(NAME, values)
        self.model = StoreModel(values)
        self.follower = Follower(self.model)

    def call(self, seed: int) -> Call:
        """Make a call; no two rows have the same value, but for very short ones."""
        rng = Random(seed)
        producer = (rng.choice("xy"), rng.randrange(6)) if rng.random() < 0.4 else None
        rows = [self.row(rng) for _ in range(rng.choice((1, 1, 2, 4, 8)))]
        call = Call(rows, rng.choice(DURABILITIES), producer)
        if rng.random() < 0.2 and self.last_call.producer is not None:
            # Repeated, as by a producer that got no answer.
            call = replace(self.last_call, durability=call.durability)
        self.last_call = call
        return call

    def row(self, rng: Random) -> Row:
        size = rng.choice(SIZES)
        # One half that can be compressed and one that cannot.
        value = b"%d " % next(self.counter) * (size // 4) + rng.randbytes(size)
        return Row(
            topic=rng.choice(TOPICS),
            value=value[:size],
            publisher=rng.choice(("", "p", "q", "r")),
            qos=rng.choice((0, 1, 2)),
            retain=rng.random() < 0.5,
            properties=rng.choice((b"", b"", b"", b"\x23\x00\x01")),
        )

    @rule(call_seeds=call_seeds)
    def append(self, call_seeds: list[int]) -> None:
        for call in map(self.call, call_seeds):
            submitted = self.model.submit(call.rows, call.producer)
            ticket = self.append_here(call) or self.database.append(
                call.rows, durability=call.durability, producer=call.producer
            )
            ticket.wait()
            serials, timestamps = ticket.serials(), ticket.timestamps()
            assert ticket.duplicate == (not submitted.parts)
            self.model.acknowledge(submitted, call.durability, serials, timestamps)

    def append_here(self, call: Call) -> Ticket | None:
        """Append a call on this thread, if its durability and the store allow it."""
        if call.durability != "synced" or call.producer is not None:
            return None
        return self.database.append_here(batch_of(columns_of(call.rows)))

    # Few rules: they are switched off at random, and histories without crashes show little.
    @rule(
        what=st.sampled_from(
            ("seal", "drop", "sync", "refuse", "clock", "read", "filter", "compact")
        ),
        number=numbers,
    )
    def tend(self, what: str, number: int) -> None:
        match what:
            case "seal":
                self.seal()
            case "drop":
                self.drop(number)
            case "sync":
                self.sync()
            case "refuse":
                self.append_what_is_refused(number)
            case "clock":
                self.set_the_clock((-3600.0, -1.0, 0.001, 1.0, 3600.0)[number % 5])
            case "compact":
                self.compact()
            case "read":
                self.follower.read(self.reader(), (1, 2, 5, 1000)[number % 4])
            case _:
                self.read_a_filter(number)

    def append_what_is_refused(self, number: int) -> None:
        bad = Row(BAD_TOPICS[number % len(BAD_TOPICS)], b"", "p")
        rows = [bad]
        if self.model.settings.shard_by == "publisher":
            # All on one shard: what another shard gets of a call does not depend on this one.
            good = [row._replace(publisher="p") for row in self.call(number).rows]
            rows = [*(row._replace(topic=f"new/{row.topic}") for row in good), bad]
        with pytest.raises(InvalidTopicError):
            self.database.append(rows, producer=("refused", number)).wait()

    def sync(self) -> None:
        self.database.sync()
        for shard in self.model.shards:
            shard.acknowledge("synced", len(shard.parts))

    def seal(self) -> None:
        self.database.seal()
        for shard in self.model.shards:
            shard.turn()

    def compact(self) -> None:
        """Compact all sealed segments, and active ones of some frames.

        No row, serial or position changes.
        """
        running = self.database.compaction
        self.clock.advance(61.0)
        running.end_segments()
        for job in running.jobs():
            assert running.run(job) is not None
        assert running.jobs() == []

    def drop(self, number: int) -> None:
        for slab in self.one_sealed(number):
            self.database.drop_slab(slab)
            self.model.drop(slab)

    def one_sealed(self, number: int) -> list[SlabId]:
        """Return one of the sealed slabs, where there are any."""
        slabs = self.model.sealed_slabs()
        return [slabs[number % len(slabs)]] if slabs else []

    def set_the_clock(self, seconds: float) -> None:
        if seconds > 0:
            self.clock.advance(seconds)
        else:
            self.clock.jump(seconds)

    def read_a_filter(self, number: int) -> None:
        rng = Random(number)
        rows = self.model.rows()
        times = [0, *(row.timestamp_us for row in rows)]
        since_us, until_us = rng.choice(times), rng.choice([None, *times])
        topic_filter = rng.choice(FILTERS)
        for database in (self.database, self.reader()):
            check_filter(database, rows, topic_filter, since_us=since_us, until_us=until_us)

    @rule(
        call_seeds=call_seeds,
        how=st.sampled_from(("close", "cut", "cut", "kill")),
        seed=seeds,
        in_order=st.booleans(),
    )
    def restart(self, call_seeds: list[int], how: str, seed: int | None, in_order: bool) -> None:
        # A restart shows little where nothing has happened since the last one.
        self.append(call_seeds)
        if how == "close":
            self.store.close()
            for shard in self.model.shards:
                shard.acknowledge("synced", len(shard.parts))
        else:
            self.leave(self.left(seed, in_order=in_order, killed=how == "kill"))
        self.open(killed=how == "kill")
        if how == "close":
            assert {report.torn_bytes for report in self.database.reports} == {0}

    @rule(
        call_seeds=call_seeds,
        operations=st.integers(0, 12),
        during=st.sampled_from(("append", "append", "seal", "sync", "drop", "close", "compact")),
        seed=seeds,
        in_order=st.booleans(),
        killed=st.booleans(),
    )
    def stop_in_the_middle(
        self,
        call_seeds: list[int],
        operations: int,
        during: str,
        seed: int | None,
        in_order: bool,
        killed: bool,
    ) -> None:
        self.append(call_seeds[1:])
        act = self.begun(during, call_seeds[0])
        self.fs.operations_left = operations
        # The disk is gone, and nobody was told that anything is durable.
        with suppress(PowerCut, PoisonedError, OutcomeUnknownError):
            act()
        self.leave(self.left(seed, in_order=in_order, killed=killed))
        self.open(killed=killed, during=during)

    def begun(self, during: str, seed: int) -> Callable[[], object]:
        """Return what to do while the power goes, entered in the model as not acknowledged."""
        match during:
            case "append":
                call = self.call(seed)
                self.model.submit(call.rows, call.producer)
                return lambda: self.database.append(
                    call.rows, durability=call.durability, producer=call.producer
                ).serials()
            case "drop":
                slabs = self.one_sealed(seed)
                return partial(self.database.drop_slab, slabs[0]) if slabs else self.database.sync
            case "close":
                return self.store.close
            case "seal":
                return self.database.seal
            case "compact":
                return self.compact
            case _:
                return self.database.sync

    def left(self, seed: int | None, *, in_order: bool, killed: bool) -> MemoryFileSystem:
        """Return what the next process finds."""
        if killed:
            return self.fs.kill_clone()
        return self.fs.crash_clone(None if seed is None else Random(seed), in_order=in_order)

    def leave(self, fs: MemoryFileSystem) -> None:
        """Go on with what is left; the old threads end on the old disk."""
        self.store.close()
        self.reading.close()
        self.fs = fs
        self.reading = Store(PATH, fs=self.fs, read_only=True)

    def open(self, *, killed: bool, during: str = "") -> None:
        """Come back, sometimes with a reader that looks before the writer has recovered."""
        if next(self.counter) % 2:
            self.follower.read(self.reader(), 2)
        self.store = Store(PATH, fs=self.fs, clock=self.clock)
        self.database = self.store.database(NAME)
        rows = check_everything(self.database)
        self.model.survive(rows, self.database.slabs(), killed=killed, during=during)
        self.check()

    def check(self) -> None:
        expected = self.model.rows()
        rng = Random(next(self.counter))
        for database in (self.database, self.reader()):
            check_filter(database, expected, rng.choice(FILTERS))
        self.follower.catch_up(self.reader())

    def reader(self) -> Database:
        return self.reading.database(NAME)

    def teardown(self) -> None:
        self.store.close()
        self.reading.close()


@pytest.fixture(autouse=True)
def _short_histories_are_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a crash left out serials, which count as rows."""
    monkeypatch.setattr(compaction, "SCATTERED_MIN", 4)
    for name in ("_SCATTERED_ROWS", "SMALL_FRAME_ROWS"):
        monkeypatch.setattr(compaction, name, 1 << 40)


def test_survivors_are_a_prefix_that_holds_all_that_was_acknowledged() -> None:
    # A failing history is told as it is: to shorten it would take longer than a test may.
    phases = (Phase.reuse, Phase.generate)
    run_state_machine_as_test(
        StoreMachine, settings=settings(max_examples=25, stateful_step_count=20, phases=phases)
    )


@pytest.mark.soak
def test_survivors_are_a_prefix_over_many_more_histories() -> None:
    run_state_machine_as_test(
        StoreMachine, settings=settings(max_examples=1_500, stateful_step_count=50)
    )
