"""paho-mqtt, with version 2 of its callbacks."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from queue import Queue
from threading import Condition
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from tests.support.stock_clients import (
    SESSION_SECONDS,
    WAIT_SECONDS,
    ClosedError,
    Extras,
    Login,
    Message,
    Target,
)

WINDOW = 100
PROTOCOLS = {4: paho.MQTTv311, 5: paho.MQTTv5}


def tls_context(target: Target) -> ssl.SSLContext:
    """Return the context of a client that trusts the authority of the target."""
    context = ssl.create_default_context(cafile=target.authority)
    if target.files is not None:
        context.load_cert_chain(target.files.certificate, target.files.key)
    return context


def _make(packet_type: int) -> Properties:
    made: Properties = Properties(packet_type)  # type: ignore[no-untyped-call]
    return made


def properties_of(extras: Extras, *, alias: int = 0) -> Properties:
    """Return properties of PUBLISH."""
    made = _make(PacketTypes.PUBLISH)
    values = {
        "UserProperty": list(extras.user),
        "ContentType": extras.content_type,
        "ResponseTopic": extras.response_topic,
        "CorrelationData": extras.correlation,
        "MessageExpiryInterval": extras.expiry,
        "TopicAlias": alias,
    }
    for name, value in values.items():
        if value:
            setattr(made, name, value)
    return made


def extras_of(properties: Any) -> Extras:
    """Return the MQTT 5 properties of a message."""

    def get(name: str, default: Any) -> Any:
        return getattr(properties, name, default)

    return Extras(
        user=tuple(get("UserProperty", ())),
        content_type=get("ContentType", ""),
        response_topic=get("ResponseTopic", ""),
        correlation=get("CorrelationData", b""),
        expiry=get("MessageExpiryInterval", None),
        identifiers=tuple(get("SubscriptionIdentifier", ())),
    )


def session_properties(login: Login) -> Properties:
    """Return the properties of CONNECT: the expiry of the session."""
    made = _make(PacketTypes.CONNECT)
    if not login.clean:
        made.SessionExpiryInterval = SESSION_SECONDS
    return made


def identifier_properties(identifier: int) -> Properties | None:
    """Return the properties of SUBSCRIBE."""
    if not identifier:
        return None
    made = _make(PacketTypes.SUBSCRIBE)
    made.SubscriptionIdentifier = identifier
    return made


class PahoClient:
    """A client of paho with its thread."""

    def __init__(self, target: Target, version: int) -> None:
        self._target = target
        self._version = version
        self._client: paho.Client | None = None
        self._messages: Queue[Message] = Queue()
        self._changed = Condition()
        self._answers: dict[tuple[str, int], list[int]] = {}
        self._session_present = False
        self._closed: int | None = None

    def connect(self, login: Login) -> bool:
        self.close()
        self._closed = None
        self._answers.clear()
        client = self._client = self._make(login)
        if login.username:
            client.username_pw_set(login.username, login.password)
        will = login.will
        if will is not None:
            extras = properties_of(will.extras) if self._version == 5 else None
            if extras is not None:
                extras.packetType = PacketTypes.WILLMESSAGE
            client.will_set(will.topic, will.payload, will.qos, will.retain, extras)
        where = self._target.path if self._target.kind == "unix" else "localhost"
        is_v5 = self._version == 5
        client.connect(
            where,
            self._target.port or 1883,
            clean_start=login.clean if is_v5 else paho.MQTT_CLEAN_START_FIRST_ONLY,
            properties=session_properties(login) if is_v5 else None,
        )
        client.loop_start()
        (code,) = self._answer("connect", 0)
        if code:
            raise ClosedError(code)
        return self._session_present

    def subscribe(self, text: str, qos: int = 0, *, identifier: int = 0) -> int:
        properties = identifier_properties(identifier)
        _, mid = self._paho.subscribe(text, qos, properties=properties)
        assert mid is not None
        (code,) = self._answer("subscribe", mid)
        return code

    def publish(self, message: Message) -> int:
        return self.publish_aliased(message, 0)

    def publish_aliased(self, message: Message, alias: int) -> int:
        """Publish with a topic alias; without a topic if the message has none."""
        properties = properties_of(message.extras, alias=alias) if self._version == 5 else None
        info = self._paho.publish(
            message.topic, message.payload, message.qos, message.retain, properties
        )
        (code,) = self._answer("publish", info.mid)
        return code

    def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int) -> None:
        sent = [self._paho.publish(topic, payload, qos) for payload in payloads]
        for info in sent:
            info.wait_for_publish(WAIT_SECONDS)
            assert info.is_published()

    def receive(self) -> Message:
        return self._messages.get(timeout=WAIT_SECONDS)

    def wait_until_closed(self) -> int:
        """Wait until the broker has closed the connection; return its reason."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._closed is not None, WAIT_SECONDS)
            assert self._closed is not None
            return self._closed

    def disconnect(self) -> None:
        self.close()

    def drop(self) -> None:
        connection = self._paho.socket()
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)
        self.close()

    def close(self) -> None:
        if self._client is not None:
            self._client.disconnect()
            self._client.loop_stop()
            connection = self._client.socket()
            if connection is not None:
                connection.close()
            self._client = None

    @property
    def _paho(self) -> paho.Client:
        assert self._client is not None
        return self._client

    def _make(self, login: Login) -> paho.Client:
        transports = {"ws": "websockets", "wss": "websockets", "unix": "unix"}
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            login.client_id,
            clean_session=None if self._version == 5 else login.clean,
            protocol=PROTOCOLS[self._version],
            transport=transports.get(self._target.kind, "tcp"),  # type: ignore[arg-type]
            reconnect_on_failure=False,
        )
        client.max_inflight_messages_set(WINDOW)
        if self._target.is_secure:
            client.tls_set_context(tls_context(self._target))
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        return client

    def _on_connect(
        self, client: object, data: object, flags: paho.ConnectFlags, code: ReasonCode, _: object
    ) -> None:
        self._session_present = flags.session_present
        self._tell(("connect", 0), [code.value])

    def _on_disconnect(
        self, client: object, data: object, flags: object, code: ReasonCode, _: object
    ) -> None:
        with self._changed:
            self._closed = code.value
            self._changed.notify_all()

    def _on_message(self, client: object, data: object, message: paho.MQTTMessage) -> None:
        self._messages.put(
            Message(
                topic=message.topic,
                payload=bytes(message.payload),
                qos=message.qos,
                retain=message.retain,
                extras=extras_of(message.properties),
            )
        )

    def _on_publish(
        self, client: object, data: object, mid: int, code: ReasonCode, _: object
    ) -> None:
        self._tell(("publish", mid), [code.value])

    def _on_subscribe(
        self, client: object, data: object, mid: int, codes: list[ReasonCode], _: object
    ) -> None:
        self._tell(("subscribe", mid), [code.value for code in codes])

    def _tell(self, key: tuple[str, int], codes: list[int]) -> None:
        with self._changed:
            self._answers[key] = codes
            self._changed.notify_all()

    def _answer(self, what: str, mid: int) -> list[int]:
        key = (what, mid)
        is_told: Callable[[], bool] = lambda: key in self._answers or self._closed is not None  # noqa: E731
        with self._changed:
            assert self._changed.wait_for(is_told, WAIT_SECONDS), f"no answer to {what}"
            if key not in self._answers:
                raise ClosedError(self._closed or 0)
            return self._answers.pop(key)
