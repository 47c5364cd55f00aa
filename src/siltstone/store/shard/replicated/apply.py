"""Store the changes that counted in the shared log, in the files of this site.

Every change is stored once, although it may be read again after a restart: rows are recognised by
their serials, segments by the serial with which they begin, and generations by their numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from siltstone.store.log.records import (
    DropRecord,
    GenerationRecord,
    ManifestRecord,
    RollRecord,
    SettingsRecord,
)
from siltstone.store.log.write.committer import Committer
from siltstone.store.shard.replicated.payloads import (
    BadPayloadError,
    CountedFrame,
    other_record,
    serials_of,
)
from siltstone.store.writer.commit_log import RecordKind
from siltstone.store.writer.replication.messages import MessageKind, RecordChange


def apply_change(
    change: RecordChange,
    committer: Committer,
    *,
    turn: Callable[[GenerationRecord], None],
    manage: Callable[[DropRecord | SettingsRecord], None],
) -> None:
    """Store a change that counted; readers see rows after `publish` of the committer.

    Raises: BadPayloadError if it does not fit what is stored here; StorageFullError, with nothing
    stored; PoisonedError.
    """
    if change.kind is MessageKind.ROWS:
        _apply_rows(change.payload, committer)
        return
    if change.kind is MessageKind.KV:
        raise BadPayloadError("a KV record is in the log of rows")
    # Rows must be visible before their segment is sealed.
    committer.publish()
    record: RollRecord | ManifestRecord = other_record(RecordKind(change.kind), change.payload)
    match record:
        case RollRecord():
            if committer.next_serial <= record.serial:
                committer.store(record)
        case GenerationRecord():
            if committer.slab.id.generation < record.begun.generation:
                turn(record)
        case DropRecord() | SettingsRecord():
            manage(record)


def _apply_rows(payload: bytes, committer: Committer) -> None:
    serials = serials_of(payload)
    if serials.stop <= committer.next_serial:
        # It was stored before the last restart, behind the mark, and perhaps in the slab before
        # this one, whose frames have another seed.
        return
    if serials.start != committer.next_serial:
        raise BadPayloadError(
            f"rows are missing at this site: next_serial={committer.next_serial} "
            f"found={serials.start}"
        )
    committer.store(CountedFrame(payload, committer.seed))
