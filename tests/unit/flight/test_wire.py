from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import pytest

from siltstone.errors import (
    ConflictError,
    CorruptionError,
    InvalidTopicError,
    QuotaExceededError,
    RetryError,
    SiltstoneError,
    UsageError,
)
from siltstone.flight.wire import (
    ReadTicket,
    SerialSpan,
    admitted_to_json,
    decode_ticket,
    dump,
    error_from,
    error_info,
    extents_from_json,
    extents_to_json,
    load,
    options_in,
    positions_in,
)
from siltstone.scan.plan import Admitted
from siltstone.store.log.read.selection import SlabExtent
from siltstone.store.slab.manifest import SlabId


def test_a_ticket_goes_to_bytes_and_back() -> None:
    ticket = ReadTicket(
        options={"filter": "a/#"},
        spans=(SerialSpan(slab=SlabId(1, 2), serials=range(3, 1 << 63)),),
    )
    assert ticket.encode() == (
        b'{"version":1,"options":{"filter":"a/#"},"spans":[[1,2,3,9223372036854775808]]}'
    )
    assert decode_ticket(ticket.encode()) == ticket
    named = replace(ticket, identity="5eed")
    assert named.encode() == ticket.encode()[:-1] + b',"identity":"5eed"}'
    assert decode_ticket(named.encode()) == named


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        (b"\xff", "ticket must be JSON"),
        (b"[]", "ticket must be a JSON object"),
        (b'{"version": 2}', "unknown version 2"),
        (b'{"version": 1, "options": {}}', "a ticket must have spans of serials"),
        (
            b'{"version": 1, "options": {}, "spans": [[1, 2, 3]]}',
            "a ticket must have spans of serials",
        ),
        (
            b'{"version": 1, "options": {}, "spans": [[1, 2, 3, "4"]]}',
            "a ticket must have spans of serials",
        ),
        (
            b'{"version": 1, "options": {}, "spans": [[1, 2, 3, -4]]}',
            "a ticket must have spans of serials",
        ),
        (
            b'{"version": 1, "options": 1, "spans": []}',
            "the options of a read must be a JSON object",
        ),
    ],
)
def test_a_ticket_that_we_did_not_write_is_refused(encoded: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decode_ticket(encoded)


def test_options_may_be_numbers_and_lists() -> None:
    assert options_in({"filter": ["a", "b"], "rowsPerBatch": 5, "columns": "topic"}) == {
        "filter": '["a", "b"]',
        "rowsPerBatch": "5",
        "columns": "topic",
    }


def test_extents_go_over_the_wire() -> None:
    extents = [
        SlabExtent(slab=SlabId(0, 1), serials=range(5), since_us=1, until_us=9),
        SlabExtent(slab=SlabId(0, 2), serials=range(5, 7), since_us=9, until_us=None),
    ]
    assert extents_from_json(extents_to_json(extents)) == extents


def test_positions_go_over_the_wire() -> None:
    plain = admitted_to_json(Admitted(ends={0: 5, 3: 7}, rows=2))
    assert plain == {"ends": {"0": 5, "3": 7}, "rows": 2}
    assert positions_in(plain["ends"]) == {0: 5, 3: 7}
    with pytest.raises(UsageError, match="serials by shard"):
        positions_in({"a": 1})


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidTopicError("bad"), InvalidTopicError),
        (ConflictError("another transaction committed first"), ConflictError),
        (QuotaExceededError("d", used_bytes=2, quota_bytes=1), RetryError),
        (CorruptionError("torn", path=PurePath("/x")), SiltstoneError),
    ],
)
def test_an_error_is_raised_elsewhere_with_its_sentence(
    error: SiltstoneError, kind: type[SiltstoneError]
) -> None:
    arrived = error_from(error_info(error))
    assert (type(arrived), str(arrived)) == (kind, str(error))


@pytest.mark.parametrize("info", [b"", b"x", b"[]", b"{}"])
def test_an_error_of_others_is_none_of_ours(info: bytes) -> None:
    assert error_from(info) is None


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load(b'{"a": ' + DEEP, "command"), "command is nested too deeply"),
        (lambda: load(b'{"a": ' + b"9" * 5_000 + b"}", "command"), "command must be JSON"),
        (lambda: decode_ticket(DEEP), "ticket is nested too deeply"),
        (lambda: options_in({"a": nested(900)}), "an option is nested too deeply"),
        (lambda: positions_in({"9" * 5_000: 1}), "a position must be a JSON object of serials"),
        (lambda: positions_in({"0": 1 << 63}), "a position must be a JSON object of serials"),
    ],
)
def test_what_no_parser_can_take_is_refused_with_a_sentence(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        call()


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth * 100):
        value = [value]
    return value


def test_spans_of_a_ticket_have_64_bits() -> None:
    ticket = {"version": 1, "options": {}, "spans": [[0, 1, 0, (1 << 64) + 1]]}
    with pytest.raises(UsageError, match="a ticket must have spans of serials"):
        decode_ticket(dump(ticket))


def test_what_is_no_object_is_no_request() -> None:
    with pytest.raises(UsageError, match="request must be a JSON object"):
        load(b"1", "request")
