"""Where messages go that the peer will never take: one file each, its reason beside it."""

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
    """A directory of files that are PUBLISH packets of MQTT 5. Any thread may call."""

    def __init__(self, fs: FileSystem, directory: PurePath, spool: Spool) -> None:
        self._fs = fs
        self._directory = directory
        self._spool = spool

    def put(self, publication: Publication, payload: bytes, reason: str, now_us: int) -> PurePath:
        """Keep a message that was refused; return where it is.

        It is an entry first, so that whatever happens it is in one of the two places.
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
            # The caller has the message still, and tries again; else there would be two.
            with suppress(SiltstoneError):
                self._spool.discard(entry)
            raise
        return path

    def put_damaged(self, entry: Entry, reason: str) -> PurePath:
        """Keep an entry that cannot be read; return where it is."""
        return self._spool.quarantine(entry, self._directory, reason)
