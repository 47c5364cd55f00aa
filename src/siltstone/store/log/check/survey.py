"""Check one segment and its index; change nothing, and trust nothing."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

from siltstone.errors import CorruptionError, NotFoundError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.store.log.check.findings import Expected, Finding, Survey
from siltstone.store.log.check.soundness import TopicRules
from siltstone.store.log.check.walk import Walk
from siltstone.store.log.read.columns import contents_of
from siltstone.store.segment.index import DIGEST, SealedIndex, SegmentIndex, decode_index
from siltstone.store.segment.segment import SEGMENT_HEADER_BYTES, Segment, open_segment
from siltstone.store.segment.sift import index_path

# Repair does not touch this file: only the user knows its purpose.
NAME_TAKEN: Final = "something that is not a file has the name of the index"
_UNLIKE: Final = "the index does not match its segment"


def survey_segment(fs: FileSystem, path: PurePath, expected: Expected, rules: TopicRules) -> Survey:
    """Check a segment and its index."""
    survey = Survey(path=path, expected=expected)
    try:
        segment = open_segment(fs, path)
        _check_identity(segment, expected)
    except CorruptionError as exc:
        survey.damage(exc.offset, exc.reason)
        return survey
    survey.segment = segment
    survey.last_timestamp_us = expected.record.since_us - 1
    if expected.before is not None:
        survey.last_timestamp_us = expected.before.last_timestamp_us
    survey.sealed, survey.index_problem = load_index(fs, path)
    if survey.sealed is not None and survey.sealed.revision != segment.header.revision:
        survey.sealed, survey.index_problem = None, "the index belongs to other frames"
    with fs.open(path, writable=False) as file:
        data_end = file.data_end(SEGMENT_HEADER_BYTES)
    Walk(survey, segment, rules, data_end).run()
    _judge_index(survey, segment)
    return survey


def _check_identity(segment: Segment, expected: Expected) -> None:
    header, identity = segment.header, expected.identity
    for name, said, wanted in (
        ("database", header.database, identity.database),
        ("shard", header.shard, identity.shard),
        ("generation", header.generation, identity.generation),
        ("seed", header.seed, identity.seed),
        ("base serial", header.base_serial, int(segment.path.stem)),
    ):
        if said != wanted:
            raise CorruptionError(
                f"the segment belongs to another slab: its {name} is {said!r}, not {wanted!r}",
                path=segment.path,
            )


def load_index(fs: FileSystem, path: PurePath) -> tuple[SealedIndex | None, str]:
    """Return the index of a segment, or None and the reason why there is no valid one."""
    beside = index_path(path)
    try:
        with fs.open(beside, writable=False) as file:
            if file.size() == 0:
                return None, "the index is empty"
            return decode_index(file.map(writable=False), beside), ""
    except NotFoundError:
        return None, ""
    except CorruptionError as exc:
        return None, exc.reason
    except UsageError:
        return None, NAME_TAKEN


def _judge_index(survey: Survey, segment: Segment) -> None:
    """Compare the index with the result of the walk."""
    if survey.sealed is None:
        if survey.expected.closed and not survey.index_problem:
            survey.index_problem = "the index is missing"
    elif not survey.damages and not survey.index_problem:
        segment.index_words(1)
        survey.index_problem = _difference(survey, survey.sealed, segment.index)
        if not survey.index_problem:
            _check_contents(survey, survey.sealed)
    if survey.index_problem:
        survey.findings.append(
            Finding(path=index_path(survey.path), offset=0, problem=survey.index_problem)
        )


def _check_contents(survey: Survey, sealed: SealedIndex) -> None:
    """Compare the rows with those that the segment had before it was compacted."""
    digest, segment = sealed.parts.get(DIGEST), survey.segment
    if digest is None or segment is None:
        return
    contents = contents_of(segment)
    if contents.digest != digest:
        survey.damage(0, "the rows are not those that the segment had before it was compacted")
    elif sealed.index.words.hides_from(contents.words):
        survey.index_problem = f"{_UNLIKE}: words"


def _difference(survey: Survey, sealed: SealedIndex, found: SegmentIndex) -> str:
    """Return the difference between an index and its segment, "" if there is none."""
    index = sealed.index
    left_out = max(found.next_serial, survey.reserved_serial())
    for name, same in (
        ("first serial", index.first_serial == found.first_serial),
        ("next serial", index.next_serial in (found.next_serial, left_out)),
        ("end", index.end_position == found.end_position),
        ("positions", list(index.positions) == list(found.positions)),
        ("serials", list(index.serials) == list(found.serials)),
        ("first times", list(index.first_times) == list(found.first_times)),
        ("last times", list(index.last_times) == list(found.last_times)),
        ("row counts", list(index.row_counts) == list(found.row_counts)),
        ("rows by stream", index.stream_rows == found.stream_rows),
        (
            "frames by stream",
            all(
                list(index.frames_of(stream_id)) == list(found.frames_of(stream_id))
                for stream_id in found.stream_rows
            ),
        ),
        ("words", not index.words.hides_from(found.words)),
        ("structure", bytes(sealed.structure) == survey.structure.export()),
        ("producers", bytes(sealed.producers) == survey.producers.encode()),
    ):
        if not same:
            return f"{_UNLIKE}: {name}"
    return ""
