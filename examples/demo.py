"""Show what Siltstone promises: run a broker, kill it with SIGKILL, and check every message.

The story: a dashboard subscribes and goes offline. Sixty devices publish with QoS 1 while Spark
counts the rows of the live log. The broker is killed and started again. Then every acknowledged
message must be in the log, the dashboard must receive what it missed, and the log becomes Delta
tables. Each client, the broker and Spark run in processes of their own. Spark starts first, because
it takes longest; the devices prepare their readings meanwhile.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from threading import Thread

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import siltstone
from examples.lake import ROOT, LiveCount, Spark, show_lake
from examples.plant import DASHBOARD_FILTER, DATABASE, DEVICES, WINDOW
from examples.story import Points, Story
from siltstone.version import __version__, form

# Sites, lines and devices vary from the first word on. The words between them do not.
THRESHOLDS = "[100, 0, 10, 0, 10, 0, 10]"
KILL_AT_PERCENT = 40

console = Console(highlight=False, width=min(Console().width, 80))


def run_child(*command: str) -> subprocess.Popen[str]:
    """Start a child process; its input and output are pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "examples.plant", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def free_port() -> int:
    """Return a port on which no process listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def read_points(process: subprocess.Popen[str], points: Points) -> None:
    """Read lines of a time and a value until the process ends."""
    assert process.stdout is not None
    for line in process.stdout:
        moment, value = line.split()
        points.append((float(moment), float(value)))


class Demo:
    """One run: the data directory, the port of the broker, and the measurements."""

    def __init__(self, directory: Path, readings: int) -> None:
        self.directory = directory
        self.spark = Spark(directory)
        self.readings = readings
        self.total = DEVICES * readings
        self.port = free_port()
        self.story = Story()
        self._broker: subprocess.Popen[bytes] | None = None

    def start_broker(self) -> None:
        """Start the broker and return when it accepts connections."""
        options = ["--data", str(self.directory), "--port", str(self.port)]
        options += ["--log-level", "error", "--set", f"storage.thresholds={THRESHOLDS}"]
        command = [sys.executable, "-m", "siltstone.cli.main", "serve", *options]
        broker = subprocess.Popen(command)
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                if broker.poll() is not None:
                    raise SystemExit("demo: the broker did not start") from None
                time.sleep(0.02)
            else:
                self._broker = broker
                return

    def stop_broker(self) -> None:
        """Stop the broker with SIGTERM. It must exit with status 0."""
        assert self._broker is not None
        self._broker.terminate()
        if self._broker.wait() != 0:
            raise SystemExit("demo: the broker did not stop in good order")
        self._broker = None

    def kill_broker(self) -> None:
        """Kill the broker with SIGKILL, if it runs."""
        if self._broker is not None:
            self._broker.kill()
            self._broker.wait()
            self._broker = None

    def subscribe(self) -> None:
        """Create the session of the dashboard and leave it offline."""
        if run_child("subscribe", str(self.port)).wait() != 0:
            raise SystemExit("demo: the dashboard could not subscribe")

    def publish_and_kill(self) -> list[int]:
        """Publish everything and kill the broker on the way; return the counts acknowledged."""
        story = self.story
        devices = run_child("devices", str(self.port), str(self.readings))
        probe = run_child("probe", str(self.port))
        probing = Thread(target=read_points, args=(probe, story.latencies_ms))
        probing.start()
        with console.status("Spark starts …"):
            self.spark.ask("count")
        live = LiveCount(self.spark)
        assert devices.stdin is not None
        print("publish", file=devices.stdin, flush=True)
        acknowledged: list[int] = []
        try:
            with progress_bar(self.total) as advance:
                assert devices.stdout is not None
                for line in devices.stdout:
                    moment, *counts = line.split()
                    acknowledged = [int(count) for count in counts]
                    done = sum(acknowledged)
                    story.acknowledged.append((float(moment), done))
                    advance(done)
                    if not story.killed_at and done >= self.total * KILL_AT_PERCENT // 100:
                        story.killed_at = time.time()
                        self.kill_broker()
                        self.start_broker()
                        story.back_at = time.time()
            if devices.wait() != 0:
                raise SystemExit("demo: the devices failed")
        finally:
            counts_seen = live.stop()
            probe.terminate()
            probing.join()
            probe.wait()
        outage = story.back_at - story.killed_at
        seconds = story.acknowledged[-1][0] - story.acknowledged[0][0]
        console.print(
            f"  {sum(acknowledged):,} messages published with QoS 1; each was synced to\n"
            f"  disk before its PUBACK ({sum(acknowledged) / seconds:,.0f} per second).\n"
            f"  [red]kill -9[/] after {KILL_AT_PERCENT} %: the broker was back in {outage:.1f} s "
            f"and every device\n  reconnected by itself."
        )
        seen = [f"{count:,}" for count in counts_seen]
        shown = ", ".join(seen if len(seen) < 6 else [*seen[:2], "…", *seen[-2:]])
        console.print(f"  Meanwhile Spark counted the rows of the live log:\n  {shown}.")
        return acknowledged

    def check(self, acknowledged: list[int]) -> None:
        """Read the log: every acknowledged message must be there, in order."""
        with siltstone.open(self.directory, read_only=True) as store:
            database = store.database(DATABASE)
            found, repeated = check_rows(database)
            waiting = database.read(DASHBOARD_FILTER, columns=["topic"])
            self.story.backlog = sum(batch.num_rows for batch in waiting)
        lost = sum(max(0, want - have) for want, have in zip(acknowledged, found, strict=True))
        if lost or sum(found) < self.total:
            raise SystemExit(f"demo: {lost} acknowledged messages are lost")
        console.print(
            f"  [green]0 of {sum(acknowledged):,} acknowledged messages are lost.[/] "
            f"All are in order.\n"
            f"  {repeated:,} readings had no PUBACK yet when the broker was killed. The devices\n"
            f"  sent them again, so the log holds them twice, as QoS 1 allows."
        )

    def drain(self) -> None:
        """Reconnect the dashboard; it must receive everything it missed."""
        story = self.story
        dashboard = run_child("drain", str(self.port), str(story.backlog))
        read_points(dashboard, story.received)
        if dashboard.wait() != 0 or story.received[-1][1] != story.backlog:
            raise SystemExit("demo: the dashboard did not receive all that it missed")
        seconds = story.received[-1][0] - story.received[0][0]
        console.print(
            f"  [green]It received all {story.backlog:,} messages that it had missed[/] "
            f"in {seconds:.1f} s."
        )


def check_rows(database: siltstone.Database) -> tuple[list[int], int]:
    """Read every row; return how many readings each device has, and how many were sent twice.

    The readings of a device must be in order. A reading may come again only after those that were
    in flight together with it.
    """
    counts = [0] * DEVICES
    repeated = 0
    for batch in database.read("plant/#", columns=["value"]):
        text = batch.column("value").cast(pa.string())
        devices = number_at(text, 11, 14).to_pylist()
        numbers = number_at(text, 26, 33).to_pylist()
        for device, number in zip(devices, numbers, strict=True):
            if number == counts[device]:
                counts[device] += 1
            elif counts[device] - WINDOW <= number < counts[device]:
                repeated += 1
            else:
                raise SystemExit(f"demo: reading {number} of device {device} is out of order")
    return counts, repeated


def number_at(text: pa.Array, start: int, stop: int) -> pa.Array:
    """Return the numbers at one place of all texts."""
    return pc.utf8_ltrim_whitespace(pc.utf8_slice_codeunits(text, start, stop)).cast(pa.int64())


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; call the yielded function with the number of messages so far."""
    progress = Progress(
        TextColumn("  acknowledged"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:>9,.0f} messages"),
        TimeElapsedColumn(),
        console=console,
    )
    task = progress.add_task("", total=total)
    with progress:
        yield lambda count: progress.update(task, completed=count)


def step(number: int, text: str) -> None:
    """Begin a part of the story."""
    console.print(f"\n[bold]{number}. {text}[/]")


def tell(demo: Demo, picture: Path) -> None:
    """Run the story from start to end."""
    console.print(f"Siltstone {__version__} ({form()})")
    step(1, "A dashboard subscribes, then goes offline.")
    demo.start_broker()
    demo.subscribe()
    console.print(f"  Its session stays on the broker: {DASHBOARD_FILTER}")
    step(2, f"{DEVICES} devices publish. The broker is killed with kill -9.")
    acknowledged = demo.publish_and_kill()
    step(3, "Is every acknowledged message in the log?")
    demo.check(acknowledged)
    step(4, "The dashboard returns.")
    demo.drain()
    demo.stop_broker()
    step(5, "Spark writes the log to Delta tables, one for each kind of topic.")
    demo.story.sensor, demo.story.values = show_lake(console, demo.spark)
    step(6, "The whole story in one picture:")
    # matplotlib takes a second to load, which would delay the start of the story.
    from examples.picture import draw  # noqa: PLC0415

    draw(demo.story, picture)
    shown = picture.relative_to(ROOT) if picture.is_relative_to(ROOT) else picture
    console.print(f"  {shown}", soft_wrap=True)


def main() -> None:
    """Parse the options and run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readings", type=int, default=10_000, help="readings of each device")
    parser.add_argument("--directory", type=Path, default=ROOT / "build", help="for the picture")
    parser.add_argument("--keep", action="store_true", help="keep the data, in DIRECTORY/demo")
    options = parser.parse_args()
    if options.readings < 1000:
        parser.error("--readings must be at least 1000")
    data = options.directory.resolve() / "demo"
    rmtree(data, ignore_errors=True)
    demo = Demo(data, options.readings)
    try:
        tell(demo, data.with_suffix(".png"))
    finally:
        demo.kill_broker()
        demo.spark.close()
        if not options.keep:
            rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    main()
