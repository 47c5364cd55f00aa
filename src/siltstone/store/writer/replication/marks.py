"""The bytes of a mark: the position of a site just behind a message that counted.

    0   2  version: 1
    2   2  length of the name of the leader's site
    4   4  shard
    8   4  epoch
    12  4  parts of an unfinished record that have counted
    16  4  parts that the unfinished record has
    20  4  kind of the unfinished record
    24  8  sequence in the log
    32  8  term
    40  8  boot of the leader
    48  8  base
    56  8  index
    64  16 database
    80  16 nonce
    96  16 root
    112 16 chain
    128    name of the leader's site, UTF-8

Every message that counts leaves a mark in the files of a site, together with its own bytes. A
restart continues behind the last whole mark. A site reports the sequence of its last synced mark,
never that of the last message read. The file that holds the mark has the checksum.
"""

from __future__ import annotations

import struct
from typing import Final

from siltstone.store.writer.replication.codec import UnreadableRecordError
from siltstone.store.writer.replication.messages import LogIdentity
from siltstone.store.writer.replication.rule import LogPosition

VERSION: Final = 1
_MARK: Final = struct.Struct("<HHIIIIIQQQQQ16s16s16s16s")


def encode_mark(position: LogPosition) -> bytes:
    """Return the bytes of a mark."""
    assert position.sequence == position.marked
    site = position.site.encode()
    identity = position.identity
    head = (VERSION, len(site), identity.shard, identity.epoch)
    parts = (position.parts, position.parts_all, position.parts_kind)
    numbers = (position.sequence, position.term, position.boot, position.base, position.index)
    digests = (identity.database, position.nonce, position.root, position.chain)
    return _MARK.pack(*head, *parts, *numbers, *digests) + site


def decode_mark(data: bytes) -> LogPosition:
    """Return the position that a mark holds. Raises: UnreadableRecordError."""
    if len(data) < _MARK.size:
        raise UnreadableRecordError(f"the mark is too short: size_bytes={len(data)}")
    fields = _MARK.unpack_from(data)
    version, length, shard, epoch, parts, parts_all, parts_kind = fields[:7]
    sequence, term, boot, base, index, database, nonce, root, chain = fields[7:]
    if version != VERSION:
        raise UnreadableRecordError(
            f"the mark has an unknown version, upgrade this site: version={version} "
            f"supported={VERSION}"
        )
    if len(data) != _MARK.size + length:
        raise UnreadableRecordError(
            f"the mark has another length than it says: size_bytes={len(data)} said={length}"
        )
    try:
        site = data[_MARK.size :].decode()
    except UnicodeDecodeError as exc:
        raise UnreadableRecordError("the name of the site in a mark is not valid UTF-8") from exc
    return LogPosition(
        identity=LogIdentity(database=database, shard=shard, epoch=epoch),
        sequence=sequence,
        marked=sequence,
        nonce=nonce,
        term=term,
        site=site,
        boot=boot,
        root=root,
        base=base,
        index=index,
        chain=chain,
        parts=parts,
        parts_all=parts_all,
        parts_kind=parts_kind,
    )
