"""The words at each level of the topics of frames, so that a filter can skip frames.

A word and its level are one number of 16 bits, a hash. The index has a list of hashes for each
frame. A hash that all frames of a run have is kept once for the run, so the words that never change
cost nothing. A frame may hold a topic only if it has the hashes of all words of the filter.

Invariants: the index never hides a frame that has the words. Two words may have the same hash, so
it may name a frame that does not have them: about one frame in 65,536 / n, if it has n hashes. A
frame can be unknown, and then it may hold every word. Levels from LEVELS_MAX on are not indexed.

The bytes, little endian, of runs one after the other:

    u32 frames, u32 hashes of all frames (N), u32 hashes of the whole run (C), u32 zero
    u16[frames] number of hashes of each frame, 65,535 for an unknown frame
    u16[N] hashes, frame by frame, rising
    u16[C] hashes that every known frame has, rising
    zeros up to a multiple of 8 bytes

One thread adds frames, and any thread asks: a frame is valid once `count` includes it.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

# The hashes of the words that a topic must have, all of them.
Needed = tuple[int, ...]
Numbers = NDArray[np.int64]
Hashes = NDArray[np.uint16]
Flags = NDArray[np.bool_]

LEVELS_MAX: Final = 64
# With more hashes a frame would be named for every fourth word that it does not have.
HASHES_MAX: Final = 1 << 14
RUN_FRAMES: Final = 1 << 12
_UNKNOWN: Final = 0xFFFF
_FACTOR: Final = 0x9E37_79B1
_WORDS_KEPT: Final = 1 << 16
_RUN: Final = struct.Struct("<IIII")


def word_hash(level: int, word: bytes) -> int:
    """Return the hash of a word at a level, counted from 0. Files contain it: it never changes."""
    # With the level itself as the start, `b` at one level would be equal to `a` at another.
    crc: int = crc32c(word, level * _FACTOR & 0xFFFF_FFFF)
    return (crc * _FACTOR & 0xFFFF_FFFF) >> 16


def needed_words(words: Iterable[tuple[int, bytes]]) -> Needed:
    """Return the hashes of words that a topic must have, each with its level."""
    return tuple(sorted({word_hash(level, word) for level, word in words if level < LEVELS_MAX}))


def needed_at(levels: Sequence[bytes], words: Sequence[bytes | None]) -> Needed:
    """Return the hashes of the words that are required at the varying levels of a stream; None is
    any word.
    """
    varying = [level for level, word in enumerate(levels) if word == b"+"]
    return needed_words(
        (level, word) for level, word in zip(varying, words, strict=True) if word is not None
    )


class _Hashes(dict[bytes, int]):
    """The hashes of the words of one level that were seen."""

    def __init__(self, level: int) -> None:
        self._level = level

    def __missing__(self, word: bytes) -> int:
        number = self[word] = word_hash(self._level, word)
        return number


class _Run(NamedTuple):
    """Some thousand frames in order: the number of hashes of each, all hashes, the common ones."""

    counts: Hashes
    hashes: Hashes
    common: Hashes

    def holding(self, needed: Needed) -> Flags:
        """Return which of the frames may have these words."""
        unknown = self.counts == _UNKNOWN
        held = np.ones(len(self.counts), np.bool_)
        ends = np.where(unknown, 0, self.counts).astype(np.int64).cumsum()
        for word in needed:
            if (self.common == word).any():
                continue
            places = np.flatnonzero(self.hashes == word)
            has = np.zeros(len(held), np.bool_)
            has[np.searchsorted(ends, places, "right")] = True
            held &= has
        held |= unknown
        return held


class WordIndex:
    """The words of frames in order; new frames are added behind the others."""

    def __init__(self) -> None:
        self.count = 0
        self._runs: list[_Run] = []
        # The number of the first frame of each run.
        self._firsts: list[int] = []
        self._known: list[_Hashes] = []

    def add(self, count: int, frames: Numbers, topics: Numbers, words: Sequence[bytes]) -> None:
        """Add `count` frames. Pairs of a frame, counted from 0, and the number of a topic in
        `words` say which topics each has. A frame without a topic is unknown.
        """
        if not self._known or sum(map(len, self._known)) > _WORDS_KEPT:
            self._known = [_Hashes(level) for level in range(LEVELS_MAX)]
        known = self._known
        hashes: list[int] = []
        sizes: list[int] = []
        for topic in words:
            levels = topic.split(b"/")
            hashes += [seen[word] for seen, word in zip(known, levels, strict=False)]
            sizes.append(len(levels))
        flat = np.array(hashes, np.int64)
        lengths = np.minimum(np.array(sizes, np.int64), LEVELS_MAX)
        firsts = (lengths.cumsum() - lengths)[topics]
        lengths = lengths[topics]
        ends = lengths.cumsum()
        places = np.arange(lengths.sum()) + np.repeat(firsts - (ends - lengths), lengths)
        found = np.repeat(frames << 16, lengths) | flat[places]
        found.sort()
        found = found[np.flatnonzero(np.diff(found, prepend=-1))]
        for first in range(0, count, RUN_FRAMES):
            last = min(first + RUN_FRAMES, count)
            low, high = np.searchsorted(found, [first << 16, last << 16])
            self._append(_run_of(last - first, found[low:high] - (first << 16)))

    def add_frame(self, topics: Iterable[bytes]) -> None:
        """Add one frame with these topics: for large frames, one after the other."""
        words = list(topics)
        numbers = np.arange(len(words))
        self.add(1, np.zeros(len(words), np.int64), numbers, words)

    def add_unknown(self, count: int) -> None:
        """Add frames that may hold every word."""
        none = np.zeros(0, np.int64)
        self.add(count, none, none, ())

    def holding(self, needed: Needed, start: int, stop: int) -> Flags:
        """Return which of the frames from start to stop may have these words, all of them; those
        that were not added may.
        """
        held = np.ones(stop - start, np.bool_)
        stop = min(stop, self.count)
        for number in range(max(0, bisect_right(self._firsts, start) - 1), len(self._firsts)):
            first = self._firsts[number]
            if first >= stop:
                break
            run = self._runs[number]
            low, high = max(first, start), min(first + len(run.counts), stop)
            if low < high:
                held[low - start : high - start] = run.holding(needed)[low - first : high - first]
        return held

    def hides_from(self, other: WordIndex) -> bool:
        """Return whether a frame that both know has fewer words here than in another index."""
        mine, known = self._pairs()
        found, _ = other._pairs()
        found = found[found >> 16 < len(known)]
        found = found[known[found >> 16]]
        return not bool(np.isin(found, mine).all())

    def to_bytes(self) -> bytes:
        """Return the bytes of the index."""
        found: list[bytes] = []
        for run in self._runs:
            head = _RUN.pack(len(run.counts), len(run.hashes), len(run.common), 0)
            data = b"".join(
                [head, run.counts.tobytes(), run.hashes.tobytes(), run.common.tobytes()]
            )
            found.append(data + bytes(-len(data) % 8))
        return b"".join(found)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> WordIndex:
        """Read the bytes of an index; they stay in use. Raises: ValueError."""
        index = cls()
        position = 0
        while position < len(data):
            if position + _RUN.size > len(data):
                raise ValueError("the index of words is cut short")
            frames, hashes, common, zero = _RUN.unpack_from(data, position)
            end = position + _RUN.size + 2 * (frames + hashes + common)
            if zero or not frames or end > len(data):
                raise ValueError("a run of the index of words has wrong lengths")
            numbers = np.frombuffer(
                data, np.dtype("<u2"), frames + hashes + common, position + _RUN.size
            )
            run = _Run(
                numbers[:frames], numbers[frames : frames + hashes], numbers[frames + hashes :]
            )
            known = run.counts[run.counts != _UNKNOWN]
            if int(known.sum(dtype=np.int64)) != hashes:
                raise ValueError("a run of the index of words has wrong counts")
            index._append(run)
            position = end + -end % 8
        return index

    def _append(self, run: _Run) -> None:
        self._firsts.append(self.count)
        self._runs.append(run)
        self.count += len(run.counts)

    def _pairs(self) -> tuple[Numbers, Flags]:
        """Return frame << 16 | hash of all known frames, and which frames are known."""
        found = [np.zeros(0, np.int64)]
        known = [np.zeros(0, np.bool_)]
        for first, run in zip(self._firsts, self._runs, strict=True):
            is_known = run.counts != _UNKNOWN
            frames = np.flatnonzero(is_known) + first
            found.append(np.repeat(frames, run.counts[is_known]) << 16 | run.hashes)
            found.append((frames[:, None] << 16 | run.common.astype(np.int64)).ravel())
            known.append(is_known)
        return np.concatenate(found), np.concatenate(known)


def _run_of(count: int, found: Numbers) -> _Run:
    """Return a run of frames; `found` has frame << 16 | hash, rising, each once."""
    counts = np.bincount(found >> 16, minlength=count)
    # A topic has at least one word, so only an unknown frame has no hash.
    unknown = (counts == 0) | (counts > HASHES_MAX)
    found = found[~unknown[found >> 16]]
    often = np.bincount(found & 0xFFFF, minlength=1 << 16)
    known = count - int(unknown.sum())
    shared = often == known if known > 1 else np.zeros(1 << 16, np.bool_)
    kept = found[~shared[found & 0xFFFF]]
    lengths = np.bincount(kept >> 16, minlength=count)
    lengths[unknown] = _UNKNOWN
    return _Run(
        lengths.astype(np.dtype("<u2")),
        (kept & 0xFFFF).astype(np.dtype("<u2")),
        np.flatnonzero(shared).astype(np.dtype("<u2")),
    )
