"""QoS 2 messages from the client of a durable session: each is stored once, even after a crash.

Before a message is appended, the session saves the producer and the sequence of the append. If the
broker stops before it knows that the message is stored, the broker asks the store when the client
sends the message again: either the store has that sequence, or the message is new.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from siltstone.session.archive.records import SavedReceived


class UnreleasedMessages:
    """The messages that the client has sent and not released."""

    def __init__(self, client_id: str, received: Iterable[SavedReceived]) -> None:
        self._client_id = client_id
        self._records = {record.packet_id: record for record in received}
        # It is not known yet whether these messages were stored.
        self._doubtful = {
            packet_id for packet_id, record in self._records.items() if record.sequence
        }
        # The producer name for the appends of this session; 0 before the first append.
        self._token = 0
        self._sequence = 0
        # Whether the outcome of an append may stay unknown.
        self._is_in_doubt = False

    def certain(self) -> set[int]:
        """Return the packet ids of the messages that are stored."""
        return set(self._records) - self._doubtful

    def doubt_of(self, packet_id: int) -> tuple[str, int] | None:
        """Return the producer and the sequence of a doubtful message; None if it is not doubtful.

        The message stays doubtful until the caller has asked the store. The caller then calls
        `confirm`, or `release` if the message was not stored.
        """
        if packet_id not in self._doubtful:
            return None
        record = self._records[packet_id]
        return self._name(record.producer), record.sequence

    def confirm(self, packet_ids: Iterable[int]) -> None:
        """Record that doubtful messages are stored; those released meanwhile are ignored."""
        for packet_id in self._doubtful.intersection(packet_ids):
            self._doubtful.discard(packet_id)
            self.keep(packet_id)

    def keep(self, packet_id: int) -> None:
        """Record a received message that needs no append."""
        self._records[packet_id] = SavedReceived(packet_id)

    def expect(self, packet_ids: Iterable[int]) -> tuple[str, int]:
        """Record messages that will be appended together; return their producer and sequence."""
        if self._token == 0:
            self._token = secrets.randbits(64)
        self._sequence += 1
        for packet_id in packet_ids:
            self._records[packet_id] = SavedReceived(packet_id, self._token, self._sequence)
        return self._name(self._token), self._sequence

    def trust(self, packet_ids: Iterable[int]) -> set[int]:
        """Return the doubtful ones of these messages, which the client releases.

        A client sends PUBREL only after PUBREC, so these messages are stored.
        """
        return self._doubtful.intersection(packet_ids)

    def release(self, packet_ids: Iterable[int]) -> None:
        """Forget messages that were released, or that were not accepted."""
        for packet_id in packet_ids:
            self._records.pop(packet_id, None)
            self._doubtful.discard(packet_id)

    def renew(self) -> None:
        """Use a new producer name after a failed append.

        Under the former name, the store would report the failed sequences as stored.
        """
        self._token = 0

    def doubt(self) -> None:
        """Ask the store about every message that is sent again: some outcomes may stay unknown."""
        self._is_in_doubt = True

    def records(self, *, settled: bool = False) -> tuple[SavedReceived, ...]:
        """Return the records to save; `settled` says that the outcome of every append is known."""
        is_certain = settled and not self._is_in_doubt
        return tuple(
            SavedReceived(packet_id) if is_certain and packet_id not in self._doubtful else record
            for packet_id, record in sorted(self._records.items())
        )

    def _name(self, token: int) -> str:
        return f"session/{self._client_id}/{token:016x}"
