"""The receiver of `siltstone sub`: it filters, counts and writes messages, then takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import BinaryIO

from siltstone.cli.mqtt.rendering import Render
from siltstone.clock import Clock
from siltstone.mqtt.flow import pick
from siltstone.mqtt.publish import PublishBatch
from siltstone.rows.batch import RETAIN


class RetainedChoice(Enum):
    """The treatment of retained messages."""

    SHOWN = "shown"
    LEFT_OUT = "left out"
    ONLY = "only"


class Receiver:
    """Writes messages, and calls `full` when it has enough.

    The messages that it returns as taken are written and flushed, so the server may forget them.
    Messages after the last wanted one are not taken, so a kept session still has them.
    """

    def __init__(
        self,
        out: BinaryIO,
        render: Render,
        clock: Clock,
        *,
        full: Callable[[], None],
        count_max: int | None = None,
        retained: RetainedChoice = RetainedChoice.SHOWN,
    ) -> None:
        self.count = 0
        self._out = out
        self._render = render
        self._clock = clock
        self._full = full
        self._count_max = count_max
        self._retained = retained

    def take(self, batch: PublishBatch) -> int:
        """Write the wanted messages of a batch; return how many messages were processed."""
        wanted, taken = self._choose(batch.flags)
        chosen = batch if len(wanted) == len(batch.topics) else pick(batch, list(wanted))
        data = self._render(chosen, self._clock.now_us())
        if data:
            self._out.write(data)
            self._out.flush()
        self.count += len(wanted)
        if taken < len(batch.topics) or self.count == self._count_max:
            self._full()
        return taken

    def _choose(self, flags: list[int]) -> tuple[Sequence[int], int]:
        """Return the indexes of the messages to write, and how many messages are then processed."""
        left = len(flags)
        if self._count_max is not None:
            left = self._count_max - self.count
        if self._retained is RetainedChoice.SHOWN:
            taken = min(left, len(flags))
            return range(taken), taken
        wanted: list[int] = []
        for index, flag in enumerate(flags):
            if len(wanted) == left or (self._retained is RetainedChoice.ONLY and not flag & RETAIN):
                return wanted, index
            if self._retained is RetainedChoice.ONLY or not flag & RETAIN:
                wanted.append(index)
        return wanted, len(flags)
