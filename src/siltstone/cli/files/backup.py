"""`siltstone backup` and `siltstone restore`: a whole data directory in one file, and back."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from siltstone.cli.opening import open_reading
from siltstone.cli.options import DATA_DEFAULT, Data, Json, check_replaceable, converted
from siltstone.cli.output.output import note, say, show_json
from siltstone.cli.output.progress import BYTES, Meter, progress, tree_size, watched
from siltstone.clock import SystemClock
from siltstone.errors import (
    CorruptionError,
    ExistsError,
    NotFoundError,
    OutcomeUnknownError,
    RetryError,
    UsageError,
)
from siltstone.fs.api import File
from siltstone.fs.paths import StorePaths
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.fs.publish import TEMPORARY_SUFFIX
from siltstone.manage.running import is_served, pinned, while_cluster_still, while_still
from siltstone.settings.quantities import format_size, parse_size
from siltstone.snapshot.backup import BackupSource
from siltstone.snapshot.format.contents import ContentsInFile
from siltstone.snapshot.format.records import About, FilePart, Record
from siltstone.snapshot.format.stream import MAGIC
from siltstone.snapshot.restore import restore_directory
from siltstone.snapshot.writer import publish_snapshot
from siltstone.store.kv.rocks import RocksEngine, open_read_only
from siltstone.version import __version__

SOURCE = "store"
_CUTS_MAX: Final = 5
# The window bits with which zlib expects a gzip header, and the bytes that show the kind of a file.
_GZIP: Final = 31
_HEAD_BYTES: Final = 4096


def about_store(serial: int = 0) -> About:
    """Return the first record of a snapshot of a data directory."""
    return About(
        serial=serial,
        created_us=SystemClock().now_us(),
        source=SOURCE,
        writer=f"siltstone {__version__}",
    )


def backup(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to write.", show_default=False)
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    this_site: Annotated[
        bool,
        typer.Option("--this-site", help="Do not wait for the other sites of the cluster."),
    ] = False,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Write a backup of the whole data directory to one file.

    The command works beside a running broker. The file is compressed with gzip.

    At a site of a cluster, the backup has everything that any site acknowledged before it began,
    and shows all shards at one moment. With --this-site, it has everything that this site has read.

    $ siltstone backup backup.gz
    $ siltstone backup backup.gz --data /var/lib/siltstone --force
    """
    fs = PosixFileSystem()
    target = absolute_path(file)
    check_replaceable(file)
    if fs.exists(target) and not force:
        raise ExistsError(f"{file} exists; pass --force to replace it")
    if not fs.exists(target.parent):
        raise NotFoundError(f"cannot write {file}: directory {target.parent} does not exist")
    open_reading(data).close()
    spill = target.with_name(target.name + ".contents.tmp")
    for left in (spill, target.with_name(target.name + TEMPORARY_SUFFIX)):
        # A killed backup left these files. A running backup has the file itself open.
        if fs.exists(left):
            fs.remove(left)
    with ExitStack() as closing:
        contents = closing.enter_context(fs.create(spill))
        closing.callback(fs.remove, spill)
        source = BackupSource(
            fs,
            absolute_path(data),
            partial(open_read_only, fs),
            ContentsInFile(contents),
        )
        closing.callback(source.close)
        if is_served(data):
            # The sessions in the backup need rows that may be delivered, and reclaimed, before they
            # are copied.
            closing.enter_context(pinned(data))
        is_site = fs.exists(StorePaths(absolute_path(data)).cluster)
        _cut(data, source, of_cluster=is_site and not this_site)
        with progress(
            "Backing up", BYTES, tree_size(fs, StorePaths(absolute_path(data)).data)
        ) as meter:
            records = _watched(source.records(), meter)
            totals, size_bytes = publish_snapshot(fs, target, about_store(), records)
    if json:
        document: dict[str, Any] = {
            "file": str(file),
            "size_bytes": size_bytes,
            "digest": totals.digest.hex(),
        }
        show_json(document)
    else:
        say(f"wrote {file}, {format_size(size_bytes)}")


def _watched(records: Iterable[Record], meter: Meter) -> Iterator[Record]:
    """Yield the records, and show the bytes of files among them as progress."""
    for record in records:
        if isinstance(record, FilePart):
            meter.add(len(record.data))
        yield record


def _cut(data: Path, source: BackupSource, *, of_cluster: bool) -> None:
    """Cut all databases at one moment, while a running broker, or its cluster, stores nothing.

    Raises: RetryError if no moment was found at which the cluster stores nothing.
    """
    if not is_served(data):
        source.cut()
        return
    cut = _Cut(data, source, of_cluster=of_cluster)
    for _ in range(_CUTS_MAX):
        if while_still(data, cut.make) and cut.lasted:
            return
    if not cut.lasted:
        raise RetryError(
            "the cluster has stored messages while the backup began, try again; with --this-site, "
            "the backup has what this site has read"
        )
    note("messages were stored while the backup started; its databases may differ by some of them")


class _Cut:
    """Cuts the databases of a site. `lasted` tells whether no other site of the cluster stored
    anything during the last cut.
    """

    def __init__(self, data: Path, source: BackupSource, *, of_cluster: bool) -> None:
        self._data = data
        self._source = source
        self._of_cluster = of_cluster
        self.lasted = not of_cluster

    def make(self) -> None:
        """Cut the databases. Raises: RetryError."""
        if not self._of_cluster:
            self._source.cut()
            return
        try:
            self.lasted = while_cluster_still(self._data, self._source.cut)
        except (RetryError, OutcomeUnknownError) as exc:
            raise RetryError(
                f"the backup of the cluster cannot begin: {exc}; with --this-site, the backup has "
                f"what this site has read"
            ) from exc


def _check_kind(file: Path, source: File) -> None:
    """Check the beginning of a file. Raises: UsageError for another kind of file."""
    try:
        begin = zlib.decompressobj(_GZIP).decompress(source.read_at(0, _HEAD_BYTES), len(MAGIC))
    except zlib.error:
        begin = None
    # A backup that was truncated near its start is reported as damaged, not as another kind of
    # file.
    if begin is None or source.size() == 0 or not MAGIC.startswith(begin):
        raise UsageError(f"{file} is not a Siltstone backup")


def restore(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="File that 'siltstone backup' wrote.", show_default=False
        ),
    ],
    size_max: Annotated[
        int | None,
        typer.Option(
            "--size-max",
            metavar="SIZE",
            parser=converted(parse_size),
            help="Refuse a backup with more data than this, for example 10GiB.",
            show_default="the free space of the disk",
        ),
    ] = None,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Create a data directory from a backup.

    The data directory must not exist, or must be empty.

    $ siltstone restore backup.gz --data restored
    """
    fs = PosixFileSystem()
    directory = absolute_path(data)
    if not fs.exists(absolute_path(file)):
        raise NotFoundError(f"cannot read {file}: the file does not exist")
    with (
        fs.open(absolute_path(file), writable=False) as source,
        # The file is read three times: to check it, for the databases, for the broker's state.
        progress("Restoring", BYTES, 3 * source.size()) as meter,
    ):
        _check_kind(file, source)
        try:
            summary = restore_directory(
                fs,
                SystemClock(),
                watched(source, meter.add),
                directory,
                RocksEngine,
                size_bytes_max=size_max,
            )
        except ExistsError as exc:
            raise ExistsError(
                f"data directory {data} is not empty; name a new one with --data"
            ) from exc
        except CorruptionError as exc:
            exc.args = (
                f"{file} is damaged: {exc.reason} at byte {exc.offset}; restore another backup",
            )
            raise
    if json:
        show_json({"data": str(data), "records": summary.counts, "digest": summary.digest.hex()})
    else:
        say(f"restored data directory {data} from {file}, {format_size(summary.plain_bytes)}")
