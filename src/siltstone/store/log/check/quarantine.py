"""The quarantine: bytes that repair removes from a slab, one file each with a reason file.

    DIR/quarantine/<database>-<shard>-<generation>-<base serial>-<offset>.frame
    DIR/quarantine/<database>-<shard>-<generation>-<base serial>.seg      a whole segment

Every file here has a reason, so the reason is written first. Both are durable before the original
bytes are replaced.
"""

from __future__ import annotations

from pathlib import PurePath

from siltstone.fs.api import FileSystem
from siltstone.fs.publish import REASON_SUFFIX, create_directories, free_name, replace_file
from siltstone.store.segment.chain import SlabIdentity


class Quarantine:
    """The quarantine directory, for one slab."""

    def __init__(self, fs: FileSystem, directory: PurePath, identity: SlabIdentity) -> None:
        self._fs = fs
        self._directory = directory
        self._prefix = f"{identity.database}-{identity.shard}-{identity.generation}"

    def keep(self, path: PurePath, offset: int, data: bytes, reason: str) -> PurePath:
        """Copy bytes of a segment here, the same bytes only once; return the path of the copy."""
        name = f"{self._prefix}-{path.stem}-{offset}.frame"
        target = self._directory / name
        # After a crash behind this step, the next repair keeps the same bytes again.
        if not self._fs.exists(target) or self._fs.read(target) != data:
            target = self._reasoned(name, f"{path} offset={offset}: {reason}")
            replace_file(self._fs, target, data)
        return target

    def keep_file(self, path: PurePath, reason: str) -> PurePath:
        """Link a whole segment to a name here and return it; the caller replaces the original."""
        target = self._reasoned(f"{self._prefix}-{path.stem}.seg", f"{path}: {reason}")
        self._fs.link(path, target)
        self._fs.sync_directory(self._directory)
        return target

    def _reasoned(self, name: str, reason: str) -> PurePath:
        """Return a free name whose reason file is written."""
        create_directories(self._fs, self._directory)
        target = free_name(self._fs, self._directory, name)
        path = target.with_name(target.name + REASON_SUFFIX)
        replace_file(self._fs, path, f"{reason}\n".encode())
        return target
