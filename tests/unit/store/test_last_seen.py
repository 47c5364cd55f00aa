from __future__ import annotations

import pytest

from siltstone.clock import Sighting
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.paths import CLOCK
from siltstone.fs.publish import create_directories
from siltstone.store.last_seen import newest_row_us, read_last_seen, write_last_seen
from siltstone.store.log.read.pieces import Row
from tests.support.builders import NAME, NOW_US, PATH, World

SEEN = Sighting(
    time_us=7,
    monotonic=1.5,
    boot="b",
    is_anchored=False,
    ahead_us=-3,
    ahead_since=1.25,
    held_from_us=4,
    held_until_us=5,
    held_since=1.0,
    went_back=True,
)


def new_disk() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    create_directories(fs, PATH)
    return fs


def test_a_sighting_comes_back_whole_and_the_last_one_counts() -> None:
    fs = new_disk()
    write_last_seen(fs, PATH, Sighting(time_us=1))
    write_last_seen(fs, PATH, SEEN)
    assert read_last_seen(fs, PATH) == SEEN
    assert fs.read(PATH / CLOCK).splitlines()[0] == b"siltstone-clock 1 14c58449"


def test_there_is_none_before_the_first() -> None:
    assert read_last_seen(new_disk(), PATH) is None


@pytest.mark.parametrize("keep", [0, 5, 30])
def test_a_damaged_one_is_none(keep: int) -> None:
    fs = new_disk()
    write_last_seen(fs, PATH, SEEN)
    data = fs.read(PATH / CLOCK)
    with fs.create(PATH / "other") as file:
        file.write(data[:keep] + b"?" + data[keep + 1 :])
    fs.rename(PATH / "other", PATH / CLOCK)
    assert read_last_seen(fs, PATH) is None


def test_the_newest_row_of_all_databases_tells_a_time() -> None:
    world = World()
    places = [PATH / "data" / name for name in (NAME, "other")]
    assert newest_row_us(world.fs, []) is None
    with world.database(shards=2) as database:
        assert newest_row_us(world.fs, places) == NOW_US - 1
        world.clock.advance(1)
        database.append([Row("t", b"v", publisher="p")]).wait()
        database.seal()
        database.append([Row("t", b"v", publisher="p")]).wait()
    # A database that is not there tells nothing.
    assert newest_row_us(world.fs, places) == NOW_US + 1_000_001
