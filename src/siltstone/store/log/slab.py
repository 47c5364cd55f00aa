"""An open slab: its segments, and the learned structure that its readers know.

The structure of the readers contains only edges of visible frames. The committer learns in a
structure of its own. A structure of many streams is only built when a reader needs it, or when the
edges that came since would take much memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import PurePath
from threading import Lock
from typing import Final

from siltstone.errors import CorruptionError, NotFoundError, SlabDroppedError
from siltstone.fs.api import FileSystem
from siltstone.store.segment.chain import Chain, SegmentHandle
from siltstone.store.segment.sift import SlabBounds
from siltstone.store.slab.manifest import SlabId, SlabRecord, SlabState
from siltstone.topic.edges import COUNT
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.structure import Match, Stream, Structure

_MATCHES_MAX: Final = 10_000
_NO_EDGES: Final = COUNT.pack(0)
# The most edges that wait for a reader, beside those that were there when the slab was loaded.
_WAITING_BYTES: Final = 1 << 20


def bounds_of(record: SlabRecord, seed: int | None = None) -> SlabBounds:
    """Return the bounds of a slab's files from its record, and from the seed if it is given."""
    return SlabBounds(first_serial=record.first_serial, until_serial=record.until_serial, seed=seed)


class Slab:
    """One generation of one shard, for any number of reading threads."""

    def __init__(
        self, fs: FileSystem, directory: PurePath, record: SlabRecord, structure: Structure
    ) -> None:
        self._record = record
        self.chain = Chain(fs, directory)
        self._structure = structure
        # Edges that are not in the structure yet.
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._lock = Lock()
        self._loaded = False
        self.is_growing = True
        self._matches: dict[tuple[str, int], Match] = {}
        # A cache for the last filter: the filter, what its streams depend on, and its streams with
        # rows. Only a current slab has it, because there may be many others.
        self._held: tuple[str, tuple[int, ...], Sequence[Match]] | None = None
        self._version = 0

    @property
    def record(self) -> SlabRecord:
        """The record of the slab in the manifest."""
        return self._record

    @record.setter
    def record(self, record: SlabRecord) -> None:
        self._record = record
        if record.state is not SlabState.CURRENT:
            self._held = None

    @property
    def id(self) -> SlabId:
        """The id of the slab."""
        return self.record.id

    @property
    def version(self) -> int:
        """How often new streams became known to readers. Raises: CorruptionError."""
        with self._lock:
            self._learned()
            return self._version

    def refresh(self) -> None:
        """Read from the disk what another process wrote since. Raises: SlabDroppedError."""
        try:
            with self._lock:
                ended = self.record.state is not SlabState.CURRENT
                self.chain.bounds = bounds_of(self.record)
                self._add(self.chain.refresh(ended=ended), was_loaded=self._loaded)
                self._check_bounds()
                self._loaded = True
        except NotFoundError as exc:
            raise SlabDroppedError(f"slab {self.id} was dropped") from exc

    def check_first(self) -> None:
        """Raise CorruptionError if the first segment of the slab is missing."""
        handles, first = self.chain.handles, self.record.first_serial
        if not handles or handles[0].base_serial != first:
            raise CorruptionError(
                f"a segment is missing: the first one must begin with serial {first}",
                path=self.chain.directory,
            )

    def _check_bounds(self) -> None:
        self.check_first()
        if self.record.until_serial is not None:
            self.chain.handles[-1].check_reaches(self.record.until_serial)

    def load(self) -> None:
        """Open the segments of a slab that this process does not write, once."""
        if not self._loaded:
            self.refresh()

    def publish(self, edges: Iterable[bytes]) -> None:
        """Make these edges known to readers."""
        with self._lock:
            was_loaded, self._loaded = self._loaded, True
            self._add(edges, was_loaded=was_loaded)

    def _add(self, edges: Iterable[bytes], *, was_loaded: bool) -> None:
        blocks = [block for block in edges if block != _NO_EDGES]
        self._waiting += blocks
        if was_loaded:
            self._waiting_bytes += sum(map(len, blocks))
        if self._waiting_bytes > _WAITING_BYTES:
            # A reader that needs the damaged structure gets the error.
            with suppress(CorruptionError):
                self._learned()

    def _learned(self) -> Structure:
        """Return the structure with all edges; the caller has the lock. Raises: CorruptionError."""
        new, applied = False, 0
        try:
            for block in self._waiting:
                new |= bool(self._structure.apply(block))
                applied += 1
        except ValueError as exc:
            raise CorruptionError(
                f"learned structure is damaged: {exc}", path=self.chain.directory
            ) from exc
        finally:
            # Join them at once: there may be one block for each of 60,000 streams.
            del self._waiting[:applied]
            self._waiting_bytes = 0
            self._version += new
        return self._structure

    def match(self, topic_filter: TopicFilter) -> Sequence[Match]:
        """Return the streams with rows that may match, with the words of varying levels, in order
        of their ids.
        """
        self.load()
        indexes = [handle.segment().index for handle in self.chain.handles]
        # A segment never has fewer streams than before.
        state = (self.version, *(len(index.stream_rows) for index in indexes))
        known = self._held
        if known is not None and known[:2] == (topic_filter.text, state):
            return known[2]
        found = self.match_all(topic_filter)
        found = [
            match
            for match in found
            if any(match.stream.id in index.stream_rows for index in indexes)
        ]
        found.sort(key=_stream_of)
        if self.record.state is SlabState.CURRENT:
            self._held = topic_filter.text, state, found
        return found

    def match_all(self, topic_filter: TopicFilter) -> list[Match]:
        """Return the streams that may match, including those without rows so far.

        The result is valid until the version changes.
        """
        self.load()
        with self._lock:
            return self._learned().match(list(topic_filter.levels))

    def match_stream(self, stream_id: int, topic_filter: TopicFilter) -> Match | None:
        """Return the words that the filter requires of the varying levels of one stream; None if
        the stream cannot match.
        """
        key = (topic_filter.text, stream_id)
        if key not in self._matches:
            stream = self.stream(stream_id)
            # A stream without rows so far may match later, so only positive results are cached.
            if stream is None or not self._holds(stream_id):
                return None
            match = match_of(stream, topic_filter)
            if match is None:
                return None
            if len(self._matches) >= _MATCHES_MAX:
                self._matches.clear()
            self._matches[key] = match
            return match
        return self._matches[key]

    def _holds(self, stream_id: int) -> bool:
        """Return whether a stream has rows."""
        handles = self.chain.handles
        return any(stream_id in handle.segment().index.stream_rows for handle in handles)

    def stream(self, stream_id: int) -> Stream | None:
        """Return a stream by its id."""
        self.load()
        with self._lock:
            return self._learned().stream(stream_id)

    def export(self) -> bytes:
        """Return the whole structure as edges."""
        self.load()
        with self._lock:
            return self._learned().export()

    def stream_rows(self) -> dict[int, int]:
        """Return the number of rows of each stream."""
        self.load()
        total: dict[int, int] = {}
        for handle in self.chain.handles:
            for stream_id, rows in list(handle.segment().index.stream_rows.items()):
                total[stream_id] = total.get(stream_id, 0) + rows
        return total

    def handles(self) -> tuple[SegmentHandle, ...]:
        """Return the current segments in order."""
        self.load()
        return self.chain.handles

    def next_serial(self) -> int:
        """Return the serial after the last visible row."""
        handles = self.handles()
        return handles[-1].next_serial if handles else 0

    @property
    def is_damaged(self) -> bool:
        """Whether the index of a segment stops at a damaged frame."""
        return any(handle.is_damaged for handle in self.handles())

    def check_whole(self) -> None:
        """Raise CorruptionError if the index of a segment stops at a damaged frame."""
        for handle in self.handles():
            handle.check_whole()

    def row_count(self) -> int:
        """Return the number of visible rows. Raises: CorruptionError."""
        rows = sum(self.stream_rows().values())
        self.check_whole()
        return rows


def _stream_of(match: Match) -> int:
    return match.stream.id


def match_of(stream: Stream, topic_filter: TopicFilter) -> Match | None:
    """Return the words that a filter requires of the varying levels of a stream; None if the stream
    cannot match. `Structure.match` finds the streams of a filter; this asks one of 60,000.
    """
    levels = topic_filter.levels
    open_ended = levels[-1] == b"#"
    wanted = levels[:-1] if open_ended else levels
    more = len(stream.levels) - len(wanted)
    if more < 0 or (more and not open_ended) or levels[0].startswith(b"$") != stream.special:
        return None
    constraints: list[bytes | None] = []
    for number, level in enumerate(stream.levels):
        word = wanted[number] if number < len(wanted) else b"+"
        if level == b"+":
            constraints.append(None if word == b"+" else word)
        elif word not in (b"+", level):
            return None
    return Match(stream, constraints)
