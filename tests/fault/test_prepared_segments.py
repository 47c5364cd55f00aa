"""The next segment is prepared ahead: no message waits for it, and a crash at any operation of it
loses no row that was acknowledged, whatever name the file has afterwards.
"""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path, PurePath
from random import Random

import pytest

from siltstone.errors import OverloadedError, PoisonedError, StorageFullError
from siltstone.fs.faulty import Fault, FaultyFileSystem, Operation, Pause
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.store.log.read.pieces import Batch
from siltstone.store.log.read.scan import Span, read_slab
from siltstone.store.log.slab import Slab
from siltstone.store.log.write.committer import Committer
from siltstone.store.log.write.frame_builder import Call
from siltstone.store.segment.ahead import PREPARED
from siltstone.store.segment.segment import segment_path
from siltstone.store.writer.ticket import Outcome
from siltstone.topic.grammar import TopicFilter
from tests.support.builders import World, begun, call_on, reopened, slab_place

SEGMENT = 256 * 1024
# Ten of these fit a segment; behind the eighth, less than a quarter is left.
VALUE = bytes(24_000)
NEARLY_FULL = 9
PLACE = slab_place()
PATH = PLACE / PREPARED


def call(number: int, *, sync: bool = True) -> Call:
    made = call_on(f"t/{number}", sync=sync)
    made.batch.values = [VALUE]
    return made


def topics_of(slab: Slab) -> list[str]:
    frames = read_slab(slab, slab.match(TopicFilter.parse("#")), Span())
    rows = [row for pieces in frames for row in Batch(pieces, 0).rows()]
    return [row.topic for row in sorted(rows, key=lambda row: row.timestamp_us)]


@dataclass
class Attempt:
    """A slab that is nearly full, and what was acknowledged."""

    disk: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    acknowledged: int = 0
    committer: Committer = field(init=False)

    def __post_init__(self) -> None:
        self.committer = begun(World(self.disk), segment_bytes=SEGMENT)
        for _ in range(NEARLY_FULL):
            self.append()

    def append(self) -> None:
        (outcome,) = self.committer.commit([call(self.acknowledged)])
        assert isinstance(outcome, Outcome)
        self.acknowledged += 1

    def prepare(self) -> None:
        self.committer.prepare_ahead()
        self.committer.wait_ahead()

    def roll(self) -> None:
        """Append until the next segment has rows."""
        segments = len(self.committer.slab.handles())
        while len(self.committer.slab.handles()) == segments:
            self.append()

    def segments(self) -> list[PurePath]:
        return [handle.path for handle in self.committer.slab.handles()]


def kinds(operations: list[str]) -> list[str]:
    return [operation.split()[0] for operation in operations]


def names(disk: MemoryFileSystem) -> list[str]:
    return [entry.name for entry in disk.list(PLACE)]


class TestWhatAMessageWaitsFor:
    def test_at_a_roll_nothing_is_created_or_allocated_and_no_directory_is_synced(self) -> None:
        attempt = Attempt()
        attempt.prepare()
        assert PREPARED in names(attempt.disk)
        attempt.append()
        before = len(attempt.disk.operations)
        attempt.append()
        operations = attempt.disk.operations[before:]
        assert len(attempt.segments()) == 2
        # The old file and the new one are synced, then the frame.
        assert kinds(operations) == ["sync", "write_at", "sync", "rename", "write_at", "sync"]
        attempt.prepare()
        assert names(attempt.disk) == [
            "00000000000000000000.idx",
            "00000000000000000000.seg",
            attempt.segments()[1].name,
        ]
        attempt.committer.close()

    def test_the_space_of_an_index_counts_and_that_of_a_prepared_segment_does_not(self) -> None:
        attempt = Attempt()
        attempt.prepare()
        attempt.roll()
        attempt.prepare()
        attempt.prepare()
        entries = attempt.disk.list(PLACE)
        assert len(entries) == 3
        assert attempt.committer.size_bytes() == sum(each.allocated_bytes for each in entries)
        while PREPARED not in names(attempt.disk):
            attempt.append()
            attempt.prepare()
        size_bytes = attempt.committer.size_bytes()
        attempt.committer.measure()
        assert attempt.committer.size_bytes() == size_bytes
        attempt.committer.close()

    def test_a_roll_that_comes_too_early_creates_the_segment(self) -> None:
        attempt = Attempt()
        attempt.roll()
        assert PREPARED not in names(attempt.disk)
        assert "00000000000000000000.idx" in names(attempt.disk)
        attempt.committer.close()

    def test_a_segment_of_another_size_is_created_and_the_prepared_one_removed(self) -> None:
        attempt = Attempt()
        attempt.prepare()
        large = call(attempt.acknowledged)
        large.batch.values = [bytes(SEGMENT)]
        attempt.committer.commit([large])
        assert PREPARED not in names(attempt.disk)
        assert len(attempt.segments()) == 2
        attempt.committer.close()

    def test_closing_removes_the_prepared_segment_and_writes_the_index(self) -> None:
        attempt = Attempt()
        attempt.prepare()
        attempt.roll()
        for _ in range(NEARLY_FULL):
            attempt.append()
        assert "00000000000000000000.idx" not in names(attempt.disk)
        attempt.prepare()
        assert PREPARED in names(attempt.disk)
        attempt.committer.close()
        assert PREPARED not in names(attempt.disk)
        assert "00000000000000000000.idx" in names(attempt.disk)

    def test_sealing_the_slab_leaves_no_prepared_segment(self) -> None:
        attempt = Attempt()
        attempt.prepare()
        attempt.committer.seal(*attempt.committer.state())
        assert PREPARED not in names(attempt.disk.crash_clone())

    def test_a_full_disk_leaves_the_segment_to_the_roll(self) -> None:
        disk = MemoryFileSystem()
        fs = FaultyFileSystem(disk)
        committer = begun(World(fs), segment_bytes=SEGMENT)
        for number in range(NEARLY_FULL):
            committer.commit([call(number)])
        fs.add(Fault(operation="truncate", errno=28))
        committer.prepare_ahead()
        committer.wait_ahead()
        committer.prepare_ahead()
        committer.wait_ahead()
        assert PREPARED not in names(disk), "the space is not asked for again and again"
        committer.close()

    @pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
    @pytest.mark.parametrize("operation", ["create", "sync_directory"])
    def test_without_a_descriptor_the_segment_is_created_when_it_is_needed(
        self, operation: Operation, number: int
    ) -> None:
        disk = MemoryFileSystem()
        fs = FaultyFileSystem(disk)
        committer = begun(World(fs), segment_bytes=SEGMENT)
        for done in range(NEARLY_FULL):
            committer.commit([call(done)])
        fs.add(Fault(operation=operation, errno=number))
        committer.prepare_ahead()
        committer.wait_ahead()
        assert PREPARED not in names(disk)
        for done in range(NEARLY_FULL, NEARLY_FULL + 2):
            (outcome,) = committer.commit([call(done)])
            assert isinstance(outcome, Outcome)
        assert len(committer.slab.handles()) == 2
        committer.close()
        assert topics_of(committer.slab) == [f"t/{done}" for done in range(NEARLY_FULL + 2)]

    @pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
    def test_without_a_descriptor_for_the_name_of_a_segment_its_sync_is_repeated(
        self, number: int
    ) -> None:
        disk = MemoryFileSystem()
        fs = FaultyFileSystem(disk)
        committer = begun(World(fs), segment_bytes=SEGMENT)
        for done in range(NEARLY_FULL):
            committer.commit([call(done)])
        committer.prepare_ahead()
        committer.wait_ahead()
        for done in range(NEARLY_FULL, NEARLY_FULL + 2):
            committer.commit([call(done)])
        fs.add(Fault(operation="sync_directory", errno=number))
        committer.prepare_ahead()
        with pytest.raises(OverloadedError, match="ulimit -n, LimitNOFILE"):
            committer.wait_ahead()
        committer.prepare_ahead()
        committer.wait_ahead()
        assert "00000000000000000000.idx" in names(disk)
        (outcome,) = committer.commit([call(NEARLY_FULL + 2)])
        assert isinstance(outcome, Outcome)
        committer.close()

    def test_a_failed_sync_of_the_directory_poisons_the_shard(self) -> None:
        fs = FaultyFileSystem(MemoryFileSystem())
        committer = begun(World(fs), segment_bytes=SEGMENT)
        for number in range(NEARLY_FULL):
            committer.commit([call(number)])
        committer.prepare_ahead()
        committer.wait_ahead()
        for number in range(NEARLY_FULL, NEARLY_FULL + 2):
            committer.commit([call(number)])
        fs.add(Fault(operation="sync_directory", errno=5))
        committer.prepare_ahead()
        for thread in threading.enumerate():
            if thread.name.startswith("siltstone-ahead"):
                thread.join()
        with pytest.raises(PoisonedError):
            committer.prepare_ahead()
        committer.close()

    def test_closing_a_poisoned_shard_waits_for_the_thread(self) -> None:
        fs = FaultyFileSystem(MemoryFileSystem())
        committer = begun(World(fs), segment_bytes=SEGMENT)
        for number in range(NEARLY_FULL):
            committer.commit([call(number)])
        reached, goes_on = threading.Event(), threading.Event()

        def until() -> None:
            reached.set()
            goes_on.wait()

        fs.pause(Pause(operation="sync_directory", until=until))
        committer.prepare_ahead()
        assert reached.wait(10)
        fs.add(Fault(operation="sync", errno=5))
        closing = threading.Thread(target=committer.close)
        try:
            with pytest.raises(PoisonedError):
                committer.commit([call(NEARLY_FULL)])
            closing.start()
            # The next writer of the directory must not meet the thread of this one.
            closing.join(0.05)
            assert closing.is_alive()
        finally:
            goes_on.set()
        closing.join(10)
        assert not closing.is_alive()

    def test_a_segment_is_prepared_also_after_the_end_of_the_main_thread(
        self, tmp_path: Path
    ) -> None:
        done = subprocess.run(
            [sys.executable, "-c", WRITES_WITHOUT_MAIN_THREAD, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.stdout, done.stderr) == ("stored\n", "")


WRITES_WITHOUT_MAIN_THREAD = """
import sys
import threading

import siltstone
from siltstone.store.slab.settings import DatabaseSettings

store = siltstone.open(sys.argv[1])
database = store.create("d", DatabaseSettings(segment_bytes=256 * 1024))


def write():
    threading.main_thread().join()
    for _ in range(30):
        database.append([siltstone.Row("t", bytes(24_000))]).wait()
    print("stored")
    store.close()


threading.Thread(target=write).start()
"""


def crashes() -> Iterator[Attempt]:
    """Yield what is left after a power cut at each operation of preparing, rolling and preparing
    again.
    """
    for operations in count():
        attempt = Attempt()
        attempt.disk.operations_left = operations
        try:
            attempt.prepare()
            attempt.roll()
            attempt.append()
            attempt.prepare()
            attempt.append()
        except (PowerCut, PoisonedError):
            yield attempt
        else:
            assert operations > 20
            attempt.disk.operations_left = None
            attempt.committer.close()
            return


def check_left(disk: MemoryFileSystem, attempt: Attempt) -> None:
    """Check that a disk has a sound slab with everything that was acknowledged."""
    committer, _ = reopened(World(disk), segment_bytes=SEGMENT)
    found = topics_of(committer.slab)
    assert found == [f"t/{number}" for number in range(len(found))]
    assert len(found) in (attempt.acknowledged, attempt.acknowledged + 1)
    assert PREPARED not in names(disk)
    assert not [name for name in names(disk) if name.endswith(".foreign")]
    (outcome,) = committer.commit([call_on("next")])
    assert isinstance(outcome, Outcome)
    # What was recovered and written on is found again after another power cut.
    again, report = reopened(World(disk.crash_clone()), segment_bytes=SEGMENT)
    assert topics_of(again.slab) == [*found, "next"]
    assert report.torn_bytes == 0
    again.close()


def test_no_acknowledged_row_is_lost_by_a_power_cut_at_any_operation() -> None:
    for attempt in crashes():
        disk = attempt.disk
        check_left(disk.kill_clone(), attempt)
        check_left(disk.crash_clone(), attempt)
        for seed in range(4):
            check_left(disk.crash_clone(Random(seed), in_order=seed % 2 == 0), attempt)


def test_no_acknowledged_row_is_lost_by_a_power_cut_at_any_operation_of_recovery() -> None:
    attempt = Attempt()
    attempt.prepare()
    attempt.roll()
    attempt.append()
    left = attempt.disk.crash_clone()
    assert PREPARED in names(left), "without a sync of the directory the new name is gone"
    for operations in count():
        disk = left.kill_clone()
        disk.operations_left = operations
        try:
            committer, _ = reopened(World(disk), segment_bytes=SEGMENT)
        except PowerCut:
            check_left(disk.kill_clone(), attempt)
            check_left(disk.crash_clone(Random(operations), in_order=False), attempt)
        else:
            disk.operations_left = None
            committer.close()
            assert operations > 5
            return


class TestAPreparedFileThatIsFound:
    def test_without_a_header_it_is_removed(self) -> None:
        attempt = Attempt()
        attempt.prepare()
        disk = attempt.disk.kill_clone()
        assert PREPARED in names(disk)
        check_left(disk, attempt)

    def test_with_a_damaged_header_and_rows_it_is_moved_aside(self) -> None:
        attempt = Attempt()
        attempt.prepare()
        attempt.roll()
        disk = attempt.disk.crash_clone()
        with disk.open(PATH, writable=True) as file:
            file.write_at(100, b"\xff")
        committer, _ = reopened(World(disk), segment_bytes=SEGMENT)
        assert f"{PREPARED}.foreign" in names(disk)
        committer.close()

    def test_of_another_slab_it_is_moved_aside(self) -> None:
        attempt = Attempt()
        attempt.prepare()
        attempt.roll()
        disk = attempt.disk.crash_clone()
        other = begun(World(disk), shard=1, segment_bytes=SEGMENT)
        other.close()
        disk.rename(PATH, slab_place(1) / PREPARED)
        committer, _ = reopened(World(disk), shard=1, segment_bytes=SEGMENT)
        committer.close()
        assert f"{PREPARED}.foreign" in [entry.name for entry in disk.list(slab_place(1))]

    def test_behind_another_segment_of_its_serial_it_is_removed(self) -> None:
        attempt = Attempt()
        attempt.prepare()
        attempt.roll()
        disk = attempt.disk.kill_clone()
        data = disk.read(attempt.segments()[1])
        with disk.create(PATH) as file:
            file.write(data)
        assert segment_path(PLACE, attempt.acknowledged - 1) == attempt.segments()[1]
        check_left(disk, attempt)


def test_a_full_disk_at_the_index_is_told_by_the_next_upkeep() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    committer = begun(World(fs), segment_bytes=SEGMENT)
    for number in range(NEARLY_FULL):
        committer.commit([call(number)])
    committer.prepare_ahead()
    committer.wait_ahead()
    for number in range(NEARLY_FULL, NEARLY_FULL + 2):
        committer.commit([call(number)])
    fs.add(Fault(operation="write", errno=28))
    committer.prepare_ahead()
    with pytest.raises(StorageFullError):
        committer.wait_ahead()
    committer.prepare_ahead()
    committer.wait_ahead()
    committer.close()
    assert topics_of(committer.slab) == [f"t/{number}" for number in range(NEARLY_FULL + 2)]


class TestASegmentBehindAGap:
    """A segment whose last serials are only reserved gets its index at once. The name of the next
    one must become durable all the same.
    """

    @pytest.mark.parametrize("prepares", [True, False])
    def test_no_acknowledged_row_is_lost_by_a_power_cut_at_any_operation(
        self, *, prepares: bool
    ) -> None:
        left = nearly_full_with_a_gap()
        for operations in count():
            disk = left.kill_clone()
            acknowledged, is_whole = begin_behind_gap(disk, operations, prepares=prepares)
            for clone in (
                disk.crash_clone(),
                *(disk.crash_clone(Random(seed), in_order=False) for seed in range(6)),
            ):
                committer, _ = reopened(World(clone), segment_bytes=SEGMENT)
                found = topics_of(committer.slab)
                assert [topic for topic in acknowledged if topic not in found] == [], operations
                committer.close()
            if is_whole:
                assert operations > 20
                return


def nearly_full_with_a_gap() -> MemoryFileSystem:
    """Return a disk with a slab whose last row was seen by readers and lost by a power cut."""
    attempt = Attempt()
    attempt.committer.commit([call(NEARLY_FULL, sync=False)])
    return attempt.disk.crash_clone()


def begin_behind_gap(
    disk: MemoryFileSystem, operations: int, *, prepares: bool
) -> tuple[list[str], bool]:
    """Begin a prepared segment behind a gap that is not stored, and the one after it, until the
    power is cut; return the topics of the acknowledged rows, and whether the power stayed.
    """
    fs = FaultyFileSystem(disk)
    # On a full disk the gap is not stored when the slab is opened.
    fs.add(Fault(operation="write_at", errno=28))
    committer, _ = reopened(World(fs), segment_bytes=SEGMENT)
    committer.prepare_ahead()
    committer.wait_ahead()
    acknowledged: list[str] = []
    disk.operations_left = operations
    try:
        for number, size in enumerate([60_000, *[40_000] * 6]):
            made = call_on(f"u/{number}")
            made.batch.values = [bytes(size)]
            (outcome,) = committer.commit([made])
            assert isinstance(outcome, Outcome)
            acknowledged.append(f"u/{number}")
            if prepares:
                committer.prepare_ahead()
                committer.wait_ahead()
    except (PowerCut, PoisonedError):
        return acknowledged, False
    finally:
        disk.operations_left = None
    assert len(committer.slab.handles()) == 3
    return acknowledged, True
