"""The payload of a key-value record has everything that a replica writes."""

from __future__ import annotations

import pytest

from siltstone.store.kv.api import Changes
from siltstone.store.shard.replicated.kv.records import decode_record, encode_record
from siltstone.store.shard.replicated.payloads import BadPayloadError
from siltstone.store.tx.commit.attempts import StoredAttempt
from siltstone.store.tx.commit.committer import KeyValueRecord
from siltstone.store.writer.commit_log import RecordKind

STORED = [StoredAttempt(b"a" * 16, 1, 10), StoredAttempt(b"b" * 16, 1 << 40, 11)]


def record() -> KeyValueRecord:
    changes = Changes()
    changes.ranges.append(("0.1", b"a", b"\xff\x00"))
    changes.put("0.1", b"key", b"value")
    changes.put("0.1", b"gone", None)
    changes.put("default", b"\x00", b"")
    return KeyValueRecord(RecordKind.KV, changes, b"edges", "0.2")


def test_a_record_is_read_as_it_was_written() -> None:
    before = record()
    found, stored = decode_record(RecordKind.KV, encode_record(before, STORED))
    assert stored == STORED
    assert found.changes.ranges == before.changes.ranges
    assert found.changes.values == before.changes.values
    assert (found.kind, found.edges, found.family) == (before.kind, before.edges, before.family)


def test_every_payload_that_was_cut_or_extended_is_refused() -> None:
    payload = encode_record(record(), STORED)
    for end in range(len(payload)):
        with pytest.raises(BadPayloadError):
            decode_record(RecordKind.KV, payload[:end])
    with pytest.raises(BadPayloadError):
        decode_record(RecordKind.KV, payload + b"\x00")


def test_a_payload_of_a_later_version_is_refused() -> None:
    payload = encode_record(record(), STORED)
    with pytest.raises(BadPayloadError, match="version=2"):
        decode_record(RecordKind.KV, b"\x02" + payload[1:])
