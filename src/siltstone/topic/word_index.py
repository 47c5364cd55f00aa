"""Which words occur at which level of the topics of frames, so that a filter can skip frames.

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
        # The hashes of words that were seen, by level.
        self._known: list[dict[bytes, int]] = []
        self._known_words = 0

    def add(self, count: int, frames: Numbers, topics: Numbers, words: Sequence[bytes]) -> None:
        """Add `count` frames. Pairs of a frame, counted from 0, and the number of a topic in
        `words` say which topics each has. A frame without a topic is unknown.
        """
        hashes = [self._hashes(topic) for topic in words]
        lengths = np.array([len(each) for each in hashes], np.int64)
        flat = np.array([one for each in hashes for one in each], np.int64)
        firsts = lengths.cumsum() - lengths
        sizes = lengths[topics]
        ends = sizes.cumsum()
        places = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(
            firsts[topics] - (ends - sizes), sizes
        )
        found = np.unique(np.repeat(frames, sizes) << 16 | flat[places])
        for first in range(0, count, RUN_FRAMES):
            last = min(first + RUN_FRAMES, count)
            low, high = np.searchsorted(found, [first << 16, last << 16])
            self._runs.append(_run_of(last - first, found[low:high] - (first << 16)))
            self.count += last - first

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
        first = 0
        for run in self._runs:
            last = first + len(run.counts)
            if first >= stop:
                break
            if last > start:
                low, high = max(first, start), min(last, stop)
                held[low - start : high - start] = run.holding(needed)[low - first : high - first]
            first = last
        return held

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
            index._runs.append(run)
            index.count += frames
            position = end + -end % 8
        return index

    def _hashes(self, topic: bytes) -> list[int]:
        """Return the hashes of the words of a topic."""
        known = self._known
        words = topic.split(b"/", LEVELS_MAX)[:LEVELS_MAX]
        while len(known) < len(words):
            known.append({})
        found: list[int] = []
        for level, word in enumerate(words):
            number = known[level].get(word)
            if number is None:
                if self._known_words >= _WORDS_KEPT:
                    for each in known:
                        each.clear()
                    self._known_words = 0
                number = known[level][word] = word_hash(level, word)
                self._known_words += 1
            found.append(number)
        return found


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
