"""Rows of the archive in the hands of one owner: what was changed is saved, and only that.

Every save requires the serial by which the owner took the rows, so one that was taken over changes
nothing any more. A save that moves the index also requires the state from which it moves it: if the
save before it failed it fails as well, and the index never counts a thing twice, nor forgets one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from siltstone.errors import UsageError
from siltstone.session.archive.index import NO_INDEX, Index, gone, move
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.transaction import Transaction

# Begins a transaction on the shard of the rows.
Begin = Callable[[], Transaction]


class Stored(NamedTuple):
    """A state as it is stored, what is to be found of it, and how often it was stored."""

    state: bytes
    found: Index
    revision: int


class Keys(Protocol):
    """The topics that every session and group has."""

    @property
    def owner(self) -> str: ...

    @property
    def state(self) -> str: ...


class Content(Protocol):
    """What the rows say: a session or a group."""

    @property
    def keys(self) -> Keys: ...

    def topics(self) -> list[str]:
        """Return the topics of the rows beside those of the owner and the state."""
        ...

    def row(self, topic: str) -> bytes | None:
        """Return the value of a row, None when it is to be deleted."""
        ...

    def is_plain(self, topic: str) -> bool:
        """Say whether a row can be saved without a look at the state and the index."""
        ...

    def stored(self, revision: int) -> Stored:
        """Return the state as it is to be stored: another one for each revision."""
        ...


class _Save(NamedTuple):
    """A save under way: what it stores, what was stored before it, and what it was built on."""

    ticket: CommitTicket
    touched: dict[str, None]
    before: Stored
    chain: int
    indexed: bool


class OwnedRows:
    """The rows of one session or group. They belong to one thread."""

    __slots__ = (
        "_begin",
        "_chain",
        "_content",
        "_dropping",
        "_owner_topic",
        "_saves",
        "_state_topic",
        "_stored",
        "_touched",
        "serial",
    )

    def __init__(self, begin: Begin, content: Content, stored: Stored, serial: int) -> None:
        """Own what is stored, by this commit."""
        # The commit by which the rows were taken: greater for each later owner.
        self.serial = serial
        self._begin = begin
        self._content = content
        self._owner_topic = content.keys.owner
        self._state_topic = content.keys.state
        self._touched: dict[str, None] = {}
        # What the last save that moved the index has left, should it succeed.
        self._stored = stored
        # Those that were begun, in order, until somebody looks what became of them.
        self._saves: list[_Save] = []
        # How many of those that move the index have failed.
        self._chain = 0
        self._dropping: CommitTicket | None = None

    def touch(self, topic: str) -> None:
        """Take note that a row was changed."""
        self._touched[topic] = None

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything to save, be it again."""
        self._settle()
        return bool(self._touched)

    def save_later(self) -> CommitTicket | None:
        """Begin to store what was changed; None when there is nothing to do.

        What could not be stored is changed again once the ticket is done.

        Raises: OverloadedError, PoisonedError, ClosedError; UsageError when it was dropped.
        """
        self._settle()
        if not self._touched:
            return None
        tx = self._owning()
        touched, self._touched = self._touched, {}
        old = self._stored
        new = self._next(touched)
        submitted = False
        try:
            self._schedule(tx, touched, old, new)
            ticket = tx.submit()
            submitted = True
        finally:
            if not submitted:
                # Nothing was built on it yet.
                self._stored = old
                self._put_back(touched, indexed=new is not old)
        self._saves.append(_Save(ticket, touched, old, self._chain, new is not old))
        return ticket

    def drop_later(self) -> CommitTicket:
        """Begin to delete everything: all rows, the state, the owner and the index."""
        self._settle()
        tx = self._owning()
        stored = self._stored
        rows = {*self._content.topics(), *self._touched, self._state_topic, self._owner_topic}
        tx.require_present(self._state_topic, value=stored.state)
        for topic in [*rows, *gone(stored.found, NO_INDEX)]:
            tx.delete(topic)
        move(tx, stored.found, NO_INDEX)
        self._dropping = tx.submit()
        return self._dropping

    def _settle(self) -> None:
        """Look what became of the saves: count as changed again what could not be stored, and the
        index as it was. Those that were built on one that failed fail too, and change nothing of
        that.
        """
        while self._saves and self._saves[0].ticket.done:
            save = self._saves.pop(0)
            if save.ticket.error is not None:
                self._put_back(save.touched, indexed=save.indexed)
                if save.indexed and save.chain == self._chain:
                    self._chain += 1
                    self._stored = save.before

    def _put_back(self, touched: dict[str, None], *, indexed: bool) -> None:
        self._touched.update(touched)
        if indexed:
            self._touched[self._state_topic] = None

    def _next(self, touched: dict[str, None]) -> Stored:
        """Return what will be stored; the same as now where only plain rows were changed."""
        if all(map(self._content.is_plain, touched)):
            return self._stored
        self._stored = self._content.stored(self._stored.revision + 1)
        touched.pop(self._state_topic, None)
        return self._stored

    def _schedule(
        self, tx: Transaction, touched: dict[str, None], old: Stored, new: Stored
    ) -> None:
        """Put what was changed into a transaction; deletions come first, which costs less."""
        rows = {topic: self._content.row(topic) for topic in touched}
        for topic, value in rows.items():
            if value is None:
                tx.delete(topic)
        if new is not old:
            tx.require_present(self._state_topic, value=old.state)
            for topic in gone(old.found, new.found):
                tx.delete(topic)
            tx.write(self._state_topic, new.state)
            move(tx, old.found, new.found)
        for topic, value in rows.items():
            if value is not None:
                tx.write(topic, value)

    def _owning(self) -> Transaction:
        dropping = self._dropping
        if dropping is not None and not (dropping.done and dropping.error is not None):
            raise UsageError("the session or share group was dropped, so it cannot be saved")
        tx = self._begin()
        tx.require_owner(self._owner_topic, self.serial)
        return tx


class Owned:
    """A session or group in the hands of its owner. It belongs to one thread."""

    __slots__ = ("_rows",)

    def __init__(self, rows: OwnedRows) -> None:
        self._rows = rows

    @property
    def serial(self) -> int:
        """The commit by which it was taken: greater for each later owner."""
        return self._rows.serial

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything to save."""
        return self._rows.is_dirty

    def save_later(self) -> CommitTicket | None:
        """Begin to store what was changed since the last save; None when nothing was.

        Does not wait. What could not be stored is to be saved again once the ticket is done; its
        error is FencedError when there is another owner by now.

        Raises: OverloadedError, PoisonedError, ClosedError; UsageError when it was dropped.
        """
        return self._rows.save_later()

    def save(self) -> None:
        """Store what was changed, and wait for it. Raises: what save_later and the commit raise."""
        ticket = self.save_later()
        if ticket is not None:
            ticket.wait()

    def drop_later(self) -> CommitTicket:
        """Begin to delete it with everything that is kept of it."""
        return self._rows.drop_later()

    def drop(self) -> None:
        """Delete it, and wait for that. Raises: FencedError."""
        self.drop_later().wait()
