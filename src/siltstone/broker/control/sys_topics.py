"""The state of the broker, published under the $SYS topics that Mosquitto uses.

Values are retained in RAM only, and are sent to subscribers at the interval of the settings. A
value that has not changed is not sent again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from siltstone.broker.broker import Broker
from siltstone.broker.control.alarms import ALARMS
from siltstone.guard import contain_with
from siltstone.mqtt.publish import PublishBatch
from siltstone.version import __version__

_PREFIX: Final = b"$SYS/broker/"
_MINUTES: Final = ((1, b"1min"), (5, b"5min"), (15, b"15min"))


class Load:
    """A moving average, per minute, over one, five and fifteen minutes."""

    __slots__ = ("_before", "averages")

    def __init__(self) -> None:
        self._before = 0
        self.averages = [0.0, 0.0, 0.0]

    def update(self, total: int, seconds: float) -> None:
        """Update the averages with the current total, `seconds` after the previous one."""
        rate = (total - self._before) * 60.0 / seconds
        self._before = total
        for index, (minutes, _) in enumerate(_MINUTES):
            weight = min(1.0, seconds / (minutes * 60.0))
            self.averages[index] += (rate - self.averages[index]) * weight


class SysTopics:
    """Publishes the state of a broker below $SYS."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sent: dict[bytes, bytes] = {}
        self._loads = {
            name: Load()
            for name in (
                b"bytes/received",
                b"bytes/sent",
                b"connections",
                b"messages/received",
                b"messages/sent",
                b"publish/dropped",
                b"publish/received",
                b"publish/sent",
            )
        }

    async def run(self) -> None:
        """Publish at intervals until cancelled; return at once if `sys_interval` is 0."""
        interval = self._broker.settings.sys_interval
        if interval == 0:
            return
        while True:
            # After an error, the values are published the next time, and the broker continues.
            contain_with(self.publish, interval)
            await asyncio.sleep(interval)

    def publish(self, seconds: float) -> None:
        """Publish the values that have changed since the last call, `seconds` ago."""
        batch = PublishBatch()
        for name, value in self.values(seconds).items():
            topic = _PREFIX + name
            payload = value.encode()
            if self._sent.get(topic) == payload:
                continue
            self._sent[topic] = payload
            self._broker.retained.put_volatile(topic, payload)
            batch.topics.append(topic)
            batch.values.append(payload)
            batch.flags.append(0)
            batch.packet_ids.append(0)
        self._broker.dispatch_unstored(batch)

    def values(self, seconds: float) -> dict[bytes, str]:
        """Return every value by the name of its topic."""
        broker = self._broker
        counts = broker.statistics
        sent, dropped, sent_bytes = broker.sent_totals()
        connected = len(broker.clients)
        total = len(broker.registry)
        values = {
            b"version": f"siltstone {__version__}",
            b"uptime": f"{int(broker.shell.now() - counts.started_at)} seconds",
            b"clients/connected": f"{connected}",
            b"clients/disconnected": f"{total - connected}",
            b"clients/total": f"{total}",
            b"clients/maximum": f"{counts.clients_maximum}",
            b"subscriptions/count": f"{broker.registry.subscription_count}",
            b"retained messages/count": f"{len(broker.retained)}",
            b"store/messages/count": f"{broker.bridge.rows}",
            b"store/messages/pending_bytes": f"{broker.bridge.pending_bytes}",
            b"messages/stored": f"{broker.bridge.rows}",
            b"messages/received": f"{counts.publishes_received}",
            b"messages/sent": f"{sent}",
            b"messages/inflight_and_queued_bytes": f"{broker.registry.budget.used}",
            b"publish/messages/received": f"{counts.publishes_received}",
            b"publish/messages/sent": f"{sent}",
            b"publish/messages/dropped": f"{dropped}",
            b"publish/messages/refused": f"{counts.publishes_refused}",
            b"bytes/received": f"{counts.bytes_received}",
            b"bytes/sent": f"{sent_bytes}",
        }
        if broker.reclaimer is not None:
            values |= broker.reclaimer.values()
        if broker.compactor is not None:
            values[b"store/compacted/messages"] = f"{broker.compactor.rows}"
            values[b"store/compacted/segments"] = f"{broker.compactor.segments}"
            values[b"store/compacted/saved bytes"] = f"{broker.compactor.saved_bytes}"
        for alarm in ALARMS:
            values[b"alarm/" + alarm.encode()] = broker.alarms.text(alarm)
        for name, now in (
            (b"bytes/received", counts.bytes_received),
            (b"bytes/sent", sent_bytes),
            (b"connections", counts.connections),
            (b"messages/received", counts.publishes_received),
            (b"messages/sent", sent),
            (b"publish/dropped", dropped),
            (b"publish/received", counts.publishes_received),
            (b"publish/sent", sent),
        ):
            load = self._loads[name]
            load.update(now, seconds)
            for (_, label), average in zip(_MINUTES, load.averages, strict=True):
                values[b"load/" + name + b"/" + label] = f"{average:.2f}"
        return values
