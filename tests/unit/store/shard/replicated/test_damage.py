"""Damage in sealed segments: the digest of rows finds it, and it is remembered."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.errors import CorruptionError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.publish import create_directories
from siltstone.store.log.check.findings import Finding
from siltstone.store.log.compact.rewrite import rewrite_segment
from siltstone.store.log.read.pieces import Row
from siltstone.store.segment.chain import SegmentHandle
from siltstone.store.segment.sift import index_path
from siltstone.store.shard.replicated.damage import (
    digest_of_rows,
    forget_damaged,
    read_damaged,
    remember_findings,
    write_damaged,
)
from tests.support.builders import PATH, World, begun, call_of

DIRECTORY = PurePath("/store/data/m")


def sealed(world: World, *calls: list[Row]) -> SegmentHandle:
    committer = begun(world)
    for rows in calls:
        committer.commit([call_of(*rows)])
    committer.seal(*committer.state())
    return committer.slab.chain.handles[-1]


def test_a_compacted_segment_has_the_digest_of_the_one_before() -> None:
    world = World()
    source = sealed(
        world, [Row("b", b"1"), Row("a", b"2")], [Row("a", b"3"), Row("c", b"")], [Row("b", b"4")]
    )
    made = rewrite_segment(world.fs, source.path, PATH / "made.seg")
    assert digest_of_rows(world.fs, source.path.parent, source.path.name) == made.digest
    assert digest_of_rows(world.fs, PATH, "made.seg") == made.digest


def test_other_rows_have_another_digest() -> None:
    found = set[bytes]()
    for value in (b"1", b"2"):
        world = World()
        path = sealed(world, [Row("a", value)]).path
        found.add(digest_of_rows(world.fs, path.parent, path.name))
    assert len(found) == 2


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_a_flipped_bit_in_a_frame_is_found(part: float) -> None:
    world = World()
    handle = sealed(world, [Row("a", bytes(300))], [Row("a", bytes(300))])
    segment = handle.segment()
    start = segment.index.positions[1]
    at = start + int((segment.index.end_position - start) * part)
    with world.fs.open(handle.path, writable=True) as file:
        file.write_at(at, bytes([file.read_at(at, 1)[0] ^ 4]))
    with pytest.raises(CorruptionError):
        digest_of_rows(world.fs, handle.path.parent, handle.path.name)


def test_a_damaged_index_is_found() -> None:
    world = World()
    handle = sealed(world, [Row("a", b"1")])
    with world.fs.open(index_path(handle.path), writable=True) as file:
        at = file.size() - 9
        file.write_at(at, bytes([file.read_at(at, 1)[0] ^ 4]))
    with pytest.raises(CorruptionError):
        digest_of_rows(world.fs, handle.path.parent, handle.path.name)


def test_damage_is_remembered_durably_until_it_is_repaired() -> None:
    fs = MemoryFileSystem()
    create_directories(fs, DIRECTORY)
    assert read_damaged(fs, DIRECTORY, 0) == frozenset()
    write_damaged(fs, DIRECTORY, 0, ["1/00.seg"])
    write_damaged(fs, DIRECTORY, 0, ["2/00.seg"])
    assert read_damaged(fs.crash_clone(), DIRECTORY, 0) == {"1/00.seg", "2/00.seg"}
    assert read_damaged(fs, DIRECTORY, 1) == frozenset()
    forget_damaged(fs, DIRECTORY, 0)
    forget_damaged(fs, DIRECTORY, 0)
    assert read_damaged(fs.crash_clone(), DIRECTORY, 0) == frozenset()


def test_what_verify_repairs_is_left_to_the_other_sites() -> None:
    fs = MemoryFileSystem()
    create_directories(fs, DIRECTORY)
    segment = f"{7:020d}.seg"
    findings = [
        Finding(path=DIRECTORY / "2" / "1" / segment, offset=9, problem="damaged", repaired="cut"),
        Finding(path=DIRECTORY / "2" / "1" / f"{8:020d}.idx", offset=0, problem="unlike"),
        Finding(
            path=DIRECTORY / "2" / "1" / f"{9:020d}.seg", offset=0, problem="x", severity="note"
        ),
        Finding(path=DIRECTORY / "manifest", offset=0, problem="damaged"),
    ]
    told = remember_findings(fs, DIRECTORY, findings)
    later = "the site copies it from another one when it starts"
    assert [each.repaired for each in told] == [f"cut; {later}", later, "", ""]
    assert read_damaged(fs, DIRECTORY, 2) == {f"1/{segment}", f"1/{8:020d}.seg"}
    assert read_damaged(fs, DIRECTORY, 0) == frozenset()
