"""The requirements of a key-value engine: one suite, run on each engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from siltstone.errors import ClosedError, ExistsError, NotFoundError
from siltstone.store.kv.api import DEFAULT_FAMILY, Changes, Engine

Reopen = Callable[[Engine], Engine]


def changes_of(family: str, values: dict[bytes, bytes | None]) -> Changes:
    changes = Changes()
    changes.values[family] = values
    return changes


def filled(engine: Engine) -> Engine:
    """Create a family `f` with the keys b0 to b9."""
    engine.create_family("f")
    engine.write(changes_of("f", {b"b%d" % n: b"v%d" % n for n in range(10)}))
    return engine


def check_families(engine: Engine) -> None:
    assert engine.families() == [DEFAULT_FAMILY]
    engine.create_family("f")
    assert engine.families() == [DEFAULT_FAMILY, "f"]
    with pytest.raises(ExistsError):
        engine.create_family("f")
    engine.drop_family("f")
    with pytest.raises(NotFoundError):
        engine.drop_family("f")
    with pytest.raises(NotFoundError):
        engine.get("f", b"k")
    with pytest.raises(NotFoundError):
        engine.view("f")
    with pytest.raises(NotFoundError):
        engine.write(changes_of("f", {b"k": b"v"}))
    engine.create_family("f")
    assert engine.get("f", b"k") is None


def check_values(engine: Engine) -> None:
    filled(engine)
    engine.write(changes_of("f", {b"b1": b"new", b"b2": None, b"none": None, b"": b"empty"}))
    found = [engine.get("f", key) for key in (b"", b"b0", b"b1", b"b2", b"none")]
    assert found == [b"empty", b"v0", b"new", None, None]
    assert engine.get(DEFAULT_FAMILY, b"b0") is None


def check_views(engine: Engine) -> None:
    view = filled(engine).view("f")
    engine.write(changes_of("f", {b"b1": None, b"b2": b"new", b"c": b"new"}))
    assert [view.get(b"b1"), view.get(b"b2"), view.get(b"c")] == [b"v1", b"v2", None]
    assert view.items(b"b1", b"b4", 10) == [(b"b1", b"v1"), (b"b2", b"v2"), (b"b3", b"v3")]
    assert view.last(b"", b"z") == (b"b9", b"v9")
    newer = engine.view("f")
    assert newer.items(b"b", b"b4", 2) == [(b"b0", b"v0"), (b"b2", b"new")]
    assert newer.last(b"", b"z") == (b"c", b"new")
    view.release()
    view.release()
    for look in (
        lambda: view.get(b"b1"),
        lambda: view.items(b"", b"z", 1),
        lambda: view.last(b"", b"z"),
    ):
        with pytest.raises(ClosedError):
            look()


def check_bounds(engine: Engine) -> None:
    view = filled(engine).view("f")
    assert view.items(b"b8", b"zz", 10) == [(b"b8", b"v8"), (b"b9", b"v9")]
    assert view.items(b"b8", b"b8", 10) == []
    assert view.items(b"b9", b"b0", 10) == []
    assert view.items(b"b0", b"z", 0) == []
    assert view.last(b"b2", b"b5") == (b"b4", b"v4")
    assert view.last(b"b2", b"b2") is None
    assert view.last(b"b4x", b"b5") is None
    assert view.last(b"", b"b0") is None
    assert view.last(b"c", b"d") is None


def check_ranges(engine: Engine) -> None:
    changes = changes_of("f", {b"b4": b"after"})
    changes.ranges.append(("f", b"b2", b"b8"))
    filled(engine).write(changes)
    found = engine.view("f").items(b"", b"z", 100)
    assert [key for key, _ in found] == [b"b0", b"b1", b"b4", b"b8", b"b9"]
    assert engine.get("f", b"b4") == b"after"


def check_reopening(engine: Engine, reopen: Reopen) -> None:
    view = filled(engine).view("f")
    engine.write(changes_of(DEFAULT_FAMILY, {b"k": b"v"}))
    engine.close()
    engine.close()
    for look in (
        engine.families,
        engine.size_bytes,
        lambda: engine.create_family("g"),
        lambda: engine.drop_family("f"),
        lambda: engine.get("f", b"b1"),
        lambda: engine.view("f"),
        lambda: engine.write(Changes()),
        lambda: view.get(b"b1"),
    ):
        with pytest.raises(ClosedError):
            look()
    again = reopen(engine)
    assert again.families() == [DEFAULT_FAMILY, "f"]
    assert [again.get("f", b"b9"), again.get(DEFAULT_FAMILY, b"k")] == [b"v9", b"v"]
    again.close()


def check_size(engine: Engine) -> None:
    before = filled(engine).size_bytes()
    engine.write(changes_of("f", {b"big": b"v" * 1_000_000}))
    assert 1_000_000 <= engine.size_bytes() - before < 3_000_000
    assert 1_000_000 <= engine.size_bytes("f") <= engine.size_bytes()
    with pytest.raises(NotFoundError):
        engine.size_bytes("none")
