from __future__ import annotations

from siltstone.rows.stored import StoredBatch, rows_by_name, rows_of_names


def test_the_number_of_rows_is_known_before_the_lists_exist() -> None:
    batch = StoredBatch(0, 1, 7, 9, 2)
    assert (batch.count, batch.topics, batch.number_rows()) == (2, [], [7, 8])


def test_stored_rows_are_picked_as_rows_to_store() -> None:
    batch = StoredBatch(0, 1, 7, 10, 3)
    batch.topics, batch.values = [b"a", b"b", b"a"], [b"0", b"1", b"2"]
    batch.publishers, batch.flags = [b"p", b"q", b"r"], [0, 1, 4]
    picked = batch.pick([2, 1])
    assert (picked.topics, picked.values) == ([b"a", b"b"], [b"2", b"1"])
    assert (picked.publishers, picked.flags, picked.any_flags) == ([b"r", b"q"], [4, 1], 5)


def test_rows_are_found_by_name() -> None:
    batch = StoredBatch(0, 1, 0, 5, 5)
    batch.names, batch.topics = [b"a", b"b", b"c"], [b"b", b"a", b"b", b"c", b"a"]
    assert rows_by_name(batch, [0, 2]) == [[1, 4], None, [3]]
    by_name = rows_by_name(batch, [0, 1, 2])
    assert by_name == [[1, 4], [0, 2], [3]]
    assert rows_of_names(by_name, [1]) == [0, 2]
    assert rows_of_names(by_name, [0, 1]) == [0, 1, 2, 4]
    assert rows_of_names(by_name, []) == []
