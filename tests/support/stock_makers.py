"""All stock clients by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.stock_aiomqtt import AioClient
from tests.support.stock_clients import Login, StockClient, Target
from tests.support.stock_mosquitto import MosquittoClient
from tests.support.stock_mqttjs import MqttJsClient, Node
from tests.support.stock_paho import PahoClient

NAMES = ("paho", "aiomqtt", "mosquitto", "mqttjs")


def make_client(name: str, version: int, target: Target, node: Callable[[], Node]) -> StockClient:
    """Return a client of this name; only MQTT.js needs the process of node."""
    match name:
        case "paho":
            return PahoClient(target, version)
        case "aiomqtt":
            return AioClient(target, version)
        case "mosquitto":
            return MosquittoClient(target, version)
        case _:
            return MqttJsClient(node(), target, version)


def come_in(client: StockClient, login: Login, text: str) -> int:
    """Connect and subscribe; return the reason code. Mosquitto connects only then.

    Raises: ClosedError.
    """
    client.connect(login)
    return client.subscribe(text, 1)
