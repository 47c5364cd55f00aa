"""What sites of a cluster send to each other, as version 1 wrote it.

A cluster is upgraded one site after another, so a site must read the bytes of the version before,
and write bytes that it can read. A change of these bytes needs a new version of the format, and
this one must still be read.
"""

from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.cluster.registry import decode_placement, encode_placement
from siltstone.rows.batch import RowBatch
from siltstone.store.log.records import DropRecord, RollRecord, SettingsRecord
from siltstone.store.log.write.frame_builder import Call
from siltstone.store.shard.replicated.calls import (
    decode_answer,
    decode_call,
    encode_answer,
    encode_call,
)
from siltstone.store.shard.replicated.mark_file import Marked, decode_marked, encode_marked
from siltstone.store.shard.replicated.payloads import other_record, payload_of
from siltstone.store.slab.manifest import SlabId
from siltstone.store.writer.commit_log import RecordKind
from siltstone.store.writer.replication.codec import decode, encode, encode_change
from siltstone.store.writer.replication.messages import (
    Genesis,
    LogIdentity,
    Message,
    MessageKind,
    Place,
    ProducerCall,
    RecordChange,
    RecordMessage,
    Term,
)
from siltstone.store.writer.replication.producers import Producers
from siltstone.store.writer.replication.rule import LogPosition
from siltstone.store.writer.replication.sites.membership import ShardSites
from siltstone.store.writer.ticket import Outcome

IDENTITY = LogIdentity(database=b"d" * 16, shard=3, epoch=1)
CLAIM = ProducerCall(producer=b"p" * 16, number=9, previous=8)
PLACE = Place(epoch=1, term=5, index=7, chain=b"c" * 16, root=b"r" * 16, seen=6)
ROWS = RecordChange(kind=MessageKind.ROWS, calls=(CLAIM,), payload=b"a frame")
ROLL = RollRecord(
    serial=5,
    timestamp_us=6,
    created_us=7,
    segment_bytes=65536,
    room_bytes=100,
    structure=b"structure",
    producers=b"producers",
)


def record(kind: MessageKind, body: bytes, part: int = 1, parts: int = 1) -> RecordMessage:
    return RecordMessage(kind=kind, place=PLACE, part=part, parts=parts, body=body)


MESSAGES: list[tuple[Message, str]] = [
    (
        Genesis(IDENTITY, b"n" * 16),
        (
            "53524550673ba4b27400000001080100010000000100000000000000000000000000000000000000"
            "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
            "64646464646464646464646464646464030000006e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e"
        ),
    ),
    (
        Term(epoch=1, term=5, root=b"r" * 16, site="a", boot=77),
        (
            "53524550958f41f25900000001070100010000000100000005000000000000000000000000000000"
            "00000000000000000000000000000000000000000000000072727272727272727272727272727272"
            "4d0000000000000061"
        ),
    ),
    (
        record(MessageKind.ROWS, encode_change(ROWS)),
        (
            "53524550b840eb707b00000001010100010000000100000005000000000000000700000000000000"
            "06000000000000006363636363636363636363636363636372727272727272727272727272727272"
            "01000000707070707070707070707070707070700900000000000000080000000000000061206672"
            "616d65"
        ),
    ),
    (
        record(MessageKind.KV, b"half", 1, 2),
        (
            "5352455077e1605c5400000001060100020000000100000005000000000000000700000000000000"
            "06000000000000006363636363636363636363636363636372727272727272727272727272727272"
            "68616c66"
        ),
    ),
    (
        record(MessageKind.FENCE, b"p" * 16),
        (
            "53524550286fd9e76000000001090100010000000100000005000000000000000700000000000000"
            "06000000000000006363636363636363636363636363636372727272727272727272727272727272"
            "70707070707070707070707070707070"
        ),
    ),
    (
        record(MessageKind.BARRIER, b""),
        (
            "535245509cb38e4e50000000010a0100010000000100000005000000000000000700000000000000"
            "06000000000000006363636363636363636363636363636372727272727272727272727272727272"
        ),
    ),
]


@pytest.mark.parametrize(("message", "known"), MESSAGES, ids=lambda each: type(each).__name__)
def test_messages_of_the_shared_log(message: Message, known: str) -> None:
    assert encode(message).hex() == known
    assert decode(bytes.fromhex(known)) == message


PAYLOADS: list[tuple[RollRecord | DropRecord | SettingsRecord, str]] = [
    (
        ROLL,
        (
            "030000005c00000009000000090000007b2273657269616c223a20352c202274696d657374616d70"
            "5f7573223a20362c2022637265617465645f7573223a20372c20227365676d656e745f6279746573"
            "223a2036353533362c2022726f6f6d5f6279746573223a203130307d73747275637475726570726f"
            "647563657273"
        ),
    ),
    (
        DropRecord([SlabId(0, 1), SlabId(0, 2)], 17),
        (
            "010000002c0000007b22736c616273223a205b5b302c20315d2c205b302c20325d5d2c2022726563"
            "6c61696d6564223a2031377d"
        ),
    ),
    (
        SettingsRecord({"flush_interval": 0.5}),
        "01000000170000007b22666c7573685f696e74657276616c223a20302e357d",
    ),
]


@pytest.mark.parametrize(("change", "known"), PAYLOADS, ids=lambda each: type(each).__name__)
def test_payloads_of_records(change: RollRecord | DropRecord | SettingsRecord, known: str) -> None:
    assert payload_of(change).hex() == known
    assert other_record(RecordKind(change.kind), bytes.fromhex(known)).parts() == change.parts()


def call_of_two_rows() -> Call:
    batch = RowBatch()
    batch.topics, batch.values, batch.flags = [b"t/1", b"t/2"], [b"1", b""], [1, 0]
    batch.publisher = b"device"
    batch.measure()
    call = Call(batch)
    call.wants_sync, call.claim = True, CLAIM
    return call


CALL = (
    "01707070707070707070707070707070700900000000000000080000000000000001ffff01000200"
    "00000300000003000000742f31742f32020000000100000000000000310000000000000000010000"
    "000600000064657669636501000000020000000100"
)
ANSWER = (
    '{"duplicate": false, "count": 2, "timestamp_us": 11, "frame_serial": 4, "frame_t'
    'imestamp_us": 10}'
)
OUTCOME = Outcome(
    duplicate=False,
    count=2,
    timestamp_us=11,
    frame_serial=4,
    frame_timestamp_us=10,
    frame_places=None,
)


def test_calls_and_answers_between_sites() -> None:
    assert encode_call(call_of_two_rows()).hex() == CALL
    found = decode_call(bytes.fromhex(CALL))
    assert (found.batch.topics, found.batch.values) == ([b"t/1", b"t/2"], [b"1", b""])
    assert (found.batch.flags, found.batch.publisher) == ([1, 0], b"device")
    assert (found.wants_sync, found.claim) == (True, CLAIM)
    assert encode_answer(OUTCOME).decode() == ANSWER
    assert encode_answer(decode_answer(ANSWER.encode())).decode() == ANSWER


MARK = (
    "534d524bba3c92ed2800000000000000810000000000000001000100030000000100000000000000"
    "0000000000000000140000000000000005000000000000004d000000000000000200000000000000"
    "0700000000000000646464646464646464646464646464646e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e"
    "727272727272727272727272727272726363636363636363636363636363636361"
)
MARKED = Marked(
    position=LogPosition(
        identity=IDENTITY,
        sequence=20,
        marked=20,
        nonce=b"n" * 16,
        term=5,
        site="a",
        boot=77,
        root=b"r" * 16,
        base=2,
        index=7,
        chain=b"c" * 16,
    ),
    producers=Producers(),
    next_serial=40,
)


def test_marks() -> None:
    assert encode_marked(MARKED).hex() == MARK
    found = decode_marked(bytes.fromhex(MARK), PurePath("mark"))
    assert (found.position, found.next_serial) == (MARKED.position, 40)


PLACEMENT = (
    '{"replicas": ["a", "b", "c"], "insync": ["a", "b"], "trim": 9, "wanted": ["d"], '
    '"preferred": "b"}'
)


def test_placements_in_the_registry() -> None:
    placement = ShardSites(
        replicas=frozenset("abc"),
        insync=frozenset("ab"),
        trim=9,
        wanted=frozenset("d"),
        preferred="b",
    )
    assert encode_placement(placement).decode() == PLACEMENT
    assert decode_placement(PLACEMENT.encode()) == placement
