"""The cost of connected durable sessions without messages, for publishers.

    python -m bench.idle_sessions [--counts 0,1000,4000,15000] [--seconds S]

For each count, a new broker holds this number of durable sessions, each with a filter of its own.
One client publishes at QoS 1, 20 messages per second, and waits for each PUBACK: first to a topic
that no session wants, then to one that a single session wants. The cost of a publish should depend
only on matching sessions, so all rows of the table should be about equal. At the end all sessions
disconnect at the same moment while the client publishes.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from statistics import median, quantiles
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.peers import Peer, raise_file_limit, siltstone
from bench.workload import scratch
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import Connect, Disconnect, Packet, Publish, Subscribe, Subscription
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter
from siltstone.version import __version__, form

_LOOPBACK: Final = "127.0.0.1"
_PATIENCE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.05
_AT_ONCE: Final = 100
_PUBACK_BYTES: Final = 4
_ROOM: Final = ("limits.sessions_max=1000000", "limits.connections_max=1000000")


class Cost:
    """The result for one number of sessions."""

    def __init__(
        self,
        idle: float,
        busy: float,
        waits: list[float],
        matched: list[float],
        leaving: list[float],
    ) -> None:
        # Shares of one processor, without and with messages that match nothing; seconds until each
        # PUBACK of those messages, of messages that match one session, and while all disconnect.
        self.idle = idle
        self.busy = busy
        self.waits = waits
        self.matched = matched
        self.leaving = leaving


def _connect(port: int, client_id: str, *, clean: bool) -> socket.socket:
    client = socket.create_connection((_LOOPBACK, port), _PATIENCE_SECONDS)
    _say(client, Connect(version=Version.V3_1_1, client_id=client_id, clean_start=clean))
    return client


def _say(client: socket.socket, packet: Packet) -> None:
    client.sendall(encode(Version.V3_1_1, packet))


def _hear(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        some = client.recv(count - len(data))
        if not some:
            raise ConnectionError("the broker has closed a connection")
        data += some
    return data


@contextmanager
def _sessions(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Hold durable sessions, each with a filter of its own."""
    clients: list[socket.socket] = []
    with ExitStack() as held:
        for first in range(0, count, _AT_ONCE):
            numbers = range(first, min(count, first + _AT_ONCE))
            some = [
                held.enter_context(_connect(port, f"idle-{number}", clean=False))
                for number in numbers
            ]
            for client in some:
                _hear(client, 4)
            for number, client in zip(numbers, some, strict=True):
                mine = Subscription(filter=TopicFilter.parse(f"idle/{number}/#"), qos=1)
                _say(client, Subscribe(packet_id=1, subscriptions=(mine,)))
            for client in some:
                _hear(client, 5)
            clients += some
        yield clients


def measure(peer: Peer, count: int, seconds: float) -> Cost:
    """Create the sessions, wait, then publish."""
    with (
        _sessions(peer.port, count) as clients,
        _connect(peer.port, "publisher", clean=True) as publisher,
    ):
        _hear(publisher, 4)
        time.sleep(2)
        used = peer.cpu_seconds()
        time.sleep(seconds)
        idle = (peer.cpu_seconds() - used) / seconds
        used = peer.cpu_seconds()
        begin = time.monotonic()
        waits = _publish(publisher, [b"other"], seconds)
        busy = (peer.cpu_seconds() - used) / (time.monotonic() - begin)
        topics = [b"idle/%d/x" % number for number in range(count)] or [b"other"]
        matched = _publish(publisher, topics, seconds)
        goodbye = encode(Version.V3_1_1, Disconnect())
        for client in clients:
            client.sendall(goodbye)
        return Cost(idle, busy, waits, matched, _publish(publisher, [b"other"], seconds))


def _publish(publisher: socket.socket, topics: list[bytes], seconds: float) -> list[float]:
    """Publish for some seconds, to one topic after the other; return the time of each PUBACK."""
    waits: list[float] = []
    following = cycle(topics)
    begin = time.monotonic()
    while (at := time.monotonic()) - begin < seconds:
        _say(publisher, Publish(topic=next(following), payload=b"x" * 100, qos=1, packet_id=1))
        _hear(publisher, _PUBACK_BYTES)
        waits.append(time.monotonic() - at)
        time.sleep(_PAUSE_SECONDS)
    return waits


def main() -> None:
    """Measure every count and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="0,1000,4000,15000")
    parser.add_argument("--seconds", type=float, default=5.0)
    chosen = parser.parse_args()
    raise_file_limit()
    console = Console()
    console.print(f"siltstone {__version__} ({form()})")
    table = Table(
        title="a publish beside durable sessions that it does not match, and to one of them"
    )
    for column in (
        *("sessions", "CPU at rest", "CPU, 20 publishes/s", "PUBACK median", "p95", "max"),
        *("to one: median", "p95", "max", "max while all disconnect"),
    ):
        table.add_column(column, justify="right")
    for count in [int(each) for each in chosen.counts.split(",")]:
        with scratch() as place, siltstone(place.resolve(), *_ROOM) as peer:
            cost = measure(peer, count, chosen.seconds)
        print(f"{count} sessions measured", file=sys.stderr, flush=True)
        table.add_row(
            f"{count:,}",
            f"{cost.idle:.1%}",
            f"{cost.busy:.1%}",
            *_figures(cost.waits),
            *_figures(cost.matched),
            _figures(cost.leaving)[-1],
        )
    console.print(table)


def _figures(waits: list[float]) -> tuple[str, str, str]:
    """Return the median, the 95th percentile and the maximum."""
    figures = (median(waits), quantiles(waits, n=20)[-1], max(waits))
    first, second, third = (f"{each * 1000:.1f} ms" for each in figures)
    return first, second, third


if __name__ == "__main__":
    main()
