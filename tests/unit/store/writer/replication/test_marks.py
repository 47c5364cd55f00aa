"""The bytes of marks."""

from __future__ import annotations

import pytest

from siltstone.store.writer.replication.codec import UnreadableRecordError
from siltstone.store.writer.replication.marks import decode_mark, encode_mark
from tests.support.replication_log import OneSite


def mark() -> bytes:
    site = OneSite(part_bytes=20).lead()
    site.store(site.call(1, 1, 0)[0])
    site.store(site.log[0])
    return encode_mark(site.shard.position.mark())


def test_a_mark_decodes_to_itself_unfinished_parts_included() -> None:
    position = decode_mark(mark())
    assert encode_mark(position) == mark()
    assert (position.sequence, position.marked, position.index, position.parts) == (3, 3, 3, 1)
    assert (position.site, position.boot, position.term, position.base) == ("a", 1, 1, 2)
    assert len(mark()) == 129


def test_a_mark_of_a_newer_version_or_a_wrong_length_is_unreadable() -> None:
    with pytest.raises(UnreadableRecordError, match="upgrade this site: version=2 supported=1"):
        decode_mark(b"\x02" + mark()[1:])
    with pytest.raises(UnreadableRecordError, match="too short: size_bytes=127"):
        decode_mark(mark()[:127])
    with pytest.raises(UnreadableRecordError, match="another length than it says"):
        decode_mark(mark() + b"x")
    with pytest.raises(UnreadableRecordError, match="not valid UTF-8"):
        decode_mark(mark()[:-1] + b"\xff")
