"""Rows of the archive that one owner may change: only changed rows are saved.

Every save requires the serial by which the owner took the rows, so a former owner can change
nothing. A save that updates the index also requires the stored state on which the update is based.
If the save before it failed, this save fails as well, so the index never counts a session twice and
never misses one.

A save of thousands of filters takes long to prepare, so it can be prepared in parts. Its contents
are fixed when it begins. A later save or deletion completes the preparation first: they are
submitted in the order in which they began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from siltstone.errors import UsageError
from siltstone.session.archive.index import NO_INDEX, Index, gone, moving
from siltstone.session.archive.owned.joint import JointSaves, JointTicket
from siltstone.session.archive.owned.parts import CommitInParts, Soon
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.transaction import Transaction

# A submitted change, one that is being prepared, or one that is submitted with others.
Submitted = CommitTicket | CommitInParts | JointTicket

T = TypeVar("T", bound=Submitted)
_END: Final = object()
# The number of rows in one part of a preparation.
_ROWS_AT_ONCE: Final = 200


class TransactionSource(Protocol):
    """Begins transactions on the shard of the rows."""

    shard: int

    def __call__(self) -> Transaction:
        """Begin a transaction; its commit does not wait."""
        ...


class StoredState(NamedTuple):
    """A state as it is stored, its index, and its revision (how many times it was stored)."""

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
    """The content of a session or a group."""

    @property
    def keys(self) -> Keys: ...

    def topics(self) -> list[str]:
        """Return the topics of the rows other than the owner and the state."""
        ...

    def row(self, topic: str) -> bytes | None:
        """Return the value of a row; None if the row must be deleted."""
        ...

    def is_plain(self, topic: str) -> bool:
        """Tell whether a row can be saved without the state and the index."""
        ...

    def stored(self, revision: int) -> StoredState:
        """Return the state to store; its bytes are different for each revision."""
        ...


class _Save(NamedTuple):
    """A save in progress: its rows, what was stored before it, and the chain it is based on."""

    ticket: Submitted
    touched: dict[str, None]
    before: StoredState
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
        "_parts",
        "_saves",
        "_state_topic",
        "_stored",
        "_touched",
        "serial",
    )

    def __init__(
        self, begin: TransactionSource, content: Content, stored: StoredState, serial: int
    ) -> None:
        """Own the stored rows, by the commit with this serial."""
        # The serial of the commit by which the rows were taken: greater for each later owner.
        self.serial = serial
        self._begin = begin
        self._content = content
        self._owner_topic = content.keys.owner
        self._state_topic = content.keys.state
        self._touched: dict[str, None] = {}
        # The stored state after the last save that updates the index, if that save succeeds.
        self._stored = stored
        # The saves that were submitted, in order, until `_settle` has checked their outcome.
        self._saves: list[_Save] = []
        # The number of failed saves that update the index. Saves based on a failed one are not
        # counted.
        self._chain = 0
        self._dropping: Submitted | None = None
        # The last change that is prepared in parts.
        self._parts: CommitInParts | None = None

    def touch(self, topic: str) -> None:
        """Record that a row was changed."""
        self._touched[topic] = None

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything to save, including rows of failed saves."""
        self._settle()
        return bool(self._touched)

    def save_later(self) -> CommitTicket | None:
        """Begin to store the changed rows; None if there is nothing to do.

        If the save fails, its rows count as changed again once the ticket is done.

        Raises: OverloadedError, PoisonedError, ClosedError; UsageError if the rows were dropped.
        """
        return self._save(_at_once)

    def save_in_parts(self, soon: Soon) -> Submitted | None:
        """Do the same as `save_later`, and prepare a large save in parts, each called by `soon`.

        Then its errors, too, are those of the ticket.
        """
        return self._save(partial(self._prepare, soon))

    def save_jointly(self, joint: JointSaves, soon: Soon) -> Submitted | None:
        """Do the same as `save_later`, in one transaction with the saves of other owners, which is
        submitted with `joint`. Changes of the state or the index are saved alone and in parts.
        """
        self._complete_parts()
        self._settle()
        touched = self._touched
        if not touched or not all(map(self._content.is_plain, touched)):
            return self.save_in_parts(soon)
        self._check_kept()
        rows = {topic: self._content.row(topic) for topic in touched}
        size_bytes = sum(len(value) for value in rows.values() if value is not None)
        ticket = joint.join(self._begin.shard, self._begin, size_bytes)
        tx = ticket.transaction
        tx.require_owner(self._owner_topic, self.serial)
        for topic, value in rows.items():
            if value is None:
                tx.delete(topic)
            else:
                tx.write(topic, value)
        self._touched = {}
        stored = self._stored
        self._saves.append(_Save(ticket, touched, stored, self._chain, indexed=False))
        return ticket

    def drop_later(self) -> CommitTicket:
        """Begin to delete everything: all rows, the state, the owner and the index."""
        tx = self._beginning()
        ticket = self._dropping = _at_once(tx, self._deletions(tx))
        return ticket

    def drop_in_parts(self, soon: Soon) -> Submitted:
        """Do the same as `drop_later`, in parts as `save_in_parts` does."""
        tx = self._beginning()
        ticket = self._dropping = self._prepare(soon, tx, self._deletions(tx))
        return ticket

    def _save(self, submit: Callable[[Transaction, Iterator[None]], T]) -> T | None:
        self._complete_parts()
        self._settle()
        if not self._touched:
            return None
        tx = self._owning()
        touched, self._touched = self._touched, {}
        old = self._stored
        new = self._next(touched)
        submitted = False
        try:
            rows = {topic: self._content.row(topic) for topic in touched}
            ticket = submit(tx, self._changes(tx, rows, old, new))
            submitted = True
        finally:
            if not submitted:
                # No later save is based on it yet.
                self._stored = old
                self._put_back(touched, indexed=new is not old)
        self._saves.append(_Save(ticket, touched, old, self._chain, new is not old))
        return ticket

    def _prepare(self, soon: Soon, tx: Transaction, changes: Iterator[None]) -> Submitted:
        """Submit changes that have one part; for others, prepare the first part."""
        if next(changes, _END) is _END:
            return tx.submit()
        self._parts = CommitInParts(changes, tx, soon)
        return self._parts

    def _complete_parts(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.complete()

    def _beginning(self) -> Transaction:
        self._complete_parts()
        self._settle()
        return self._owning()

    def _settle(self) -> None:
        """Check the outcome of the saves that are done. The rows of a failed save count as changed
        again, and the stored state is what it was before that save. Saves that were based on a
        failed one fail too; they do not reset the stored state again.
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

    def _next(self, touched: dict[str, None]) -> StoredState:
        """Return the state to store; it is the stored one if only plain rows were changed."""
        if all(map(self._content.is_plain, touched)):
            return self._stored
        self._stored = self._content.stored(self._stored.revision + 1)
        touched.pop(self._state_topic, None)
        return self._stored

    def _changes(
        self, tx: Transaction, rows: dict[str, bytes | None], old: StoredState, new: StoredState
    ) -> Iterator[None]:
        """Put the changes into a transaction, and yield after each part. Deletions come first,
        because this costs less.
        """
        yield from _deleting(tx, [topic for topic, value in rows.items() if value is None])
        if new is not old:
            tx.require_present(self._state_topic, value=old.state)
            yield from _deleting(tx, gone(old.found, new.found))
            tx.write(self._state_topic, new.state)
            yield from moving(tx, old.found, new.found)
        written = 0
        for topic, value in rows.items():
            if value is not None:
                tx.write(topic, value)
                written += 1
                if written % _ROWS_AT_ONCE == 0:
                    yield

    def _deletions(self, tx: Transaction) -> Iterator[None]:
        stored = self._stored
        rows = {*self._content.topics(), *self._touched, self._state_topic, self._owner_topic}
        tx.require_present(self._state_topic, value=stored.state)
        yield from _deleting(tx, [*rows, *gone(stored.found, NO_INDEX)])
        yield from moving(tx, stored.found, NO_INDEX)

    def _owning(self) -> Transaction:
        self._check_kept()
        tx = self._begin()
        tx.require_owner(self._owner_topic, self.serial)
        return tx

    def _check_kept(self) -> None:
        """Raise UsageError if everything was deleted, or soon is."""
        dropping = self._dropping
        if dropping is not None and not (dropping.done and dropping.error is not None):
            raise UsageError("the session or share group was dropped, so it cannot be saved")


def _at_once(tx: Transaction, changes: Iterator[None]) -> CommitTicket:
    for _ in changes:
        pass
    return tx.submit()


def _deleting(tx: Transaction, topics: list[str]) -> Iterator[None]:
    for number, topic in enumerate(topics, 1):
        tx.delete(topic)
        if number % _ROWS_AT_ONCE == 0:
            yield


class Owned:
    """A session or group that one owner may change. It belongs to one thread."""

    __slots__ = ("_rows",)

    def __init__(self, rows: OwnedRows) -> None:
        self._rows = rows

    @property
    def serial(self) -> int:
        """The serial of the commit by which it was taken: greater for each later owner."""
        return self._rows.serial

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything to save."""
        return self._rows.is_dirty

    def save_later(self) -> CommitTicket | None:
        """Begin to store the changes since the last save; None if there are none.

        Does not wait. Changes of a failed save must be saved again once the ticket is done. The
        error of the ticket is FencedError if there is another owner now.

        Raises: OverloadedError, PoisonedError, ClosedError; UsageError if it was dropped.
        """
        return self._rows.save_later()

    def save_in_parts(self, soon: Soon) -> Submitted | None:
        """Do the same as `save_later`. If there is much to save, each call by `soon` prepares a
        part of it; then the ticket also has the errors that `save_later` raises.
        """
        return self._rows.save_in_parts(soon)

    def save_jointly(self, joint: JointSaves, soon: Soon) -> Submitted | None:
        """Do the same as `save_in_parts`, together with other owners if only the progress changed.

        It is submitted with `joint`. If one of the owners has lost its session, the ticket has a
        RetryError, and nothing is stored.
        """
        return self._rows.save_jointly(joint, soon)

    def save(self) -> None:
        """Store the changes and wait. Raises: what save_later and the commit raise."""
        ticket = self.save_later()
        if ticket is not None:
            ticket.wait()

    def drop_later(self) -> CommitTicket:
        """Begin to delete it, with all its rows and index entries."""
        return self._rows.drop_later()

    def drop_in_parts(self, soon: Soon) -> Submitted:
        """Do the same as `drop_later`, in parts as `save_in_parts` does."""
        return self._rows.drop_in_parts(soon)

    def drop(self) -> None:
        """Delete it and wait for the commit. Raises: FencedError."""
        self.drop_later().wait()
