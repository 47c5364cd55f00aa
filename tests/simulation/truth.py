"""What the log means: every stored message, judged by the model and not by the product."""

from __future__ import annotations

from siltstone.store.writer.replication.codec import UnreadableRecordError, decode, decode_change
from siltstone.store.writer.replication.messages import (
    Genesis,
    MessageKind,
    RecordChange,
    RecordMessage,
    Term,
)
from tests.simulation.disk import Row, rows_of
from tests.support.replication_model import ModelMessage, ModelState, Said, model_apply


class Truth:
    """The state after the whole log, and at each index and sequence before."""

    def __init__(self) -> None:
        self.state = ModelState()
        self.index_at = [0]  # by sequence
        self.chains = [self.state.chain]  # by index, as are the next two
        self.leaders: list[tuple[str, int]] = [("", 0)]
        self.rows_until = [0]
        self.rows: list[Row] = []
        self.rows_at: dict[Row, int] = {}
        self._bodies: list[bytes] = []
        self._last: dict[str, int] = {}

    def store(self, data: bytes) -> str:
        """Take the next message of the log; return what is wrong with it, if anything is."""
        message = self._read(data)
        before = self.state
        self.state, said = model_apply(before, before.sequence + 1, message)
        if said is Said.STOPPED:
            return f"all sites stop at a {message.kind} though the log is intact"
        self.index_at.append(self.state.index)
        return self._count(before, message, data) if said is Said.COUNTS else ""

    def _read(self, data: bytes) -> ModelMessage:
        message = decode(data)
        match message:
            case Genesis():
                return ModelMessage("genesis", data, nonce=message.nonce)
            case Term():
                leader = (message.site, message.boot)
                return ModelMessage(
                    "term", data, term=message.term, root=message.root, leader=leader
                )
            case RecordMessage():
                try:
                    change = self._change(message)
                except UnreadableRecordError:
                    # A late last part of another record. If it counts, `_count` raises.
                    change = None
                kind = MessageKind(message.kind).name.lower()
                return ModelMessage(
                    kind if kind in {"fence", "barrier"} else "rows",
                    data,
                    term=message.place.term,
                    root=message.place.root,
                    index=message.place.index,
                    chain=message.place.chain,
                    seen=message.place.seen,
                    part=message.part,
                    parts=message.parts,
                    calls=tuple((call.producer, call.number) for call in change.calls)
                    if change
                    else (),
                    producer=message.body,
                )

    def _change(self, message: RecordMessage) -> RecordChange | None:
        """Return what the record does if it counts."""
        if message.part < message.parts:
            return None
        if message.parts == 1:
            return decode_change(message.kind, message.body)
        if len(self._bodies) != message.parts - 1:
            return None
        return decode_change(message.kind, b"".join([*self._bodies, message.body]))

    def _count(self, before: ModelState, message: ModelMessage, data: bytes) -> str:
        record = decode(data)
        change = self._change(record) if isinstance(record, RecordMessage) else None
        if message.kind == "term" or message.part == message.parts:
            self._bodies.clear()
        elif isinstance(record, RecordMessage):
            self._bodies.append(record.body)
        wrong = ""
        for producer, _ in message.calls:
            if producer in before.closed:
                wrong = "a call of a closed producer counts"
        for row in rows_of(change):
            name, number = row
            if row in self.rows_at:
                wrong = f"counted twice: {row}"
            elif number <= self._last.get(name, 0):
                wrong = f"counted out of order: {row}, behind {self._last[name]}"
            self._last[name] = number
            self.rows.append(row)
            self.rows_at[row] = self.state.index
        self.chains.append(self.state.chain)
        self.leaders.append(self.state.leader)
        self.rows_until.append(len(self.rows))
        return wrong
