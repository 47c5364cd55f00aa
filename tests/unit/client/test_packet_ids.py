from __future__ import annotations

import pytest

from siltstone.client.packet_ids import PACKET_ID_MAX, PacketIds
from siltstone.errors import OverloadedError


def test_ids_are_given_out_in_order_from_the_first() -> None:
    ids = PacketIds(first=7)
    assert (ids.take(2), ids.take(1), len(ids)) == ([7, 8], [9], 3)


def test_a_freed_id_is_not_used_again_at_once() -> None:
    ids = PacketIds()
    assert ids.take(2) == [1, 2]
    ids.free([1])
    assert ids.take(2) == [3, 4]


def test_ids_go_round_past_those_in_use_and_zero_is_none_of_them() -> None:
    ids = PacketIds(first=PACKET_ID_MAX - 1)
    assert ids.take(4) == [65_534, 65_535, 1, 2]
    ids.free([65_534, 1])
    again = PacketIds(first=PACKET_ID_MAX - 1)
    again.take(3)
    again.free([65_535])
    taken = again.take(PACKET_ID_MAX - 2)
    assert sorted(taken) == sorted(set(range(1, 65_536)) - {65_534, 1})


def test_more_ids_than_there_are_is_refused_and_takes_none() -> None:
    ids = PacketIds()
    ids.take(PACKET_ID_MAX - 1)
    with pytest.raises(OverloadedError, match="in_use=65534"):
        ids.take(2)
    assert ids.take(1) == [PACKET_ID_MAX]
