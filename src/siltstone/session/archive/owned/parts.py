"""A transaction that is prepared in parts, so that its thread can do other work in between.

Invariant: it is submitted once, after its last part, or it fails and nothing of it is stored. Both
happen in the thread of its owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from siltstone.errors import OutcomeUnknownError, SiltstoneError
from siltstone.guard import contain
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.transaction import Transaction

Act = Callable[[], None]
# Calls a function in the same thread, when other work of this thread has been done.
Soon = Callable[[Act], None]


class CommitInParts:
    """A ticket for a transaction that is not submitted yet."""

    __slots__ = ("_callbacks", "_error", "_parts", "_soon", "_ticket", "_tx")

    def __init__(self, parts: Iterator[None], tx: Transaction, soon: Soon) -> None:
        """Prepare the other parts later; the first one is prepared."""
        self._parts: Iterator[None] | None = parts
        self._tx: Transaction | None = tx
        self._soon = soon
        self._ticket: CommitTicket | None = None
        self._error: SiltstoneError | None = None
        self._callbacks: list[Callable[[CommitInParts], None]] = []
        soon(self._go_on)

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._error is not None or (self._ticket is not None and self._ticket.done)

    @property
    def error(self) -> Exception | None:
        """The error of the preparation or of the commit."""
        if self._error is not None or self._ticket is None:
            return self._error
        return self._ticket.error

    def on_done(self, callback: Callable[[CommitInParts], None]) -> None:
        """Call `callback` when the outcome is known; it may run in any thread."""
        if self._error is not None:
            callback(self)
        elif self._ticket is None:
            self._callbacks.append(callback)
        else:
            self._ticket.on_done(lambda _: callback(self))

    def complete(self) -> None:
        """Prepare all other parts now, and submit."""
        if self._parts is not None:
            contain(self._all, self._mistaken)

    def _go_on(self) -> None:
        if self._parts is not None:
            contain(self._one, self._mistaken)

    def _one(self) -> None:
        assert self._parts is not None
        try:
            next(self._parts)
        except StopIteration:
            self._submit()
        except SiltstoneError as exc:
            self._fail(exc)
        else:
            self._soon(self._go_on)

    def _all(self) -> None:
        assert self._parts is not None
        try:
            for _ in self._parts:
                pass
        except SiltstoneError as exc:
            self._fail(exc)
        else:
            self._submit()

    def _submit(self) -> None:
        assert self._tx is not None
        try:
            ticket = self._tx.submit()
        except SiltstoneError as exc:
            self._fail(exc)
            return
        self._parts = self._tx = None
        self._ticket = ticket
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self.on_done(callback)

    def _mistaken(self) -> None:
        if self._parts is not None:
            self._fail(OutcomeUnknownError("internal error: see the log of the broker"))

    def _fail(self, error: SiltstoneError) -> None:
        self._parts = self._tx = None
        self._error = error
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)
