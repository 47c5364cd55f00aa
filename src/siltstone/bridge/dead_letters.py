"""Storage for messages that the remote broker refuses: one file each, with the reason beside it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePath
from typing import Final

from siltstone.bridge.entries import encode_message, metadata_of
from siltstone.client.outgoing import Publication
from siltstone.errors import SiltstoneError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import create_directories
from siltstone.spool import Entry, Spool

SUFFIX: Final = ".publish"


class DeadLetters:
    """A directory of files that are PUBLISH packets of MQTT 5. May be used from any thread."""

    def __init__(self, fs: FileSystem, directory: PurePath, spool: Spool) -> None:
        self._fs = fs
        self._directory = directory
        self._spool = spool

    def put(self, publication: Publication, payload: bytes, reason: str, now_us: int) -> PurePath:
        """Store a message that was refused; return its path.

        It is stored as a spool entry first, so at any time it is in one of the two places.
        """
        create_directories(self._fs, self._directory)
        entry = self._spool.store(encode_message(publication, payload), metadata_of(now_us, 1))
        path = self._directory / f"{entry.id}{SUFFIX}"
        facts = (
            f"topic={publication.topic.decode()} qos={publication.qos}"
            f" retain={publication.retain} size_bytes={len(payload)} time_us={now_us}"
        )
        try:
            self._spool.discard(entry, path, reason=f"{reason}\n{facts}")
        except SiltstoneError:
            # The caller still has the message and tries again; without this there would be two
            # copies.
            with suppress(SiltstoneError):
                self._spool.discard(entry)
            raise
        return path

    def put_damaged(self, entry: Entry, reason: str) -> PurePath:
        """Move an entry that cannot be read to quarantine; return its path."""
        return self._spool.quarantine(entry, self._directory, reason)
