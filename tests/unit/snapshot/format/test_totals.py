from __future__ import annotations

import struct

import pytest

from siltstone.snapshot.format.totals import Totals

TOTALS = Totals(contents=2, content_bytes=300, digest=bytes(range(32)), counts={6: 7, 1: 1})


def test_totals_are_read_as_they_were_written() -> None:
    assert Totals.decode(TOTALS.encode()) == TOTALS


def test_the_bytes_are_these_and_kinds_come_in_their_order() -> None:
    assert TOTALS.encode() == bytes.fromhex(
        "02000000 2c01000000000000"
        + bytes(range(32)).hex()
        + "0200 01 0100000000000000 06 0700000000000000"
    )


def test_a_body_that_is_cut_short_is_an_error() -> None:
    body = TOTALS.encode()
    for end in range(len(body)):
        with pytest.raises(struct.error):
            Totals.decode(body[:end])
