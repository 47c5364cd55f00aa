from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.rows.batch import RowBatch
from tests.support.row_batches import row_batch

ROWS = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=3),
        st.binary(max_size=3),
        st.integers(0, 15),
        st.sampled_from([b"", b"x", b"yz"]),
    ),
    min_size=1,
    max_size=4,
)
BATCHES = st.lists(st.tuples(ROWS, st.sampled_from([b"p", b"q"])), max_size=4)


def batch_of(
    *rows: tuple[bytes, bytes, int], publisher: bytes = b"p", properties: list[bytes] | None = None
) -> RowBatch:
    batch = RowBatch()
    batch.topics = [topic for topic, _, _ in rows]
    batch.values = [value for _, value, _ in rows]
    batch.flags = [flags for _, _, flags in rows]
    batch.properties = properties or []
    batch.publisher = publisher
    batch.measure()
    return batch


def gathered(*batches: RowBatch) -> RowBatch:
    whole = RowBatch()
    for batch in batches:
        whole.extend(batch)
    return whole


def test_what_all_rows_share_is_kept_once() -> None:
    whole = gathered(batch_of((b"a", b"1", 1), (b"b", b"2", 1)), batch_of((b"c", b"3", 1)))
    assert (whole.publisher, whole.publishers) == (b"p", [])
    assert (whole.shared_flags, whole.flags, whole.properties) == (1, [], [])
    assert (whole.topics, whole.values) == ([b"a", b"b", b"c"], [b"1", b"2", b"3"])


def test_rows_of_several_publishers_and_flags_are_told_apart() -> None:
    whole = gathered(
        batch_of((b"a", b"1", 0), (b"b", b"2", 2)),
        batch_of((b"c", b"3", 5), publisher=b"q"),
        batch_of((b"d", b"4", 0)),
    )
    assert whole.publishers == [b"p", b"p", b"q", b"p"]
    assert (whole.shared_flags, whole.flags) == (-1, [0, 2, 5, 0])


def test_dup_is_not_stored() -> None:
    assert batch_of((b"a", b"1", 8 | 1), (b"b", b"2", 1)).shared_flags == 1
    mixed = batch_of((b"a", b"1", 8 | 1), (b"b", b"2", 6))
    assert (mixed.stored().flags, mixed.flags) == ([1, 6], [9, 6])
    plain = batch_of((b"a", b"1", 1), (b"b", b"2", 6))
    assert plain.stored() is plain


def test_rows_without_properties_have_empty_ones_where_others_have_some() -> None:
    some = batch_of((b"b", b"2", 0), properties=[b"x"])
    none = batch_of((b"a", b"1", 0))
    assert gathered(none, some, none).properties == [b"", b"x", b""]


def test_a_batch_of_checked_and_other_rows_is_not_checked() -> None:
    checked, other = batch_of((b"a", b"1", 0)), batch_of((b"a", b"1", 0))
    checked.checked = True
    assert gathered(checked, checked).checked
    assert not gathered(checked, other).checked
    assert not gathered(other, checked).checked


def test_rows_without_flags_have_qos_0() -> None:
    batch = row_batch([b"a", b"b"], [b"1", b"23"], b"p")
    assert (batch.shared_flags, batch.size_bytes, batch.count) == (0, 5, 2)


@given(BATCHES)
def test_gathered_rows_are_those_of_their_batches(
    parts: list[tuple[list[tuple[bytes, bytes, int, bytes]], bytes]],
) -> None:
    whole = gathered(
        *(
            batch_of(
                *(row[:3] for row in rows),
                publisher=publisher,
                properties=[row[3] for row in rows] if any(row[3] for row in rows) else None,
            )
            for rows, publisher in parts
        )
    ).stored()
    sent = [
        (topic, value, flags & 7, properties, publisher)
        for rows, publisher in parts
        for topic, value, flags, properties in rows
    ]
    assert rows_of(whole) == sent
    numbers = list(range(0, len(sent), 2))
    assert rows_of(whole.pick(numbers)) == [sent[number] for number in numbers]
    assert whole.size_bytes == sum(len(row[0]) + len(row[1]) + len(row[3]) for row in sent)


def rows_of(batch: RowBatch) -> list[tuple[bytes, bytes, int, bytes, bytes]]:
    count = batch.count
    return list(
        zip(
            batch.topics,
            batch.values,
            batch.flags if batch.shared_flags < 0 else [batch.shared_flags] * count,
            batch.properties or [b""] * count,
            batch.publishers or [batch.publisher] * count,
            strict=True,
        )
    )


@pytest.mark.parametrize("flags", [[1, 1], [0, 5]])
def test_picked_rows_keep_their_flags(flags: list[int]) -> None:
    batch = batch_of((b"a", b"1", flags[0]), (b"b", b"2", flags[1]))
    assert rows_of(batch.pick([1])) == rows_of(batch)[1:]
