"""The bytes of topic logs: what is written is read again, and nonsense is refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from siltstone.errors import ProtocolError
from siltstone.topiclog.protocol import (
    BatchHead,
    Fetch,
    FetchPlace,
    RequestKind,
    decode_batches,
    decode_commit,
    decode_fetch,
    decode_head,
    decode_names,
    encode_batch_heads,
    encode_commit,
    encode_fetch,
    encode_names,
    request,
)
from siltstone.topiclog.tables import (
    joined_offsets,
    offsets_of_ends,
    offsets_of_table,
    table_of_ends,
    table_of_offsets,
)
from tests.support.topiclog import offsets_of

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
OFFSETS = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
VALUES = st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=150)


@given(st.sampled_from(RequestKind), U32, NAMES, st.binary(max_size=50))
def test_a_request_is_read_as_it_was_written(
    kind: RequestKind, request_id: int, topic: str, payload: bytes
) -> None:
    data = request(kind, request_id, topic, payload)
    head = decode_head(data, 0)
    assert (head.size, head.kind, head.id) == (len(data), kind, request_id)
    assert data[12 : 12 + head.name_size].decode() == topic
    assert data[12 + head.name_size :] == payload


@given(st.lists(st.builds(FetchPlace, topic=NAMES, offset=OFFSETS), max_size=5), U32, U32)
def test_a_fetch_is_read_as_it_was_written(
    places: list[FetchPlace], bytes_max: int, wait_ms: int
) -> None:
    fetch = Fetch(places=tuple(places), bytes_max=bytes_max, wait_ms=wait_ms)
    assert decode_fetch(memoryview(encode_fetch(fetch))) == fetch


@given(st.lists(NAMES, max_size=6), NAMES, OFFSETS)
def test_names_and_commits_are_read_as_they_were_written(
    names: list[str], client: str, offset: int
) -> None:
    assert decode_names(memoryview(encode_names(names))) == names
    assert decode_commit(memoryview(encode_commit(client, offset))) == (client, offset)


@given(VALUES)
def test_tables_turn_from_the_wire_to_the_store_and_back(values: list[bytes]) -> None:
    offsets = offsets_of_ends(table_of_ends(values))
    assert offsets == offsets_of(values)
    view = memoryview(offsets).cast("i")
    assert list(offsets_of_table(memoryview(table_of_offsets(view)))) == list(view)
    # From the middle of a frame: counted from where the data of the reply begins.
    later = view[len(values) // 2 :]
    found = offsets_of_table(memoryview(table_of_offsets(later)))
    assert list(found) == [offset - later[0] for offset in later]


@given(st.lists(VALUES, min_size=1, max_size=4))
def test_joined_tables_are_those_of_the_joined_messages(pieces: list[list[bytes]]) -> None:
    tables = [offsets_of(piece) for piece in pieces]
    sizes = [sum(map(len, piece)) for piece in pieces]
    together = [value for piece in pieces for value in piece]
    assert joined_offsets(tables, sizes) == offsets_of(together)


@given(st.lists(VALUES, max_size=4))
def test_batches_are_read_as_they_were_written(pieces: list[list[bytes]]) -> None:
    heads = [
        BatchHead(
            place=number,
            first=number * 10,
            end=99,
            count=len(piece),
            data_bytes=sum(map(len, piece)),
        )
        for number, piece in enumerate(pieces)
    ]
    parts = [
        table_of_offsets(memoryview(offsets_of(piece)).cast("i")) + b"".join(piece)
        for piece in pieces
    ]
    found = decode_batches(memoryview(encode_batch_heads(heads) + b"".join(parts)))
    assert [head for head, _, _ in found] == heads
    assert [bytes(data) for _, _, data in found] == [b"".join(piece) for piece in pieces]


@given(st.binary(max_size=80))
def test_any_bytes_are_a_payload_or_refused(data: bytes) -> None:
    outcomes = []
    for decode in (decode_fetch, decode_names, decode_batches, decode_commit):
        try:
            outcomes.append(decode(memoryview(data)) is not None)
        except ProtocolError as exc:
            outcomes.append(bool(str(exc)))
    assert outcomes == [True] * 4
