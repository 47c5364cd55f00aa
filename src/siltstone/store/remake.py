"""Make a lost manifest anew from the segments of its database.

Headers say which database, shard and generation a segment is of, and with which seed its frames are
checked; those of this version also the salt, which is the identity of the database, and the topic
of a topic log. The first frame says when a slab began. Only the settings are lost: they are the
defaults, but for what the segments show. Where the journal beside a sound manifest is damaged,
they are known, and only the topic logs are made anew.

Needs every shard, from the first on: where one has no segment left, a manifest would say that its
rows never were.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePath
from typing import Final

from siltstone.errors import CorruptionError, NotFoundError, SiltstoneError
from siltstone.fs.api import EntryKind, FileSystem
from siltstone.fs.publish import quarantine_file, replace_file
from siltstone.segment.frame import ROWS
from siltstone.segment.segment import Segment, open_segment
from siltstone.segment.sift import list_segments
from siltstone.store.added import journal_path
from siltstone.store.findings import Finding
from siltstone.store.manifest import (
    MANIFEST,
    Manifest,
    SlabId,
    SlabRecord,
    SlabState,
    read_manifest_alone,
)
from siltstone.store.opening import seed_of, slab_directory
from siltstone.store.settings import DatabaseSettings

# A database that is being dropped has no manifest any more, and gets none.
_DROPPING: Final = "dropping"
# The database of topic logs; its segments of earlier versions do not say so.
_TOPIC_LOGS: Final = "topics"


@dataclass(slots=True, kw_only=True)
class _Found:
    """What the segments of one slab say."""

    id: SlabId
    first_serial: int
    since_us: int
    created_us: int
    seed: int
    salts: set[int] = field(default_factory=set)
    topic: str = ""
    file_bytes: int = 0
    # Its last segment tells the time of its last row.
    last_us: int = 0


def remake_manifest(
    fs: FileSystem, directory: PurePath, quarantine: PurePath, cause: SiltstoneError
) -> tuple[Manifest, Finding] | None:
    """Write a manifest for the segments in a directory; None where they do not tell enough."""
    if not fs.exists(directory) or fs.exists(directory / _DROPPING):
        return None
    found = [_look_at(fs, directory, slab) for slab in _slabs_in(fs, directory)]
    slabs = [each for each in found if each is not None]
    shards = {each.id.shard for each in slabs}
    if len(slabs) < len(found) or not shards or shards != set(range(len(shards))):
        return None
    path = directory / MANIFEST
    manifest = _manifest_of(directory.name, slabs)
    done = "rebuilt from the segments with default settings, set your settings again"
    damaged = path
    with suppress(NotFoundError, CorruptionError):
        # Then it is the journal beside it that is damaged.
        sound = read_manifest_alone(fs, directory)
        damaged = journal_path(directory, sound.journal)
        settings = replace(sound.settings, shards=manifest.settings.shards)
        manifest = replace(manifest, settings=settings, journal=sound.journal)
        done = "the topic logs are those of the segments"
    if fs.exists(damaged):
        done += f"; kept as {quarantine_file(fs, damaged, quarantine, f'{damaged}: {cause}')}"
    replace_file(fs, path, manifest.encode())
    problem = cause.reason if isinstance(cause, CorruptionError) else "the manifest is missing"
    return manifest, Finding(path=damaged, offset=0, problem=problem, repaired=done)


def _slabs_in(fs: FileSystem, directory: PurePath) -> Iterable[SlabId]:
    for shard in _numbers_in(fs, directory):
        for generation in _numbers_in(fs, directory / str(shard)):
            yield SlabId(shard, generation)


def _numbers_in(fs: FileSystem, directory: PurePath) -> list[int]:
    return sorted(
        int(entry.name)
        for entry in fs.list(directory)
        if entry.kind is EntryKind.DIRECTORY and entry.name.isdecimal()
    )


def _look_at(fs: FileSystem, directory: PurePath, slab: SlabId) -> _Found | None:
    """Return what a slab says of itself; None where nothing of it can be believed."""
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
    """Return the time of the last frame in a segment that can be read."""
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
        seeds={str(each.id): each.seed for each in slabs if each.seed != seed_of(salt, each.id)},
        holds_logs=holds_logs,
    )


def _records(slabs: list[_Found]) -> Iterable[SlabRecord]:
    after: Mapping[SlabId, _Found] = {
        before.id: each for before, each in pairwise(slabs) if before.id.shard == each.id.shard
    }
    for each in slabs:
        following = after.get(each.id)
        until_us = None if following is None else max(following.since_us, each.last_us + 1)
        # Where a later generation begins earlier, the clock was ahead when these rows came.
        later = [
            one.since_us for one in slabs if one.id > each.id and one.id.shard == each.id.shard
        ]
        closed_us = min(later, default=None)
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
    return [names.get(shard, f"recovered/{shard}") for shard in range(min(shards, last + 1))]
