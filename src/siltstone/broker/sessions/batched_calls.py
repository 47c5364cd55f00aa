"""Batched work for a thread: requests that arrive while it is busy form the next batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from siltstone.errors import CorruptionError, OutcomeUnknownError, SiltstoneError, UsageError
from siltstone.guard import contain

Item = TypeVar("Item")
Answer = TypeVar("Answer")
InThread = Callable[[Callable[[], None], Callable[[], None]], None]

_TOGETHER_MAX: Final = 1000
# One item is damaged, or a newer version wrote it. The other items of its batch are not to blame.
_OF_ONE_ITEM: Final = (CorruptionError, UsageError)


class BatchedCalls(Generic[Item, Answer]):
    """Items that wait for one kind of work; `work` returns all answers, in order, or raises."""

    def __init__(
        self,
        in_thread: InThread,
        work: Callable[[Sequence[Item]], Sequence[Answer]],
        *,
        together_max: int = _TOGETHER_MAX,
    ) -> None:
        """Use `in_thread` for batches of at most `together_max` items, one batch at a time.

        The answers of a batch are passed on in one turn of the loop.
        """
        self._in_thread = in_thread
        self._work = work
        self._together_max = together_max
        self._waiting: list[tuple[Item, Callable[[Answer | SiltstoneError], None]]] = []
        self._is_away = False

    def ask(self, item: Item, then: Callable[[Answer | SiltstoneError], None]) -> None:
        """Add an item to the next batch; call `then` with the answer or the error."""
        self._waiting.append((item, then))
        if not self._is_away:
            self._go()

    def _answer(self, items: list[Item], answers: list[Answer | SiltstoneError]) -> None:
        try:
            answers.extend(self._work(items))
        except _OF_ONE_ITEM as exc:
            if len(items) == 1:
                answers.append(exc)
                return
            for item in items:
                self._answer([item], answers)
        except SiltstoneError as exc:
            answers.extend([exc] * len(items))

    def _go(self) -> None:
        together = self._together_max
        taken, self._waiting = self._waiting[:together], self._waiting[together:]
        self._is_away = True
        answers: list[Answer | SiltstoneError] = []

        def work() -> None:
            self._answer([item for item, _ in taken], answers)

        def then() -> None:
            self._is_away = False
            # After an internal error there are no answers, but every caller must get one.
            mistake = OutcomeUnknownError("internal error: see the log of the broker")
            answers.extend([mistake] * (len(taken) - len(answers)))
            for (_, tell), answer in zip(taken, answers, strict=True):
                contain(partial(tell, answer))
            if self._waiting and not self._is_away:
                self._go()

        self._in_thread(partial(contain, work), then)
