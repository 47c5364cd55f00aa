"""QoS 2 messages from the client of a durable session: each stored once, whatever crashes.

Before a message is appended it is saved under which sequence of which producer that will be. Where
the broker stopped before it was known to be stored, the store is asked when the client sends the
message again: either it has that sequence, or the message is new.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from siltstone.session.archive.records import SavedReceived


class Inbound:
    """The messages that are received and not released."""

    def __init__(self, client_id: str, received: Iterable[SavedReceived]) -> None:
        self._client_id = client_id
        self._records = {record.packet_id: record for record in received}
        # Nobody knows yet whether these were stored.
        self._doubtful = {
            packet_id for packet_id, record in self._records.items() if record.sequence
        }
        # Under which name its messages are appended; 0 before the first.
        self._token = 0
        self._sequence = 0
        # Whether the outcome of an append may never be heard of.
        self._is_in_doubt = False

    def certain(self) -> set[int]:
        """Return the packet ids of the messages that are stored."""
        return set(self._records) - self._doubtful

    def doubt_of(self, packet_id: int) -> tuple[str, int] | None:
        """Return by whom and as what a doubtful message was to be stored; None if it is none.

        It stays doubtful until the caller has found out and says `confirm`, or `release` if it was
        not stored.
        """
        if packet_id not in self._doubtful:
            return None
        record = self._records[packet_id]
        return self._name(record.producer), record.sequence

    def confirm(self, packet_ids: Iterable[int]) -> None:
        """Take note of doubtful messages that are stored; those that were released meanwhile have
        ended.
        """
        for packet_id in self._doubtful.intersection(packet_ids):
            self._doubtful.discard(packet_id)
            self.keep(packet_id)

    def keep(self, packet_id: int) -> None:
        """Take note of a message that nobody stores."""
        self._records[packet_id] = SavedReceived(packet_id)

    def expect(self, packet_ids: Iterable[int]) -> tuple[str, int]:
        """Take note of messages that will be appended together; return by whom and as what."""
        if self._token == 0:
            self._token = secrets.randbits(64)
        self._sequence += 1
        for packet_id in packet_ids:
            self._records[packet_id] = SavedReceived(packet_id, self._token, self._sequence)
        return self._name(self._token), self._sequence

    def trust(self, packet_ids: Iterable[int]) -> set[int]:
        """Return those that are doubtful: who releases a message was told that it is stored."""
        return self._doubtful.intersection(packet_ids)

    def release(self, packet_ids: Iterable[int]) -> None:
        """Forget messages that ended, or were not taken."""
        for packet_id in packet_ids:
            self._records.pop(packet_id, None)
            self._doubtful.discard(packet_id)

    def renew(self) -> None:
        """Append under another name, after a failure: what failed under the former one would be
        taken for stored.
        """
        self._token = 0

    def doubt(self) -> None:
        """Let the store be asked of every message that comes again: not every outcome is heard."""
        self._is_in_doubt = True

    def records(self, *, settled: bool = False) -> tuple[SavedReceived, ...]:
        """Return what is to be saved; settled where the outcome of every append is known."""
        is_certain = settled and not self._is_in_doubt
        return tuple(
            SavedReceived(packet_id) if is_certain and packet_id not in self._doubtful else record
            for packet_id, record in sorted(self._records.items())
        )

    def _name(self, token: int) -> str:
        return f"session/{self._client_id}/{token:016x}"
