"""Rebuild a lost manifest from the segments of its database.

The header of a segment contains its database, shard and generation, and the seed for the checksums
of its frames. Headers of this version also contain the salt, which determines the identity of the
database, and the topic of a topic log. The first frame contains the time when a slab began. Only
the settings are lost: they get their defaults, except for those that the segments show.

If the manifest is valid and only its journal is damaged, everything in the manifest stays, and
everything in the valid lines of the journal. Only the topic logs of the other lines are rebuilt.

Every shard that is known from nothing else must have a segment, from the first shard on. Otherwise
the manifest would say that the rows of a lost shard never existed.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePath
from typing import Final

from siltstone.errors import CorruptionError, NotFoundError, SiltstoneError
from siltstone.fs.api import EntryKind, FileSystem
from siltstone.fs.publish import quarantine_file, replace_file
from siltstone.store.log.check.findings import Finding
from siltstone.store.log.opening import seed_of, slab_directory
from siltstone.store.segment.frame import ROWS
from siltstone.store.segment.segment import Segment, open_segment
from siltstone.store.segment.sift import list_segments
from siltstone.store.slab.added_logs import AddedLog, journal_path, sound_logs
from siltstone.store.slab.manifest import (
    MANIFEST,
    Manifest,
    SlabId,
    SlabRecord,
    SlabState,
    first_record,
    read_manifest_alone,
)
from siltstone.store.slab.settings import DatabaseSettings

# A database that is being dropped has no manifest any more, and none is rebuilt.
_DROPPING: Final = "dropping"
# The database of topic logs; segments of earlier versions do not contain this fact.
_TOPIC_LOGS: Final = "topics"


@dataclass(slots=True, kw_only=True)
class _Found:
    """The facts in the segments of one slab."""

    id: SlabId
    first_serial: int
    since_us: int
    created_us: int
    seed: int
    salts: set[int] = field(default_factory=set)
    topic: str = ""
    file_bytes: int = 0
    # The time of the last row, from the last segment.
    last_us: int = 0


def remake_manifest(
    fs: FileSystem, directory: PurePath, quarantine: PurePath, cause: SiltstoneError
) -> tuple[Manifest, Finding] | None:
    """Write a manifest for the segments in a directory; None if they do not say enough."""
    if not fs.exists(directory) or fs.exists(directory / _DROPPING):
        return None
    path = directory / MANIFEST
    problem = cause.reason if isinstance(cause, CorruptionError) else "the manifest is missing"
    sound: Manifest | None = None
    with suppress(NotFoundError, CorruptionError):
        # If this succeeds, the journal is damaged, not the manifest.
        sound = read_manifest_alone(fs, directory)
    if sound is not None:
        damaged = journal_path(directory, sound.journal)
        manifest = _completed(fs, directory, sound, sound_logs(fs, damaged))
        if manifest is None:
            return None
        done = "the topic logs are those of the segments"
        # In this order: the contents of the journal must not be lost in between.
        replace_file(fs, path, manifest.encode())
        done += _set_aside(fs, damaged, quarantine, cause)
    else:
        damaged = path
        slabs = _look_at_all(fs, directory, _slabs_in(fs, directory))
        if not slabs or not _are_all({each.id.shard for each in slabs}, since=0):
            return None
        manifest = _manifest_of(directory.name, slabs)
        done = "rebuilt from the segments with default settings, set your settings again"
        done += _set_aside(fs, damaged, quarantine, cause)
        replace_file(fs, path, manifest.encode())
    return manifest, Finding(path=damaged, offset=0, problem=problem, repaired=done)


def _set_aside(fs: FileSystem, path: PurePath, quarantine: PurePath, cause: SiltstoneError) -> str:
    """Move a damaged file into quarantine; return a text for the finding."""
    if not fs.exists(path):
        return ""
    return f"; kept as {quarantine_file(fs, path, quarantine, f'{path}: {cause}')}"


def _are_all(shards: Collection[int], *, since: int) -> bool:
    """Return whether every shard from `since` to the last one is present."""
    return sorted(shards) == list(range(since, since + len(shards)))


def _completed(
    fs: FileSystem, directory: PurePath, sound: Manifest, added: Iterable[AddedLog]
) -> Manifest | None:
    """Return a valid manifest with the topic logs that were added to it: those in the journal, and
    between or after them those that only the segments contain.
    """
    count = sound.settings.shards
    told = {log.shard: log for log in added if log.shard >= count}
    others = [each for each in _slabs_in(fs, directory, since=count) if each.shard not in told]
    slabs = _look_at_all(fs, directory, others)
    if slabs is None:
        return None
    topics = {each.id.shard: "" for each in slabs} | {log.shard: log.topic for log in told.values()}
    if not _are_all(topics, since=count):
        return None
    for each in slabs:
        topics[each.id.shard] = topics[each.id.shard] or each.topic
    records = [*sound.slabs, *map(first_record, told.values()), *_records(slabs)]
    return replace(
        sound,
        settings=replace(sound.settings, shards=count + len(topics)),
        slabs=tuple(sorted(records, key=lambda record: record.id)),
        logs=(*sound.logs, *(topics[shard] or _unnamed(shard) for shard in sorted(topics))),
        seeds={**sound.seeds, **_odd_seeds(sound.salt, slabs)},
        has_journal=False,
    )


def _slabs_in(fs: FileSystem, directory: PurePath, *, since: int = 0) -> Iterable[SlabId]:
    shards = (shard for shard in _numbers_in(fs, directory) if shard >= since)
    for shard in shards:
        for generation in _numbers_in(fs, directory / str(shard)):
            yield SlabId(shard, generation)


def _numbers_in(fs: FileSystem, directory: PurePath) -> list[int]:
    return sorted(
        int(entry.name)
        for entry in fs.list(directory)
        if entry.kind is EntryKind.DIRECTORY and entry.name.isdecimal()
    )


def _look_at_all(
    fs: FileSystem, directory: PurePath, slabs: Iterable[SlabId]
) -> list[_Found] | None:
    """Return the facts about slabs; None if nothing in one of them is valid."""
    looked = [_look_at(fs, directory, slab) for slab in slabs]
    found = [each for each in looked if each is not None]
    return found if len(found) == len(looked) else None


def _look_at(fs: FileSystem, directory: PurePath, slab: SlabId) -> _Found | None:
    """Return the facts in the segments of a slab; None if no segment is valid."""
    place = slab_directory(directory, slab)
    found: _Found | None = None
    for entry in list_segments(fs, place, fs.list(place))[0]:
        try:
            segment = open_segment(fs, place / entry.name)
        except CorruptionError:
            continue
        header = segment.header
        if (header.database, header.shard, header.generation) != (
            directory.name,
            slab.shard,
            slab.generation,
        ):
            continue
        if found is None:
            segment.follow()
            times = segment.index.first_times
            found = _Found(
                id=slab,
                first_serial=header.base_serial,
                since_us=times[0] + 1 if len(times) else header.created_us,
                created_us=header.created_us,
                seed=header.seed,
            )
        found.salts.add(header.salt)
        found.topic = found.topic or header.topic or _topic_in(segment)
        found.file_bytes = header.file_bytes
        found.last_us = max(found.last_us, _last_us(segment))
    return found


def _last_us(segment: Segment) -> int:
    """Return the time of the last readable frame in a segment."""
    with suppress(CorruptionError):
        segment.follow()
    return max(segment.index.last_times[: segment.index.frame_count], default=0)


def _topic_in(segment: Segment) -> str:
    """Return the topic of the first row in a segment."""
    try:
        segment.follow()
        for number in range(segment.index.frame_count):
            frame = segment.frame(number)
            if frame.header.kind == ROWS:
                topic: str = frame.topic_words(0, 1)[0].as_py()
                return topic
    except CorruptionError:
        pass
    return ""


def _manifest_of(database: str, slabs: list[_Found]) -> Manifest:
    salts = set().union(*(each.salts for each in slabs))
    known = salts - {0}
    salt = known.pop() if known else secrets.randbits(63)
    shards = len({each.id.shard for each in slabs})
    holds_logs = database == _TOPIC_LOGS
    settings = DatabaseSettings(shards=shards, segment_bytes=min(each.file_bytes for each in slabs))
    return Manifest(
        database=database,
        salt=salt,
        settings=replace(settings, shard_by="topic") if holds_logs else settings,
        slabs=tuple(_records(slabs)),
        logs=tuple(_topics(slabs, shards)) if holds_logs else (),
        identified=0 not in salts,
        seeds=_odd_seeds(salt, slabs),
        holds_logs=holds_logs,
    )


def _odd_seeds(salt: int, slabs: Iterable[_Found]) -> dict[str, int]:
    """Return the seeds of slabs that cannot be derived from the salt."""
    return {str(each.id): each.seed for each in slabs if each.seed != seed_of(salt, each.id)}


def _records(slabs: list[_Found]) -> Iterable[SlabRecord]:
    after: Mapping[SlabId, _Found] = {
        before.id: each for before, each in pairwise(slabs) if before.id.shard == each.id.shard
    }
    # If a later generation begins earlier, the clock was ahead when these rows arrived.
    earliest: dict[int, int] = {}
    closed: dict[SlabId, int | None] = {}
    for each in reversed(slabs):
        closed[each.id] = earliest.get(each.id.shard)
        earliest[each.id.shard] = min(each.since_us, earliest.get(each.id.shard, each.since_us))
    for each in slabs:
        following = after.get(each.id)
        until_us = None if following is None else max(following.since_us, each.last_us + 1)
        closed_us = closed[each.id]
        is_ahead = until_us is not None and closed_us is not None and closed_us < until_us
        adjoins = following is not None and following.id.generation == each.id.generation + 1
        yield SlabRecord(
            shard=each.id.shard,
            generation=each.id.generation,
            state=SlabState.CURRENT if following is None else SlabState.SEALED,
            since_us=each.since_us,
            until_us=until_us,
            created_us=each.created_us,
            first_serial=each.first_serial,
            until_serial=following.first_serial if following is not None and adjoins else None,
            closed_us=closed_us if is_ahead else None,
        )


def _topics(slabs: list[_Found], shards: int) -> list[str]:
    """Return the topics of the shards; the last shards may have none yet."""
    names: dict[int, str] = {}
    for each in slabs:
        if each.topic:
            names.setdefault(each.id.shard, each.topic)
    last = max(names, default=-1)
    return [names.get(shard, _unnamed(shard)) for shard in range(min(shards, last + 1))]


def _unnamed(shard: int) -> str:
    """Return a topic for a log whose own topic is lost."""
    return f"recovered/{shard}"
