"""The delay of other clients while the broker processes the largest packet of each type.

    python -m bench.largest_packets [--rounds N] [--only TEXT]

One client pings all the time. Another client sends one packet that is as large as the limits of the
broker allow: in bytes, filters, levels or properties. The longest ping until shortly after the
answer is the cost of the packet for other clients. The table also has its ratio to the longest ping
of an idle broker. A packet is sent in several rounds, and the median counts, so that a single slow
moment of the machine does not matter.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from threading import Thread
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.peers import siltstone
from bench.workload import scratch
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from siltstone.mqtt.properties import NO_PROPERTIES, Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter
from siltstone.version import __version__, form

_LOOPBACK: Final = "127.0.0.1"
_SENDER: Final = "sends"
_HEARER: Final = "hears"
_PATIENCE_SECONDS: Final = 60.0
_BOUND_SECONDS: Final = 0.05
_PAUSE_SECONDS: Final = 0.001
# Enough time to complete the work of a packet: sessions are saved, messages written.
_REST_SECONDS: Final = 0.4
_PART: Final = 1 << 20
_MIB: Final = 1 << 20

_V3: Final = Version.V3_1_1
_V5: Final = Version.V5
_PINGRESP: Final = 0xD0
_CONNACK: Final = 0x20
_PUBLISH: Final = 0x30
_PUBACK: Final = 0x40
_PUBREC: Final = 0x50
_PUBREL: Final = 0x60
_PUBCOMP: Final = 0x70
_SUBACK: Final = 0x90
_UNSUBACK: Final = 0xB0
# Stands for a broker that closes the connection as its answer.
_CLOSED: Final = 0

# The default limits of a broker.
_PACKET_MAX: Final = 16 * _MIB
_CONTROL_MAX: Final = 256 * 1024
_FILTERS_MAX: Final = 1000
_LEVELS_MAX: Final = 128
_PROPERTIES_MAX: Final = 1000
_STRING_MAX: Final = 65_535
# The number of filters with the maximum of levels that fit into a packet.
_DEEP: Final = 970
# The limit of subscriptions of a session allows ten packets of filters.
_SUBSCRIBES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One packet, the connection that sends it, and the first byte of its answer."""

    name: str
    packet: Packet
    answer: int
    version: Version = _V5
    durable: bool = False
    # The packets sent before, each with the expected answer. A CONNECT is sent on another
    # connection, after the end of this one.
    before: tuple[tuple[Packet, int], ...] = ()
    # The filter of another client, which receives the message.
    heard: str = ""
    heard_durable: bool = False


class Line:
    """A connection that sends packets and waits for answers."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((_LOOPBACK, port), _PATIENCE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = bytearray()

    def close(self) -> None:
        """Close the connection without DISCONNECT."""
        self._socket.close()

    def say(self, data: bytes) -> None:
        """Send bytes; the broker may close before all are sent."""
        try:
            self._socket.sendall(data)
        except ConnectionError:
            self._unread.clear()

    def hear(self, first: int) -> None:
        """Wait for a packet of this type, or until the broker has closed."""
        while True:
            size = self._size()
            if size and len(self._unread) >= size:
                found = self._unread[0] & 0xF0
                del self._unread[:size]
                if found == first:
                    return
                continue
            try:
                part = self._socket.recv(_PART)
            except ConnectionError:
                part = b""
            if not part and first == _CLOSED:
                return
            if not part:
                raise ConnectionError("the broker has closed a connection")
            self._unread += part

    def _size(self) -> int:
        """Return the size of the first packet; 0 if it is not known yet."""
        length = 0
        for index in range(1, min(5, len(self._unread))):
            length |= (self._unread[index] & 0x7F) << 7 * (index - 1)
            if self._unread[index] < 0x80:
                return index + 1 + length
        return 0


@dataclass(slots=True)
class Pings:
    """The durations of the pings of a client that does nothing else."""

    waits: list[float] = field(default_factory=list)
    is_over: bool = False

    def run(self, port: int) -> None:
        line = connect(port, "pings", _V3)
        ping = encode(_V3, PingReq())
        while not self.is_over:
            begin = time.perf_counter()
            line.say(ping)
            line.hear(_PINGRESP)
            self.waits.append(time.perf_counter() - begin)
            time.sleep(_PAUSE_SECONDS)
        line.close()

    def worst(self, act: Callable[[], None]) -> float:
        """Call a function; return the longest ping until shortly after it."""
        time.sleep(_REST_SECONDS)
        before = len(self.waits)
        act()
        time.sleep(_REST_SECONDS)
        count = len(self.waits)
        while len(self.waits) <= count:
            time.sleep(_PAUSE_SECONDS)
        return max(self.waits[before:])


@contextmanager
def pinging(port: int) -> Iterator[Pings]:
    """Ping from a thread; it blocks in the socket, as the sender does."""
    pings = Pings()
    thread = Thread(target=pings.run, args=(port,))
    thread.start()
    try:
        yield pings
    finally:
        pings.is_over = True
        thread.join()


def connect(port: int, client_id: str, version: Version, *, durable: bool = False) -> Line:
    """Return a connection that was accepted."""
    line = Line(port)
    line.say(encode(version, hello(client_id, version, durable=durable)))
    line.hear(_CONNACK)
    return line


def hello(
    client_id: str,
    version: Version,
    *,
    durable: bool = False,
    will: Will | None = None,
    properties: Properties = NO_PROPERTIES,
) -> Connect:
    """Return CONNECT."""
    if durable and version is _V5 and properties is NO_PROPERTIES:
        properties = Properties(session_expiry_interval=300)
    return Connect(
        version=version,
        client_id=client_id,
        clean_start=not durable,
        will=will,
        properties=properties,
    )


def measure(port: int, pings: Pings, case: Case) -> float:
    """Send the packet of a case once; return the longest ping of the other client."""
    heard = None if not case.heard else _hearing(port, case)
    line = connect(port, _SENDER, case.version, durable=case.durable)
    for packet, answer in case.before:
        line.say(encode(case.version, packet))
        line.hear(answer)
    if isinstance(case.packet, Connect):
        line.close()
        time.sleep(_REST_SECONDS)
        line = Line(port)
    data = encode(case.version, case.packet)
    if case.answer == _PINGRESP:
        # The packet has no answer, so a PINGREQ follows it.
        data += encode(case.version, PingReq())

    def send() -> None:
        line.say(data)
        line.hear(case.answer)
        if heard is not None:
            heard.hear(_PUBLISH)

    worst = pings.worst(send)
    line.close()
    _clear(port, _SENDER)
    if heard is not None:
        heard.close()
        _clear(port, _HEARER)
    return worst


def _hearing(port: int, case: Case) -> Line:
    """Return a connection that receives the message of a case."""
    wanted = Subscription(filter=TopicFilter.parse(case.heard), qos=2)
    heard = connect(port, _HEARER, _V5, durable=case.heard_durable)
    heard.say(encode(_V5, Subscribe(packet_id=1, subscriptions=(wanted,))))
    heard.hear(_SUBACK)
    return heard


def _clear(port: int, client_id: str) -> None:
    """End the session of a client id."""
    line = connect(port, client_id, _V5)
    line.say(encode(_V5, Disconnect()))
    line.hear(_CLOSED)
    line.close()


# The packets.


def _users(size_bytes: int) -> Properties:
    """Return the maximum number of user properties, with this total size."""
    # Each has five bytes besides its name and its value.
    each = size_bytes // _PROPERTIES_MAX - 5
    return Properties(user_properties=(("n" * (each // 2), "v" * (each // 2)),) * _PROPERTIES_MAX)


def _filters(kind: str, packet: int = 0) -> tuple[TopicFilter, ...]:
    """Return the maximum number of filters of one packet: short ones, or with many levels."""
    texts = {
        "short": [f"f/{packet}/{number}/+" for number in range(_FILTERS_MAX)],
        "shared": [f"$share/g/f/{packet}/{number}/+" for number in range(_FILTERS_MAX)],
        # 128 levels; the filters of a packet differ in the first level, so they share no node.
        "deep": [f"{packet:02}{number:03}" + "/a" * 126 + "/#" for number in range(_DEEP)],
        "wild": [f"{packet:02}{number:03}" + "/+" * 127 for number in range(_DEEP)],
    }
    return tuple(map(TopicFilter.parse, texts[kind]))


def _subscribe(kind: str, packet: int = 0, properties: Properties = NO_PROPERTIES) -> Subscribe:
    wanted = [Subscription(filter=each, qos=1) for each in _filters(kind, packet)]
    return Subscribe(packet_id=1, subscriptions=tuple(wanted), properties=properties)


def _cases() -> Iterator[Case]:
    yield from _connects()
    yield from _publishes()
    yield from _acknowledgements()
    yield from _subscribes()
    yield from _endings()


def _connects() -> Iterator[Case]:
    # 64 KiB each; the will is as large as the rest.
    will = Will(topic=b"w" * 10_000, payload=b"w" * _STRING_MAX, properties=_users(100_000))
    large = hello(_SENDER, _V5, will=will, properties=_users(100_000))
    yield Case(name="CONNECT, will and properties", packet=large, answer=_CONNACK)
    kept = Properties(session_expiry_interval=300, user_properties=_users(100_000).user_properties)
    large = hello(_SENDER, _V5, durable=True, will=will, properties=kept)
    yield Case(name="CONNECT, the same, durable", packet=large, answer=_CONNACK, durable=True)
    for kind in ("short", "deep"):
        said = tuple((_subscribe(kind, number), _SUBACK) for number in range(_SUBSCRIBES))
        yield Case(
            name=f"CONNECT, to a session of {_SUBSCRIBES * len(_filters(kind)):,} {kind} filters",
            packet=hello(_SENDER, _V5, durable=True),
            answer=_CONNACK,
            durable=True,
            before=said,
        )


def _publishes() -> Iterator[Case]:
    answers = (_PINGRESP, _PUBACK, _PUBREC)
    payload = b"p" * (_PACKET_MAX - 100)
    for qos, answer in enumerate(answers):
        for retain in (False, True):
            packet = Publish(
                topic=b"t/large", payload=payload, qos=qos, packet_id=min(qos, 1), retain=retain
            )
            flag = ", retained" if retain else ""
            name = f"PUBLISH QoS {qos}{flag}"
            yield Case(name=name, packet=packet, answer=answer)
            yield Case(name=f"{name}, sender durable", packet=packet, answer=answer, durable=True)
            for durable in (False, True):
                yield Case(
                    name=f"{name}, to a {'durable' if durable else 'volatile'} session",
                    packet=packet,
                    answer=answer,
                    heard="t/#",
                    heard_durable=durable,
                )
    levels = b"l" + b"/l" * (_LEVELS_MAX - 1)
    extended = Publish(
        topic=levels, payload=b"p", qos=1, packet_id=1, properties=_users(_CONTROL_MAX)
    )
    for heard in ("", "l/#"):
        yield Case(
            name="PUBLISH, properties and levels" + (", heard" if heard else ""),
            packet=extended,
            answer=_PUBACK,
            heard=heard,
            heard_durable=True,
        )


def _acknowledgements() -> Iterator[Case]:
    users = _users(_CONTROL_MAX - 100)
    yield Case(name="PUBACK", packet=PubAck(packet_id=1, properties=users), answer=_PINGRESP)
    yield Case(name="PUBREC", packet=PubRec(packet_id=1, properties=users), answer=_PINGRESP)
    yield Case(name="PUBREL", packet=PubRel(packet_id=1, properties=users), answer=_PUBCOMP)
    yield Case(name="PUBCOMP", packet=PubComp(packet_id=1, properties=users), answer=_PINGRESP)


def _subscribes() -> Iterator[Case]:
    for kind in ("short", "shared", "deep", "wild"):
        for durable in (False, True):
            who = "durable" if durable else "volatile"
            packet = _subscribe(kind)
            count = len(packet.subscriptions)
            yield Case(
                name=f"SUBSCRIBE, {count} {kind} filters, {who}",
                packet=packet,
                answer=_SUBACK,
                durable=durable,
            )
            yield Case(
                name=f"SUBSCRIBE again, {count} {kind} filters, {who}",
                packet=packet,
                answer=_SUBACK,
                durable=durable,
                before=((packet, _SUBACK),),
            )
            yield Case(
                name=f"UNSUBSCRIBE, {count} {kind} filters, {who}",
                packet=Unsubscribe(packet_id=2, filters=_filters(kind)),
                answer=_UNSUBACK,
                durable=durable,
                before=((packet, _SUBACK),),
            )
    last = tuple((_subscribe("deep", number), _SUBACK) for number in range(_SUBSCRIBES - 1))
    yield Case(
        name=f"SUBSCRIBE, {_DEEP} deep filters, durable, beside {len(last) * _DEEP:,}",
        packet=_subscribe("deep", _SUBSCRIBES),
        answer=_SUBACK,
        durable=True,
        before=last,
    )


def _endings() -> Iterator[Case]:
    users = _users(_CONTROL_MAX - 100)
    for durable in (False, True):
        who = "durable" if durable else "volatile"
        for kind in ("short", "deep"):
            said = tuple((_subscribe(kind, number), _SUBACK) for number in range(_SUBSCRIBES))
            yield Case(
                name=f"DISCONNECT, of {_SUBSCRIBES * len(_filters(kind)):,} {kind} filters, {who}",
                packet=Disconnect(reason=Reason.NORMAL_DISCONNECTION, properties=users),
                answer=_CLOSED,
                durable=durable,
                before=said,
            )
    yield Case(name="AUTH", packet=Auth(properties=users), answer=_CLOSED)
    yield Case(name="PINGREQ", packet=PingReq(), answer=_PINGRESP)


def main() -> None:
    """Measure every packet and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="packets whose name has this text")
    chosen = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(f"siltstone {__version__} ({form()})")
    table = Table(title="the worst ping of another client while one packet is taken")
    table.add_column("packet")
    for column in ("size", "worst ping", "ratio to a quiet one", "≤ 50 ms"):
        table.add_column(column, justify="right")
    with scratch() as place, siltstone(place.resolve()) as peer, pinging(peer.port) as pings:
        quiet = median(pings.worst(lambda: None) for _ in range(3))
        for case in _cases():
            if chosen.only not in case.name:
                continue
            worst = median(measure(peer.port, pings, case) for _ in range(chosen.rounds))
            print(f"{case.name}: {worst * 1000:.1f} ms", file=sys.stderr, flush=True)
            table.add_row(
                case.name,
                _size(len(encode(case.version, case.packet))),
                f"{worst * 1000:.1f} ms",
                f"{worst / quiet:.1f}x",
                "yes" if worst <= _BOUND_SECONDS else "NO",
            )
        table.add_row("(none)", "", f"{quiet * 1000:.1f} ms", "1.0x", "")
    console.print(table)


def _size(size_bytes: int) -> str:
    if size_bytes >= _MIB:
        return f"{size_bytes / _MIB:.1f} MiB"
    return f"{size_bytes / 1024:.1f} KiB" if size_bytes >= 1024 else f"{size_bytes} B"


if __name__ == "__main__":
    main()
