"""Subjects of the form comparison that are whole brokers.

Clients connect, publish, acknowledge, violate the protocol, disconnect and return. The bytes that
each of them receives are compared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, cast

from siltstone.broker.listen.admission import Admission
from siltstone.broker.listen.transport import ClientTransport
from siltstone.broker.settings.broker import ListenerSettings
from siltstone.broker.settings.storage import StoreRule
from siltstone.errors import SiltstoneError
from siltstone.mqtt.publish import PublishBatch
from siltstone.mqtt.wire import encode_variable
from tests.support.broker_core import Core, Wire
from tests.support.durable_core import DurableCore
from tests.support.form_packets import any_packet, block, changed, packet, plain, sized
from tests.support.memory_core import MemoryCore

NAMES = ("x", "y", "z")
TOPICS = ("a/1", "a/2", "b", "never/x")
FILTERS = ("a/1", "a/+", "#", "b", "$share/g/a/#", "$share/h/#")
RULES = (StoreRule(filter="never/#", store="never"),)
LIMITS: dict[str, Any] = {
    "receive_max": 12,
    "session_expiry_max": 0xFFFF_FFFF,
    "publish_rate_max": 0,
}


class _Recorder(Wire):
    def __init__(self, core: Core, version: int) -> None:
        super().__init__(core, cast("Any", version), "10.0.0.1")
        self.heard = bytearray()

    def write(self, data: bytes) -> None:
        self.heard += data


def _connect(rng: Random, name: str, version: int) -> bytes:
    will = rng.random() < 0.2
    flags = rng.choice((0, 0, 2)) | (0x0C if will else 0)
    body = sized(b"MQTT") + bytes((version, flags)) + rng.choice((0, 20)).to_bytes(2)
    if version == 5:
        expiry = rng.choice((0, 30, 0xFFFF_FFFF)).to_bytes(4)
        window = rng.choice((1, 3, 65_535)).to_bytes(2)
        aliases = rng.choice((0, 2)).to_bytes(2)
        body += block(b"\x11" + expiry + b"\x21" + window + b"\x22" + aliases)
    body += sized(name.encode())
    if will:
        body += (block(b"\x18\0\0\0\5") if version == 5 else b"") + sized(b"a/1") + sized(b"will")
    return packet(0x10, body)


def _publish(rng: Random, version: int) -> bytes:
    qos = rng.choice((0, 1, 1, 2, 2))
    body = sized(rng.choice(TOPICS).encode())
    if qos:
        body += rng.randrange(1, 6).to_bytes(2)
    if version == 5:
        choices = (b"", b"", b"\2\0\0\0\5", b"\3\0\1t", b"\x26\0\1k\0\1v", b"\x23\0\1")
        body += block(rng.choice(choices))
    first = 0x30 | qos << 1 | (rng.random() < 0.2) | (8 if qos and rng.random() < 0.1 else 0)
    return packet(first, body + b"%d" % rng.randrange(1_000))


def _subscribe(rng: Random, version: int) -> bytes:
    name = rng.choice(FILTERS).encode()
    if rng.random() < 0.2:
        return packet(0xA2, b"\0\1" + (b"\0" if version == 5 else b"") + sized(name))
    properties = b""
    if version == 5:
        identifier = rng.choice((0, 0, 5))
        properties = block(b"\x0b" + encode_variable(identifier) if identifier else b"")
    return packet(0x82, b"\0\1" + properties + sized(name) + bytes((rng.randrange(3),)))


def _acknowledge(rng: Random, version: int) -> bytes:
    first = rng.choice((0x40, 0x40, 0x50, 0x62, 0x62, 0x70))
    reason = b"" if version == 4 or rng.random() < 0.8 else bytes((rng.choice((0, 0x80)),))
    return b"".join(
        packet(first, number.to_bytes(2) + reason) for number in range(1, rng.randrange(2, 8))
    )


def _bytes(rng: Random, version: int) -> bytes:
    kind = rng.random()
    if kind < 0.4:
        return b"".join(_publish(rng, version) for _ in range(rng.randrange(1, 5)))
    if kind < 0.6:
        return _subscribe(rng, version)
    if kind < 0.9:
        return _acknowledge(rng, version)
    if kind < 0.96:
        return b"\xc0\0"
    return changed(rng, any_packet(rng, version))


class _Script:
    """Random steps from a seed, made by clients of one broker after another."""

    def __init__(self, rng: Random, core: Core) -> None:
        self.rng = rng
        self.core = core
        self.wires: dict[str, _Recorder] = {}
        self.all: list[_Recorder] = []

    def step(self) -> None:
        rng = self.rng
        name = rng.choice(NAMES)
        wire = self.wires.get(name)
        if wire is None or wire.is_closed or rng.random() < 0.08:
            version = rng.choice((4, 5, 5))
            wire = self.wires[name] = _Recorder(self.core, version)
            self.all.append(wire)
            wire.send_bytes(_connect(rng, name, version))
        elif rng.random() < 0.06:
            wire.drop()
        else:
            wire.send_bytes(_bytes(rng, int(wire.version)))
        if rng.random() < 0.8:
            self.core.run()
        if rng.random() < 0.1:
            self.core.advance(rng.choice((0.5, 3.0, 40.0)))

    def restart(self, core: Core) -> None:
        self.core = core
        self.wires.clear()

    def end(self) -> Any:
        self.core.run()
        statistics = self.core.broker.statistics
        counted = {
            each: getattr(statistics, each) for each in dir(statistics) if not each.startswith("_")
        }
        return (
            [(bytes(wire.heard), wire.is_closed, wire.reads()) for wire in self.all],
            sorted((name, value) for name, value in counted.items() if isinstance(value, int)),
        )


def volatile(rng: Random) -> Any:
    """Run a broker on a scripted store."""
    # No sticky strategy: its choice depends on the memory addresses of members.
    strategy = rng.choice(("round-robin", "least-loaded"))
    script = _Script(rng, Core(rules=RULES, strategy=strategy, **LIMITS))
    for _ in range(rng.randrange(10, 40)):
        script.step()
    return script.end(), script.core.database.rows


def memory(rng: Random) -> Any:
    """Run a broker without a store; another broker continues with its state."""
    core = MemoryCore(**LIMITS)
    script = _Script(rng, core)
    for _ in range(rng.randrange(10, 40)):
        script.step()
        if rng.random() < 0.05:
            core = core.restarted(after=rng.choice((0.0, 2.0)), **LIMITS)
            script.restart(core)
    return script.end(), core.state()


class _Tap:
    """Takes published messages, and acknowledges them at once."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def refused(self, batch: PublishBatch, publisher: bytes) -> list[int]:
        return []

    def take(
        self, batch: PublishBatch, publisher: bytes, settle: Callable[..., None] | None
    ) -> int:
        self.taken.append((plain(batch), publisher))
        if len(self.taken) % 7 == 0:
            raise RuntimeError("on purpose")
        return 0


def durable(rng: Random) -> Any:
    """Run a broker with durable sessions; it loses power at random."""
    strategy = rng.choice(("least-loaded", "sticky", "sticky-topic"))
    sessions = {"backlog_messages_max": rng.choice((2, 1_000_000))}
    core = DurableCore(rules=RULES, strategy=strategy, sessions=sessions, **LIMITS)
    try:
        script = _Script(rng, core)
        for _ in range(rng.randrange(10, 40)):
            script.step()
            core.run()
            if rng.random() < 0.06:
                core = core.crash()
                script.restart(core)
        found = script.end()
        return found, core.stored(), [_saved(core, name) for name in NAMES]
    except SiltstoneError as exc:
        return plain(exc)
    finally:
        core.close()


def _saved(core: DurableCore, name: str) -> Any:
    """Return the stored state of a session, without its random names and identities."""
    state = core.peek(name)
    if state is None:
        return None
    return replace(state, received=(), position=state.position.of("")), [
        each.packet_id for each in state.received
    ]


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.7", 5000)})
        self.calls: list[Any] = []
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        self.calls.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.calls.append((high, low))

    def get_write_buffer_size(self) -> int:
        return sum(len(each) for each in self.calls if isinstance(each, bytes))

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.calls.append("eof")

    def abort(self) -> None:
        self.calls.append("abort")
        self.closing = True

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


class _Loop:
    def call_later(self, _seconds: float, _act: Callable[[], None]) -> asyncio.Event:
        return asyncio.Event()


def channel(rng: Random) -> Any:
    """Run one connection as asyncio sees it, with a tap that fails at random."""
    logging.getLogger("siltstone").setLevel(logging.CRITICAL + 1)
    core = Core(write_buffer_max=4096, packet_size_max=4096, **LIMITS)
    tap = _Tap()
    core.broker.taps.add(tap)
    closed: list[ClientTransport] = []
    made = ClientTransport(
        cast("asyncio.AbstractEventLoop", _Loop()),
        core.broker,
        ListenerSettings(),
        Admission(core.broker.limits),
        closed.append,
    )
    transport = _Transport()
    made.connection_made(transport)
    version = rng.choice((4, 5))
    made.data_received(_connect(rng, "x", version))
    core.run()
    for _ in range(rng.randrange(20)):
        match rng.randrange(12):
            case 0:
                made.pause_writing()
            case 1:
                made.resume_writing()
            case _:
                made.data_received(_bytes(rng, version))
        core.run()
    return transport.calls, tap.taken, len(closed)
