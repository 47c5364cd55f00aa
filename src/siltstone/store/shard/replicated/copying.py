"""Copy the files of a shard from another site: for a site that is new, or lost its files, or is
behind the trim of the shared log.

The source makes an *offer*: its mark, its slabs, and a list of their files as they are at that
moment. Segments only grow, so the listed bytes do not change while they are copied. If a slab is
dropped meanwhile, the copy begins again with another offer.

The copying site collects the files in a directory beside its own (`replication/<shard>.copy`). A
file that is not complete ends in `.part`. The order is:

1. every file is fetched, or linked if this site has the same bytes, and compared by its digest;
2. the copied files are checked frame by frame, as `verify` does, and synced;
3. the offer is written durably (`replication/<shard>.install`): the copy counts from here;
4. the directory of the shard gets links to the copied files, and no other files; then the manifest
   and the mark are replaced;
5. the offer and the collected files are removed.

Directories are not renamed: after a power cut, two directories may not agree about a rename. A
crash before step 3 leaves files that the next copy uses again. After step 3, the next start
finishes the rest. All steps may be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import PurePath
from typing import Any, Final, Protocol

from siltstone.errors import CorruptionError, NotFoundError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import create_directories, remove_file, remove_tree, replace_file
from siltstone.store.log.check.verify import verify_database
from siltstone.store.log.opening import slab_directory
from siltstone.store.segment.segment import (
    RESERVED,
    SEGMENT_HEADER_BYTES,
    SYNCED,
    VISIBLE,
    open_segment,
)
from siltstone.store.segment.sift import index_path, is_segment, read_summary
from siltstone.store.shard.replicated.damage import forget_damaged
from siltstone.store.shard.replicated.mark_file import (
    Marked,
    decode_marked,
    encode_marked,
    write_mark,
)
from siltstone.store.slab.manifest import (
    MANIFEST,
    REPLICATION,
    Manifest,
    ManifestFile,
    SlabRecord,
)
from siltstone.store.slab.settings import DatabaseSettings

_PART: Final = ".part"
# The positions in the header of a segment belong to a site.
_SAME_BYTES: Final = 2048
_STEP_BYTES: Final = 1 << 20
# A file that a crash has left may be torn. It is then fetched again as a whole.
_ATTEMPTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFile:
    """A file of a shard: its path below the directory of the shard, its size, and the end of the
    bytes to copy. The rest of a segment is a hole.
    """

    path: str
    size_bytes: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The files of a shard at a site, at one moment."""

    marked: Marked
    settings: DatabaseSettings
    slabs: tuple[SlabRecord, ...]
    reclaimed: int | None
    files: tuple[CopyFile, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(file.end for file in self.files)

    def encode(self) -> bytes:
        """Return the bytes of the offer."""
        values = {
            "marked": encode_marked(self.marked).hex(),
            "settings": self.settings.to_json(),
            "slabs": [slab.to_json() for slab in self.slabs],
            "reclaimed": self.reclaimed,
            "files": [[file.path, file.size_bytes, file.end] for file in self.files],
        }
        return json.dumps(values).encode()

    @classmethod
    def decode(cls, data: bytes) -> Offer:
        """Return the offer that these bytes encode. Raises: CorruptionError."""
        place = PurePath("offer")
        try:
            values: dict[str, Any] = json.loads(data)
            return cls(
                marked=decode_marked(bytes.fromhex(values["marked"]), place),
                settings=DatabaseSettings.from_json(values["settings"]),
                slabs=tuple(map(SlabRecord.from_json, values["slabs"])),
                reclaimed=values["reclaimed"],
                files=tuple(
                    CopyFile(path=checked_path(path), size_bytes=size, end=end)
                    for path, size, end in values["files"]
                ),
            )
        except (ValueError, KeyError, TypeError, UsageError) as exc:
            raise CorruptionError(f"an offer of another site: {exc}", path=place) from exc


def make_offer(
    fs: FileSystem, directory: PurePath, manifest: Manifest, shard: int, marked: Marked
) -> Offer:
    """Return the offer of this site for a shard, just after its mark was written. On the thread of
    the shard.
    """
    files: list[CopyFile] = []
    slabs = manifest.slabs_of(shard)
    for record in slabs:
        place = slab_directory(directory, record.id)
        for entry in sorted(fs.list(place), key=lambda entry: entry.name):
            if not is_segment(entry):
                continue
            path = place / entry.name
            summary = read_summary(fs, path)
            if summary is None:
                end = open_segment(fs, path).visible_position
            else:
                end = summary.end_position
            name = f"{record.generation}/{entry.name}"
            files.append(CopyFile(path=name, size_bytes=entry.size_bytes, end=end))
            if summary is not None:
                beside = index_path(path)
                with fs.open(beside, writable=False) as file:
                    size = file.size()
                name = f"{record.generation}/{beside.name}"
                files.append(CopyFile(path=name, size_bytes=size, end=size))
    return Offer(
        marked=marked,
        settings=manifest.settings,
        slabs=tuple(slabs),
        reclaimed=manifest.reclaimed.get(shard),
        files=tuple(files),
    )


def checked_path(path: str) -> str:
    """Return a path of an offer. Raises: UsageError if it may lead elsewhere."""
    generation, _, name = path.partition("/")
    stem, _, suffix = name.partition(".")
    if not (generation.isdecimal() and stem.isdecimal() and suffix in ("seg", "idx", "rows")):
        raise UsageError(f"expected GENERATION/SERIAL.seg, .idx or .rows, got {path!r}")
    return path


def read_part(fs: FileSystem, place: PurePath, path: str, offset: int, length: int) -> bytes:
    """Return bytes of a file of a shard, in this directory.

    Raises: NotFoundError if its slab was dropped; UsageError.
    """
    with fs.open(place / checked_path(path), writable=False) as file:
        return file.read_at(offset, length)


def digest_of_file(fs: FileSystem, place: PurePath, path: str, end: int) -> bytes:
    """Return the digest of a file up to `end`; the positions in the header of a segment, which
    belong to a site, do not count. Raises: NotFoundError, UsageError.
    """
    with fs.open(place / checked_path(path), writable=False) as file:
        if not path.endswith(".seg"):
            return _digest(file.read_at, [range(end)])
        return _digest(file.read_at, [range(_SAME_BYTES), range(SEGMENT_HEADER_BYTES, end)])


def _digest(read: Callable[[int, int], bytes], ranges: Iterable[range]) -> bytes:
    digest = blake2b(digest_size=16)
    for each in ranges:
        for at in range(each.start, each.stop, _STEP_BYTES):
            digest.update(read(at, min(_STEP_BYTES, each.stop - at)))
    return digest.digest()


class Source(Protocol):
    """The files of an offer at another site."""

    def digest(self, file: CopyFile) -> bytes:
        """Return the digest of a file. Raises: SiltstoneError."""

    def read(self, file: CopyFile, start: int) -> Iterator[bytes]:
        """Yield the bytes of a file from a position to its end. Raises: SiltstoneError."""


def collect(
    staging: CopyStaging, offer: Offer, source: Source, sound: Collection[str] = frozenset()
) -> int:
    """Fetch the files of an offer that this site does not have; return how many bytes were fetched.

    Files of this site that are `sound` are used although their bytes may differ: a segment may be
    compacted at one of the sites only.

    Raises: CorruptionError if a file has another digest than the source says; the errors of the
    source; StorageFullError. Fetched files stay for the next attempt.
    """
    staging.begin(offer)
    fetched = 0
    for file in offer.files:
        if file.path in sound:
            staging.adopt(file)
            continue
        theirs = source.digest(file)
        if staging.candidate(file) == theirs:
            staging.adopt(file)
            continue
        for _ in range(_ATTEMPTS):
            at = staging.size(file)
            for data in source.read(file, at):
                staging.write(file, at, data)
                at += len(data)
                fetched += len(data)
            if staging.finish(file, theirs):
                break
        else:
            raise CorruptionError(
                "a file that was copied has another digest than at its source",
                path=staging.place / file.path,
            )
    return fetched


class CopyStaging:
    """The directory where a site collects the files of an offer. One thread uses it at a time."""

    def __init__(self, fs: FileSystem, directory: PurePath, shard: int) -> None:
        self._fs = fs
        self._directory = directory
        self._shard = shard
        self.root = directory / REPLICATION / f"{shard}.copy"
        # Laid out as a database with one shard, so that it can be checked as one.
        self.place = self.root / str(shard)
        self._own = directory / str(shard)

    def begin(self, offer: Offer) -> None:
        """Remove the files of an earlier copy that this offer does not have."""
        create_directories(self._fs, self.place)
        wanted = {file.path for file in offer.files}
        generations = {path.partition("/")[0] for path in wanted}
        for entry in self._fs.list(self.place):
            if entry.name not in generations:
                remove_tree(self._fs, self.place / entry.name)
        for generation in sorted(generations):
            create_directories(self._fs, self.place / generation)
            for entry in self._fs.list(self.place / generation):
                name = f"{generation}/{entry.name.removesuffix(_PART)}"
                if name not in wanted:
                    self._fs.remove(self.place / generation / entry.name)

    def candidate(self, file: CopyFile) -> bytes | None:
        """Return the digest of the same file here, if there is one that may be equal."""
        for place in (self.place, self._own):
            with suppress(NotFoundError):
                with self._fs.open(place / file.path, writable=False) as opened:
                    if opened.size() != file.size_bytes:
                        continue
                return digest_of_file(self._fs, place, file.path, file.end)
        return None

    def adopt(self, file: CopyFile) -> None:
        """Use the file that is here, because its digest is right."""
        target = self.place / file.path
        if self._fs.exists(target):
            return
        self._drop_part(file)
        # A link, because nothing writes to a sealed segment. The positions of the last one differ.
        self._fs.link(self._own / file.path, target)

    def size(self, file: CopyFile) -> int:
        """Return the number of bytes of a file that are here. Bytes that a crash may have torn do
        not count.
        """
        target = self.place / file.path
        if self._fs.exists(target):
            # It was complete for an earlier offer, or it is damaged.
            self._fs.remove(target)
        part = self._part(file)
        if not self._fs.exists(part):
            return 0
        with self._fs.open(part, writable=True) as opened:
            size = min(opened.size(), file.end)
            opened.truncate(size)
        return size

    def write(self, file: CopyFile, offset: int, data: bytes) -> None:
        """Add the next bytes of a file. Raises: StorageFullError."""
        part = self._part(file)
        is_there = self._fs.exists(part)
        with self._fs.open(part, writable=True) if is_there else self._fs.create(part) as opened:
            opened.write_at(offset, data)

    def finish(self, file: CopyFile, digest: bytes) -> bool:
        """Give a file its name if its digest is right; otherwise remove it, and return False."""
        part = self._part(file)
        if file.path.endswith(".seg"):
            self._settle_positions(part, file)
        name = self.place / file.path
        self._fs.rename(part, name)
        if digest_of_file(self._fs, self.place, file.path, file.end) == digest:
            return True
        self._fs.remove(name)
        return False

    def _settle_positions(self, part: PurePath, file: CopyFile) -> None:
        with self._fs.open(part, writable=True) as opened:
            opened.truncate(file.size_bytes)
            for cell, value in ((VISIBLE, file.end), (SYNCED, file.end), (RESERVED, 0)):
                opened.write_at(cell * 8, value.to_bytes(8, "little"))

    def _part(self, file: CopyFile) -> PurePath:
        name = self.place / file.path
        return name.with_name(name.name + _PART)

    def _drop_part(self, file: CopyFile) -> None:
        with suppress(NotFoundError):
            self._fs.remove(self._part(file))

    def check(self, offer: Offer, manifest: Manifest) -> None:
        """Check all copied files frame by frame, and sync them. Raises: CorruptionError."""
        fs = self._fs
        for file in offer.files:
            with fs.open(self.place / file.path, writable=True) as opened:
                opened.sync()
        for generation in {file.path.partition("/")[0] for file in offer.files}:
            fs.sync_directory(self.place / generation)
        fs.sync_directory(self.place)
        slabs = _as_found(fs, self.place, offer.slabs)
        replace_file(fs, self.root / MANIFEST, replace(manifest, slabs=slabs).encode())
        report = verify_database(fs, self.root, quarantine=self.root / "quarantine")
        fs.remove(self.root / MANIFEST)
        for finding in report.findings:
            if finding.severity == "damage" and self.place in finding.path.parents:
                raise CorruptionError(
                    f"a copied file is damaged: {finding.problem}", path=finding.path
                )

    def commit(self, offer: Offer) -> None:
        """Write the offer durably: the copy counts from here."""
        path = _install_path(self._directory, self._shard)
        replace_file(self._fs, path, offer.encode())


def _install_path(directory: PurePath, shard: int) -> PurePath:
    return directory / REPLICATION / f"{shard}.install"


def copied_shards(fs: FileSystem, directory: PurePath) -> Sequence[int]:
    """Return the shards with a copy that counts and may not be installed completely."""
    place = directory / REPLICATION
    if not fs.exists(place):
        return ()
    names = [entry.name.partition(".") for entry in fs.list(place)]
    return sorted(int(name) for name, _, kind in names if kind == "install" and name.isdecimal())


def offer_to_install(fs: FileSystem, directory: PurePath, shard: int) -> tuple[Offer, PurePath]:
    """Return the offer of a shard that was copied and counts, and its path.

    Raises: CorruptionError.
    """
    path = _install_path(directory, shard)
    return Offer.decode(fs.read(path)), path


def install(fs: FileSystem, directory: PurePath, manifest: ManifestFile, shard: int) -> None:
    """Replace the files of a shard by those that were copied. Nothing of it may be open for
    writing. Raises: CorruptionError, DiskError; the next start does it again.
    """
    offer, path = offer_to_install(fs, directory, shard)
    staging = CopyStaging(fs, directory, shard)
    _link_files(fs, staging.place, directory / str(shard), offer)
    slabs = _as_found(fs, directory / str(shard), offer.slabs)
    manifest.update(lambda before: _with_offer(before, replace(offer, slabs=slabs), shard))
    write_mark(fs, directory, shard, offer.marked)
    forget_damaged(fs, directory, shard)
    remove_file(fs, path)
    remove_tree(fs, staging.root)


def _link_files(fs: FileSystem, source: PurePath, place: PurePath, offer: Offer) -> None:
    """Make a directory of a shard hold the files of an offer, and nothing else."""
    create_directories(fs, place)
    names: dict[str, list[str]] = {}
    for file in offer.files:
        generation, _, name = file.path.partition("/")
        names.setdefault(generation, []).append(name)
    for entry in fs.list(place):
        if entry.name not in names:
            remove_tree(fs, place / entry.name)
    for generation, wanted in names.items():
        create_directories(fs, place / generation)
        for entry in fs.list(place / generation):
            fs.remove(place / generation / entry.name)
        for name in wanted:
            fs.link(source / generation / name, place / generation / name)
        fs.sync_directory(place / generation)


def _as_found(
    fs: FileSystem, place: PurePath, slabs: Iterable[SlabRecord]
) -> tuple[SlabRecord, ...]:
    """Return the records of slabs with the segments that are compacted in this directory. The
    source and this site may have compacted different segments.
    """
    found: list[SlabRecord] = []
    for record in slabs:
        generation = place / str(record.generation)
        compacted: list[int] = []
        for entry in fs.list(generation):
            if is_segment(entry):
                summary = read_summary(fs, generation / entry.name)
                if summary is not None and summary.revision:
                    compacted.append(int(entry.name.partition(".")[0]))
        found.append(replace(record, compacted=tuple(sorted(compacted)), compacting=None))
    return tuple(found)


def _with_offer(before: Manifest, offer: Offer, shard: int) -> Manifest:
    others = tuple(record for record in before.slabs if record.shard != shard)
    reclaimed = {number: at for number, at in before.reclaimed.items() if number != shard}
    if offer.reclaimed is not None:
        reclaimed[shard] = offer.reclaimed
    return replace(
        before,
        # Settings are committed through shard 0.
        settings=before.settings if shard else offer.settings,
        slabs=tuple(sorted((*others, *offer.slabs), key=lambda record: record.id)),
        dropping=tuple(slab for slab in before.dropping if slab.shard != shard),
        reclaimed=reclaimed,
    )
