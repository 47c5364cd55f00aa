"""The rule of replicated shards once more, as plainly as possible: what the product must equal.

This model shares no code with the product. It has one table of verdicts, and it keeps the whole
history, so that a test can look up the chain at every index and the rows in their order. A chain is
computed from the bytes of a message, so chains of the model and of the product can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import blake2b


class Said(Enum):
    """The verdicts of the model."""

    COUNTS = "counts"
    IGNORED = "ignored"
    GAP = "gap"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ModelMessage:
    """A message of any kind: "genesis", "term", "rows", "fence", "barrier"."""

    kind: str
    data: bytes
    nonce: bytes = b""
    term: int = 0
    root: bytes = b""
    leader: tuple[str, int] = ("", 0)
    index: int = 0
    chain: bytes = b""
    seen: int = 0
    part: int = 1
    parts: int = 1
    # Producer and number of each call, known when the last part is there.
    calls: tuple[tuple[bytes, int], ...] = ()
    producer: bytes = b""


@dataclass(frozen=True, slots=True)
class ModelState:
    """The state of a shard after some messages of the log."""

    sequence: int = 0
    marked: int = 0
    nonce: bytes = b""
    term: int = 0
    leader: tuple[str, int] = ("", 0)
    root: bytes = bytes(16)
    base: int = 0
    index: int = 0
    chain: bytes = bytes(16)
    parts: int = 0
    last: dict[bytes, int] = field(default_factory=dict)
    closed: frozenset[bytes] = frozenset()


def model_apply(state: ModelState, sequence: int, message: ModelMessage) -> tuple[ModelState, Said]:
    """Return the state after a message, and what the rule says of it."""
    said = verdict(state, sequence, message)
    if said is Said.COUNTS:
        return counted(state, sequence, message), said
    if said is Said.IGNORED:
        return replace(state, sequence=sequence), said
    return state, said


def verdict(state: ModelState, sequence: int, message: ModelMessage) -> Said:
    kind, term = message.kind, message.term
    is_record = kind not in {"genesis", "term"}
    table: list[tuple[bool, Said]] = [
        (sequence != state.sequence + 1, Said.GAP),
        (state.index == 0 and kind == "genesis" and sequence == 1, Said.COUNTS),
        (state.index == 0, Said.STOPPED),
        (kind == "genesis" and message.nonce == state.nonce, Said.IGNORED),
        (kind == "genesis", Said.STOPPED),
        (term > state.term + 1, Said.STOPPED),
        (is_record and term > state.term, Said.STOPPED),
        (kind == "term" and term <= state.term, Said.IGNORED),
        (kind == "term" and message.root != state.root, Said.STOPPED),
        (kind == "term", Said.COUNTS),
        (term == state.term and message.seen > state.index, Said.STOPPED),
        (term < state.term and message.seen >= state.base, Said.STOPPED),
        (term < state.term, Said.IGNORED),
        (message.root != state.root, Said.STOPPED),
        (message.index != state.index + 1, Said.IGNORED),
        (message.chain != state.chain, Said.STOPPED),
        (kind == "rows" and message.part != state.parts + 1, Said.STOPPED),
    ]
    return next((said for holds, said in table if holds), Said.COUNTS)


def counted(state: ModelState, sequence: int, message: ModelMessage) -> ModelState:
    chain = blake2b(state.chain + message.data, digest_size=16).digest()
    now = replace(state, sequence=sequence, marked=sequence, index=state.index + 1, chain=chain)
    match message.kind:
        case "genesis":
            return replace(now, nonce=message.nonce, root=chain, base=now.index)
        case "term":
            return replace(
                now,
                term=message.term,
                leader=message.leader,
                root=chain,
                base=now.index,
                parts=0,
            )
        case "fence":
            return replace(now, closed=now.closed | {message.producer})
        case "rows" if message.part == message.parts:
            return replace(now, parts=0, last={**now.last, **dict(message.calls)})
        case "rows":
            return replace(now, parts=message.part)
        case _:
            return now
