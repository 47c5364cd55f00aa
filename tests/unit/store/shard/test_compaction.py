from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

import pytest

from siltstone.errors import CorruptionError, UsageError
from siltstone.fs.paths import StorePaths
from siltstone.fs.publish import create_directories
from siltstone.store.database import Database
from siltstone.store.log.compact.rewrite import Rewritten, rewrite_segment
from siltstone.store.log.read.pieces import Row
from siltstone.store.segment.sift import index_path, read_summary
from siltstone.store.shard import compaction as compaction_module
from siltstone.store.slab.manifest import SlabId
from tests.support.builders import NAME, PATH, World, read_rows
from tests.support.compacting import compact_all
from tests.support.reading import check_everything

PLACE = StorePaths(PATH).database(NAME)


def fill(database: Database, calls: int = 3) -> None:
    for number in range(calls):
        database.append([Row("a", b"%d" % number), Row("b", b"x")]).wait()


def left_over(world: World) -> list[str]:
    return [entry.name for entry in world.fs.list(PLACE / "compacting")]


def test_segments_that_are_sealed_and_scattered_are_jobs_the_newest_first() -> None:
    world = World()
    with world.database() as database:
        for _ in range(2):
            fill(database)
            database.seal()
        database.append([Row("a", b"one frame")]).wait()
        database.seal()
        fill(database)
        jobs = database.compaction.jobs()
        assert [(job.slab.generation, job.rows, job.frames) for job in jobs] == [
            (2, 6, 4),
            (1, 6, 4),
        ]
        compact_all(database)
        assert [info.compacted for info in database.slabs()] == [1, 1, 0, 0]
    with world.database() as database:
        assert database.compaction.jobs() == []


def test_a_file_that_a_crash_left_is_in_the_way_of_nothing() -> None:
    world = World()
    with world.database() as database:
        fill(database)
        database.seal()
        (job,) = database.compaction.jobs()
        for path in (job.target, index_path(job.target)):
            create_directories(world.fs, path.parent)
            with world.fs.create(path) as file:
                file.write(b"left")
        assert database.compaction.run(job) is not None
        assert left_over(world) == []
        with world.fs.create(job.target) as file:
            file.write(b"left again")
    with world.database() as database:
        assert left_over(world) == []


def test_a_slab_that_is_dropped_during_the_work_is_gone() -> None:
    world = World()
    with world.database() as database:
        fill(database)
        database.seal()
        fill(database)
        (job,) = database.compaction.jobs()

        def rewrite(source: PurePath, target: PurePath) -> Rewritten:
            made = rewrite_segment(world.fs, source, target)
            database.drop_slab(SlabId(0, 1))
            return made

        assert database.compaction.run(job, rewrite) is None
        assert left_over(world) == []
        assert not world.fs.exists(job.source.parent)
        assert len(check_everything(database)) == 6


def test_a_slab_that_is_dropped_before_the_work_is_gone() -> None:
    world = World()
    with world.database() as database:
        fill(database)
        database.seal()
        (job,) = database.compaction.jobs()
        database.drop_slab(SlabId(0, 1))
        assert database.compaction.run(job) is None


def test_a_segment_of_files_that_were_replaced_by_those_of_another_site_stays() -> None:
    world = World()
    with world.database() as database:
        fill(database)
        database.seal()
        (job,) = database.compaction.jobs()
        assert database.compaction.run(replace(job, installs=job.installs + 1)) is None
        assert left_over(world) == []
        assert database.compaction.jobs() == [job]


def test_the_disk_space_of_a_compacted_slab_is_measured_again() -> None:
    world = World()
    with world.database() as database:
        fill(database, 100)
        database.seal()
        compact_all(database)
        (leader,) = database._shards._leading.opened  # type: ignore[union-attr]  # noqa: SLF001
        used_bytes = leader.used_bytes()
    with world.database() as database:
        (leader,) = database._shards._leading.opened  # type: ignore[union-attr]  # noqa: SLF001
        assert leader.used_bytes() == used_bytes


def test_a_damaged_segment_whose_replacement_was_cut_off_is_told_when_it_is_read() -> None:
    world = World()
    with world.database() as database:
        fill(database)
        database.seal()
        (job,) = database.compaction.jobs()
        compact_all(database)
        manifest = database._shards._leading.manifest  # type: ignore[union-attr]  # noqa: SLF001
        manifest.update(
            lambda found: found.with_slabs(
                [
                    replace(each, compacted=(), compacting=0)
                    for each in found.slabs
                    if each.generation == 1
                ]
            )
        )
    with world.fs.open(job.source, writable=True) as file:
        file.write_at(8, bytes(40))
        file.sync()
    world.fs.remove(index_path(job.source))
    with world.database() as database:
        with pytest.raises(CorruptionError) as caught:
            read_rows(database, "#")
        assert caught.value.path == job.source
        # The others go on.
        fill(database)


def test_a_segment_that_was_compacted_meanwhile_stays() -> None:
    with World().database() as database:
        fill(database)
        database.seal()
        (job,) = database.compaction.jobs()
        assert database.compaction.run(job) is not None
        assert database.compaction.run(job) is None


def test_an_error_leaves_the_old_segment_and_no_file() -> None:
    world = World()
    with world.database() as database:
        fill(database)
        database.seal()
        (job,) = database.compaction.jobs()

        def rewrite(source: PurePath, target: PurePath) -> Rewritten:
            rewrite_segment(world.fs, source, target)
            raise UsageError("stopped")

        with pytest.raises(UsageError, match="stopped"):
            database.compaction.run(job, rewrite)
        assert left_over(world) == []
        assert database.compaction.jobs() == [job]


def test_readers_of_the_writing_process_and_of_others_use_the_new_file() -> None:
    world = World()
    with world.database() as database, world.reader() as reader:
        fill(database)
        database.seal()
        before = read_rows(database, "#")
        assert read_rows(reader, "#") == before
        compact_all(database)
        (slab,) = [slab for slab in database._shards.all() if slab.id == SlabId(0, 1)]  # noqa: SLF001
        assert slab.handles()[0].segment().is_compacted
        assert read_rows(database, "#") == before
        assert read_rows(reader, "#") == before


def test_a_lost_index_of_a_compacted_segment_is_made_from_its_frames() -> None:
    world = World()
    with world.database() as database:
        fill(database)
        database.seal()
        before = check_everything(database)
        (job,) = database.compaction.jobs()
        old = world.fs.read(index_path(job.source))
        compact_all(database)
        made = world.fs.read(index_path(job.source))
    # As after a crash between the two renames whose second file was lost.
    with world.fs.open(index_path(job.source), writable=True) as file:
        file.truncate(0)
        file.write(old)
        file.sync()
    with world.reader() as reader:
        assert check_everything(reader) == before
    record = PLACE / "manifest"
    text = world.fs.read(record)
    assert b'"compacted": [0]' in text
    with world.database() as database:
        manifest = database._shards._leading.manifest  # type: ignore[union-attr]  # noqa: SLF001
        manifest.update(
            lambda found: found.with_slabs(
                [
                    type(each).from_json({**each.to_json(), "compacted": [], "compacting": 0})
                    for each in found.slabs
                    if each.generation == 1
                ]
            )
        )
    with world.database() as database:
        assert check_everything(database) == before
        summary = read_summary(world.fs, job.source)
        assert summary is not None
        assert summary.revision == 1
        assert database.compaction.jobs() == []
    # With the digest and the words.
    assert world.fs.read(index_path(job.source)) == made


def test_a_segment_of_many_small_frames_ends_after_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction_module, "SCATTERED_MIN", 4)
    world = World()
    with world.database() as database:
        fill(database, 3)
        database.compaction.end_segments()
        assert database.compaction.jobs() == []
        world.clock.advance(61.0)
        database.compaction.end_segments()
        (job,) = database.compaction.jobs()
        assert (job.slab, job.rows) == (SlabId(0, 1), 6)
        before = check_everything(database)
        compact_all(database)
        fill(database, 1)
        assert check_everything(database)[: len(before)] == before
        # Too few frames now.
        world.clock.advance(61.0)
        database.compaction.end_segments()
        assert database.compaction.jobs() == []


def test_a_store_that_is_only_read_is_not_compacted() -> None:
    world = World()
    with world.database():
        pass
    with world.reader() as reader, pytest.raises(UsageError, match="for reading only"):
        _ = reader.compaction
