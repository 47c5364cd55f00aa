from __future__ import annotations

import io

import pytest

from siltstone.cli.mqtt.receiver import Receiver, RetainedChoice
from siltstone.cli.mqtt.rendering import plain
from siltstone.clock import ManualClock
from siltstone.mqtt.publish import PublishBatch


class Out(io.BytesIO):
    """Tells what was flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed = b""

    def flush(self) -> None:
        self.flushed = self.getvalue()


class Taking:
    """A receiver with what it writes and how often it was full."""

    def __init__(
        self, *, count: int | None = None, retained: RetainedChoice = RetainedChoice.SHOWN
    ) -> None:
        self.out = Out()
        self.full = 0
        self.receiver = Receiver(
            self.out,
            plain(b"|"),
            ManualClock(),
            full=self._filled,
            count_max=count,
            retained=retained,
        )

    def _filled(self) -> None:
        self.full += 1

    def take(self, *rows: tuple[bytes, bool]) -> int:
        batch = PublishBatch()
        batch.topics = [b"t"] * len(rows)
        batch.values = [payload for payload, _ in rows]
        batch.flags = [4 if retained else 0 for _, retained in rows]
        batch.packet_ids = [0] * len(rows)
        return self.receiver.take(batch)


OLD, NEW, OTHER = (b"old", True), (b"new", False), (b"other", False)


def test_what_is_taken_was_flushed() -> None:
    taking = Taking()
    assert (taking.take(OLD, NEW), taking.out.flushed) == (2, b"old|new|")
    assert (taking.take(OTHER), taking.out.flushed, taking.full) == (1, b"old|new|other|", 0)


def test_what_cannot_be_written_is_not_taken() -> None:
    taking = Taking()
    taking.out.close()
    with pytest.raises(ValueError, match="closed"):
        taking.take(NEW)
    assert taking.receiver.count == 0


def test_messages_beyond_the_count_are_not_taken() -> None:
    taking = Taking(count=3)
    assert (taking.take(OLD, NEW), taking.full) == (2, 0)
    assert (taking.take(OTHER, NEW), taking.full) == (1, 1)
    assert taking.out.flushed == b"old|new|other|"


def test_a_count_that_ends_with_its_batch_is_reached() -> None:
    taking = Taking(count=2)
    assert (taking.take(OLD, NEW), taking.full) == (2, 1)


def test_retained_messages_that_are_left_out_are_taken_but_not_counted() -> None:
    taking = Taking(count=2, retained=RetainedChoice.LEFT_OUT)
    assert (taking.take(OLD, NEW, OLD), taking.out.flushed) == (3, b"new|")
    assert (taking.receiver.count, taking.full) == (1, 0)
    assert (taking.take(OLD, OTHER, OLD, NEW), taking.full) == (2, 1)
    assert taking.out.flushed == b"new|other|"


def test_retained_messages_alone_end_with_the_first_other_one_which_is_not_taken() -> None:
    taking = Taking(retained=RetainedChoice.ONLY)
    assert (taking.take(OLD, OLD), taking.full) == (2, 0)
    assert (taking.take(OLD, NEW, OLD), taking.full) == (1, 1)
    assert taking.out.flushed == b"old|old|old|"
