"""The digest of a key-value shard is computed once for a question, and not waited for in vain."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from siltstone.clock import SystemClock
from siltstone.errors import RetryError
from siltstone.store.kv.api import Changes
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.shard.replicated.kv.state import CopyStates
from siltstone.store.tx import catalog
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.writer.replication.sites.scrubbing import CopyState

Begin = Callable[[int | None], None]
QUICK = 1 << 40
_NEVER = threading.Event()


class Shard:
    """The thread of a shard, as far as its states need it."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        settings = KeyValueSettings(backend="replicated", timed=False, shards=2)
        catalog.create(self.engine, SystemClock(), settings, identity=b"i" * 16, created_us=7)
        self.asked: list[tuple[int, Begin]] = []
        self.states = CopyStates(
            self.engine, 1, lambda index, then: self.asked.append((index, then))
        )

    def state(self, index: int) -> CopyState:
        found = self.states.fetch(index, QUICK)
        for _, begin in self.asked:
            begin(index)
        self.asked.clear()
        while found is None:
            _NEVER.wait(0.001)
            found = self.states.fetch(index, QUICK)
        return found

    def put(self, family: str, key: bytes, value: bytes) -> None:
        changes = Changes()
        changes.put(family, key, value)
        self.engine.write(changes)


def test_a_state_is_computed_once_and_may_be_fetched_again() -> None:
    shard = Shard()
    assert shard.states.fetch(5, QUICK) is None
    assert shard.states.fetch(5, QUICK) is None
    assert [index for index, _ in shard.asked] == [5]
    found = shard.state(5)
    assert shard.states.fetch(5, QUICK) == found
    assert shard.asked == []


def test_a_state_has_what_is_common_to_the_sites() -> None:
    shard = Shard()
    before = shard.state(1).digest
    # Another shard, what a crash has left, and how far this site has read.
    shard.put("0.1", b"k", b"v")
    shard.engine.create_family("1.9")
    shard.put("1.9", b"k", b"v")
    changes = Changes()
    catalog.put_mark(changes, 1, b"mark")
    shard.engine.write(changes)
    assert shard.state(2).digest == before
    shard.put("1.1", b"k", b"v")
    assert shard.state(3).digest != before


def test_keys_and_values_are_told_apart() -> None:
    first, second = Shard(), Shard()
    first.put("1.1", b"k", b"ab")
    second.put("1.1", b"ka", b"b")
    assert first.state(1).digest != second.state(1).digest


def test_a_shard_that_does_not_read_its_log_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("siltstone.store.shard.replicated.kv.state._BEGIN_SECONDS", 0.0)
    shard = Shard()
    assert shard.states.fetch(5, QUICK) is None
    with pytest.raises(RetryError, match="does not read"):
        shard.states.fetch(5, QUICK)


def test_a_site_that_has_not_stored_everything_has_no_state() -> None:
    shard = Shard()
    assert shard.states.fetch(5, QUICK) is None
    shard.asked.pop()[1](None)
    with pytest.raises(RetryError, match="not stored"):
        shard.states.fetch(5, QUICK)
    # It is asked again then.
    assert shard.states.fetch(5, QUICK) is None
    assert len(shard.asked) == 1
