"""The same operations on the machine's file system and in memory, with the same outcomes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.errors import DiskError, SiltstoneError
from siltstone.fs.api import EntryKind, FileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.posix import PosixFileSystem

Step = Callable[[FileSystem, PurePath], object]

# Few names, some below others, so that files and directories get in each other's way.
NAMES = ["a", "b", "d", "d/a", "d/e", "d/e/a"]
names = st.sampled_from(NAMES)
# Links that lead nowhere, and have nothing below them: only the disk follows links.
link_names = st.sampled_from(["a", "b", "d/a"])
sizes = st.integers(0, 9000)


def on_file(name: str, offset: int, data: bytes, size: int) -> Step:
    def step(fs: FileSystem, root: PurePath) -> object:
        with fs.open(root / name, writable=True) as file:
            file.write_at(offset, data)
            file.truncate(size)
            file.allocate(size // 2, size - size // 2)
            file.write(data)
            file.sync()
            file.write_durably(offset // 2, data)
            return file.size(), file.read_at(offset, 100), bytes(file.map(writable=False))

    return step


steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda n: lambda fs, root: fs.create(root / n).close(), names),
    st.builds(lambda n: lambda fs, root: fs.make_directory(root / n), names),
    st.builds(lambda n: lambda fs, root: fs.remove(root / n), names),
    st.builds(lambda n: lambda fs, root: fs.remove_directory(root / n), names),
    st.builds(lambda n: lambda fs, root: fs.sync_directory(root / n), names),
    st.builds(lambda n: lambda fs, root: fs.exists(root / n), names),
    st.builds(lambda n: lambda fs, root: fs.read(root / n), names),
    st.builds(lambda n, m: lambda fs, root: fs.rename(root / n, root / m), names, names),
    st.builds(lambda n, m: lambda fs, root: fs.link(root / n, root / m), names, names),
    st.builds(
        lambda n, m: lambda fs, root: fs.symlink(PurePath("nowhere", n), root / m),
        names,
        link_names,
    ),
    st.builds(lambda n: lambda fs, root: fs.readlink(root / n), names),
    st.builds(on_file, names, sizes, st.binary(max_size=20), sizes),
)


def outcome(step: Step, fs: FileSystem, root: PurePath) -> object:
    try:
        return step(fs, root)
    except DiskError as error:
        return DiskError, error.operation, error.errno
    except SiltstoneError as error:
        return type(error)


def tree(fs: FileSystem, path: PurePath) -> object:
    looks = {EntryKind.DIRECTORY: tree, EntryKind.FILE: contents, EntryKind.OTHER: target}
    return [
        (entry.name, entry.kind, entry.size_bytes, looks[entry.kind](fs, path / entry.name))
        for entry in fs.list(path)
    ]


def contents(fs: FileSystem, path: PurePath) -> object:
    return fs.read(path)


def target(fs: FileSystem, path: PurePath) -> object:
    return fs.readlink(path)


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=25))
def test_both_file_systems_answer_alike_and_end_alike(script: list[Step]) -> None:
    memory, top = MemoryFileSystem(), PurePath("/")
    posix = PosixFileSystem()
    with TemporaryDirectory() as directory:
        root = PurePath(directory)
        for step in script:
            assert outcome(step, memory, top) == outcome(step, posix, root)
        assert tree(memory, top) == tree(posix, root)
