from __future__ import annotations

from pathlib import PurePath

from siltstone.errors import SiltstoneError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.slab.space import Space

MIB = 1024 * 1024
DIRECTORY = PurePath("/data")
SETTINGS = DatabaseSettings(reserve_bytes=1 * MIB, quota_bytes=50 * MIB)


def new_disk(free_bytes: int) -> MemoryFileSystem:
    fs = MemoryFileSystem(page_bytes=MIB, capacity_bytes=free_bytes)
    fs.make_directory(DIRECTORY)
    return fs


def refusal(space: Space, used_bytes: int, size_bytes: int) -> str:
    found: SiltstoneError | None = space.refusal(
        "messages", SETTINGS, used_bytes=used_bytes, size_bytes=size_bytes
    )
    return "" if found is None else str(found)


def test_a_quota_refuses_what_would_pass_it() -> None:
    space = Space(new_disk(100 * MIB), DIRECTORY)
    assert refusal(space, 49 * MIB, MIB) == ""
    assert refusal(space, 49 * MIB, MIB + 1) == (
        "database 'messages' has no room for these rows in its quota, drop sealed slabs or raise "
        "the quota: used_bytes=51380224 needed_bytes=1048577 quota_bytes=52428800"
    )
    assert refusal(space, 50 * MIB, 1) == (
        "database 'messages' has reached its quota, drop sealed slabs or raise the quota: "
        "used_bytes=52428800 quota_bytes=52428800"
    )


def test_what_others_need_stays_free_whatever_the_settings_say() -> None:
    space = Space(new_disk(20 * MIB), DIRECTORY)
    assert refusal(space, 0, 19 * MIB) == ""
    space.left_free_bytes = 16 * MIB
    assert refusal(space, 0, 4 * MIB) == ""
    assert refusal(space, 0, 4 * MIB + 1) == (
        "no space left on the disk: path=/data needed_bytes=20971521"
    )


def test_the_disk_is_asked_again_when_the_database_has_grown() -> None:
    fs = new_disk(20 * MIB)
    space = Space(fs, DIRECTORY)
    assert refusal(space, 0, 1) == ""
    with fs.create(DIRECTORY / "hog") as file:
        file.truncate(19 * MIB)
        file.allocate(0, 19 * MIB)
    assert refusal(space, 0, 1) == ""
    assert refusal(space, 1, 1) != ""
