"""A stock client that watches a broker: it collects messages, and publishes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

WAIT_SECONDS = 20.0


class Watcher:
    """A client of a broker that collects messages, and publishes."""

    def __init__(self, port: int, *filters: str) -> None:
        self._changed = Condition()
        self._is_ready = False
        self.messages: list[tuple[str, bytes, int, bool]] = []
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv311)
        self._client.on_message = self._on_message
        self._client.on_subscribe = self._on_subscribe
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        if filters:
            self._client.subscribe([(text, 2) for text in filters])
            with self._changed:
                assert self._changed.wait_for(lambda: self._is_ready, WAIT_SECONDS)

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        with self._changed:
            row = (message.topic, bytes(message.payload), message.qos, message.retain)
            self.messages.append(row)
            self._changed.notify_all()

    def _on_subscribe(self, *_: Any) -> None:
        with self._changed:
            self._is_ready = True
            self._changed.notify_all()

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        """Publish, and wait for the acknowledgement."""
        self._client.publish(topic, payload, qos, retain).wait_for_publish(WAIT_SECONDS)

    def wait_for(self, holds: Callable[[list[bytes]], bool]) -> list[bytes]:
        """Return the payloads when a condition on them holds."""
        with self._changed:
            self._changed.wait_for(
                lambda: holds([payload for _, payload, _, _ in self.messages]), WAIT_SECONDS
            )
            return [payload for _, payload, _, _ in self.messages]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def watching(port: int, *filters: str) -> Iterator[Watcher]:
    watcher = Watcher(port, *filters)
    try:
        yield watcher
    finally:
        watcher.close()
