from __future__ import annotations

from siltstone.store.kv.api import Changes


def test_values_are_kept_by_family_and_the_last_of_a_key_counts() -> None:
    changes = Changes()
    changes.put("one", b"k", b"1")
    changes.put("two", b"k", b"2")
    changes.put("one", b"k", None)
    assert changes.values == {"one": {b"k": None}, "two": {b"k": b"2"}}
    assert changes.ranges == []
