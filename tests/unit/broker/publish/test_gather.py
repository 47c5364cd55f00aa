from __future__ import annotations

from siltstone.broker.publish.gather import GatheredPublishes
from siltstone.mqtt.publish import PublishBatch


def batch_of(
    *rows: tuple[bytes, bytes, int], properties: list[bytes] | None = None
) -> PublishBatch:
    batch = PublishBatch()
    for topic, payload, flags in rows:
        batch.topics.append(topic)
        batch.payloads.append(payload)
        batch.flags.append(flags)
        batch.packet_ids.append(0)
    batch.properties.extend(properties or [])
    return batch


def test_what_all_rows_share_is_kept_once() -> None:
    gathered = GatheredPublishes()
    gathered.add(batch_of((b"a", b"1", 1), (b"b", b"2", 1)), b"p")
    gathered.add(batch_of((b"c", b"3", 1)), b"p")
    assert (gathered.publishers(), gathered.shared_flags(), gathered.all_properties()) == (
        b"p",
        1,
        None,
    )
    assert (gathered.topics, gathered.payloads) == ([b"a", b"b", b"c"], [b"1", b"2", b"3"])


def test_rows_of_several_publishers_and_flags_are_told_apart() -> None:
    gathered = GatheredPublishes()
    gathered.add(batch_of((b"a", b"1", 0), (b"b", b"2", 2)), b"p")
    gathered.add(batch_of((b"c", b"3", 5)), b"q")
    gathered.add(batch_of((b"d", b"4", 0)), b"p")
    assert gathered.publishers() == [b"p", b"p", b"q", b"p"]
    assert gathered.shared_flags() == [0, 2, 5, 0]


def test_dup_is_no_part_of_what_is_stored() -> None:
    gathered = GatheredPublishes()
    gathered.add(batch_of((b"a", b"1", 8 | 1), (b"b", b"2", 1)), b"p")
    assert gathered.shared_flags() == 1


def test_rows_without_properties_have_empty_ones_where_others_have_some() -> None:
    gathered = GatheredPublishes()
    gathered.add(batch_of((b"a", b"1", 0)), b"p")
    gathered.add(batch_of((b"b", b"2", 0), properties=[b"x"]), b"p")
    gathered.add(batch_of((b"c", b"3", 0)), b"p")
    assert gathered.all_properties() == [b"", b"x", b""]


def test_sizes_add_up() -> None:
    gathered = GatheredPublishes()
    first = gathered.add(batch_of((b"a", b"12", 0)), b"p")
    second = gathered.add(batch_of((b"b", b"", 0), properties=[b"xyz"]), b"p")
    assert (first, second, gathered.size_bytes, len(gathered)) == (67, 68, 135, 2)
