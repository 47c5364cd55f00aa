"""One client: the handling of each of its packets.

This module decides, and writes bytes to the outbox of the session. The channel owns the socket and
threads. A client is connecting until its CONNECT is accepted or refused, then connected until one
side ends the connection. It ends once: with CONNACK or DISCONNECT and a reason, if the version has
one, and with its will if the client did not send DISCONNECT.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Final

from siltstone.broker.access.access import Credentials, Identity
from siltstone.broker.broker import Broker
from siltstone.broker.connect.ending import last_words
from siltstone.broker.connect.keep_alive import PROGRESS_BYTES, KeepAlive
from siltstone.broker.connect.login import Login
from siltstone.broker.connect.negotiate import Negotiated
from siltstone.broker.connect.throttle import network_of
from siltstone.broker.deliver.requests import Requests
from siltstone.broker.listen.outlet import Nowhere, Outlet
from siltstone.broker.publish.receive import PublishReceiver
from siltstone.errors import PeerError
from siltstone.guard import contain_with
from siltstone.logs import log
from siltstone.mqtt.connection import Event, ServerConnection, State
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
    Will,
)
from siltstone.mqtt.publish import PUBACK, PUBCOMP, PUBREC, PUBREL, AckBatch, PublishBatch
from siltstone.mqtt.reason import ERROR, Reason
from siltstone.mqtt.wire import Bounds, Version
from siltstone.session.session import Session

# The size of a CONNECT with all fields at their longest: the limit for a client before login.
CONNECT_SIZE_MAX: Final = 6 * 65_536
# Packets of one client that are processed in a turn; consecutive messages count as one.
_TURN_EVENTS: Final = 256
# A tuple: compiled code would build a union of the types at each call.
_COSTLY: Final = (Subscribe, Unsubscribe)
_PINGRESP: Final = encode(Version.V5, PingResp())
_NOWHERE: Final = Nowhere()


class ClientConnection:
    """The broker's side of one connection."""

    def __init__(self, broker: Broker, outlet: Outlet) -> None:
        self._broker = broker
        self._outlet: Outlet = outlet
        limits = broker.limits
        self._connection = ServerConnection(
            min(CONNECT_SIZE_MAX, limits.packet_size_max),
            limits.topic_levels_max,
            Bounds(
                filters_max=limits.filters_max,
                user_properties_max=limits.user_properties_max,
                properties_size_max=limits.properties_size_max,
            ),
        )
        self._intake: PublishReceiver | None = None
        self._requests: Requests | None = None
        self._session: Session | None = None
        self._will: Will | None = None
        self._keep_alive = KeepAlive(
            broker.timers, broker.shell.now, partial(self.end, Reason.KEEP_ALIVE_TIMEOUT)
        )
        self._packet_size_max = 0
        self._asked_expiry = 0
        # The address of the client, without its port.
        self.address = ""
        self._asked_id = ""
        self._asked_user = ""
        # How often reading was stopped, and how many of these stops the broker caused, not the
        # client.
        self._stops = 0
        self._waits = 0
        self._partial_bytes = 0
        # Received packets that wait for the next turn.
        self._unread: Iterator[Event] | None = None
        self.ended = False
        # Whether CONNACK was sent.
        self._is_greeted = False
        # A DISCONNECT that was received, until it is processed.
        self._goodbye: Disconnect | None = None
        self._timer = broker.timers.at(
            broker.shell.now() + limits.connect_timeout, self._connect_timed_out
        )

    @property
    def client_id(self) -> str:
        """The client id; before CONNECT was accepted, the one that the client requests."""
        return self._session.client_id if self._session is not None else self._asked_id

    @property
    def is_in(self) -> bool:
        """Whether CONNECT was accepted."""
        return self._session is not None

    @property
    def version(self) -> Version:
        """The protocol version in use."""
        return self._connection.version

    # Bytes and the state of the connection, from the channel.

    def receive(self, data: bytes) -> None:
        """Process the next bytes of the client."""
        self._broker.statistics.bytes_received += len(data)
        if len(data) >= PROGRESS_BYTES:
            self._keep_alive.seen()
        parts = self._connection.split(data)
        first = parts[0] if len(parts) == 1 else None
        if self._unread is not None:
            self._unread = chain(self._unread, self._connection.read(parts))
        elif self.ended or self._goodbye is not None:
            self._take(self._connection.read(parts))
        elif isinstance(first, PublishBatch):
            # A device often sends a single message: the same as `_take`, without an iterator.
            assert self._intake is not None
            self._keep_alive.seen()
            self._intake.take(first)
        elif isinstance(first, AckBatch):
            # So does a subscriber that acknowledges one.
            self._keep_alive.seen()
            self._acknowledged(first.first, first.packet_ids)
        else:
            self._take(self._connection.read(parts))
        self._count_partial()

    def _count_partial(self) -> None:
        """Count the bytes of an incomplete packet; end the connection if the total is too large."""
        broker = self._broker
        held = 0 if self.ended else self._connection.held_bytes
        broker.partial_bytes += held - self._partial_bytes
        self._partial_bytes = held
        if held and broker.partial_bytes > broker.limits.partial_bytes_max:
            self.end(
                Reason.SERVER_BUSY,
                "too many bytes wait in incomplete packets: limits.partial_bytes_max is reached",
            )

    def pause_writing(self) -> None:
        """Stop sending messages: the write buffer is full, because the client does not read."""
        if self._session is not None and not self.ended:
            self._session.outbox.paused = True
            self._session.outbox.paused_at = self._broker.shell.now()

    def resume_writing(self) -> None:
        """Send messages again."""
        if self._session is not None and not self.ended:
            outbox = self._session.outbox
            outbox.paused = False
            outbox.pump(self._broker.shell.now())
            self._asked.refill()

    def lost(self) -> None:
        """End the client, because its connection was lost."""
        self._part()
        self._finish(with_will=True)

    def end(self, reason: Reason, text: str = "") -> None:
        """Send the client the reason, if its version allows it, and close."""
        self._part()
        if self.ended:
            return
        try:
            self._say(reason, text)
        finally:
            self._finish_and_close(with_will=True)

    def _say(self, reason: Reason, text: str) -> None:
        """Send the rest of the outbox, then the packet with the reason."""
        session = self._session
        data = b"" if session is None else session.outbox.take()
        data += last_words(
            self.version,
            reason,
            text,
            connected=self._is_greeted,
            size_max=self._packet_size_max,
        )
        if data:
            self._outlet.write(data)
        if session is None:
            self._broker.refusal_log.tell(
                logging.INFO, "client_refused", self._facts(reason, text), self._network
            )
        else:
            self.report(logging.INFO, "client_closed", reason, text)

    def _finish_and_close(self, *, with_will: bool) -> None:
        outlet = self._outlet
        try:
            self._finish(with_will=with_will)
        finally:
            outlet.close()

    def _finish(self, *, with_will: bool) -> None:
        """Release the session, once. Even after an error, other connections can use it."""
        if self.ended:
            return
        self.ended = True
        self._connection.close()
        self._count_partial()
        broker = self._broker
        broker.timers.cancel(self._timer)
        self._keep_alive.end()
        try:
            if self._intake is not None:
                self._intake.tell_rest()
            if self._session is not None:
                self._leave(self._session, self._will if with_will else None)
        finally:
            self._let_go()

    def _leave(self, session: Session, will: Will | None) -> None:
        broker = self._broker
        if broker.clients.get(session.client_id) is self:
            del broker.clients[session.client_id]
        try:
            session.outbox.detach()
            self._asked.end()
        finally:
            broker.leave(session, will)

    def _let_go(self) -> None:
        """Break all reference cycles, so that memory is freed without the garbage collector."""
        self._outlet = _NOWHERE
        self._intake = None
        self._requests = None
        self._unread = None

    # Packets.

    def _take(self, events: Iterator[Event]) -> None:
        """Process packets, a limited number in one turn, so that other clients are served too."""
        for left, event in zip(range(_TURN_EVENTS - 1, -1, -1), events, strict=False):
            if self.ended or self._goodbye is not None:
                return
            self._keep_alive.seen()
            match event:
                case PublishBatch():
                    assert self._intake is not None
                    self._intake.take(event)
                case AckBatch():
                    self._acknowledged(event.first, event.packet_ids)
                case PeerError():
                    self.end(Reason(event.reason), str(event))
                case _:
                    self._packet(event)
            # The filters of one packet may cost as much as many messages.
            if left == 0 or isinstance(event, _COSTLY):
                self._unread = events
                self.stop()
                if self._requests is None or not self._requests.is_busy:
                    self._broker.shell.soon(self.take_more)
                return

    def take_more(self) -> None:
        """Continue with the packets that the last turn left."""
        events, self._unread = self._unread, None
        if events is not None and not self.ended:
            contain_with(self._take, events, partial(self.end, Reason.UNSPECIFIED_ERROR))
        self.go_on()

    def _packet(self, packet: Packet) -> None:
        match packet:
            case Connect():
                self._connect(packet)
            case PingReq():
                self._written.outbox.write(_PINGRESP)
            case Subscribe():
                self._asked.subscribe(packet)
            case Unsubscribe():
                self._asked.unsubscribe(packet)
            case Disconnect():
                self._goodbye = packet
                self._broker.endings.run(self._part)
                if not self.ended:
                    self.stop()
            case PubAck() | PubRec() | PubRel() | PubComp():
                self._reasoned(packet)
            case _:
                raise AssertionError(f"internal error: unexpected {type(packet).__name__}")

    @property
    def _asked(self) -> Requests:
        """The requests of the client; they exist once CONNECT was accepted."""
        assert self._requests is not None
        return self._requests

    @property
    def _written(self) -> Session:
        """The session, which exists once CONNECT was accepted."""
        assert self._session is not None
        return self._session

    def _connect(self, connect: Connect) -> None:
        self._outlet.pause_reading()
        self._packet_size_max = connect.properties.maximum_packet_size or 0
        self._asked_id = connect.client_id
        self._asked_user = connect.username or ""
        Login(self._broker, self, connect).begin(partial(self._credentials, connect))

    def _credentials(self, connect: Connect, client_id: str) -> Credentials:
        return self._outlet.credentials(connect, client_id)

    def welcome(
        self,
        connect: Connect,
        negotiated: Negotiated,
        identity: Identity,
        session: Session | None,
        *,
        is_present: bool,
    ) -> None:
        """Begin the connection with the given session, or create one."""
        broker = self._broker
        if session is None:
            session = broker.registry.create(negotiated.client_id, identity.user)
        elif is_present:
            broker.registry.resume(session)
            broker.wills.cancel(negotiated.client_id)
        session.expiry_seconds = negotiated.expiry_seconds
        self._asked_expiry = connect.properties.session_expiry_interval or 0
        self._session = session
        self._intake = PublishReceiver(broker, self, session, identity, self.version)
        self._requests = Requests(
            broker,
            self,
            session,
            identity,
            self.version,
            self._packet_size_max,
            is_bridge=connect.is_bridge,
        )
        self._will = connect.will
        broker.clients[negotiated.client_id] = self
        broker.count_connected()
        broker.timers.cancel(self._timer)
        self._requests.restore(partial(self._greet, negotiated, session, is_present=is_present))

    def _greet(self, negotiated: Negotiated, session: Session, *, is_present: bool) -> None:
        """Send CONNACK, and start reading and sending."""
        broker = self._broker
        requests = self._asked
        self._is_greeted = True
        self._keep_alive.begin(negotiated.keep_alive_seconds)
        accepted = ConnAck(session_present=is_present, properties=negotiated.properties)
        self._outlet.write(encode(self.version, accepted))
        outbox = session.outbox
        outbox.sink = self._outlet.write
        outbox.refill = requests.refill
        outbox.attach(
            self.version,
            negotiated.window,
            negotiated.packet_size_max,
            broker.limits.write_buffer_max,
            negotiated.alias_out_max,
            broker.shell.now(),
        )
        requests.begin(is_present=is_present)
        self.report(logging.INFO, "client_connected", Reason.SUCCESS, "")
        if self._stops == 0:
            self._outlet.resume_reading()
        limits = broker.limits
        self._take(
            self._connection.begin(
                limits.topic_alias_max, limits.packet_size_max, limits.control_size_max
            )
        )
        self._count_partial()

    def _part(self) -> None:
        """Process the DISCONNECT that was received. Thousands may come at the same moment."""
        packet, self._goodbye = self._goodbye, None
        if packet is not None and not self.ended:
            contain_with(self._disconnect, packet, partial(self.end, Reason.UNSPECIFIED_ERROR))

    def _disconnect(self, packet: Disconnect) -> None:
        session = self._written
        session.outbox.changing()
        expiry = packet.properties.session_expiry_interval
        if expiry is not None:
            # 3.14.2.2.2: an expiry that was 0 at CONNECT must stay 0.
            if self._asked_expiry == 0 and expiry != 0:
                self.end(
                    Reason.PROTOCOL_ERROR,
                    "session expiry cannot be set at DISCONNECT if it was 0 at CONNECT",
                )
                return
            session.expiry_seconds = min(expiry, int(self._broker.limits.session_expiry_max))
        self.report(logging.INFO, "client_disconnected", packet.reason, "")
        # [MQTT-3.1.2-10]: a normal DISCONNECT deletes the will.
        self._finish_and_close(with_will=packet.reason != Reason.NORMAL_DISCONNECTION)

    # Reading.

    def stop(self) -> None:
        """Stop reading until `go_on` was called as often as `stop`.

        Meanwhile the keep alive timeout is suspended, because the broker does not read.
        """
        self._waits += 1
        self._keep_alive.is_deaf = True
        self.choke()

    def go_on(self) -> None:
        """End one `stop`; read again if it was the last."""
        self._waits -= 1
        if self._waits == 0:
            self._keep_alive.is_deaf = False
            self._keep_alive.seen()
        self.unchoke()

    def choke(self) -> None:
        """Stop reading, because the client does not read its answers.

        The keep alive timeout continues: the client itself causes the silence.
        """
        self._stops += 1
        if self._stops == 1 and not self.ended:
            self._outlet.pause_reading()

    def unchoke(self) -> None:
        """End one `choke`; read again if no other stop is left."""
        self._stops -= 1
        if self._stops == 0 and not self.ended:
            self._outlet.resume_reading()

    # Messages to the client.

    def _acknowledged(self, first: int, packet_ids: list[int]) -> None:
        session = self._written
        if first == PUBREL:
            assert self._intake is not None
            self._intake.release(packet_ids)
            return
        now = self._broker.shell.now()
        self._answered(session.outbox.acknowledge(first, packet_ids, now))

    def _answered(self, wrong: int) -> None:
        """Send more after acknowledgements; if one was of the wrong kind, end the connection.

        `wrong` is the packet id of the wrong acknowledgement, or 0.
        """
        if wrong:
            # [MQTT-4.13.1-1].
            text = f"acknowledgement does not match the QoS of the message: packet_id={wrong}"
            self.end(Reason.PROTOCOL_ERROR, text)
        else:
            self._asked.refill()

    def _reasoned(self, packet: PubAck | PubRec | PubRel | PubComp) -> None:
        """Process an acknowledgement that has a reason code or properties."""
        first = _FIRST_BYTES[type(packet)]
        if packet.reason >= ERROR and isinstance(packet, PubAck | PubRec):
            now = self._broker.shell.now()
            self._answered(self._written.outbox.refuse(first, packet.packet_id, now))
            return
        self._acknowledged(first, [packet.packet_id])

    # Time.

    def _connect_timed_out(self) -> None:
        if self._connection.state is State.CONNECTING:
            # [MQTT-3.1.4-1]: no CONNECT within a reasonable time, so no CONNACK is sent.
            facts = self._facts(Reason.MAXIMUM_CONNECT_TIME, "")
            self._broker.silence_log.tell(logging.INFO, "connect_timed_out", facts, self._network)
            self._finish_and_close(with_will=False)

    def report(
        self, level: int, event: str, reason: Reason, text: str, topic: bytes | None = None
    ) -> None:
        """Log an event of this client."""
        logger = self._broker.log
        if logger.isEnabledFor(level):
            log(logger, level, event, **self._facts(reason, text, topic))

    @property
    def _network(self) -> str:
        return network_of(self.address)

    def _facts(self, reason: Reason, text: str, topic: bytes | None = None) -> dict[str, object]:
        facts: dict[str, object] = {"client_id": self.client_id, "address": self.address}
        if self._asked_user:
            facts["user"] = self._asked_user
        if reason:
            facts["reason"] = reason.name.lower()
        if text:
            facts["text"] = text
        if topic is not None:
            facts["topic"] = topic
        return facts


_FIRST_BYTES: Final[dict[type[PubAck | PubRec | PubRel | PubComp], int]] = {
    PubAck: PUBACK,
    PubRec: PUBREC,
    PubRel: PUBREL,
    PubComp: PUBCOMP,
}
