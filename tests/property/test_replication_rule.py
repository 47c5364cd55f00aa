"""The rule of the product and that of the model give the same verdicts on any log."""

from __future__ import annotations

from hashlib import blake2b

from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.store.writer.replication.codec import decode, decode_change, encode, encode_change
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
from siltstone.store.writer.replication.rule import LogPosition, Verdict, advance, judge, skip
from tests.support.replication_model import ModelMessage, ModelState, Said, model_apply

IDENTITY = LogIdentity(database=b"d" * 16, shard=0, epoch=1)
PARTS = 2


def digest(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=16).digest()


class Pair:
    """One log, read by the product and by the model."""

    def __init__(self) -> None:
        self.position = LogPosition(identity=IDENTITY)
        self.producers = Producers()
        self.bodies: list[bytes] = []
        self.state = ModelState()
        self.said: list[Said] = []
        self.chains = [self.position.chain]
        self.roots = [self.position.root]

    def read(self, sequence: int, message: Message) -> Said:
        data = encode(message)
        assert decode(data) == message
        found = judge(self.position, sequence, message).verdict
        if found is Verdict.COUNTS:
            self.position = advance(self.position, sequence, message, data)
            self.count(message)
            self.chains.append(self.position.chain)
            self.roots.append(self.position.root)
        elif found is Verdict.IGNORED:
            self.position = skip(self.position, sequence)
        self.state, said = model_apply(self.state, sequence, for_model(message, data))
        assert found.value == said.value
        self.said.append(said)
        self.check()
        return said

    def count(self, message: Message) -> None:
        if isinstance(message, Term):
            self.bodies.clear()
        if not isinstance(message, RecordMessage):
            return
        if message.kind in {MessageKind.FENCE, MessageKind.BARRIER}:
            self.producers.count(decode_change(message.kind, message.body))
            return
        self.bodies.append(message.body)
        if message.part == message.parts:
            self.producers.count(decode_change(message.kind, b"".join(self.bodies)))
            self.bodies.clear()

    def check(self) -> None:
        found, state = self.position, self.state
        assert (found.sequence, found.marked, found.term, found.root) == (
            state.sequence,
            state.marked,
            state.term,
            state.root,
        )
        assert (found.base, found.index, found.chain, found.parts) == (
            state.base,
            state.index,
            state.chain,
            state.parts,
        )
        assert (found.site, found.boot) == state.leader
        for name in "pq":
            producer = digest(name)
            assert self.producers.last(producer) == state.last.get(producer, 0)
            assert self.producers.is_closed(producer) == (producer in state.closed)


def for_model(message: Message, data: bytes) -> ModelMessage:
    match message:
        case Genesis():
            return ModelMessage("genesis", data, nonce=message.nonce)
        case Term():
            leader = (message.site, message.boot)
            return ModelMessage("term", data, term=message.term, root=message.root, leader=leader)
        case RecordMessage():
            kind = {MessageKind.FENCE: "fence", MessageKind.BARRIER: "barrier"}
            return ModelMessage(
                kind.get(MessageKind(message.kind), "rows"),
                data,
                term=message.place.term,
                root=message.place.root,
                index=message.place.index,
                chain=message.place.chain,
                seen=message.place.seen,
                part=message.part,
                parts=message.parts,
                calls=CALLS.get(message.body, ()),
                producer=message.body,
            )


# The body of a record, or of its last part, and its calls: the model does not decode bodies.
CALLS: dict[bytes, tuple[tuple[bytes, int], ...]] = {}


def rows(name: str, number: int) -> tuple[bytes, bytes]:
    """Return the two parts of the body of a record with one call."""
    call = ProducerCall(producer=digest(name), number=number, previous=0)
    body = encode_change(RecordChange(kind=MessageKind.ROWS, calls=(call,), payload=b"row"))
    CALLS[body] = CALLS[body[20:]] = ((call.producer, number),)
    return body[:20], body[20:]


NEAR = st.sampled_from([0, 0, 0, 0, 0, 0, -2, -1, 1, 2])
BACK = st.sampled_from([1, 1, 1, 1, 1, 1, 1, 2, 3])


@st.composite
def steps(draw: st.DrawFn, pair: Pair) -> tuple[int, Message]:
    """Draw a sequence and a message that is right, or nearly so."""
    at = pair.position
    sequence = max(0, at.sequence + 1 + draw(st.sampled_from([0] * 12 + [1, -1])))
    term = max(0, at.term + draw(NEAR))
    root = pair.roots[-min(len(pair.roots), draw(BACK))]
    kind = draw(st.sampled_from(["genesis", "term", "rows", "rows", "rows", "fence", "barrier"]))
    if at.index == 0:
        kind = draw(st.sampled_from(["genesis"] * 5 + [kind]))
    if kind == "genesis":
        return sequence, Genesis(IDENTITY, draw(st.sampled_from([b"n" * 16] * 5 + [b"m" * 16])))
    if kind == "term":
        term = max(0, at.term + draw(st.sampled_from([1, 1, 1, 1, 0, -1, 2])))
        site = draw(st.sampled_from("ab"))
        return sequence, Term(
            epoch=1, term=term, root=root, site=site, boot=draw(st.integers(1, 2))
        )
    place = Place(
        epoch=1,
        term=term,
        index=max(0, at.index + 1 + draw(NEAR)),
        chain=pair.chains[-min(len(pair.chains), draw(BACK))],
        root=root,
        seen=max(0, at.index - draw(st.sampled_from([0, 0, 0, 1, 2, 5, -1]))),
    )
    name, number = draw(st.sampled_from("pq")), draw(st.integers(1, 9))
    if kind == "barrier":
        return sequence, RecordMessage(
            kind=MessageKind.BARRIER, place=place, part=1, parts=1, body=b""
        )
    if kind == "fence":
        body = digest(name)
        return sequence, RecordMessage(
            kind=MessageKind.FENCE, place=place, part=1, parts=1, body=body
        )
    first, second = rows(name, number)
    # The first parts of all records are equal but for the producer: the second part must fit it.
    part, parts, body = draw(
        st.sampled_from([(1, 1, first + second), (1, PARTS, first), (2, PARTS, second)])
    )
    if part == 2 and pair.bodies and pair.bodies != [first]:
        other = "q" if name == "p" else "p"
        body = rows(other, number)[1]
    return sequence, RecordMessage(
        kind=MessageKind.ROWS, place=place, part=part, parts=parts, body=body
    )


@settings(max_examples=600)
@given(st.data())
def test_the_rule_says_what_the_model_says_on_any_log(data: st.DataObject) -> None:
    pair = Pair()
    for _ in range(data.draw(st.integers(1, 25))):
        sequence, message = data.draw(steps(pair))
        pair.read(sequence, message)


def test_the_generated_logs_contain_every_verdict_at_length() -> None:
    seen: dict[Said, int] = dict.fromkeys(Said, 0)
    longest = 0

    @settings(max_examples=150, database=None, derandomize=True)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        nonlocal longest
        pair = Pair()
        for _ in range(25):
            seen[pair.read(*data.draw(steps(pair)))] += 1
        longest = max(longest, pair.position.index)

    run()
    assert min(seen.values()) > 20
    assert longest > 8
