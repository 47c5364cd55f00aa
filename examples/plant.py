"""The clients of the demonstration. Each command runs in a process of its own.

    python -m examples.plant devices PORT READINGS   60 devices publish with QoS 1, when told to
    python -m examples.plant probe PORT              one publisher measures PUBACK latency
    python -m examples.plant subscribe PORT          the dashboard subscribes and disconnects
    python -m examples.plant drain PORT COUNT        the dashboard returns, receives COUNT messages

`devices` prepares its readings, then waits for a line of input. `devices` and `drain` print a line
for each change: the time, then counts. `probe` prints the time and the latency in milliseconds of
each acknowledgement. Times are those of `time.time()`.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable, Coroutine, Sequence

from siltstone.cli.mqtt.running import run_until_signal
from siltstone.client.client import Client
from siltstone.client.outgoing import Publication
from siltstone.client.session import NO_SUBSCRIPTIONS, ClientSession, WantedSubscriptions
from siltstone.client.settings import ClientSettings
from siltstone.client.target import TcpTarget
from siltstone.clock import SystemClock
from siltstone.mqtt.packets import Subscription
from siltstone.mqtt.publish import PublishBatch
from siltstone.topic.grammar import TopicFilter

DATABASE = "messages"
DEVICES = 60
# The measurements of each device, in turn: five topics for each device.
KINDS = ("temperature", "humidity", "pressure", "vibration", "power")
SITES = ("east", "north", "west")
LINES = 4
# The sensor whose values are read from Delta.
SENSOR_DEVICE = 17
SENSOR_KIND = "temperature"
# The number of readings that a device sends ahead of their acknowledgements.
WINDOW = 200
# The subscription of the dashboard.
DASHBOARD_FILTER = "plant/+/line/+/device/+/temperature"
PROBE_TOPIC = b"probe/latency"
PROBE_PAUSE_SECONDS = 0.01
TELL_SECONDS = 0.02


def topic_of(device: int, kind: str) -> str:
    """Return the topic of one kind of reading of a device."""
    return f"plant/{SITES[device % len(SITES)]}/line/{device % LINES}/device/{device}/{kind}"


def reading(device: int, number: int) -> bytes:
    """Return a reading as JSON; both numbers are at fixed places of the text."""
    site = device % len(SITES)
    value = 15 + 3 * site + 4 * math.sin(number / 300 + site) + number * 7 % 10 / 10
    return b'{"sensor": %3d, "number": %7d, "value": %.2f}' % (device, number, value)


class PlantClient:
    """One connection to the broker. It reconnects by itself."""

    def __init__(
        self,
        port: int,
        name: str,
        *,
        window: int = WINDOW,
        keep_session: bool = False,
        subscriptions: WantedSubscriptions = NO_SUBSCRIPTIONS,
        deliver: Callable[[PublishBatch], int] | None = None,
        wanted: Callable[[], None] | None = None,
    ) -> None:
        settings = ClientSettings(
            client_id=name,
            reconnect=True,
            window=window,
            keep_alive_seconds=30,
            keep_session=keep_session,
        )
        self.session = ClientSession(settings, subscriptions)
        self.client = Client(
            settings,
            self.session,
            TcpTarget("127.0.0.1", port),
            clock=SystemClock(),
            deliver=deliver or (lambda batch: len(batch.topics)),
            wanted=wanted or (lambda: None),
            note=lambda _: None,
        )


async def tell_changes(counts: Callable[[], Sequence[int]]) -> None:
    """Print the time and the counts whenever they have changed."""
    told: Sequence[int] = ()
    while True:
        now = counts()
        if now != told:
            told = now
            print(f"{time.time():.3f}", *now, flush=True)
        await asyncio.sleep(TELL_SECONDS)


async def run_devices(port: int, readings: int) -> None:
    """Publish the readings of all devices; print the number of acknowledged ones of each device."""
    devices = [PlantClient(port, f"device-{number}") for number in range(DEVICES)]
    for number, device in enumerate(devices):
        for place, kind in enumerate(KINDS):
            publication = Publication(topic=topic_of(number, kind).encode(), qos=1)
            share = range(readings * place // len(KINDS), readings * (place + 1) // len(KINDS))
            device.session.outgoing.add(publication, [reading(number, n) for n in share])
        device.session.finish()
    sys.stdin.readline()

    def counts() -> list[int]:
        return [device.session.outgoing.completed for device in devices]

    telling = asyncio.create_task(tell_changes(counts))
    await asyncio.gather(*(device.client.run() for device in devices))
    telling.cancel()
    print(f"{time.time():.3f}", *counts(), flush=True)


async def run_probe(port: int) -> None:
    """Publish one message after the other; print the time that each waited for its PUBACK."""
    loop = asyncio.get_running_loop()
    publication = Publication(topic=PROBE_TOPIC, qos=1)
    sent = [0, 0.0]

    def send() -> None:
        sent[0] += 1
        sent[1] = time.time()
        probe.session.outgoing.add(publication, [b"%d" % sent[0]])
        probe.client.pump()

    def wanted() -> None:
        if sent[1] and probe.session.outgoing.completed == sent[0]:
            now = time.time()
            print(f"{now:.3f} {(now - sent[1]) * 1000:.3f}", flush=True)
            sent[1] = 0.0
            loop.call_later(PROBE_PAUSE_SECONDS, send)

    probe = PlantClient(port, "probe", window=1, wanted=wanted)
    loop.call_soon(send)
    await probe.client.run()


def dashboard_subscription() -> WantedSubscriptions:
    """Return the subscription of the dashboard."""
    wanted = Subscription(filter=TopicFilter.parse(DASHBOARD_FILTER), qos=1)
    return WantedSubscriptions(subscriptions=(wanted,))


async def subscribe(port: int) -> None:
    """Create the dashboard's session with its subscription, and disconnect."""
    dashboard = PlantClient(
        port, "dashboard", keep_session=True, subscriptions=dashboard_subscription()
    )
    dashboard.session.finish()
    await dashboard.client.run()


async def drain(port: int, count: int) -> None:
    """Return to the dashboard's session; print the number of received messages, up to `count`."""
    received = [0]

    def deliver(batch: PublishBatch) -> int:
        received[0] += len(batch.topics)
        if received[0] >= count:
            dashboard.session.leave()
        return len(batch.topics)

    dashboard = PlantClient(port, "dashboard", keep_session=True, deliver=deliver)
    telling = asyncio.create_task(tell_changes(lambda: tuple(received)))
    await dashboard.client.run()
    telling.cancel()
    print(f"{time.time():.3f}", *received, flush=True)


def chosen(arguments: Sequence[str]) -> Coroutine[None, None, None]:
    """Return the coroutine that the command line names."""
    match arguments:
        case ["devices", port, readings]:
            return run_devices(int(port), int(readings))
        case ["probe", port]:
            return run_probe(int(port))
        case ["subscribe", port]:
            return subscribe(int(port))
        case ["drain", port, count]:
            return drain(int(port), int(count))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    sys.exit(run_until_signal(chosen(sys.argv[1:])))
