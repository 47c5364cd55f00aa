"""The loads, their contenders, and the targets for Siltstone against the others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

from bench.peers import Peer, find_mosquitto, find_nats, mosquitto, nats, siltstone

Measure = Literal["acked_per_s", "recv_per_s", "p99_us"]

OURS: Final = "Siltstone"
MOSQUITTO: Final = "Mosquitto"
NATS: Final = "NATS"
SUBSCRIPTIONS: Final = (10, 1_000, 100_000)


@dataclass(frozen=True, slots=True)
class Contender:
    """A broker by the name of its row, with a number of subscriptions that match nothing."""

    name: str
    broker: str
    start: Callable[[Path], AbstractContextManager[Peer]]
    subscriptions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A bound of one contender's figure relative to another's: a minimum for rates, a maximum for
    times.
    """

    ours: str
    theirs: str
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load for all its contenders."""

    name: str
    title: str
    options: tuple[str, ...]
    measure: Measure
    contenders: tuple[Contender, ...]
    targets: tuple[Target, ...]

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.measure != "p99_us"


def missing_peers() -> list[str]:
    """Return the names of the brokers that are not on this machine."""
    found = {MOSQUITTO: find_mosquitto(), NATS: find_nats()}
    return [name for name, program in found.items() if program is None]


def present(load: Load, missing: list[str]) -> Load:
    """Return a load with only the available contenders."""
    left = tuple(contender for contender in load.contenders if contender.broker not in missing)
    return replace(load, contenders=left)


def all_loads() -> list[Load]:
    """Return the loads, in the order of their runs."""
    everyone = (
        Contender(OURS, OURS, siltstone),
        Contender(MOSQUITTO, MOSQUITTO, mosquitto),
        Contender(NATS, NATS, nats),
    )
    return [
        Load(
            name="publish",
            title="QoS 1, 4 publishers, no subscriber",
            options=_options(publishers=4, subscribers=0, qos=1, window=512),
            measure="acked_per_s",
            contenders=everyone,
            targets=(_target(MOSQUITTO, 3.0), _target(NATS, 50.0)),
        ),
        Load(
            name="deliver",
            title="QoS 1, 4 publishers, 1 subscriber",
            options=_options(publishers=4, subscribers=1, qos=1, window=512),
            measure="recv_per_s",
            contenders=everyone,
            targets=(_target(MOSQUITTO, 2.0),),
        ),
        Load(
            name="deliver-qos0",
            title="QoS 0, 4 publishers, 1 subscriber",
            options=_options(publishers=4, subscribers=1, qos=0, window=512),
            measure="recv_per_s",
            contenders=everyone,
            targets=(_target(MOSQUITTO, 1.0),),
        ),
        Load(
            name="publishers",
            title="QoS 1, 100 publishers, window 16",
            options=_options(publishers=100, subscribers=0, qos=1, window=16),
            measure="acked_per_s",
            contenders=everyone,
            targets=(_target(MOSQUITTO, 2.0),),
        ),
        _latency(everyone),
        _subscriptions(),
    ]


def _options(*, publishers: int, subscribers: int, qos: int, window: int) -> tuple[str, ...]:
    flags = {"-P": publishers, "-S": subscribers, "-q": qos, "-w": window, "-s": 100, "-T": 1000}
    return tuple(f"{flag}{value}" for flag, value in flags.items())


def _target(theirs: str, factor: float, ours: str = OURS) -> Target:
    return Target(ours=ours, theirs=theirs, factor=factor)


def _latency(everyone: tuple[Contender, ...]) -> Load:
    unsynced = tuple(
        Contender(f"{OURS}, {durability}", OURS, partial(_with_durability, durability))
        for durability in ("written", "none")
    )
    return Load(
        name="latency",
        title="QoS 1, 5,000 msg/s, 4 subscribers: p99",
        options=(*_options(publishers=4, subscribers=4, qos=1, window=512), "-r5000"),
        measure="p99_us",
        contenders=(everyone[0], *unsynced, *everyone[1:]),
        targets=(
            _target(MOSQUITTO, 2.0),
            *(_target(MOSQUITTO, 1.5, contender.name) for contender in unsynced),
        ),
    )


def _with_durability(durability: str, directory: Path) -> AbstractContextManager[Peer]:
    rule = f'storage.rules=[{{"filter": "#", "durability": "{durability}"}}]'
    return siltstone(directory, rule)


def _with_room(directory: Path) -> AbstractContextManager[Peer]:
    return siltstone(directory, f"limits.subscriptions_max={max(SUBSCRIPTIONS)}")


def _subscriptions() -> Load:
    names = {count: f"{OURS}, {count:,} others" for count in SUBSCRIPTIONS}
    few, *more = names.values()
    return Load(
        name="subscriptions",
        title="the first, beside subscriptions that do not match",
        options=_options(publishers=4, subscribers=0, qos=1, window=512),
        measure="acked_per_s",
        contenders=(
            *(Contender(name, OURS, _with_room, count) for count, name in names.items()),
            *(
                Contender(f"{MOSQUITTO}, {count:,} others", MOSQUITTO, mosquitto, count)
                for count in SUBSCRIPTIONS
            ),
        ),
        # The cost must not grow; the margin is for the noise of the machine.
        targets=tuple(_target(few, 0.9, name) for name in more),
    )
