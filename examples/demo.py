"""Run a broker, let devices publish to it, kill it with -9 in the middle, and check every promise.

A child process is the broker; another one is a plant of devices, each with a connection of its own,
which publish JSON with QoS 1 and tell how far each is acknowledged; a third one subscribes; in a
fourth one Spark counts the rows. The broker is killed and started again; devices and subscriber
come back by themselves. Then the store is read: what was acknowledged must be there, in order. Last
the store becomes tables of the lake, and an aggregate of them a picture.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from threading import Thread

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import siltstone
from examples.lake import ROOT, LiveCount, show_lake
from siltstone.cli.output import add_row, table
from siltstone.cli.quantities import format_size
from siltstone.cli.slabs import slab_table
from siltstone.cli.structure import draw, levels, merge
from siltstone.client.client import Client
from siltstone.client.outgoing import Publication
from siltstone.client.running import run_until_signal
from siltstone.client.session import ClientSession
from siltstone.client.settings import ClientSettings
from siltstone.client.target import TcpTarget
from siltstone.clock import SystemClock
from siltstone.mqtt.publish import PublishBatch
from siltstone.version import __version__, form

DIRECTORY = ROOT / "build" / "demo"
DATABASE = "messages"
DEVICES = 60
# What each device measures, one after the other: five topics a device.
KINDS = ("temperature", "humidity", "pressure", "vibration", "power")
SITES = ("east", "north", "west")
LINES = 4
# So many readings of a device are on their way at once.
WINDOW = 200
# Sites, lines and devices vary from the first one on; words between them do not.
THRESHOLDS = "[100, 0, 10, 0, 10, 0, 10]"
WIDE = "plant/north/line/+/device/+/temperature"
NARROW = "plant/+/line/1/device/17/temperature"

console = Console(highlight=False)


def topic_of(device: int, kind: str) -> str:
    """Return where a device stands, and what it measures."""
    return f"plant/{SITES[device % len(SITES)]}/line/{device % LINES}/device/{device}/{kind}"


def reading(device: int, number: int) -> bytes:
    """Return a reading that tells whose it is, and which one; the first two in fixed places."""
    site = device % len(SITES)
    value = 15 + 3 * site + 4 * math.sin(number / 300 + site) + number * 7 % 10 / 10
    return b'{"device": %3d, "number": %7d, "step": %d, "value": %.2f}' % (
        device,
        number,
        number // 50,
        value,
    )


class Device:
    """One simulated device: it publishes readings, and comes back when it loses the broker."""

    def __init__(self, port: int, number: int, readings: int) -> None:
        settings = ClientSettings(
            client_id=f"device-{number}", reconnect=True, window=WINDOW, keep_alive_seconds=30
        )
        self.number = number
        self.session = ClientSession(settings)
        self._client = Client(
            settings,
            self.session,
            TcpTarget("127.0.0.1", port),
            clock=SystemClock(),
            deliver=_count,
            wanted=lambda: None,
            note=lambda _: None,
        )
        for place, kind in enumerate(KINDS):
            publication = Publication(topic=topic_of(number, kind).encode(), qos=1)
            share = range(readings * place // len(KINDS), readings * (place + 1) // len(KINDS))
            self.session.outgoing.add(publication, [reading(number, n) for n in share])
        self.session.finish()

    async def run(self) -> None:
        """Publish everything."""
        await self._client.run()


def _count(batch: PublishBatch) -> int:
    return len(batch.topics)


async def run_devices(port: int, readings: int) -> None:
    """Run all devices; print how far each is acknowledged, whenever that has changed."""
    devices = [Device(port, number, readings) for number in range(DEVICES)]
    told: list[int] = []

    async def tell() -> None:
        while True:
            done = [device.session.outgoing.completed for device in devices]
            if done != told:
                told[:] = done
                print(*done, flush=True)
            await asyncio.sleep(0.02)

    telling = asyncio.create_task(tell())
    await asyncio.gather(*(device.run() for device in devices))
    telling.cancel()
    print(*(device.session.outgoing.completed for device in devices), flush=True)


def child(*command: str) -> subprocess.Popen[str]:
    """Start a child process whose output is read here."""
    return subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, cwd=ROOT)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass(slots=True)
class Demo:
    """The run so far: where the data is, how much there is to publish, and what was measured."""

    directory: Path
    readings: int
    port: int = field(default_factory=free_port)
    measured: list[tuple[str, str]] = field(default_factory=list)

    @property
    def total(self) -> int:
        """How many readings all devices publish."""
        return DEVICES * self.readings

    def note(self, name: str, value: str) -> None:
        """Keep a figure for the summary."""
        self.measured.append((name, value))

    def serve(self) -> subprocess.Popen[bytes]:
        """Start the broker and return when it takes connections."""
        options = ["--data", str(self.directory), "--port", str(self.port)]
        options += ["--log-level", "warning", "--set", f"storage.thresholds={THRESHOLDS}"]
        broker = subprocess.Popen([sys.executable, "-m", "siltstone.cli.main", "serve", *options])
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                if broker.poll() is not None:
                    raise SystemExit("demo: the broker did not start") from None
                time.sleep(0.02)
            else:
                return broker

    def publish_and_kill(self) -> list[int]:
        """Let the devices publish, kill the broker on the way; return what each was promised."""
        broker = self.serve()
        port = str(self.port)
        listen = ["sub", "-p", port, "-t", "plant/#", "--reconnect", "--format", "%p"]
        subscriber = child("-m", "siltstone.cli.main", *listen)
        live = LiveCount(self.directory)
        devices = child("-m", "examples.demo", "devices", port, str(self.readings))
        received = [0]
        listening = Thread(target=lambda: received.append(_lines(subscriber)))
        listening.start()
        promised: list[int] = []
        killed_at = 0
        started = time.monotonic()
        outage = 0.0
        try:
            with bar(self.total) as progress:
                assert devices.stdout is not None
                for line in devices.stdout:
                    promised = [int(count) for count in line.split()]
                    progress(sum(promised))
                    if not killed_at and sum(promised) >= self.total * 4 // 10:
                        killed_at = sum(promised)
                        broker.kill()
                        broker.wait()
                        fell = time.monotonic()
                        broker = self.serve()
                        outage = time.monotonic() - fell
                seconds = time.monotonic() - started
            if devices.wait() != 0:
                raise SystemExit("demo: the devices failed")
        finally:
            counts = live.stop()
            subscriber.terminate()
            listening.join()
            broker.terminate()
            if broker.wait() != 0:
                raise SystemExit("demo: the broker did not stop in good order")
        console.print(
            f"[red]kill -9[/] with {killed_at:,} readings acknowledged; the broker was back after "
            f"{outage:.1f} s, and all {DEVICES} devices came back by themselves"
        )
        console.print(f"meanwhile Spark counted {', '.join(f'{count:,}' for count in counts)} rows")
        self.note("devices", f"{DEVICES}, QoS 1, {WINDOW} readings in flight each")
        self.note("published, synced and acknowledged", f"{sum(promised):,} readings")
        self.note("rate, with start-up and outage", f"{sum(promised) / seconds:,.0f} readings/s")
        self.note("out of service after kill -9", f"{outage:.1f} s")
        self.note("received by the subscriber", f"{received[-1]:,}, QoS 0, what it was there for")
        return promised

    def check(self, promised: list[int]) -> None:
        """Read the store: every acknowledged reading must be there, in order."""
        with siltstone.open(self.directory, read_only=True) as store:
            found, repeated = check_rows(store.database(DATABASE))
        lost = sum(max(0, want - have) for want, have in zip(promised, found, strict=True))
        if lost or sum(found) < self.total:
            raise SystemExit(f"demo: {lost} acknowledged readings are lost")
        console.print(
            f"[green]every acknowledged reading is in the store[/], in order; {repeated:,} stand "
            f"twice, which were on their way at the kill, not acknowledged, and sent again"
        )
        self.note("acknowledged readings lost", "0")

    def query(self) -> None:
        """Show what was learned and ask for rows by wildcard."""
        with siltstone.open(self.directory) as store:
            database = store.database(DATABASE)
            console.print(draw(DATABASE, levels(merge(database.structure()))))
            for topic_filter in (WIDE, NARROW):
                self._ask(database, topic_filter)
            database.seal()
            slabs = database.slabs()
            console.print(slab_table(slabs))
            size_bytes = sum(slab.size_bytes for slab in slabs)
            rows = sum(slab.rows for slab in slabs)
        self.note("streams learned", f"{sum(slab.streams for slab in slabs):,}")
        self.note("on disk", f"{format_size(size_bytes)}, {size_bytes / rows:.1f} bytes a row")

    def _ask(self, database: siltstone.Database, topic_filter: str) -> None:
        started = time.monotonic()
        found = pa.Table.from_batches(list(database.read(topic_filter)), siltstone.SCHEMA)
        seconds = time.monotonic() - started
        console.print(
            f"\n[bold]{topic_filter}[/]: {found.num_rows:,} rows, in order of time, "
            f"in {seconds * 1000:.0f} ms"
        )
        shown = table("time", "topic", "publisher", "value")
        for row in found.slice(0, 3).to_pylist():
            moment = row["timestamp"].strftime("%H:%M:%S.%f")
            add_row(shown, (moment, row["topic"], row["publisher"], row["value"].decode()))
        console.print(shown)

    def summary(self) -> Table:
        """Return what was measured."""
        made = table("", f"siltstone {__version__}, {form()}")
        for pair in self.measured:
            add_row(made, pair)
        return made


def _lines(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return sum(1 for _ in process.stdout)


def check_rows(database: siltstone.Database) -> tuple[list[int], int]:
    """Read every row; return how many different readings each device has, and how many stand
    twice.

    The readings of a device must be its first ones in order; one may come again after those that
    were on their way with it.
    """
    counts = [0] * DEVICES
    repeated = 0
    for batch in database.read(columns=["value"]):
        text = batch.column("value").cast(pa.string())
        devices = _number(text, 11, 14).to_pylist()
        numbers = _number(text, 26, 33).to_pylist()
        for device, number in zip(devices, numbers, strict=True):
            if number == counts[device]:
                counts[device] += 1
            elif counts[device] - WINDOW <= number < counts[device]:
                repeated += 1
            else:
                raise SystemExit(f"demo: reading {number} of device {device} is out of order")
    return counts, repeated


def _number(text: pa.Array, start: int, stop: int) -> pa.Array:
    """Return the numbers that stand at one place of all texts."""
    return pc.utf8_ltrim_whitespace(pc.utf8_slice_codeunits(text, start, stop)).cast(pa.int64())


@contextmanager
def bar(total: int) -> Iterator[Callable[[int], None]]:
    """Show progress; what is given takes the number of readings so far."""
    progress = Progress(
        TextColumn("acknowledged"),
        BarColumn(),
        TextColumn("{task.completed:>9,.0f} readings"),
        TimeElapsedColumn(),
        console=console,
    )
    task = progress.add_task("", total=total)
    with progress:
        yield lambda count: progress.update(task, completed=count)


def show(demo: Demo) -> None:
    """Run the demonstration from start to end."""
    console.rule("devices publish, and the broker is killed")
    promised = demo.publish_and_kill()
    demo.check(promised)
    console.rule("what was learned, and what can be asked")
    demo.query()
    console.rule("the store becomes tables")
    demo.measured += show_lake(console, demo.directory)
    console.rule("summary")
    console.print(demo.summary())


def main() -> None:
    """Run as a person asks, or as a child of such a run."""
    match sys.argv[1:]:
        case ["devices", port, readings]:
            sys.exit(run_until_signal(run_devices(int(port), int(readings))))
        case _:
            parser = argparse.ArgumentParser(description=__doc__)
            parser.add_argument("--readings", type=int, default=10_000, help="of each device")
            parser.add_argument("--keep", action="store_true", help=f"leave {DIRECTORY} there")
            options = parser.parse_args()
            if options.readings < 1000:
                parser.error("--readings must be at least 1000")
            rmtree(DIRECTORY, ignore_errors=True)
            try:
                show(Demo(DIRECTORY, options.readings))
            finally:
                if not options.keep:
                    rmtree(DIRECTORY, ignore_errors=True)


if __name__ == "__main__":
    main()
