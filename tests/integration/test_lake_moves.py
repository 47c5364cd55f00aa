"""Tables follow the structure of topics: rows move when a level varies, exactly once."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import siltstone
from siltstone.errors import NotFoundError, RetryError, UsageError
from siltstone.fs.faulty import FaultyFileSystem
from siltstone.fs.memory import PowerCut
from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.jobs import rewriting
from siltstone.pipeline.jobs.audit import read_batches
from siltstone.pipeline.jobs.upkeep import vacuum_lake
from siltstone.pipeline.lake.delta import present_tables, swap_files
from siltstone.pipeline.lake.tables.rewrite import REWRITE, read_rewrites
from siltstone.pipeline.table import find_seam, row_files
from siltstone.scan.options import ReadOptions
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.builders import settings_of
from tests.support.lake import DATABASE, lake_of, read_table, tier_all, tiered_rows, tiering
from tests.support.pipeline import stored_rows

FS = PosixFileSystem()
# More changes of the disk than a batch with a move makes.
OPERATIONS_MAX = 120


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with siltstone.open(path) as store:
        yield store.create(DATABASE, settings_of(shards=2, shard_by="topic"))


def append(database: Database, *topics: str, **fields: Any) -> None:
    document = {"value": 1.5, "unit": "C"} | fields
    database.append([Row(topic, json.dumps(document).encode()) for topic in topics]).wait()


def tables(path: Path) -> dict[str, int]:
    """Return the rows of each table that is there."""
    names = present_tables(FS, lake_of(path))
    return {name: read_table(path, name).num_rows for name in names}


def seen(path: Path) -> list[tuple[int, int]]:
    """Return the places of all rows that readers find."""
    seam = find_seam(FS, ReadOptions(path=str(path), database=DATABASE))
    places: list[tuple[int, int]] = []
    for files in row_files(FS, seam).values():
        for file in files:
            table = pq.ParquetFile(file.path).read(columns=["shard", "serial"])
            places += [(row["shard"], row["serial"]) for row in table.to_pylist()]
    return sorted(places)


def stored_places(database: Database) -> list[tuple[int, int]]:
    return sorted((row["shard"], row["serial"]) for row in stored_rows(database, ["#"]))


def test_devices_of_four_benches_have_one_table_from_the_first_row(
    database: Database, path: Path
) -> None:
    for bench in range(4):
        append(database, *(f"bench/{bench}/device/{n}/telemetry" for n in range(bench * 8 + 1)))
        tier_all(path)
    assert tables(path) == {"bench_device_telemetry": 1 + 9 + 17 + 25}
    row = read_table(path, "bench_device_telemetry").to_pylist()[-1]
    assert row["topic"] == f"bench/{row['bench']}/device/{row['device']}/telemetry"


def test_216_kinds_of_first_words_have_a_table_each_and_no_field_is_left_out(
    database: Database, path: Path
) -> None:
    for word in range(216):
        name = f"{chr(97 + word % 26)}{chr(97 + word // 26)}app"
        append(
            database, *(f"{name}/{n}/state" for n in range(3)), **{f"f{word}_{n}": n for n in "abc"}
        )
    tier_all(path)
    found = tables(path)
    assert (len(found), set(found.values())) == (216, {3})
    assert "f25_a" in read_table(path, "zaapp_state").column_names


def test_a_structure_without_constant_words_is_called_after_what_its_words_begin_with(
    database: Database, path: Path
) -> None:
    append(database, *(f"sensor-{n}" for n in range(3)))
    tier_all(path)
    assert tables(path) == {"sensor": 3}


def test_rows_move_to_the_general_table_when_a_level_varies(database: Database, path: Path) -> None:
    append(database, "home/kitchen/heat", "home/kitchen/light")
    tier_all(path)
    assert tables(path) == {"home_kitchen_heat": 1, "home_kitchen_light": 1}
    append(database, "home/bath/heat", "home/bath/light", late=True)
    tier_all(path)
    assert tables(path) == {"home_heat": 2, "home_light": 2}
    assert {row["home"]: row["late"] for row in read_table(path, "home_heat").to_pylist()} == {
        "kitchen": None,
        "bath": True,
    }
    assert tiered_rows(path) == stored_rows(database, ["#"])
    assert read_rewrites(FS, lake_of(path)).target("home_kitchen_heat") in tables(path)


def test_an_audit_knows_the_batches_of_a_table_whose_rows_have_moved(
    database: Database, path: Path
) -> None:
    append(database, "site/line1/state")
    tier_all(path)
    append(database, "site/line2/state")
    tier_all(path)
    seam = find_seam(FS, ReadOptions(path=str(path), database=DATABASE))
    known = read_batches(seam.lake, list(row_files(FS, seam)))
    spans = {shard: sorted(spans, key=lambda span: span.start) for shard, spans in known.items()}
    for shard, stop in seam.position.items():
        assert (spans[shard][0].start, spans[shard][-1].stop) == (0, stop)


def test_a_move_is_one_transaction_of_each_table(database: Database, path: Path) -> None:
    append(database, "site/line1/state")
    tier_all(path)
    append(database, "site/line2/state")
    tier_all(path)
    (target,) = tables(path)
    place = str(lake_of(path) / target)
    counts = [
        DeltaTable(place, version=version).to_pyarrow_table().num_rows
        for version in range(DeltaTable(place).version() + 1)
    ]
    assert counts == [0, 1, 2]


def test_dead_letters_come_with_their_table(database: Database, path: Path) -> None:
    append(database, *["site/line1/state"] * 4)
    database.append([Row("site/line1/state", b"none"), Row("note", b"\xff")]).wait()
    tier_all(path)
    append(database, "site/line2/state")
    tier_all(path)
    assert tables(path) == {"dead_letter": 1, "note": 1, "site_state": 5}
    (dead,) = read_table(path, "dead_letter").to_pylist()
    assert (dead["table"], dead["payload"]) == ("site_state", b"none")
    assert tiered_rows(path) == stored_rows(database, ["#"])


def prepare(database: Database, path: Path) -> None:
    """Write rows to tables that the next batch makes one."""
    append(database, *["home/kitchen/heat"] * 4, "home/kitchen/light", "other/x")
    database.append([Row("home/kitchen/heat", b"none")]).wait()
    tier_all(path)
    append(database, "home/bath/heat", "home/bath/light")


@pytest.mark.parametrize("changes", range(6))
def test_a_job_that_is_killed_between_the_tables_of_a_move_is_completed_by_the_next(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    prepare(database, path)
    before = seen(path)
    left = [changes]

    def swap_some(*given: Any, **options: Any) -> None:
        if not left[0]:
            raise PowerCut
        left[0] -= 1
        swap_files(*given, **options)
        assert seen(path) == before

    with monkeypatch.context() as patched:
        patched.setattr(rewriting, "swap_files", swap_some)
        if changes < 5:
            with pytest.raises(PowerCut):
                tier_all(path)
            assert seen(path) == before
        else:
            tier_all(path)
    tier_all(path)
    assert tables(path) == {"dead_letter": 1, "home_heat": 5, "home_light": 2, "other_x": 1}
    assert tiered_rows(path) == stored_rows(database, ["#"])
    assert seen(path) == stored_places(database)


def test_a_power_cut_at_any_step_of_a_move_leaves_each_row_once(
    database: Database, path: Path
) -> None:
    rng = random.Random(7)
    prepare(database, path)
    before = seen(path)
    cuts = 0
    for turn in range(20):
        fs = FaultyFileSystem(PosixFileSystem())
        fs.operations_left = rng.randrange(OPERATIONS_MAX)
        try:
            tier_all(path, fs)
        except PowerCut:
            cuts += 1
        found = seen(path)
        assert set(before) <= set(found)
        assert len(found) == len(set(found))
        append(database, f"room{turn}/a/heat", f"room{turn}/a/light")
    assert cuts > 5
    tier_all(path)
    assert tiered_rows(path) == stored_rows(database, ["#"])
    assert read_rewrites(FS, lake_of(path)).open is None


def test_rules_of_an_earlier_version_keep_their_tables(database: Database, path: Path) -> None:
    append(database, "site/line1/state")
    tier_all(path)
    (lake_of(path) / REWRITE).unlink()
    append(database, "site/line2/state", "site/line3/state")
    tier_all(path)
    assert tables(path) == {"site_line1_state": 1, "site_state": 2}


def interrupt(path: Path, monkeypatch: pytest.MonkeyPatch, changes: int) -> None:
    """Kill a job after some tables of a move were changed."""
    left = [changes]

    def swap_some(*given: Any, **options: Any) -> None:
        if not left[0]:
            raise PowerCut
        left[0] -= 1
        swap_files(*given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(rewriting, "swap_files", swap_some)
        with pytest.raises(PowerCut):
            tier_all(path)


@pytest.mark.parametrize("changes", range(5))
def test_a_move_that_was_interrupted_can_be_given_up(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    prepare(database, path)
    before, there = seen(path), tables(path)
    rules = (lake_of(path) / "rules.toml").read_bytes()
    interrupt(path, monkeypatch, changes)
    done = rewriting.give_up(str(path))
    assert (len(done.tables), done.kept_rules) == (5, None)
    assert (seen(path), (lake_of(path) / "rules.toml").read_bytes()) == (before, rules)
    assert {name: rows for name, rows in tables(path).items() if rows} == there
    with pytest.raises(NotFoundError, match=r"no rewrite of tables in .* was interrupted"):
        rewriting.give_up(str(path))
    # The next job moves the rows after all.
    tier_all(path)
    assert tables(path) == {"dead_letter": 1, "home_heat": 5, "home_light": 2, "other_x": 1}
    assert tiered_rows(path) == stored_rows(database, ["#"])
    assert seen(path) == stored_places(database)


@pytest.mark.parametrize("ends_in", ["give up", "tier"])
def test_a_power_cut_while_a_move_is_given_up_leaves_each_row_once(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch, ends_in: str
) -> None:
    prepare(database, path)
    before = seen(path)
    interrupt(path, monkeypatch, 3)
    kept = path.with_name("kept")
    shutil.copytree(path / "lake", kept)
    cuts = 0
    for operations in range(OPERATIONS_MAX):
        shutil.rmtree(path / "lake")
        shutil.copytree(kept, path / "lake")
        fs = FaultyFileSystem(PosixFileSystem())
        fs.operations_left = operations
        try:
            rewriting.give_up(str(path), fs=fs)
        except PowerCut:
            cuts += 1
            assert seen(path) == before
            is_given_up = (opened := read_rewrites(FS, lake_of(path)).open) and opened.given_up
            if ends_in == "give up" or not is_given_up:
                continue
            # The job goes on undoing what was given up, and does not complete it.
            with tiering(path) as job:
                job._rewrites()  # noqa: SLF001 - the state before a batch
                monkeypatch.setattr(rewriting, "swap_files", None)
                job._rewriter.finish()  # noqa: SLF001 - without the batch that moves them again
                monkeypatch.undo()
            assert seen(path) == before
        else:
            break
    assert cuts > 5
    assert seen(path) == before
    tier_all(path)
    assert tiered_rows(path) == stored_rows(database, ["#"])
    assert seen(path) == stored_places(database)


def state(path: Path) -> dict[str, bytes]:
    """Return the files that say what the lake is."""
    files = [file for file in lake_of(path).rglob("*") if file.is_file()]
    return {str(file): file.read_bytes() for file in files if file.suffix != ".parquet"}


@pytest.mark.parametrize("changes", range(5))
def test_a_move_from_a_table_that_was_removed_is_completed_and_not_given_up(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    """The tables that the rows moved to have the only copy of them."""
    prepare(database, path)
    interrupt(path, monkeypatch, changes)
    shutil.rmtree(lake_of(path) / "home_kitchen_heat")
    before = state(path)
    with pytest.raises(UsageError, match="table home_kitchen_heat is gone: giving up would also"):
        rewriting.give_up(str(path))
    assert state(path) == before
    tier_all(path)
    assert tables(path) == {"dead_letter": 1, "home_heat": 5, "home_light": 2, "other_x": 1}
    assert tiered_rows(path) == stored_rows(database, ["#"])


def test_a_move_to_a_table_that_was_removed_can_be_given_up(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(database, path)
    before = seen(path)
    interrupt(path, monkeypatch, 4)
    shutil.rmtree(lake_of(path) / "home_heat")
    with pytest.raises(RetryError):
        tier_all(path)
    assert "home_heat" not in rewriting.give_up(str(path)).tables
    assert seen(path) == before
    tier_all(path)
    assert tiered_rows(path) == stored_rows(database, ["#"])


def test_a_move_whose_earlier_files_are_gone_is_completed_and_not_given_up(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(database, path)
    interrupt(path, monkeypatch, 4)
    for file in lake_of(path).glob("home_kitchen_*/**/*.parquet"):
        file.unlink()
    before = state(path)
    with pytest.raises(
        UsageError, match=r"a file of version \d+ of table home_kitchen_\w+ is gone"
    ):
        rewriting.give_up(str(path))
    assert state(path) == before
    tier_all(path)
    assert tiered_rows(path) == stored_rows(database, ["#"])


def test_rules_that_were_changed_before_a_move_is_given_up_are_kept_as_a_version(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(database, path)
    file = lake_of(path) / "rules.toml"
    before = file.read_text()
    interrupt(path, monkeypatch, 3)
    own = f'{file.read_text()}\n# Mine.\n[[rule]]\nfilter = "mine/#"\ntable = "mine"\n'
    file.write_text(own)
    kept = rewriting.give_up(str(path)).kept_rules
    assert kept is not None
    assert file.read_text() == before
    version = lake_of(path) / "schemas" / f"{kept:08}.toml"
    assert version.read_text().partition("\n")[2] == own


def test_a_move_of_an_earlier_build_without_the_rules_before_it_is_not_given_up(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(database, path)
    interrupt(path, monkeypatch, 3)
    file = lake_of(path) / REWRITE
    content = json.loads(file.read_text())
    del content["open"]["before"]
    file.write_text(json.dumps(content))
    before = state(path)
    with pytest.raises(UsageError, match="did not note the rules before it"):
        rewriting.give_up(str(path))
    assert state(path) == before


def test_maintenance_says_what_to_do_about_a_move_that_is_open_or_given_up(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(database, path)
    interrupt(path, monkeypatch, 3)
    with pytest.raises(RetryError, match="was interrupted; run 'siltstone pipeline tier', which c"):
        vacuum_lake(str(path))
    with monkeypatch.context() as patched:
        patched.setattr(rewriting, "restore_version", None)
        with pytest.raises(TypeError):
            rewriting.give_up(str(path))
    with pytest.raises(RetryError, match="was given up, but is not yet undone; run 'siltstone pip"):
        vacuum_lake(str(path))
