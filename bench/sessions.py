"""Durable sessions and share groups, compared with persistent Mosquitto and NATS JetStream.

    python -m bench.sessions [--messages N] [--sessions N] [--seconds S] [--only NAME]

Everything goes through sockets, with the generator of bench.broker. `catch-up` and `offline`
restart the broker in between. NATS does not sync while it is filled: that would take minutes, and
it is not measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.broker.generator import GeneratorError, Result, build_generator, run_load
from bench.broker.loads import MOSQUITTO, NATS, OURS, missing_peers
from bench.peers import Peer, PeerError, mosquitto, nats, raise_file_limit, siltstone
from bench.workload import scratch
from siltstone.clock import SystemClock
from siltstone.session.archive.records import SavedSession, SavedSubscription
from siltstone.session.archive.store import ARCHIVE_NAME, ARCHIVE_SETTINGS, SessionArchive
from siltstone.store.directory import open_store
from siltstone.version import __version__, form

Start = Callable[[Path], AbstractContextManager[Peer]]

_PUBLISHERS: Final = 4
_TOPICS: Final = 1000
_DEVICES: Final = 4000
_MEMBERS: Final = 8
_ALIKE: Final = 1000
_RETURNING: Final = 1000
_AT_ONCE: Final = 1000
_MIB: Final = 1 << 20
_PATIENCE: Final = "-e30"
# High limits, so that nothing is refused: only the speed is measured.
_ROOM: Final = ("limits.sessions_max=10000000", "limits.connections_max=1000000")


class Figure(NamedTuple):
    """One row of the table; ratio, bound and verdict may be empty."""

    what: str
    who: str
    value: str
    ratio: str = ""
    target: str = ""
    held: str = ""


class Bench:
    """The common part of all measurements."""

    def __init__(self, program: Path, *, messages: int, sessions: int, seconds: float) -> None:
        self._program = program
        self.messages = messages
        self.sessions = sessions
        self._seconds = seconds

    def load(self, peer: Peer, *options: str) -> Result:
        """Run the generator. Raises: GeneratorError if a message was lost."""
        common = ("-q1", "-s100", f"-T{_TOPICS}", "-w512", _PATIENCE)
        result = run_load(
            self._program, peer.port, seconds=self._seconds, options=(*common, *options)
        )
        # The order is guaranteed within a topic, but the generator checks it over all topics of a
        # publisher.
        if result.lost:
            raise GeneratorError(f"{result.lost} lost")
        return result

    # Messages of a session that returns.

    def catch_up(self, missing: list[str]) -> Iterator[Figure]:
        """Measure one session that returns after a restart of its broker, with all messages
        pending.
        """
        what = f"catch-up: {self.messages:,} QoS 1 messages after a restart"
        contenders: dict[str, Start] = {
            OURS: siltstone,
            MOSQUITTO: mosquitto,
            NATS: partial(nats, sync='"2m"'),
        }
        rates: dict[str, float] = {}
        for name, start in contenders.items():
            if name in missing:
                continue
            try:
                with _directory(name) as place:
                    rates[name] = self._catch_up(start, place)
            except (GeneratorError, PeerError) as exc:
                yield Figure(what, name, escape(str(exc))[:60])
            else:
                print(f"catch-up: {name}: {rates[name]:,.0f}/s", file=sys.stderr, flush=True)
        for name, rate in rates.items():
            if name == OURS:
                others = [other for other in rates if other != OURS]
                yield _rate(what, name, rate, [(other, rates[other], 1.0) for other in others])
                verdict = "yes" if rate >= 300_000 else "NO"
                yield Figure("", "", "", "", "≥ 300,000/s", verdict)
            else:
                yield _rate("", name, rate, [])

    def _catch_up(self, start: Start, place: Path) -> float:
        with start(place) as peer:
            self.load(peer, "-L", "-S1", f"-P{_PUBLISHERS}", f"-n{self.messages}")
        with start(place) as peer:
            return self.load(peer, "-Z", "-S1", f"-n{self.messages}").recv_per_s

    def live(self, missing: list[str]) -> Iterator[Figure]:
        """Measure 4 publishers and one connected durable subscriber, with each message synced
        first.
        """
        what = f"live: {_PUBLISHERS} publishers, 1 subscriber, QoS 1"
        options = ("-S1", f"-P{_PUBLISHERS}")
        rates: dict[str, float] = {}
        with _directory(OURS) as place, siltstone(place) as peer:
            rates[OURS] = self.load(peer, "-D", *options).recv_per_s
        if MOSQUITTO not in missing:
            with _directory(MOSQUITTO) as place, mosquitto(place) as peer:
                rates[MOSQUITTO] = self.load(peer, *options).recv_per_s
        theirs = [(MOSQUITTO, rates[MOSQUITTO], 1.5)] if MOSQUITTO in rates else []
        yield _rate(what, f"{OURS}, durable, synced", rates[OURS], theirs)
        if theirs:
            yield _rate("", f"{MOSQUITTO}, volatile", rates[MOSQUITTO], [])

    # Costs of sessions and groups.

    def disk(self, _: list[str]) -> Iterator[Figure]:
        """Measure the disk space for one session that is away, and for many with one filter."""
        count = max(1, self.messages // 10)
        what = f"disk: {count:,} messages of 100 B"
        sizes: dict[int, int] = {}
        for sessions in (1, _ALIKE):
            with _directory(OURS) as place:
                with siltstone(place) as peer:
                    options = (f"-S{sessions}", f"-P{_PUBLISHERS}", f"-n{count}")
                    self.load(peer, "-L", *options)
                sizes[sessions] = _used_bytes(place / "data")
        one, many = sizes.values()
        copies = one + (_ALIKE - 1) * count * 100
        yield Figure(what, "1 session away", f"{one / _MIB:,.1f} MiB")
        yield Figure(
            "",
            f"{_ALIKE:,} sessions away",
            f"{many / _MIB:,.1f} MiB",
            f"{many / one:.2f}x, a copy each would be {copies / one:,.0f}x",
            "≤ 2x",
            "yes" if many <= 2 * one else "NO",
        )

    def group(self, _: list[str]) -> Iterator[Figure]:
        """Compare the members of a share group with as many sessions that divide the topics."""
        what = f"group: {_MEMBERS} publishers, {_MEMBERS} durable receivers"
        options = ("-D", "-G", f"-S{_MEMBERS}", f"-P{_MEMBERS}")
        rates: list[float] = []
        for topic_filter in ("bench/%d/#", "$share/g/bench/#"):
            with _directory(OURS) as place, siltstone(place) as peer:
                rates.append(self.load(peer, *options, f"-F{topic_filter}").recv_per_s)
        apart, group = rates
        yield _rate(what, "8 sessions apart", apart, [])
        yield _rate("", "a group of 8", group, [("apart", apart, 0.8)])

    def offline(self, _: list[str]) -> Iterator[Figure]:
        """Measure the restart of a broker with very many sessions, most of which stay away."""
        what = f"offline: {self.sessions:,} sessions away, {self.messages:,} messages"
        each = self.messages // _DEVICES
        with _directory(OURS) as place:
            with siltstone(place, *_ROOM):
                pass
            begin = time.monotonic()
            _make_sessions(place / "data", self.sessions)
            yield Figure(what, "made", f"{time.monotonic() - begin:.1f} s")
            with siltstone(place, *_ROOM) as peer:
                # One publisher visits the topics in turn, so each topic gets the same number of
                # messages.
                self.load(peer, "-P1", f"-T{_DEVICES}", f"-n{each * _DEVICES}")
            begin = time.monotonic()
            with siltstone(place, *_ROOM) as peer:
                yield Figure("", "start-up", f"{time.monotonic() - begin:.2f} s")
                yield Figure("", "memory after it", f"{peer.resident_bytes() / _MIB:,.0f} MiB")
                count = min(_RETURNING, self.sessions)
                result = self.load(peer, "-Z", f"-S{count}", f"-n{each}")
                yield Figure(
                    "",
                    f"{count:,} return at once",
                    f"{result.recv_per_s:,.0f}/s",
                    f"{result.received:,} messages in {result.recv_s:.2f} s",
                )
                yield Figure("", "memory then", f"{peer.resident_bytes() / _MIB:,.0f} MiB")


def _rate(what: str, who: str, rate: float, targets: list[tuple[str, float, float]]) -> Figure:
    ratios = [f"{rate / theirs:.2f}x {name}" for name, theirs, _ in targets]
    bounds = [f"≥ {factor:g}x" for *_, factor in targets]
    held = ["yes" if rate >= factor * theirs else "NO" for _, theirs, factor in targets]
    return Figure(
        what, who, f"{rate:,.0f}/s", "\n".join(ratios), "\n".join(bounds), "\n".join(held)
    )


@contextmanager
def _directory(name: str) -> Iterator[Path]:
    with scratch() as place:
        directory = place.resolve() / name
        directory.mkdir()
        yield directory


def _used_bytes(directory: Path) -> int:
    """Return the disk space of files: segments are sparse."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def _make_sessions(data: Path, count: int) -> None:
    """Create sessions as subscribers of the generator would, each with a topic of its own."""
    clock = SystemClock()
    with open_store(data) as store:
        archive = SessionArchive(store.keyvalue(ARCHIVE_NAME, ARCHIVE_SETTINGS), clock)
        for first in range(0, count, _AT_ONCE):
            some = range(first, min(count, first + _AT_ONCE))
            archive.create_many([_session(number, clock.now_us()) for number in some])


def _session(number: int, now_us: int) -> SavedSession:
    topic = f"bench/0/device/{number % _DEVICES}/telemetry"
    return SavedSession(
        client_id=f"load-s-{number}",
        version=4,
        away_since_us=now_us,
        subscriptions=(SavedSubscription(filter=topic, qos=1),),
    )


def main() -> None:
    """Run the selected measurements and print the table."""
    names = ("catch-up", "live", "disk", "group", "offline")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", choices=names, action="append", help="may be repeated")
    chosen = parser.parse_args()
    console = Console(width=None if os.isatty(1) else 160)
    console.print(f"siltstone {__version__} ({form()})")
    raise_file_limit()
    missing = missing_peers()
    for name in missing:
        console.print(f"{name} is not here and left out; tools/peers.sh fetches it")
    bench = Bench(
        build_generator(),
        messages=chosen.messages,
        sessions=chosen.sessions,
        seconds=chosen.seconds,
    )
    runs = (bench.catch_up, bench.live, bench.disk, bench.group, bench.offline)
    table = Table(title="durable sessions and share groups")
    for column in ("", "who", "figure", "ratio", "target", "held"):
        table.add_column(column, justify="left" if column in {"", "who"} else "right")
    for name, run in zip(names, runs, strict=True):
        if name in (chosen.only or names):
            for figure in run(missing):
                table.add_row(*figure)
            table.add_section()
    console.print(table)


if __name__ == "__main__":
    main()
