from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.errors import CorruptionError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.rows.stored import StoredBatch
from siltstone.session.sending.delivery import Budget, Delivery, Spilled, properties_of
from tests.support.feed_builders import batch_of


def test_a_message_takes_its_bytes_and_something_more() -> None:
    empty = Delivery(b"", b"", 1, b"", 0.0)
    assert Delivery(b"topic", b"payload", 1, b"pp", 0.0).size() == empty.size() + 14


def test_a_message_is_no_row_was_never_sent_and_has_no_packet_id() -> None:
    delivery = Delivery(b"t", b"p", 2, b"", 5.0)
    assert (delivery.lane, delivery.serial, delivery.packet_id) == (None, 0, 0)
    assert (delivery.sent, delivery.released, delivery.is_unsent) == (False, False, False)


def test_nothing_of_a_budget_is_used_at_first() -> None:
    budget = Budget(100)
    assert (budget.bytes_max, budget.used) == (100, 0)


def test_a_payload_on_disk_takes_no_memory_until_it_is_loaded() -> None:
    file = MemoryFileSystem().create(PurePath("/payloads"))
    file.write(b"..payload")
    delivery = Delivery(b"t", b"", 1, b"", 0.0)
    small = delivery.size()
    delivery.spilled = Spilled(file, 2, 7)
    assert (delivery.body(), delivery.payload, delivery.size()) == (b"payload", b"", small)
    delivery.have(delivery.body())
    assert (delivery.payload, delivery.size()) == (b"payload", small + 7)
    assert delivery.body() is delivery.payload


def test_a_payload_that_is_cut_is_not_served() -> None:
    file = MemoryFileSystem().create(PurePath("/payloads"))
    file.write(b"..payl")
    with pytest.raises(CorruptionError, match="the file ends before the payload does"):
        Spilled(file, 2, 7).read()


class TestProperties:
    """Of rows, as receivers may have them."""

    ALIAS = b"\x23\x00\x01"
    EXPIRY = b"\x02\x00\x00\x03\xe8"

    def batch(self, *properties: bytes) -> StoredBatch:
        batch = batch_of(0, range(len(properties)), ["t"] * len(properties), len(properties))
        # Every row has bytes of its own, as those that are read from a file.
        batch.properties = [bytes(bytearray(each)) for each in properties]
        return batch

    def test_rows_without_any_have_none(self) -> None:
        assert properties_of(batch_of(0, range(1), ["t"], 1), 0) == b""
        assert properties_of(self.batch(b"", self.EXPIRY), 0) == b""

    def test_what_is_valid_is_as_it_was_stored(self) -> None:
        batch = self.batch(self.EXPIRY, self.EXPIRY)
        assert properties_of(batch, 0) is batch.properties[0]
        assert properties_of(batch, 1) == self.EXPIRY

    def test_a_value_is_looked_at_once_for_all_rows_and_sessions(self) -> None:
        batch = self.batch(*[self.ALIAS + self.EXPIRY + self.ALIAS] * 3)
        mended = properties_of(batch, 0)
        assert mended == self.EXPIRY
        # Whoever mends it again has another object.
        assert all(properties_of(batch, index) is mended for index in range(3))
