"""The power goes at every operation of every order in publish.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import PurePath
from random import Random

import pytest

from siltstone.fs.api import EntryKind, FileSystem
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.fs.publish import (
    create_directories,
    quarantine_file,
    remove_file,
    remove_tree,
    replace_file,
    sweep_temporaries,
)

ROOT, D, Q = PurePath("/"), PurePath("/d"), PurePath("/lost/quarantine")
A, B = D / "a", D / "b"
OLD, NEW = bytes(range(1, 200)), bytes(range(50, 250)) * 3

Tree = dict[str, bytes | None]


def disk() -> MemoryFileSystem:
    """Return a disk that holds /d/a, /d/b and /d/x/c, whole and durable."""
    fs = MemoryFileSystem(page_bytes=16)
    create_directories(fs, D / "x")
    for path in (A, B, D / "x" / "c"):
        replace_file(fs, path, OLD)
    return fs


def tree(fs: FileSystem, path: PurePath = ROOT) -> Tree:
    """Return all that is below path: the contents of files, None for directories."""
    found: Tree = {}
    for entry in fs.list(path):
        name = path / entry.name
        if entry.kind is EntryKind.DIRECTORY:
            found[str(name)] = None
            found |= tree(fs, name)
        else:
            found[str(name)] = fs.read(name)
    return found


def after_each_crash(
    act: Callable[[FileSystem], object], start: Callable[[], MemoryFileSystem] = disk
) -> Iterator[MemoryFileSystem]:
    """Yield what may be found after the power went, or the process was killed, at each step."""
    for operations in count():
        fs = start()
        fs.operations_left = operations
        try:
            act(fs)
        except PowerCut:
            yield from survivors(fs)
        else:
            assert operations > 0
            return


def survivors(fs: MemoryFileSystem) -> Iterator[MemoryFileSystem]:
    yield fs.crash_clone()
    yield fs.kill_clone()
    for seed in range(50):
        yield fs.crash_clone(Random(seed))
        yield fs.crash_clone(Random(seed), in_order=False)


def assert_durable(fs: MemoryFileSystem, expected: Tree) -> None:
    """Check that all is there, now and after a power cut."""
    assert [tree(fs), tree(fs.crash_clone()), tree(fs.crash_clone(Random(1)))] == [expected] * 3


def without_temporaries(found: Tree) -> Tree:
    return {name: contents for name, contents in found.items() if not name.endswith(".tmp")}


@pytest.mark.parametrize("path", [A, D / "new"])
def test_a_replaced_file_is_the_old_one_or_the_new_one(path: PurePath) -> None:
    old = tree(disk())
    new = old | {str(path): NEW}
    outcomes = []
    for fs in after_each_crash(lambda fs: replace_file(fs, path, NEW)):
        found = without_temporaries(tree(fs))
        assert found in (old, new)
        outcomes.append(found == new)
        replace_file(fs, path, NEW)
        assert_durable(fs, new)
    assert set(outcomes) == {False, True}


def test_a_crash_among_the_remains_of_a_crash_changes_nothing() -> None:
    def with_remains() -> MemoryFileSystem:
        fs = disk()
        with fs.create(D / "a.tmp") as file:
            file.write(b"remains")
            file.sync()
        fs.sync_directory(D)
        return fs

    old = tree(disk())
    for fs in after_each_crash(lambda fs: replace_file(fs, A, NEW), with_remains):
        assert without_temporaries(tree(fs)) in (old, old | {str(A): NEW})
        sweep_temporaries(fs, D)
        assert_durable(fs, without_temporaries(tree(fs)))


def test_new_directories_are_there_from_the_top_down() -> None:
    old = tree(disk())
    steps: list[Tree] = [{}, {"/p": None}, {"/p": None, "/p/q": None}]
    steps.append(steps[-1] | {"/p/q/r": None})
    for fs in after_each_crash(lambda fs: create_directories(fs, PurePath("/p/q/r"))):
        assert tree(fs) in [old | step for step in steps]
        create_directories(fs, PurePath("/p/q/r"))
        assert_durable(fs, old | steps[-1])


def test_a_removed_file_is_whole_or_gone() -> None:
    old = tree(disk())
    new = {name: contents for name, contents in old.items() if name != str(A)}
    for fs in after_each_crash(lambda fs: remove_file(fs, A)):
        assert tree(fs) in (old, new)


def test_a_tree_that_is_removed_leaves_whole_files_and_no_other_tree_is_touched() -> None:
    def beside_another() -> MemoryFileSystem:
        fs = disk()
        create_directories(fs, PurePath("/other"))
        replace_file(fs, PurePath("/other/a"), NEW)
        return fs

    before = tree(beside_another())
    other: Tree = {"/other": None, "/other/a": NEW}
    for fs in after_each_crash(lambda fs: remove_tree(fs, D), beside_another):
        found = tree(fs)
        assert other.items() <= found.items() <= before.items()
        if fs.exists(D):
            remove_tree(fs, D)
        else:
            fs.sync_directory(ROOT)
        assert_durable(fs, other)


def test_a_file_on_its_way_to_quarantine_is_never_lost_nor_without_a_reason() -> None:
    old = tree(disk())
    names = set()
    for fs in after_each_crash(lambda fs: quarantine_file(fs, A, Q, "torn")):
        found = tree(fs)
        there, quarantined = found.get(str(A)), found.get(str(Q / "a"))
        assert {there, quarantined} in ({OLD}, {OLD, None})
        assert quarantined is None or found[f"{Q}/a.reason.txt"] == b"torn\n"
        names.add((there is not None, quarantined is not None))
        rest = {name for name in found if name != str(A) and not name.startswith("/lost")}
        assert {name: found[name] for name in rest} == {name: old[name] for name in rest}
        assert rest == old.keys() - {str(A)}
        if there is not None:
            target = quarantine_file(fs, A, Q, "torn again")
            assert fs.crash_clone().read(target) == OLD
            assert fs.crash_clone().exists(A) is False
    assert names == {(True, False), (True, True), (False, True)}
