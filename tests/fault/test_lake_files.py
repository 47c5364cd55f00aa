"""The files of a batch survive a power cut before the ledger says that the batch has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePath
from threading import Event

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures
from deltalake.exceptions import DeltaError

import siltstone
from siltstone.clock import ManualClock
from siltstone.errors import RetryError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.faulty import Fault, FaultyFileSystem, Operation, Pause
from siltstone.fs.memory import PowerCut
from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.jobs.upkeep import remove_unused
from siltstone.pipeline.lake.delta import (
    OpenTables,
    add_files,
    ensure_table,
    last_batch,
    refuse_lost_version,
    replace_files,
    replace_merged,
    restore_version,
    shorten_log,
    stored_files,
    swap_files,
)
from siltstone.pipeline.lake.files import (
    MadeFile,
    partition_schema,
    rule_schema,
    write_file,
)
from siltstone.pipeline.lake.rules import TableRule
from siltstone.pipeline.lake.tables.rewrite import TableChange
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.builders import settings_of
from tests.support.lake import DATABASE, lake_of, tier_all

Step = tuple[Operation, PurePath]
DRAFT = ".tmp"


class Recorder(FaultyFileSystem):
    """Remembers every operation with its last path, in order."""

    def __init__(self) -> None:
        super().__init__(PosixFileSystem())
        self.steps: list[Step] = []

    def fault(self, operation: Operation, *paths: PurePath) -> Fault | None:
        self.steps.append((operation, paths[-1]))
        return super().fault(operation, *paths)

    def place(self, operation: Operation, path: PurePath, *, after: int) -> int:
        """Return where an operation on a path comes behind another one."""
        return self.steps.index((operation, path), after)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with siltstone.open(path) as store:
        database = store.create(DATABASE, settings_of(thresholds=(100, 0, 10)))
        database.append(
            [Row(f"a/{number}/x", b'{"v": 1}') for number in range(9)]
            + [Row("a/9/x", b"none"), Row("b/1", b'{"v": 2}')]
        ).wait()
        yield database


@pytest.mark.usefixtures("database")
def test_files_and_their_directories_are_synced_before_the_ledger_closes(path: Path) -> None:
    fs = Recorder()
    assert tier_all(path, fs) == 11
    ledgers = [
        place
        for place, (operation, named) in enumerate(fs.steps)
        if (operation, named.name) == ("rename", "ledger.json")
    ]
    closed = ledgers[-1]
    made = [
        (place, named)
        for place, (operation, named) in enumerate(fs.steps)
        if operation == "create" and named.suffix == ".parquet"
    ]
    assert sorted(named.relative_to(lake_of(path)).parts[0] for _, named in made) == [
        "a_x",
        "b",
        "dead_letter",
    ]
    for created, named in made:
        written = fs.place("write", named, after=created)
        synced = fs.place("sync", named, after=written)
        listed = fs.place("sync_directory", named.parent, after=synced)
        # The directories above it are new too.
        table = named.parents[len(named.relative_to(lake_of(path)).parts) - 2]
        above = fs.place("sync_directory", named.parent.parent, after=0)
        log = table / "_delta_log"
        committed = fs.place("link", log / f"{1:020}.json", after=listed)
        operation, draft = fs.steps[committed - 2]
        assert (operation, draft.parent, draft.suffix) == ("sync", log, DRAFT)
        assert max(above, fs.place("sync_directory", log, after=committed)) < closed


def made_file(table: Path, name: str, value: float) -> MadeFile:
    rows = pa.table({"v": [value]})
    place = PurePath("date=2026-01-31") / name
    size, stats = write_file(PosixFileSystem(), table / place, rows)
    return MadeFile(
        rule="a/+",
        table="t",
        path=place.as_posix(),
        size_bytes=size,
        rows=1,
        partition={"date": "2026-01-31"},
        stats=stats,
    )


def test_a_batch_that_is_added_twice_is_there_once(tmp_path: Path) -> None:
    fs, clock, table = PosixFileSystem(), ManualClock(), tmp_path / "t"
    ensure_table(
        fs, table, rule_schema(TableRule(filter="a/+", table="t")), partition_schema("day")
    )

    made: dict[str, MadeFile] = {}

    def add(name: str, *, batch: int, application: str = "one") -> tuple[int, list[str]]:
        if name not in made:
            made[name] = made_file(table, name, 1.0)
        files = [made[name]]
        add_files(
            fs, clock, table, files, application=application, batch=batch, offsets={"stop": {}}
        )
        delta = DeltaTable(str(table))
        return delta.version(), sorted(Path(file).name for file in delta.file_uris())

    assert add("first", batch=1) == (1, ["first"])
    # The same batch again, with files of the same name or of others, is there already.
    assert add("first", batch=1) == (1, ["first"])
    assert add("again", batch=1) == (1, ["first"])
    assert add("second", batch=2) == (2, ["first", "second"])
    assert add("late", batch=1) == (2, ["first", "second"])
    assert add("other", batch=1, application="two") == (3, ["first", "other", "second"])
    assert (last_batch(fs, table, "one"), last_batch(fs, table, "two")) == (2, 1)


def daily(fs: FileSystem, table: Path, *levels: str) -> None:
    rule = TableRule(filter="a/+", table="t", levels=levels)
    ensure_table(fs, table, rule_schema(rule), partition_schema("day"))


def add_one(fs: Recorder, table: Path, batch: int) -> None:
    files = [made_file(table, f"{batch:08d}-x", float(batch))]
    add_files(fs, ManualClock(), table, files, application="one", batch=batch, offsets={"stop": {}})


def merge_all(fs: Recorder, table: Path) -> None:
    merged = [(stored_files(table), made_file(table, "merged", 7.0))]
    replace_merged(fs, ManualClock(), table, merged)


def swap_all(fs: Recorder, table: Path, number: int) -> None:
    change = TableChange(
        table="t",
        schema=DeltaTable(str(table)).schema().to_json(),
        remove=None,
        add=(made_file(table, f"moved-{number}", 1.0),),
    )
    swap_files(fs, ManualClock(), table, change, transactions={"one-rewrites": number})


CHANGES: dict[str, Callable[[Recorder, Path], None]] = {
    "add": partial(add_one, batch=9),
    "replace": lambda fs, table: replace_files(
        fs, ManualClock(), table, [made_file(table, "new", 1.0)]
    ),
    "merge": merge_all,
    "swap": partial(swap_all, number=1),
    "widen": lambda fs, table: daily(fs, table, "line"),
    "shorten": partial(shorten_log, hours=0),
}


def synced_for_good(fs: Recorder, table: Path) -> set[str]:
    """Return the files of the log that were synced, and their directory after them.

    A commit may get its name by a link, after it was synced as a draft.
    """
    log = table / "_delta_log"
    listed = max(place for place, step in enumerate(fs.steps) if step == ("sync_directory", log))
    steps = fs.steps[:listed]
    linked = {
        named.name
        for place, (operation, named) in enumerate(steps)
        if operation == "link"
        and steps[place - 2][0] == "sync"
        and steps[place - 2][1].suffix == DRAFT
    }
    synced = {named.name for operation, named in steps if operation == "sync"}
    return linked | {name for name in synced if not name.endswith(DRAFT)}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_a_table_is_durable_when_it_returns(tmp_path: Path, change: str) -> None:
    table = tmp_path / "t"
    fs = Recorder()
    daily(fs, table)
    assert synced_for_good(fs, table) == {f"{0:020}.json"}
    for batch in (1, 2):
        add_one(fs, table, batch)
    log = table / "_delta_log"
    before = {file.name for file in log.iterdir()}
    fs.steps.clear()
    CHANGES[change](fs, table)
    new = {file.name for file in log.iterdir()} - before
    assert new
    assert new <= synced_for_good(fs, table)


def test_a_batch_does_not_replace_the_commit_of_another_program(tmp_path: Path) -> None:
    """The other program commits after the version was read, and before it is written."""
    table = tmp_path / "t"
    fs, tables = PosixFileSystem(), OpenTables(PosixFileSystem())
    daily(fs, table)
    first = made_file(table, "first", 1.0)
    commit = partial(add_files, clock=ManualClock(), table=table, application="one", offsets={})
    commit(fs, files=[first], batch=1, opened=tables)

    class Late(FaultyFileSystem):
        def fault(self, operation: Operation, *paths: PurePath) -> Fault | None:
            if operation == "link" and DeltaTable(str(table)).version() == 1:
                foreign = DeltaTable(str(table))
                foreign.alter.set_table_properties({"delta.appendOnly": "false"})
            return super().fault(operation, *paths)

    second = made_file(table, "second", 2.0)
    commit(Late(fs), files=[second], batch=2, opened=tables)
    delta = DeltaTable(str(table))
    assert (delta.version(), delta.transaction_version("one")) == (3, 2)
    assert [commit["operation"] for commit in delta.history()][:2] == ["WRITE", "SET TBLPROPERTIES"]
    assert sorted(Path(file).name for file in delta.file_uris()) == ["first", "second"]


def test_two_writers_of_one_version_leave_two_whole_commits(tmp_path: Path) -> None:
    """Rollups of two streams may add to one table: both have a draft at the same time."""
    table = tmp_path / "t"
    daily(PosixFileSystem(), table)
    commit = partial(add_files, clock=ManualClock(), table=table, batch=1, offsets={})
    has_draft, go_on = Event(), Event()

    def hold() -> None:
        has_draft.set()
        assert go_on.wait(60)

    slow, fast = FaultyFileSystem(PosixFileSystem()), FaultyFileSystem(PosixFileSystem())
    slow.pause(Pause(operation="write", path_suffix=DRAFT, until=hold))
    slow_files = [made_file(table, "slow", 2.0)]
    started: list[Future[None]] = []

    def start() -> None:
        started.append(pool.submit(commit, slow, files=slow_files, application="slow"))
        assert has_draft.wait(60)

    fast.pause(Pause(operation="sync", path_suffix=DRAFT, until=start))
    with ThreadPoolExecutor(1) as pool:
        try:
            commit(fast, files=[made_file(table, "fast", 1.0)], application="fast")
            text = (table / "_delta_log" / f"{1:020}.json").read_text()
        finally:
            go_on.set()
        started[0].result()
    assert '"appId": "fast"' in text
    delta = DeltaTable(str(table))
    assert sorted(Path(file).name for file in delta.file_uris()) == ["fast", "slow"]
    assert (delta.version(), delta.transaction_version("slow")) == (2, 1)
    assert not list((table / "_delta_log").glob(f"*{DRAFT}"))


def test_a_draft_of_a_killed_process_goes_with_the_files_of_no_version(tmp_path: Path) -> None:
    clock, table = ManualClock(), tmp_path / "t"
    fs, log = PosixFileSystem(), table / "_delta_log"
    daily(fs, table)
    killed = FaultyFileSystem(fs)
    killed.operations_left = 3
    files = [made_file(table, "first", 1.0)]
    with pytest.raises(PowerCut):
        add_files(killed, clock, table, files, application="one", batch=1, offsets={})
    assert len(list(log.glob(f"*{DRAFT}"))) == 1
    # It may be one of a running process.
    clock.advance(2 * 3600)
    remove_unused(fs, clock, tmp_path, "t", hours=3)
    assert len(list(log.glob(f"*{DRAFT}"))) == 1
    clock.advance(2 * 3600)
    remove_unused(fs, clock, tmp_path, "t", hours=3)
    assert not list(log.glob(f"*{DRAFT}"))
    assert (log / f"{0:020}.json").exists()


def test_a_batch_that_a_killed_process_has_committed_is_synced_by_the_next(tmp_path: Path) -> None:
    table = tmp_path / "t"
    fs = Recorder()
    daily(fs, table)
    files = [made_file(table, "first", 1.0)]
    add = partial(add_files, fs, ManualClock(), table, files, application="one", batch=1)
    add(offsets={})
    fs.steps.clear()
    add(offsets={})
    assert f"{1:020}.json" in synced_for_good(fs, table)


@pytest.mark.parametrize("left", ["_last_checkpoint", f"{1:020}.checkpoint.parquet"])
def test_a_table_that_has_lost_its_commits_does_not_begin_again(tmp_path: Path, left: str) -> None:
    table = tmp_path / "t"
    fs = Recorder()
    daily(fs, table)
    log = table / "_delta_log"
    (log / f"{0:020}.json").rename(log / left)
    with pytest.raises(RetryError):
        daily(fs, table)
    assert [file.name for file in log.iterdir()] == [left]


def test_a_version_whose_commits_are_gone_cannot_be_restored(tmp_path: Path) -> None:
    table = tmp_path / "t"
    fs = Recorder()
    daily(fs, table)
    for batch in (1, 2):
        add_one(fs, table, batch)
    refuse_lost_version(fs, table, 1, transaction=("one", 2))
    shorten_log(fs, table, hours=0)
    with pytest.raises(UsageError, match="version 1 of table t is gone, so it cannot be restored"):
        refuse_lost_version(fs, table, 1, transaction=("one", 2))
    # A table that was not changed is not restored.
    refuse_lost_version(fs, table, 1, transaction=("one", 3))


def test_a_table_with_newer_features_gets_its_commits_from_delta_rs(tmp_path: Path) -> None:
    table = tmp_path / "t"
    fs, tables = PosixFileSystem(), OpenTables(PosixFileSystem())
    daily(fs, table)
    DeltaTable(str(table)).alter.add_feature(
        TableFeatures.ChangeDataFeed, allow_protocol_versions_increase=True
    )
    for batch in (1, 2):
        files = [made_file(table, f"{batch}", 1.0)]
        add_files(
            fs,
            ManualClock(),
            table,
            files,
            application="one",
            batch=batch,
            offsets={},
            opened=tables,
        )
    delta = DeltaTable(str(table))
    assert [commit.get("engineInfo", "").partition(":")[0] for commit in delta.history(2)] == [
        "delta-rs",
        "delta-rs",
    ]
    assert len(delta.file_uris()) == 2


def test_a_checkpoint_is_durable_before_a_commit_is_removed(tmp_path: Path) -> None:
    """A power cut must not leave a checkpoint that is empty and no commits before it."""
    table = tmp_path / "t"
    log = table / "_delta_log"
    checkpoints: dict[str, list[str]] = {}

    class Watcher(Recorder):
        def fault(self, operation: Operation, *paths: PurePath) -> Fault | None:
            if operation == "sync" and "checkpoint" in paths[-1].name:
                checkpoints[paths[-1].name] = sorted(file.name for file in log.glob("*.json"))
            return super().fault(operation, *paths)

    fs = Watcher()
    daily(fs, table)
    for batch in (1, 2):
        add_one(fs, table, batch)
    commits = [f"{number:020}.json" for number in range(3)]
    shorten_log(fs, table, hours=0)
    kept = [*commits, f"{3:020}.json"]
    assert checkpoints == {f"{3:020}.checkpoint.parquet": kept, "_last_checkpoint": kept}
    assert sorted(file.name for file in log.glob("*.json")) == kept[3:]


@pytest.mark.parametrize("change", ["swap", "restore"])
def test_a_change_leaves_no_checkpoint_that_is_not_durable(tmp_path: Path, change: str) -> None:
    """delta-rs writes a checkpoint after each 100 commits unless it is told not to."""
    table = tmp_path / "t"
    fs = Recorder()
    daily(fs, table)
    for batch in range(1, 98):
        add_one(fs, table, batch)
    for number in range(1, 5):
        if change == "swap":
            swap_all(fs, table, number)
        else:
            restore_version(fs, table, number, transaction=("one", 1))
    assert DeltaTable(str(table)).version() == 101
    made = {file.name for file in (table / "_delta_log").iterdir() if file.suffix != ".json"}
    assert made <= synced_for_good(fs, table)


@pytest.mark.parametrize("kept", [0, 9])
@pytest.mark.usefixtures("database")
def test_a_checkpoint_that_a_power_cut_has_torn_is_removed_by_the_next_job(
    path: Path, kept: int
) -> None:
    tier_all(path)
    table = lake_of(path) / "b"
    DeltaTable(str(table)).create_checkpoint()
    (torn,) = (table / "_delta_log").glob("*.parquet")
    torn.write_bytes(torn.read_bytes()[:kept])
    with pytest.raises(DeltaError, match=r"(?i)checkpoint|parquet"):
        DeltaTable(str(table)).file_uris()
    assert tier_all(path) == 0
    assert len(DeltaTable(str(table)).file_uris()) == 1
    # A whole one stays.
    DeltaTable(str(table)).create_checkpoint()
    assert tier_all(path) == 0
    assert torn.exists()


def test_a_long_log_gets_checkpoints_that_are_durable(tmp_path: Path) -> None:
    table = tmp_path / "t"
    log = table / "_delta_log"
    fs = Recorder()
    daily(fs, table)
    for batch in range(1, 102):
        add_one(fs, table, batch)
    # A reader opens the checkpoint and the commits after it.
    made = {file.name for file in log.iterdir() if file.suffix != ".json"}
    assert made == {f"{100:020}.checkpoint.parquet", "_last_checkpoint"}
    assert made <= synced_for_good(fs, table)
    delta = DeltaTable(str(table))
    assert (delta.version(), len(delta.file_uris())) == (101, 101)
