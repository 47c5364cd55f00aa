"""Clients that do not publish: one with many subscriptions, and many idle ones."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import Connect, Subscribe, Subscription
from siltstone.mqtt.wire import Version, encode_variable
from siltstone.topic.grammar import TopicFilter

_LOOPBACK: Final = "127.0.0.1"
_ACCEPTED: Final = b"\x20\x02\x00\x00"
_FILTERS_A_PACKET: Final = 1000
_TIMEOUT_SECONDS: Final = 60.0
_PENDING: Final = (0, errno.EINPROGRESS)


class RefusedError(Exception):
    """The broker refused a request of a client."""


def other_filters(count: int) -> list[str]:
    """Return filters that match no topic of the generator, but share some levels with it.

    Half of them are topics, half have wildcards; the generator's go up to device/999.
    """
    return [
        f"bench/{number % 4}/device/{number + 1000}/telemetry"
        if number % 2
        else f"bench/+/device/{number + 1000}/#"
        for number in range(count)
    ]


@contextmanager
def subscribed(port: int, filters: list[str]) -> Iterator[None]:
    """Hold one client with these subscriptions. Raises: RefusedError."""
    with socket.create_connection((_LOOPBACK, port), _TIMEOUT_SECONDS) as client:
        client.sendall(_connect("many-subscriptions"))
        if _receive(client, len(_ACCEPTED)) != _ACCEPTED:
            raise RefusedError("no connection for the subscriptions")
        for start in range(0, len(filters), _FILTERS_A_PACKET):
            some = filters[start : start + _FILTERS_A_PACKET]
            packet = Subscribe(
                packet_id=1,
                subscriptions=tuple(Subscription(filter=TopicFilter.parse(f)) for f in some),
            )
            client.sendall(encode(Version.V3_1_1, packet))
            head = b"\x90" + encode_variable(2 + len(some)) + b"\x00\x01"
            if _receive(client, len(head) + len(some)) != head + bytes(len(some)):
                raise RefusedError(f"subscriptions from {start} on were refused")
        yield


@contextmanager
def crowd(port: int, count: int) -> Iterator[float]:
    """Hold this number of idle clients, which connect at once; yield the seconds until all were.

    Raises: RefusedError.
    """
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        begin = time.monotonic()
        for number in range(count):
            client = stack.enter_context(socket.socket())
            client.settimeout(0.0)
            if (code := client.connect_ex((_LOOPBACK, port))) not in _PENDING:
                raise RefusedError(f"client {number}: {errno.errorcode[code]}")
            selector.register(client, selectors.EVENT_WRITE, _connect(f"idle-{number}"))
        _greet(selector, count, begin + _TIMEOUT_SECONDS)
        yield time.monotonic() - begin


def _greet(selector: selectors.BaseSelector, count: int, deadline: float) -> None:
    """Send CONNECT for each client when its connection is open, and wait for all answers."""
    waiting = count
    while waiting:
        if time.monotonic() > deadline:
            raise RefusedError(f"{waiting} of {count} clients got no answer in time")
        for key, events in selector.select(1.0):
            client = key.fileobj
            assert isinstance(client, socket.socket)
            if events & selectors.EVENT_WRITE:
                if code := client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise RefusedError(f"a client was turned away: {errno.errorcode[code]}")
                client.send(key.data)
                selector.modify(client, selectors.EVENT_READ)
            elif client.recv(len(_ACCEPTED)) == _ACCEPTED:
                selector.unregister(client)
                waiting -= 1
            else:
                raise RefusedError("a client got no CONNACK")


def _connect(client_id: str) -> bytes:
    return encode(Version.V3_1_1, Connect(version=Version.V3_1_1, client_id=client_id))


def _receive(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = client.recv(count - len(data))
        if not more:
            break
        data += more
    return data
