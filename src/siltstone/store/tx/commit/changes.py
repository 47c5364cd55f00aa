"""The changes of a key-value shard in the order of their commits, for feeds. Compiled.

Each change of a row gets the next number of its shard. The changes of a group are stored as one
record, in the write that stores the group itself:

    key     shard u32, number of the first change u64
    record  generation u32, count u32, bytes of all earlier records of the shard u64
    change  time u64, until u64, stream u64, topic length u32, value length u32, topic, value

Numbers are big endian. A change with `until` 0 sets the value of the row at its time; any other one
deletes the rows of its topic from its time to `until`.

Invariants: the numbers of a shard are never used twice and have no gap inside a record. While
changes are not kept, each commit takes a number, so that a reader notices.
"""

from __future__ import annotations

import struct
from pathlib import PurePath
from typing import Final

from siltstone.errors import CorruptionError
from siltstone.store.kv.api import Changes, Engine, View

# The family of the records of all shards.
CHANGES_FAMILY: Final = "changes"
# The value of `until` of a change that sets a value.
WRITTEN: Final = 0

_KEY: Final = struct.Struct(">IQ")
_RECORD: Final = struct.Struct(">IIQ")
_CHANGE: Final = struct.Struct(">QQQII")
_STATE: Final = struct.Struct(">QQQQ")
_PATH: Final = PurePath(CHANGES_FAMILY)
_NUMBER_END: Final = (1 << 64) - 1
# Old records are removed when they exceed the window by this part of it.
_SLACK: Final = 4


class ChangeList:
    """Changes in order, as parallel lists."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.topics: list[bytes] = []
        self.values: list[bytes] = []
        self.times: list[int] = []
        self.untils: list[int] = []
        self.streams: list[int] = []
        self.size_bytes = 0

    def put(self, topic: bytes, time_us: int, value: bytes, stream_id: int) -> None:
        """Add the new value of a row."""
        self._add(topic, time_us, WRITTEN, value, stream_id)

    def delete(self, topic: bytes, since_us: int, until_us: int, stream_id: int) -> None:
        """Add the deletion of the rows of a topic in [since, until)."""
        self._add(topic, since_us, until_us, b"", stream_id)

    def copy(self, other: ChangeList, index: int) -> None:
        """Add a change of another list."""
        self._add(
            other.topics[index],
            other.times[index],
            other.untils[index],
            other.values[index],
            other.streams[index],
        )

    def encode(self, bytes_before: int) -> bytes:
        """Return the record."""
        topics, values = self.topics, self.values
        times, untils, streams = self.times, self.untils, self.streams
        parts = [_RECORD.pack(self.generation, len(topics), bytes_before)]
        for number in range(len(topics)):
            topic, value = topics[number], values[number]
            parts.append(
                _CHANGE.pack(times[number], untils[number], streams[number], len(topic), len(value))
            )
            parts.append(topic)
            parts.append(value)
        return b"".join(parts)

    def _add(self, topic: bytes, time_us: int, until_us: int, value: bytes, stream_id: int) -> None:
        self.topics.append(topic)
        self.times.append(time_us)
        self.untils.append(until_us)
        self.values.append(value)
        self.streams.append(stream_id)
        self.size_bytes += _CHANGE.size + len(topic) + len(value)


class RecordHead:
    """The place of a record: its first number, the number after its last, and its bytes before."""

    def __init__(self, first: int, stop: int, generation: int, bytes_before: int) -> None:
        self.first = first
        self.stop = stop
        self.generation = generation
        self.bytes_before = bytes_before


def head_of(key: bytes, record: bytes) -> RecordHead:
    """Return the place of a record. Raises: CorruptionError."""
    if len(key) != _KEY.size or len(record) < _RECORD.size:
        raise _damaged("too short")
    first: int = _KEY.unpack(key)[1]
    generation, count, bytes_before = _RECORD.unpack_from(record)
    return RecordHead(first, first + count, generation, bytes_before)


def decode_changes(record: bytes) -> ChangeList:
    """Return the changes of a record. Raises: CorruptionError."""
    if len(record) < _RECORD.size:
        raise _damaged("too short")
    generation, count, _ = _RECORD.unpack_from(record)
    found = ChangeList(generation)
    at = _RECORD.size
    for _number in range(count):
        if len(record) < at + _CHANGE.size:
            raise _damaged("cut short")
        time_us, until_us, stream_id, topic_bytes, value_bytes = _CHANGE.unpack_from(record, at)
        middle = at + _CHANGE.size + topic_bytes
        end = middle + value_bytes
        if len(record) < end:
            raise _damaged("cut short")
        topic = record[at + _CHANGE.size : middle]
        if until_us == WRITTEN:
            found.put(topic, time_us, record[middle:end], stream_id)
        else:
            found.delete(topic, time_us, until_us, stream_id)
        at = end
    if at != len(record):
        raise _damaged("extra bytes at the end")
    return found


def changes_key(shard: int, number: int) -> bytes:
    """Return the key of the record that begins with a change."""
    return _KEY.pack(shard, number)


def changes_end(shard: int) -> bytes:
    """Return the key after all records of a shard."""
    return _KEY.pack(shard, _NUMBER_END)


class ChangeLogState:
    """The range of the kept changes: the numbers of the first one and of the next one, and the
    bytes of all records before each of the two.

    `serial` is the last commit whose changes were kept.
    """

    def __init__(self, next_number: int, total_bytes: int, first_bytes: int, serial: int) -> None:
        self.next_number = next_number
        self.total_bytes = total_bytes
        # The bytes before the first record that is kept.
        self.first_bytes = first_bytes
        self.serial = serial

    def encode(self) -> bytes:
        """Return the stored value."""
        return _STATE.pack(self.next_number, self.total_bytes, self.first_bytes, self.serial)


def decode_state(stored: bytes) -> ChangeLogState:
    """Return the state that was stored. Raises: CorruptionError."""
    if len(stored) != _STATE.size:
        raise _damaged("the state is damaged")
    next_number, total_bytes, first_bytes, serial = _STATE.unpack(stored)
    return ChangeLogState(next_number, total_bytes, first_bytes, serial)


class ChangeLog:
    """The writing half of the changes of a shard. It belongs to the committer."""

    def __init__(self, engine: Engine, shard: int, state: ChangeLogState | None) -> None:
        self._engine = engine
        self._shard = shard
        self._state = ChangeLogState(0, 0, 0, 0) if state is None else state
        self._staged: ChangeLogState | None = None
        # The number of the next change that readers do not see yet.
        self.end = self._state.next_number

    def resume(self, serial: int) -> None:
        """Continue after the commit with this serial.

        Each commit whose changes were not kept takes one number, so that a reader notices. This is
        not stored, because a repetition has the same result, also with later serials.
        """
        state = self._state
        missed = serial - state.serial
        if missed:
            self._state = ChangeLogState(
                state.next_number + missed, state.total_bytes, state.first_bytes, serial
            )
            self.end = self._state.next_number

    def stage(self, changes: Changes, group: ChangeList, serial: int, bytes_max: int) -> bytes:
        """Add the changes of commits up to a serial to a write; return the new state, which belongs
        to the write.

        Old records are removed so that about `bytes_max` are kept. `publish` follows if the write
        succeeds.
        """
        state = self._state
        number, total_bytes = state.next_number, state.total_bytes
        first_bytes = state.first_bytes
        if total_bytes - first_bytes > bytes_max + bytes_max // _SLACK:
            first_bytes = self._trim(changes, total_bytes - bytes_max)
        if group.topics:
            record = group.encode(total_bytes)
            changes.put(CHANGES_FAMILY, changes_key(self._shard, number), record)
            number += len(group.topics)
            total_bytes += len(record)
        staged = ChangeLogState(number, total_bytes, first_bytes, serial)
        self._staged = staged
        return staged.encode()

    def clear(self, changes: Changes) -> bytes | None:
        """Remove all records, because changes are not kept any more; None if there are none."""
        state = self._state
        if state.first_bytes == state.total_bytes:
            return None
        begin = changes_key(self._shard, 0)
        changes.ranges.append((CHANGES_FAMILY, begin, changes_end(self._shard)))
        self._staged = ChangeLogState(
            state.next_number, state.total_bytes, state.total_bytes, state.serial
        )
        return self._staged.encode()

    def publish(self) -> None:
        """Make the staged changes visible."""
        if self._staged is not None:
            self._state, self._staged = self._staged, None
            self.end = self._state.next_number

    def _trim(self, changes: Changes, bytes_before: int) -> int:
        """Remove the records with fewer bytes before them; return the bytes before the rest."""
        view = self._engine.view(CHANGES_FAMILY)
        try:
            low, high = self._first(view), self._state.next_number
            kept_bytes = self._state.total_bytes
            while low < high:
                middle = (low + high) // 2
                found = self._record_at(view, middle)
                if found.bytes_before >= bytes_before:
                    high, kept_bytes = found.first, found.bytes_before
                else:
                    # The record may end before the middle, where a number was left out.
                    low = max(found.stop, middle + 1)
        finally:
            view.release()
        begin = changes_key(self._shard, 0)
        changes.ranges.append((CHANGES_FAMILY, begin, changes_key(self._shard, high)))
        return kept_bytes

    def _first(self, view: View) -> int:
        items = view.items(changes_key(self._shard, 0), changes_end(self._shard), 1)
        return head_of(items[0][0], items[0][1]).first if items else self._state.next_number

    def _record_at(self, view: View, number: int) -> RecordHead:
        """Return the last record that begins at or before a number; there must be one."""
        item = view.last(changes_key(self._shard, 0), changes_key(self._shard, number + 1))
        assert item is not None
        return head_of(item[0], item[1])


def _damaged(problem: str) -> CorruptionError:
    return CorruptionError(f"the changes for feeds are damaged: {problem}", path=_PATH)
