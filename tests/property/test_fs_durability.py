"""The memory file system against a model that remembers every state it passed through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePath
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from siltstone.errors import SiltstoneError
from siltstone.fs.memory import MemoryFileSystem

PAGE_BYTES = 4
DIRECTORIES = [PurePath("/p"), PurePath("/q")]
PATHS = [directory / name for directory in DIRECTORIES for name in "abc"]

Names = dict[str, int]
paths = st.sampled_from(PATHS)
directories = st.sampled_from(DIRECTORIES)


@dataclass
class Model:
    """For each directory and each file, its states since the last sync; the first is durable."""

    names: dict[PurePath, list[Names]] = field(
        default_factory=lambda: {directory: [{}] for directory in DIRECTORIES}
    )
    contents: list[list[bytes]] = field(default_factory=list)

    def file(self, path: PurePath) -> list[bytes] | None:
        number = self.number(path)
        return None if number is None else self.contents[number]

    def number(self, path: PurePath) -> int | None:
        return self.names[path.parent][-1].get(path.name)

    def set_names(self, directory: PurePath, **changes: int | None) -> None:
        names = self.names[directory][-1] | changes
        self.names[directory].append({n: f for n, f in names.items() if f is not None})


def seen(fs: MemoryFileSystem) -> dict[PurePath, dict[str, bytes]]:
    return {
        directory: {entry.name: fs.read(directory / entry.name) for entry in fs.list(directory)}
        for directory in DIRECTORIES
    }


def may_survive(states: list[bytes], found: bytes) -> bool:
    """Tell whether found is made of pages of the first and the last of these states."""
    durable, current = states[0], states[-1]
    sizes = {len(durable), *range(min(map(len, states)), len(current) + 1)}
    if len(found) not in sizes:
        return False
    for start in range(0, len(found), PAGE_BYTES):
        end = min(start + PAGE_BYTES, len(found))
        pages = [state[start:end].ljust(end - start, b"\0") for state in (durable, current)]
        if found[start:end] not in pages:
            return False
    return True


class Durability(RuleBasedStateMachine):
    """Change files and names, sync some, cut the power, look, go on."""

    def __init__(self) -> None:
        super().__init__()
        self.fs = MemoryFileSystem(page_bytes=PAGE_BYTES)
        for directory in DIRECTORIES:
            self.fs.make_directory(directory)
        self.fs.sync_directory(PurePath("/"))
        self.model = Model()

    @rule(path=paths)
    def create(self, path: PurePath) -> None:
        if self.succeeds(self.model.file(path) is None, lambda: self.fs.create(path).close()):
            self.model.contents.append([b""])
            self.model.set_names(path.parent, **{path.name: len(self.model.contents) - 1})

    @rule(path=paths, offset=st.integers(0, 12), data=st.binary(min_size=1, max_size=12))
    def write(self, path: PurePath, offset: int, data: bytes) -> None:
        if (states := self.model.file(path)) is not None:
            with self.fs.open(path, writable=True) as file:
                file.write_at(offset, data)
            before = states[-1].ljust(offset, b"\0")
            states.append(before[:offset] + data + before[offset + len(data) :])

    @rule(path=paths, offset=st.integers(0, 12), value=st.integers(0, 255))
    def store(self, path: PurePath, offset: int, value: int) -> None:
        if (states := self.model.file(path)) is not None and offset < len(states[-1]):
            with self.fs.open(path, writable=True) as file:
                file.allocate(offset, 1)
                file.map(writable=True)[offset] = value
            states.append(states[-1][:offset] + bytes([value]) + states[-1][offset + 1 :])

    @rule(path=paths, size=st.integers(0, 20))
    def truncate(self, path: PurePath, size: int) -> None:
        if (states := self.model.file(path)) is not None:
            with self.fs.open(path, writable=True) as file:
                file.truncate(size)
            states.append(states[-1][:size].ljust(size, b"\0"))

    @rule(path=paths)
    def sync(self, path: PurePath) -> None:
        if (states := self.model.file(path)) is not None:
            with self.fs.open(path, writable=True) as file:
                file.sync()
            del states[:-1]

    @rule(path=paths, offset=st.integers(0, 12), data=st.binary(min_size=1, max_size=12))
    def write_durably(self, path: PurePath, offset: int, data: bytes) -> None:
        if (states := self.model.file(path)) is not None:
            with self.fs.open(path, writable=True) as file:
                file.write_durably(offset, data)
            before = states[-1].ljust(offset, b"\0")
            current = before[:offset] + data + before[offset + len(data) :]
            # The size and the pages of the range are durable; the other pages as before.
            start = offset // PAGE_BYTES * PAGE_BYTES
            stop = -(-(offset + len(data)) // PAGE_BYTES) * PAGE_BYTES
            known = states[0][: len(current)].ljust(len(current), b"\0")
            states[:] = [known[:start] + current[start:stop] + known[stop:], current]

    @rule(old=paths, new=paths)
    def rename(self, old: PurePath, new: PurePath) -> None:
        number = self.model.number(old)
        if not self.succeeds(number is not None, lambda: self.fs.rename(old, new)):
            return
        if number == self.model.number(new):
            return
        if old.parent == new.parent:
            self.model.set_names(old.parent, **{old.name: None, new.name: number})
        else:
            self.model.set_names(old.parent, **{old.name: None})
            self.model.set_names(new.parent, **{new.name: number})

    @rule(old=paths, new=paths)
    def link(self, old: PurePath, new: PurePath) -> None:
        number = self.model.number(old)
        legal = number is not None and self.model.number(new) is None
        if self.succeeds(legal, lambda: self.fs.link(old, new)):
            self.model.set_names(new.parent, **{new.name: number})

    @rule(path=paths)
    def remove(self, path: PurePath) -> None:
        if self.succeeds(self.model.file(path) is not None, lambda: self.fs.remove(path)):
            self.model.set_names(path.parent, **{path.name: None})

    @rule(directory=directories)
    def sync_directory(self, directory: PurePath) -> None:
        self.fs.sync_directory(directory)
        del self.model.names[directory][:-1]

    @rule()
    def power_cut(self) -> None:
        self.model = Model(
            {directory: [names[0]] for directory, names in self.model.names.items()},
            [[states[0]] for states in self.model.contents],
        )
        self.fs = self.fs.crash_clone()

    @rule()
    def kill(self) -> None:
        self.fs = self.fs.kill_clone()

    @rule(seed=st.integers(0, 1 << 32))
    def look_at_what_a_power_cut_may_leave(self, seed: int) -> None:
        found = seen(self.fs.crash_clone(Random(seed)))
        for directory, history in self.model.names.items():
            assert any(
                names.keys() == found[directory].keys()
                and all(
                    may_survive(self.model.contents[names[name]], contents)
                    for name, contents in found[directory].items()
                )
                for names in history
            )

    @invariant()
    def what_is_seen_is_the_last_state(self) -> None:
        assert seen(self.fs) == {
            directory: {
                name: self.model.contents[number][-1] for name, number in history[-1].items()
            }
            for directory, history in self.model.names.items()
        }

    def succeeds(self, legal: bool, operation: Callable[[], None]) -> bool:
        """Do the operation; it must raise exactly when it is not legal."""
        try:
            operation()
        except SiltstoneError:
            assert not legal
        else:
            assert legal
        return legal


TestDurability = Durability.TestCase
TestDurability.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
