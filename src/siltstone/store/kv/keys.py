"""The key of a row: stream, varying topic part, time. Compiled.

    stream id u64 | varying words joined by slashes | 00 | time u64     all big endian
    stream id u64 | varying words joined by slashes | 00                in a plain map

A topic has no zero byte, so the keys of one topic are consecutive, in order of time, and before the
keys of every longer topic with this prefix. One key, a single zero byte, is not a row, and no range
of rows contains it. Its value is the last serial and the last time that a commit assigned, u64
each.
"""

from __future__ import annotations

from typing import Final

STATE_KEY: Final = b"\x00"
TIME_BYTES: Final = 8
# All times are lower, so that they fit into Arrow's signed times; as the end of a range it is after
# all of them.
TIME_END: Final = 1 << 63

_STREAM_BYTES: Final = 8
_TOPIC_END: Final = b"\x00"
_AFTER_TOPIC: Final = b"\x01"
_SLASH: Final = b"/"
_AFTER_SLASH: Final = b"0"


def encode_state(serial: int, timestamp_us: int) -> bytes:
    """Return the value of STATE_KEY."""
    return serial.to_bytes(8, "big") + timestamp_us.to_bytes(8, "big")


def serial_in(state: bytes) -> int:
    """Return the last serial; 0 if there is no state yet."""
    return int.from_bytes(state[:8], "big")


def timestamp_in(state: bytes) -> int:
    """Return the last time that a commit assigned; 0 if there is no state yet."""
    return int.from_bytes(state[8:], "big")


class KeyRange:
    """Keys of [start, stop)."""

    def __init__(self, start: bytes, stop: bytes) -> None:
        self.start = start
        self.stop = stop


def row_prefix(stream_id: int, varying: bytes) -> bytes:
    """Return the prefix of the keys of all rows of a topic: its place."""
    return stream_id.to_bytes(_STREAM_BYTES, "big") + varying + _TOPIC_END


def row_key(prefix: bytes, time_us: int, timed: bool) -> bytes:
    """Return the key of a row."""
    return prefix + time_us.to_bytes(TIME_BYTES, "big") if timed else prefix


def stream_of(key: bytes) -> int:
    """Return the stream of a key, or of a prefix of keys."""
    return int.from_bytes(key[:_STREAM_BYTES], "big")


def place_of(key: bytes, timed: bool) -> bytes:
    """Return the prefix of the keys of all rows of a row's topic."""
    return key[:-TIME_BYTES] if timed else key


def varying_of(key: bytes, timed: bool) -> bytes:
    """Return the varying part of the topic of a row."""
    # In two steps: mypyc fails if a slice of bytes ends before it begins.
    return (key[: -TIME_BYTES - 1] if timed else key[:-1])[_STREAM_BYTES:]


def time_of(key: bytes, timed: bool) -> int:
    """Return the time of a row; 0 in a plain map, whose rows have no time."""
    return int.from_bytes(key[-TIME_BYTES:], "big") if timed else 0


def times_of_topic(prefix: bytes, since_us: int, until_us: int, timed: bool) -> KeyRange:
    """Return the keys of a topic in [since, until); in a plain map its one row has time 0."""
    after = prefix[:-1] + _AFTER_TOPIC
    if not timed:
        return KeyRange(prefix, after if since_us <= 0 < until_us else prefix)
    start = row_key(prefix, since_us, timed) if since_us < TIME_END else after
    return KeyRange(start, row_key(prefix, until_us, timed) if until_us < TIME_END else after)


def after_topic(key: bytes, timed: bool) -> bytes:
    """Return the lowest key that the next topic after that of a row can have."""
    return key[: -TIME_BYTES - 1] + _AFTER_TOPIC if timed else key[:-1] + _AFTER_TOPIC


def rows_of_stream(stream_id: int, first_words: list[bytes]) -> KeyRange:
    """Return the rows of a stream whose varying part begins with these words and has more words."""
    start = stream_id.to_bytes(_STREAM_BYTES, "big")
    if first_words:
        prefix = start + _SLASH.join(first_words)
        return KeyRange(prefix + _SLASH, prefix + _AFTER_SLASH)
    # The last id has no successor of its length; no varying part begins with the byte ff.
    stop = (stream_id + 1).to_bytes(_STREAM_BYTES + 1, "big")
    return KeyRange(start, stop[1:] if stop[0] == 0 else start + b"\xff")
