from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from siltstone.snapshot.differences import Difference, find_differences
from siltstone.snapshot.format.contents import ContentsInMemory
from siltstone.snapshot.format.records import (
    FilePart,
    KeyValueFamily,
    KeyValuePair,
    Record,
    StoredFile,
)
from tests.support.snapshots import EVERY_KIND, bytes_of, opened, queued, retained, session


def differences(old: Sequence[Record], new: Sequence[Record]) -> list[Difference]:
    return find_differences(
        opened(bytes_of(old)), opened(bytes_of(new)), ContentsInMemory(), ContentsInMemory()
    )


def test_equal_snapshots_have_no_difference() -> None:
    assert differences(EVERY_KIND, EVERY_KIND) == []


def test_the_order_of_things_makes_no_difference() -> None:
    a, b = retained("a", b"1"), retained("b", b"2")
    assert differences([a, b, session("c")], [session("c"), b, a]) == []


def test_when_a_session_was_last_there_makes_no_difference() -> None:
    later = replace(session("c"), last_active_us=1_700_000_000_000_001)
    assert differences([session("c")], [later]) == []
    assert differences([session("c")], [replace(later, expiry_seconds=1)]) == [
        Difference("session", "c", "changed")
    ]


def test_what_is_added_removed_and_changed_is_told_by_name() -> None:
    old: list[Record] = [retained("gone", b"1"), retained("same", b"1"), retained("other", b"1")]
    new: list[Record] = [retained("other", b"2"), retained("same", b"1"), retained("new", b"1")]
    assert differences(old, new) == [
        Difference("retained message", "gone", "removed"),
        Difference("retained message", "new", "added"),
        Difference("retained message", "other", "changed"),
    ]


def test_a_session_is_what_is_queued_for_it_too() -> None:
    old: list[Record] = [session("c1"), queued("a", b"1"), session("c2"), queued("a", b"1")]
    new: list[Record] = [session("c1"), queued("a", b"1"), session("c2"), queued("a", b"2")]
    assert differences(old, new) == [Difference("session", "c2", "changed")]
    assert differences(old, old[:2]) == [Difference("session", "c2", "removed")]


def test_every_kind_has_a_name() -> None:
    names = [(each.kind, each.name) for each in differences([], EVERY_KIND)]
    assert names == [
        ("family", "kv/sessions default"),
        ("file", "data/messages/manifest"),
        ("pair", "kv/sessions default "),
        ("position", "spark messages"),
        ("retained message", "plant/é"),
        ("session", "c1"),
        ("structure", "messages 1/2 plant/+"),
    ]


def test_files_and_pairs_are_compared_by_their_bytes() -> None:
    file = StoredFile(path="x", size_bytes=1)
    family = KeyValueFamily(database="kv/s", family="f")
    part, pair = FilePart(offset=0, data=b"1"), KeyValuePair(key=b"k", value=b"1")
    changed: list[Record] = [file, replace(part, data=b"2"), family, replace(pair, value=b"2")]
    assert differences([file, part, family, pair], changed) == [
        Difference("file", "x", "changed"),
        Difference("pair", "kv/s f 6b", "changed"),
    ]
