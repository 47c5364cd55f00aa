"""The broker core under control of a test: manual time, callbacks and disk results.

A `Core` is a broker over scripted databases. A `Wire` is one connection, seen from the client: data
that is sent through it reaches the broker at once unless the broker does not read, and the output
of the broker is decoded into packets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from siltstone.broker.access.access import Access, Credentials
from siltstone.broker.broker import Broker
from siltstone.broker.connect.connection import ClientConnection
from siltstone.broker.retained.messages import RetainedMessages
from siltstone.broker.settings.access import AccessSettings
from siltstone.broker.settings.broker import BrokerSettings, Limits
from siltstone.broker.settings.storage import SessionSettings, ShareSettings, Storage, StoreRule
from siltstone.clock import ManualClock
from siltstone.errors import QuotaExceededError
from siltstone.mqtt.decode import decode
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import (
    ConnAck,
    Connect,
    Packet,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.wire import PacketReader, Version
from siltstone.rows.batch import RowBatch
from siltstone.store.database import Database, Durability
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.write.partition import Columns, columns_of
from siltstone.store.writer.ticket import Outcome, Ticket
from siltstone.topic.grammar import TopicFilter

V3, V5 = Version.V3_1_1, Version.V5
NOW_US: Final = 1_700_000_000_000_000
OPEN: Final = Access(None, None, None)

Act = Callable[[], None]


def over_quota() -> QuotaExceededError:
    """Return the error of a database that has reached its quota."""
    return QuotaExceededError("messages", used_bytes=2, quota_bytes=1)


@dataclass(frozen=True, slots=True, eq=False)
class Append:
    """One call of `append`, and the ticket of its caller."""

    columns: Columns
    durability: Durability
    ticket: Ticket
    producer: tuple[str, int] | None = None

    @property
    def topics(self) -> list[bytes]:
        return list(self.columns.topics)

    @property
    def values(self) -> list[bytes]:
        return list(self.columns.values)


def _columns_of(rows: Iterable[Row] | Columns | RowBatch) -> Columns:
    if isinstance(rows, Columns):
        return rows
    if not isinstance(rows, RowBatch):
        return columns_of(rows)
    return Columns(
        rows.topics,
        rows.values,
        rows.publishers or rows.publisher,
        rows.shared_flags if rows.shared_flags >= 0 else rows.flags,
        rows.properties or None,
    )


class ScriptedDatabase(Database):
    """Accepts appends, and completes them when the test says so; at once if it is automatic."""

    def __init__(self, *, automatic: bool) -> None:
        self.automatic = automatic
        self.pending: list[Append] = []
        self.stored: list[Append] = []
        self.values: set[bytes] = set()
        # The errors of the next calls.
        self.refusals: deque[Exception] = deque()
        # Whether `append_here` stores rows; otherwise it is never possible.
        self.is_handy = False
        self.stored_here = 0

    def append_here(self, batch: RowBatch) -> Ticket | None:
        if not self.is_handy:
            return None
        self.stored_here += 1
        ticket = self.append(batch, timeout=0.0)
        self.settle()
        return ticket

    def append(
        self,
        rows: Iterable[Row] | Columns | RowBatch,
        *,
        durability: Durability = "synced",
        producer: tuple[str, int] | None = None,
        timeout: float | None = None,
    ) -> Ticket:
        assert timeout == 0.0, "the loop must not wait for room"
        if self.refusals:
            raise self.refusals.popleft()
        columns = _columns_of(rows)
        ticket = Ticket(columns.count, min(columns.count, 1), waits=durability != "none")
        if ticket.done:
            return ticket
        self.pending.append(Append(columns, durability, ticket, producer))
        if self.automatic:
            self.settle()
        return ticket

    def settle(self, error: Exception | None = None, *, index: int = 0) -> None:
        """Complete one pending append."""
        append = self.pending.pop(index)
        if error is None:
            self.stored.append(append)
            self.values.update(append.columns.values)
            append.ticket.resolve(_stored(append.columns.count), None)
        else:
            append.ticket.resolve(error, None)

    @property
    def rows(self) -> list[tuple[bytes, bytes]]:
        """The stored topics and values, in order."""
        return [
            pair
            for append in self.stored
            for pair in zip(append.topics, append.values, strict=True)
        ]


def _stored(count: int) -> Outcome:
    return Outcome(
        duplicate=False,
        count=count,
        timestamp_us=NOW_US,
        frame_serial=0,
        frame_timestamp_us=NOW_US,
        frame_places=None,
    )


class DeskShell:
    """The event loop of a broker, run step by step by the test."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.acts: deque[Act] = deque()
        self.works: deque[tuple[Act, Act]] = deque()
        self.wakes_at: float | None = None

    def now(self) -> float:
        return self._clock.monotonic()

    def soon(self, act: Act) -> None:
        self.acts.append(act)

    def soon_from_thread(self, act: Act) -> None:
        self.acts.append(act)

    def in_thread(self, work: Act, then: Act) -> None:
        self.works.append((work, then))

    def read_in_thread(self, work: Act, then: Act) -> None:
        self.works.append((work, then))

    def wake_at(self, at: float) -> None:
        self.wakes_at = at

    def run(self) -> None:
        """Run everything that is due now."""
        while self.acts:
            self.acts.popleft()()

    def finish_works(self) -> None:
        """Complete the work of the threads."""
        while self.works:
            work, then = self.works.popleft()
            work()
            then()
        self.run()


class FailingTap:
    """An internal error at every message."""

    def refused(self, *_: object) -> list[int]:
        return []

    def take(self, *_: object) -> int:
        raise RuntimeError("on purpose")


class Core:
    """A broker without sockets, threads and a clock of its own."""

    def __init__(
        self,
        *,
        access: Access = OPEN,
        automatic: bool = True,
        rules: Sequence[StoreRule] = (),
        strategy: Any = "round-robin",
        share: Mapping[str, Any] | None = None,
        sessions: Mapping[str, Any] | None = None,
        **limits: Any,
    ) -> None:
        self.clock = ManualClock(NOW_US)
        self.shell = DeskShell(self.clock)
        self.database = ScriptedDatabase(automatic=automatic)
        self.retained_log = ScriptedDatabase(automatic=automatic)
        settings = BrokerSettings(
            limits=Limits(**limits),
            storage=Storage(rules=tuple(rules)),
            access=AccessSettings(login_delay=1.0),
            share=ShareSettings(strategy=strategy, **(share or {})),
            sessions=SessionSettings(**(sessions or {})),
        )
        self.broker = Broker(
            settings,
            database=self.database,
            retained=RetainedMessages(self.retained_log, self.clock, settings.limits),
            access=access,
            clock=self.clock,
            shell=self.shell,
        )

    def run(self) -> None:
        """Run everything that is due now."""
        self.shell.run()

    def advance(self, seconds: float) -> None:
        """Advance the clock, and run what is due."""
        self.clock.advance(seconds)
        wakes_at = self.shell.wakes_at
        if wakes_at is not None and wakes_at <= self.shell.now():
            self.shell.wakes_at = None
            self.broker.tick()
        self.run()

    def settle(self, error: Exception | None = None) -> None:
        """Complete all appends, including those that follow from them."""
        self.run()
        while self.database.pending or self.retained_log.pending:
            for database in (self.retained_log, self.database):
                while database.pending:
                    database.settle(error)
            self.run()

    def wire(self, version: Version = V5, address: str = "10.0.0.1") -> Wire:
        """Open a connection that has sent nothing."""
        return Wire(self, version, address)

    def connect(self, client_id: str, *, version: Version = V5, **fields: Any) -> Wire:
        """Connect a client; names that are not fields of CONNECT are properties of it."""
        wire = self.wire(version)
        answer = wire.connect(client_id, **fields)
        assert [type(packet) for packet in answer[:1]] == [ConnAck]
        assert wire.accepted == answer[0]
        wire.arrived.extend(answer[1:])
        return wire


_CONNECT_FIELDS: Final = frozenset(Connect.__dataclass_fields__)


class Wire:
    """One connection from the side of the client, and the outlet of its `ClientConnection`."""

    def __init__(self, core: Core, version: Version, address: str) -> None:
        self.core = core
        self.version = version
        self.address = address
        self.anonymous_allowed = True
        self._is_reading = True
        self.is_closed = False
        self.arrived: deque[Packet] = deque()
        self.accepted: ConnAck | None = None
        self._unread = bytearray()
        self._written = bytearray()
        self.client = ClientConnection(core.broker, self)
        self.client.address = address

    # Called by the broker.

    def credentials(self, connect: Connect, client_id: str) -> Credentials:
        return Credentials(
            client_id=client_id,
            username=connect.username,
            password=connect.password,
            certificate_user=None,
            address=self.address,
            listener="desk",
            anonymous_allowed=self.anonymous_allowed,
        )

    def write(self, data: bytes) -> None:
        assert not self.is_closed, "nothing may be written behind the end"
        assert data, "an empty write is of no use"
        self._written += data

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self.core.shell.soon(self._deliver)

    @property
    def is_reading(self) -> bool:
        """Whether the broker reads from the client."""
        return self._is_reading

    # Called by the test, as the client.

    def connect(self, client_id: str, **fields: Any) -> list[Packet]:
        """Send CONNECT and return the answer; names that are not its fields are properties."""
        properties = {name: fields.pop(name) for name in set(fields) - _CONNECT_FIELDS}
        self.send(
            Connect(
                version=self.version,
                client_id=client_id,
                properties=Properties(**properties),
                **fields,
            )
        )
        return self.take()

    def send(self, *packets: Packet) -> None:
        """Send packets in one chunk."""
        self.send_bytes(b"".join(encode(self.version, packet) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        if not self.is_closed:
            self._unread += data
            self._deliver()

    def _deliver(self) -> None:
        if self._is_reading and self._unread and not self.is_closed:
            data = bytes(self._unread)
            self._unread.clear()
            self.client.receive(data)

    def reads(self) -> bool:
        """Return whether the broker reads from the client."""
        return self._is_reading

    def take(self) -> list[Packet]:
        """Let the broker finish its turn; return the packets since the last call."""
        self.core.run()
        data, self._written = bytes(self._written), bytearray()
        packets = decode_all(self.version, data)
        for packet in packets:
            if isinstance(packet, ConnAck):
                self.accepted = packet
        taken = [*self.arrived, *packets]
        self.arrived.clear()
        return taken

    def overhear(self) -> list[Packet]:
        """Return the packets that were written and not taken, without taking them."""
        return decode_all(self.version, bytes(self._written))

    @property
    def has_news(self) -> bool:
        """Whether something has arrived that was not taken."""
        return bool(self._written or self.arrived)

    def exchange(self, *packets: Packet) -> list[Packet]:
        """Send packets; return the answers."""
        self.send(*packets)
        return self.take()

    def drop(self) -> None:
        """Lose the connection, with everything that was not read."""
        self._written.clear()
        self.is_closed = True
        self.client.lost()

    # Packets that tests send many times.

    def subscribe(
        self, *filters: str, qos: int = 2, identifier: int = 0, **options: Any
    ) -> list[Packet]:
        """Subscribe; return the packets after SUBACK, which must grant it."""
        packet = Subscribe(
            packet_id=1,
            subscriptions=tuple(
                Subscription(filter=TopicFilter.parse(text), qos=qos, **options) for text in filters
            ),
            properties=Properties(subscription_identifiers=(identifier,) if identifier else ()),
        )
        answer, *rest = self.exchange(packet)
        assert isinstance(answer, SubAck), answer
        assert answer.reasons == (qos,) * len(filters), answer
        return rest

    def publish(
        self, topic: str, payload: str = "x", qos: int = 0, packet_id: int = 0, **fields: Any
    ) -> list[Packet]:
        """Publish; return the answers."""
        return self.exchange(message(topic, payload, qos, packet_id, **fields))


def message(
    topic: str, payload: str = "x", qos: int = 0, packet_id: int = 0, **fields: Any
) -> Publish:
    """Return PUBLISH; names that are not fields of it are its properties."""
    names = set(fields) - set(Publish.__dataclass_fields__)
    properties = {name: fields.pop(name) for name in names}
    return Publish(
        topic=topic.encode(),
        payload=payload.encode(),
        qos=qos,
        packet_id=packet_id,
        properties=Properties(**properties),
        **fields,
    )


def decode_all(version: Version, data: bytes) -> list[Packet]:
    """Decode whole packets."""
    packets: list[Packet] = []
    reader = PacketReader(data)
    while reader.remaining:
        first = reader.byte()
        packets.append(decode(version, first, reader.take(reader.variable())))
    return packets
