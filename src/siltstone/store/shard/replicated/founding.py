"""Begin the shared logs of a database with the rows that one site has in its files.

There are two cases: a local database becomes a replicated one, and a cluster begins again after it
lost the majority of its seeds. The order is:

1. at the stopped site, the shards are closed cleanly, and the next serial of each one is written
   durably to `replication/founding`. A new beginning leaves a gap in the serials first: a reader
   may have seen rows of the lost log, and their serials must not be used again;
2. the manifest says that the database is replicated;
3. when the site starts with its cluster, it enters the database as its own, which no other site
   may open yet, and creates the logs. Their GENESIS is trimmed at once, so a site without a mark
   can only copy from one that has the rows;
4. the marks of all shards are written behind GENESIS, then `founding` is removed;
5. the database is ready, and the other sites open it.

Before step 2 the database is as it was, and step 1 may be repeated. Steps 3 to 5 are repeated by
the next start after a crash.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Final

from siltstone.clock import Clock
from siltstone.errors import CorruptionError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import create_directories, remove_file, remove_tree, replace_file
from siltstone.settings.declare import with_encoding
from siltstone.store.log.opening import identity_of, reopen_slab, slab_directory
from siltstone.store.shard.replicated.mark_file import Marked, read_mark, write_mark
from siltstone.store.shard.replicated.port import Founding, Replication
from siltstone.store.slab.manifest import MANIFEST, REPLICATION, Manifest, read_manifest
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.writer.replication.codec import encode
from siltstone.store.writer.replication.follower import Follower
from siltstone.store.writer.replication.messages import Genesis, LogIdentity
from siltstone.store.writer.replication.producers import Producers
from siltstone.store.writer.replication.rule import LogPosition

_FOUNDING: Final = "founding"
# More rows than a site can miss: the serials that a lost log may have used.
SKIPPED_SERIALS: Final = 1 << 32


def is_founding(fs: FileSystem, directory: PurePath) -> bool:
    """Return whether the logs of a database will begin with the rows of this site."""
    return fs.exists(directory / REPLICATION / _FOUNDING)


def make_replicated(fs: FileSystem, clock: Clock, directory: PurePath) -> bool:
    """Make the database in a directory a replicated one, which begins at the next start of the
    site; return whether it was a local one. Nothing of it may be open.

    Raises: UsageError if it holds topic logs, or lost its salt; NotFoundError, CorruptionError.
    """
    manifest = read_manifest(fs, directory)
    if manifest.settings.backend != "local":
        return False
    _prepare(fs, clock, directory, manifest, skipped=0)
    values = manifest.settings.to_json() | {"backend": "replicated"}
    after = replace(manifest, settings=DatabaseSettings.from_json(values))
    replace_file(fs, directory / MANIFEST, after.encode())
    return True


def begin_anew(fs: FileSystem, clock: Clock, directory: PurePath) -> bool:
    """Let the logs of a replicated database begin again with the rows of this site; return whether
    it is one. Nothing of it may be open. Raises: UsageError, NotFoundError, CorruptionError.
    """
    manifest = read_manifest(fs, directory)
    if manifest.settings.backend == "local":
        return False
    _refuse_installing(fs, directory)
    _prepare(fs, clock, directory, manifest, skipped=SKIPPED_SERIALS)
    return True


def begin_as_follower(fs: FileSystem, directory: PurePath) -> bool:
    """Forget how far this site has read, so that it copies the rows of another site; return whether
    the database is a replicated one. Raises: UsageError, NotFoundError, CorruptionError.
    """
    if read_manifest(fs, directory).settings.backend == "local":
        return False
    _refuse_installing(fs, directory)
    if fs.exists(directory / REPLICATION):
        remove_tree(fs, directory / REPLICATION)
    return True


def _refuse_installing(fs: FileSystem, directory: PurePath) -> None:
    place = directory / REPLICATION
    names = [entry.name for entry in fs.list(place)] if fs.exists(place) else []
    if any(name.endswith(".install") for name in names):
        raise UsageError(
            f"{directory.name} is being replaced by a copy from another site: remove the directory "
            f"{directory}, and let this site copy it from the site that begins the logs"
        )


def _prepare(
    fs: FileSystem, clock: Clock, directory: PurePath, manifest: Manifest, *, skipped: int
) -> None:
    """Close all shards cleanly, and write how far their rows reach."""
    if manifest.holds_logs or manifest.logs:
        raise UsageError(f"{directory.name} holds topic logs, which cannot be replicated")
    if manifest.seeds:
        raise UsageError(
            f"{directory.name} has lost its salt once, so other sites cannot read its files: "
            f"append its rows to a new database"
        )
    serials: list[int] = []
    for shard in range(manifest.settings.shards):
        current = manifest.slabs_of(shard)[-1]
        committer, _ = reopen_slab(
            fs,
            clock,
            slab_directory(directory, current.id),
            current,
            identity_of(manifest, current.id),
            with_encoding(manifest.settings, current.encoding),
        )
        try:
            if skipped:
                committer.skip_serials(skipped)
            committer.sync()
            serials.append(committer.next_serial)
        finally:
            committer.close()
    create_directories(fs, directory / REPLICATION)
    data = json.dumps({"next_serials": serials}).encode()
    replace_file(fs, directory / REPLICATION / _FOUNDING, data)


def found_from_files(fs: FileSystem, directory: PurePath, cluster: Replication) -> None:
    """Begin the logs in the cluster, if they must begin here; wait for a majority.

    Raises: UsageError if the cluster has another database of this name; CorruptionError.
    """
    place = directory / REPLICATION / _FOUNDING
    if not fs.exists(place):
        return
    try:
        values: dict[str, Any] = json.loads(fs.read(place))
        serials = [int(serial) for serial in values["next_serials"]]
    except (ValueError, KeyError, TypeError) as exc:
        raise CorruptionError(f"it cannot be read: {exc}", path=place) from exc
    manifest = read_manifest(fs, directory)
    founding = Founding(
        salt=manifest.salt,
        created_us=min(record.created_us for record in manifest.slabs),
        settings=manifest.settings,
    )
    nonces = cluster.found_from_files(manifest.database, founding)
    for shard, (nonce, next_serial) in enumerate(zip(nonces, serials, strict=True)):
        identity = LogIdentity(
            database=bytes.fromhex(manifest.identity.text), shard=shard, epoch=cluster.epoch
        )
        follower = Follower(LogPosition(identity=identity), Producers())
        follower.read(1, encode(Genesis(identity, nonce)))
        known = read_mark(fs, directory, shard)
        marked = Marked(
            position=follower.position.mark(),
            # A call that was stored before is recognised.
            producers=Producers() if known is None else known.producers,
            next_serial=next_serial,
        )
        write_mark(fs, directory, shard, marked)
    remove_file(fs, place)
