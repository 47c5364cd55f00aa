from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath

import pytest

from siltstone.errors import CorruptionError, UsageError
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.fs.publish import replace_file
from siltstone.store.log.check.verify import VerifyReport, verify_database
from siltstone.store.log.read.pieces import Row
from siltstone.store.segment.segment import SegmentHeader, segment_path
from siltstone.store.slab.manifest import MANIFEST, SlabState, read_manifest, read_manifest_alone
from siltstone.topiclog.log import DATABASE as TOPICS
from tests.support.builders import PATH, World
from tests.support.damage import DATABASE, QUARANTINE, clone, read_all, small_world, verify
from tests.support.topiclog import SMALL, LogWorld, all_values, append

PLACE = PATH / "data" / TOPICS
DONE = "rebuilt from the segments with default settings, set your settings again"


def damage(fs: MemoryFileSystem, directory: PurePath, kind: str) -> None:
    path = directory / MANIFEST
    data = fs.read(path)
    fs.remove(path)
    if kind != "missing":
        with fs.create(path) as file:
            file.write({"flipped": data[:-9] + b"x" + data[-8:], "empty": b""}[kind])


def forget_origin(fs: MemoryFileSystem, directory: PurePath, shards: int) -> None:
    """Make the headers those of an earlier version: without salt and topic."""
    manifest = read_manifest(fs, directory)
    for record in manifest.slabs:
        path = segment_path(
            directory / str(record.shard) / str(record.generation), record.first_serial
        )
        with fs.open(path, writable=True) as file:
            view = file.map(writable=True)
            header = SegmentHeader.decode(view, path)
            plain = replace(header, salt=0, topic="").encode(end=0)
            view[:2048] = plain[:2048]
    assert manifest.settings.shards == shards


@pytest.mark.parametrize("kind", ["missing", "flipped", "empty"])
def test_a_lost_manifest_is_made_anew_and_every_row_is_there(kind: str) -> None:
    world = clone(small_world())
    assert isinstance(world.fs, MemoryFileSystem)
    rows, before = read_all(world), read_manifest(world.fs, DATABASE)
    damage(world.fs, DATABASE, kind)
    assert any(
        "run verify with --repair, or restore it from a backup" in found.problem
        for found in verify(world).findings
    )
    (finding,) = verify(world, repair=True).findings
    kept = "" if kind == "missing" else f"; kept as {QUARANTINE / MANIFEST}"
    assert (finding.path, finding.repaired) == (DATABASE / MANIFEST, DONE + kept)
    after = read_manifest(world.fs, DATABASE)
    assert (after.identity, after.slabs, after.seeds) == (before.identity, before.slabs, {})
    assert read_all(world) == rows
    assert verify(world).findings == ()


def test_rows_go_on_behind_those_that_were_there() -> None:
    world = clone(small_world())
    assert isinstance(world.fs, MemoryFileSystem)
    damage(world.fs, DATABASE, "flipped")
    verify(world, repair=True)
    with world.database() as database:
        assert database.append([Row("t", b"v")]).wait().first_serial() == 24


def topic_world() -> LogWorld:
    world = LogWorld()
    with world.blocks() as logs:
        for topic in ("a", "b/c", "d"):
            append(logs.add(topic), topic.encode(), b"2")
        logs.add("empty")
    return world


def repair(world: LogWorld) -> VerifyReport:
    return verify_database(world.fs, PLACE, repair=True, quarantine=QUARANTINE)


@pytest.mark.parametrize("kind", ["missing", "flipped", "empty"])
def test_topics_have_their_names_and_messages_again(kind: str) -> None:
    world = topic_world()
    damage(world.fs, PLACE, kind)
    (finding,) = repair(world).findings
    assert finding.repaired.startswith(DONE)
    with world.blocks() as logs:
        assert logs.topics() == ["a", "b/c", "d", "empty"]
        values = [all_values(log) for topic in logs.topics() if (log := logs.find(topic))]
        assert values == [[b"a", b"2"], [b"b/c", b"2"], [b"d", b"2"], []]
        append(logs.add("new"), b"1")


@pytest.mark.parametrize("kind", ["missing", "damaged"])
def test_where_only_the_journal_is_damaged_the_settings_stay(kind: str) -> None:
    world = LogWorld()
    journal = PLACE / "added.1"
    with world.blocks() as logs:
        for topic in ("a", "b", "c", "d"):
            append(logs.add(topic), topic.encode())
        # The process that had it open is killed.
        world = LogWorld(fs=world.fs.kill_clone())
    settings = read_manifest(world.fs, PLACE).settings
    if kind == "missing":
        world.fs.remove(journal)
    else:
        with world.fs.open(journal, writable=True) as file:
            file.write_at(30, b"X")
    with pytest.raises(CorruptionError, match="journal of topic logs"):
        read_manifest(world.fs, PLACE)
    (finding,) = repair(world).findings
    kept = "" if kind == "missing" else f"; kept as {QUARANTINE / journal.name}"
    assert finding.path == journal
    assert finding.repaired == "the topic logs are those of the segments" + kept
    assert read_manifest(world.fs, PLACE).settings == settings
    with world.blocks() as logs:
        assert logs.topics() == ["a", "b", "c", "d"]
        values = [all_values(log) for topic in logs.topics() if (log := logs.find(topic))]
        assert values == [[b"a"], [b"b"], [b"c"], [b"d"]]


@pytest.mark.parametrize("line", [0, 1, 2, None])
def test_a_damaged_journal_costs_nothing_that_the_manifest_or_its_other_lines_say(
    line: int | None,
) -> None:
    world = LogWorld()
    with world.store() as store:
        database = store.ensure(TOPICS, SMALL)
        logs = database.block_logs()
        for topic in ("a", "b"):
            append(logs.add(topic), topic.encode())
        database.seal()
        for topic in ("c", "d", "e"):
            append(logs.add(topic), topic.encode())
        # The process that had it open is killed.
        world = LogWorld(fs=world.fs.kill_clone())
    forget_origin(world.fs, PLACE, 5)
    known = read_manifest_alone(world.fs, PLACE)
    first = known.slabs[0]
    assert (len(known.logs), str(first.id)) == (2, "0/1")
    known = replace(
        known,
        slabs=(replace(first, state=SlabState.TIERED), known.slabs[1], *known.slabs[3:]),
        dropping=(known.slabs[2].id,),
        identified=False,
        seeds={"7/7": 7},
        reclaimed={0: 1},
    )
    replace_file(world.fs, PLACE / MANIFEST, known.encode())
    whole = read_manifest(world.fs, PLACE)
    assert whole.logs == ("a", "b", "c", "d", "e")
    journal = PLACE / f"added.{known.journal}"
    if line is None:
        world.fs.remove(journal)
    else:
        lines = world.fs.read(journal).splitlines(keepends=True)
        # Damage to the last one would be a torn line.
        lines[line] = b"X" + lines[line][1:]
        replace_file(world.fs, journal, b"".join(lines))
    repair(world)
    made = read_manifest(world.fs, PLACE)
    assert made == replace(whole, has_journal=False)


def test_a_crash_while_a_journal_is_set_aside_costs_none_of_its_lines() -> None:
    world = LogWorld()
    with world.blocks() as logs:
        for topic in ("a", "b", "c", "d"):
            logs.add(topic)
        world = LogWorld(fs=world.fs.kill_clone())
    # The segments of an earlier version name no topic, and have no row that would.
    forget_origin(world.fs, PLACE, 4)
    journal = PLACE / "added.1"
    with world.fs.open(journal, writable=True) as file:
        file.write_at(2, b"X")
    for operations in range(40):
        fs = world.fs.kill_clone()
        fs.operations_left = operations
        with suppress(PowerCut):
            verify_database(fs, PLACE, repair=True, quarantine=QUARANTINE)
        again = LogWorld(fs=fs.crash_clone())
        repair(again)
        assert read_manifest(again.fs, PLACE).logs == ("a", "b", "c", "d")


def test_segments_of_an_earlier_version_tell_the_names_by_their_rows() -> None:
    world = topic_world()
    forget_origin(world.fs, PLACE, 4)
    with world.blocks() as logs:
        assert logs.topics() == ["a", "b/c", "d", "empty"]
    before = read_manifest(world.fs, PLACE)
    damage(world.fs, PLACE, "flipped")
    repair(world)
    after = read_manifest(world.fs, PLACE)
    # The salt is lost with the manifest, and the identity with the salt.
    assert after.identity != before.identity
    assert sorted(after.seeds) == ["0/1", "1/1", "2/1", "3/1"]
    with world.blocks() as logs:
        assert logs.topics() == ["a", "b/c", "d"]
        found = logs.find("b/c")
        assert found is not None
        assert (all_values(found), append(found, b"3")) == ([b"b/c", b"2"], 2)


def test_a_shard_of_which_nothing_is_left_keeps_the_manifest_from_being_made() -> None:
    world = topic_world()
    damage(world.fs, PLACE, "flipped")
    world.fs.remove(segment_path(PLACE / "1" / "1", 0))
    (finding,) = repair(world).findings
    assert (finding.problem, finding.repaired) == (
        (
            "the manifest does not match its checksum; run verify with --repair, or restore it "
            "from "
            "a backup"
        ),
        "",
    )


def test_what_is_being_dropped_gets_no_manifest() -> None:
    world = topic_world()
    damage(world.fs, PLACE, "missing")
    world.fs.create(PLACE / "dropping").close()
    repair(world)
    assert not world.fs.exists(PLACE / MANIFEST)


def test_rows_of_others_are_refused_before_the_first_topic_exists() -> None:
    world = LogWorld()
    with world.store() as store:
        database = store.ensure(TOPICS, SMALL)
        database.block_logs()
        with pytest.raises(UsageError, match="has topic logs: send messages to a topic log"):
            database.append([Row("t", b"v")])


def test_a_database_with_other_rows_does_not_become_one_of_topic_logs() -> None:
    world = World()
    with world.database() as database:
        database.append([Row("t", b"v")]).wait()
        with pytest.raises(
            UsageError,
            match="has rows that do not belong to topic logs: move them to another database",
        ):
            database.block_logs()


def test_a_damaged_manifest_is_still_refused_by_an_open() -> None:
    world = topic_world()
    damage(world.fs, PLACE, "flipped")
    with pytest.raises(CorruptionError), world.blocks():
        pass
