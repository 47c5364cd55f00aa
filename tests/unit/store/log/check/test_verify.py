from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath

import pytest

from siltstone.fs.publish import remove_tree
from siltstone.store.log.check.findings import Finding
from siltstone.store.log.check.verify import (
    VerifyReport,
    manifest_problems,
    verify_database,
)
from siltstone.store.log.read.pieces import Row
from siltstone.store.segment.segment import segment_path
from siltstone.store.segment.sift import index_path
from siltstone.store.slab.manifest import (
    MANIFEST,
    Manifest,
    SlabId,
    SlabRecord,
    SlabState,
    read_manifest,
)
from siltstone.store.slab.settings import DatabaseSettings
from tests.support.builders import World, rows_on
from tests.support.damage import (
    CURRENT,
    DATABASE,
    FRAME_ROWS,
    FRAMES,
    QUARANTINE,
    SEALED,
    damage_in,
    flip,
    frames_of,
    small_world,
    verify,
)

HERE = PurePath("/data/data/plant")


def record(shard: int, generation: int, since_us: int, until_us: int | None) -> SlabRecord:
    return SlabRecord(
        shard=shard,
        generation=generation,
        state=SlabState.CURRENT if until_us is None else SlabState.SEALED,
        since_us=since_us,
        until_us=until_us,
        created_us=since_us,
    )


def sound_manifest() -> Manifest:
    """Return two shards; the second has lost a generation in between to a drop."""
    return Manifest(
        database="plant",
        salt=1,
        settings=DatabaseSettings(shards=2),
        slabs=(
            record(0, 1, 10, 20),
            record(0, 2, 20, None),
            record(1, 1, 10, 20),
            record(1, 3, 30, None),
        ),
        dropping=(SlabId(1, 2),),
    )


def rewrite(world: World, change: Callable[[Manifest], Manifest]) -> None:
    """Put another manifest in the place of the database's own."""
    manifest = change(read_manifest(world.fs, DATABASE))
    world.fs.remove(DATABASE / MANIFEST)
    with world.fs.create(DATABASE / MANIFEST) as file:
        file.write(manifest.encode())


class TestManifest:
    def test_a_sound_one_has_no_problems(self) -> None:
        assert manifest_problems(sound_manifest(), HERE) == []

    @pytest.mark.parametrize(
        ("slabs", "problems"),
        [
            (
                (record(0, 1, 10, 20), record(0, 2, 21, None)),
                ["slab 0/2 does not begin where 0/1 ends"],
            ),
            (
                (record(0, 1, 10, 20), record(0, 3, 19, None)),
                ["slab 0/3 does not begin where 0/1 ends"],
            ),
            (
                (record(0, 1, 10, 20),),
                ["shard 0 must have one current slab, the newest"],
            ),
            ((), ["shard 0 must have one current slab, the newest"]),
            (
                (record(0, 1, 10, None), record(0, 2, 20, None)),
                ["shard 0 must have one current slab, the newest"],
            ),
            (
                (replace(record(0, 1, 10, None), until_us=20),),
                ["slab 0/1 is current but until_us=20"],
            ),
            (
                (record(0, 1, 30, 20), record(0, 2, 20, None)),
                ["slab 0/1 ends before it begins"],
            ),
            (
                (replace(record(0, 1, 10, 20), first_serial=9), record(0, 2, 20, None)),
                ["slab 0/2 has lower serials than 0/1"],
            ),
            (
                (record(0, 1, 10, None), record(7, 1, 10, None)),
                ["slab 7/1 belongs to an unknown shard: shards=1"],
            ),
        ],
    )
    def test_slabs_that_cannot_be_are_told(
        self, slabs: tuple[SlabRecord, ...], problems: list[str]
    ) -> None:
        manifest = replace(
            sound_manifest(), settings=DatabaseSettings(shards=1), slabs=slabs, dropping=()
        )
        assert manifest_problems(manifest, HERE) == problems

    def test_a_slab_named_twice_is_told(self) -> None:
        manifest = sound_manifest()
        twice = replace(manifest, slabs=(*manifest.slabs, manifest.slabs[1]))
        assert "slab 0/2 is repeated" in manifest_problems(twice, HERE)

    def test_a_slab_that_is_there_and_dropped_is_told(self) -> None:
        manifest = replace(sound_manifest(), dropping=(SlabId(0, 1),))
        assert manifest_problems(manifest, HERE) == [
            "slab 0/1 is listed as existing and as dropped"
        ]

    def test_the_manifest_of_another_database_is_told(self) -> None:
        problems = manifest_problems(sound_manifest(), HERE.with_name("other"))
        assert problems == ["the manifest belongs to database 'plant'"]

    def test_a_missing_one_is_all_that_is_told(self) -> None:
        world = small_world()
        world.fs.remove(DATABASE / MANIFEST)
        assert verify(world) == VerifyReport(
            findings=(
                Finding(
                    path=DATABASE / MANIFEST,
                    offset=0,
                    problem=(
                        "the manifest is missing; run verify with --repair, or restore it from a "
                        "backup"
                    ),
                ),
            ),
            segments=0,
            frames=0,
            rows=0,
            bytes=0,
        )

    def test_problems_of_the_manifest_are_damage(self) -> None:
        world = small_world()
        rewrite(world, lambda manifest: replace(manifest, dropping=(SlabId(0, 1),)))
        assert damage_in(verify(world)) == [(DATABASE / MANIFEST, 0)]


class TestWhole:
    def test_a_whole_database_is_counted_and_nothing_is_changed(self) -> None:
        world = small_world()
        ends = [frames_of(world.fs, path)[-1].stop for path in (SEALED, CURRENT)]
        assert verify(world) == VerifyReport(
            findings=(),
            segments=2,
            frames=2 * (FRAMES + 1),
            rows=2 * FRAMES * FRAME_ROWS,
            bytes=sum(ends),
        )
        assert not world.fs.exists(QUARANTINE)

    @pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
    def test_shards_generations_rolls_and_restarts_keep_every_invariant(
        self, compression: str
    ) -> None:
        world = World()
        settings = {"shards": 2, "compression": compression, "thresholds": (3, 1)}
        for run in range(2):
            with world.database(**settings) as database:
                for number in range(12):
                    rows = [
                        Row(
                            f"r{run}/{number % 5}/t{row}",
                            bytes([number]) * 1500 * (row % 3),
                            publisher=f"p{row}",
                            qos=row % 3,
                        )
                        for row in range(8)
                    ]
                    durability = ("synced", "written")[number % 2]
                    database.append(
                        rows,
                        durability=durability,  # type: ignore[arg-type]
                        producer=("p", 100 * run + number),
                    ).wait()
                    if number == 7:
                        database.seal()
        report = verify(world)
        assert (report.findings, report.rows) == ((), 2 * 12 * 8)

    def test_a_gap_that_unsynced_rows_left_is_no_damage(self) -> None:
        world = World()
        with world.database() as database:
            database.append(rows_on("a")).wait()
            database.append(rows_on("b"), durability="written").wait()
            assert hasattr(world.fs, "crash_clone")
            after = World(fs=world.fs.crash_clone(), clock=world.clock)
        with after.database() as database:
            database.append(rows_on("c")).wait()
        assert verify(after).findings == ()

    def test_a_database_that_is_being_written_is_checked_as_far_as_readers_see(self) -> None:
        world = World()
        with world.database() as database:
            for number in range(3):
                database.append(rows_on(f"t/{number}")).wait()
                report = verify(world)
                assert (report.findings, report.rows) == ((), number + 1)


class TestFiles:
    def test_a_missing_directory_of_a_slab_is_damage(self) -> None:
        world = small_world()
        remove_tree(world.fs, SEALED.parent)
        assert verify(world).findings == (
            Finding(path=SEALED.parent, offset=0, problem="files of the slab are missing"),
        )

    def test_a_slab_without_segments_is_damage(self) -> None:
        world = small_world()
        world.fs.remove(CURRENT)
        assert verify(world).findings == (
            Finding(path=CURRENT.parent, offset=0, problem="the slab does not have a segment"),
        )

    def test_an_index_without_its_segment_is_damage(self) -> None:
        world = small_world()
        world.fs.remove(SEALED)
        assert (SEALED, 0) in damage_in(verify(world))

    def test_a_segment_that_begins_too_early_is_damage(self) -> None:
        world = small_world()
        early = segment_path(CURRENT.parent, 3)
        world.fs.rename(CURRENT, early)
        assert verify(world).findings[-1] == Finding(
            path=CURRENT.parent,
            offset=0,
            problem="a segment is missing: the first one must begin with serial 12",
        )

    def test_segments_that_overlap_are_damage(self) -> None:
        world = small_world()
        rewrite(
            world,
            lambda manifest: replace(
                manifest,
                slabs=(manifest.slabs[0], replace(manifest.slabs[1], first_serial=5)),
            ),
        )
        problem = "its serials reach to 12, but 5 begins the next"
        assert Finding(path=SEALED, offset=0, problem=problem) in verify(world).findings

    def test_a_slab_that_another_process_drops_meanwhile_is_passed_over(self) -> None:
        world = small_world()
        sealed = read_manifest(world.fs, DATABASE).slabs[0].id
        fs = _Dropping(world, sealed)
        report = verify_database(fs, DATABASE, quarantine=QUARANTINE)  # type: ignore[arg-type]
        assert (report.findings, report.rows) == ((), FRAMES * FRAME_ROWS)

    def test_what_is_left_of_a_dropped_slab_is_noted(self) -> None:
        world = small_world()
        rewrite(
            world,
            lambda manifest: replace(manifest, slabs=manifest.slabs[1:], dropping=(SlabId(0, 1),)),
        )
        assert verify(world).findings == (
            Finding(
                path=SEALED.parent,
                offset=0,
                problem="a dropped slab; the next start removes it",
                severity="note",
            ),
        )

    @pytest.mark.parametrize(
        ("name", "problem"),
        [
            ("0/3", "a slab that is not in the manifest"),
            ("0/x", "not a file of the store; it stays as it is"),
            ("9", "not a file of the store; it stays as it is"),
            ("0/1/y.tmp", "a file that a crash left; the next start removes it"),
        ],
    )
    def test_names_that_nobody_expects_are_noted(self, name: str, problem: str) -> None:
        world = small_world()
        world.fs.make_directory(DATABASE / name)
        assert verify(world).findings == (
            Finding(path=DATABASE / name, offset=0, problem=problem, severity="note"),
        )


class _Dropping:
    """The disk of a world in which a slab is dropped as soon as somebody lists its files."""

    def __init__(self, world: World, slab: SlabId) -> None:
        self._world = world
        self._slab = slab
        self._place = DATABASE / str(slab.shard) / str(slab.generation)

    def __getattr__(self, name: str) -> object:
        return getattr(self._world.fs, name)

    def list(self, path: PurePath) -> object:
        if path == self._place and self._world.fs.exists(path):
            rewrite(
                self._world,
                lambda manifest: replace(
                    manifest,
                    slabs=tuple(item for item in manifest.slabs if item.id != self._slab),
                ),
            )
            remove_tree(self._world.fs, path)
        return self._world.fs.list(path)


class TestReport:
    def test_notes_are_no_damage(self) -> None:
        note = Finding(path=HERE, offset=0, problem="odd", severity="note")
        report = VerifyReport(findings=(note,), segments=0, frames=0, rows=0, bytes=0)
        assert not report.damaged

    def test_what_was_repaired_is_told_before_what_is_left(self) -> None:
        world = small_world()
        flip(world.fs, index_path(SEALED), 90)
        world.fs.make_directory(DATABASE / "0" / "x")
        report = verify(world, repair=True)
        assert [
            (found.path, found.severity, bool(found.repaired)) for found in report.findings
        ] == [
            (index_path(SEALED), "damage", True),
            (DATABASE / "0" / "x", "note", False),
        ]
        assert report.damaged
