"""MQTT.js in a process of node, which receives commands as lines of JSON."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from queue import Queue
from threading import Condition, Thread
from typing import Any

from tests.support.peers import need_peer
from tests.support.stock_clients import (
    SESSION_SECONDS,
    WAIT_SECONDS,
    ClosedError,
    Extras,
    Login,
    Message,
    Target,
)

SCRIPT = Path(__file__).with_name("mqttjs_client.js")


class Node:
    """The process, shared by all clients of a test run."""

    def __init__(self) -> None:
        command = [need_peer("node"), str(SCRIPT), need_peer("mqtt.js")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._numbers = count()
        self._changed = Condition()
        self._answers: dict[int, Any] = {}
        self._messages: dict[str, Queue[Message]] = {}
        self._reader = Thread(target=self._read)
        self._reader.start()

    def call(self, **command: Any) -> Any:
        """Run one command; return its answer. Raises: ClosedError."""
        number = next(self._numbers)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command | {"number": number}).encode() + b"\n")
        self._process.stdin.flush()
        with self._changed:
            is_told = self._changed.wait_for(lambda: number in self._answers, WAIT_SECONDS)
            assert is_told, f"no answer to {command['do']}"
            answer = self._answers.pop(number)
        if "closed" in answer:
            raise ClosedError(answer["closed"])
        return answer

    def messages(self, client: str) -> Queue[Message]:
        """Return the queue of messages of a client."""
        with self._changed:
            return self._messages.setdefault(client, Queue())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(WAIT_SECONDS)
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                told = json.loads(line)
                if "message" in told:
                    self.messages(told["client"]).put(_message(told["message"]))
                    continue
                with self._changed:
                    self._answers[told["number"]] = told
                    self._changed.notify_all()


class MqttJsClient:
    """One client in the process of node; `options` are those of `mqtt.connect`."""

    _names = count()

    def __init__(self, node: Node, target: Target, version: int, **options: Any) -> None:
        self._node = node
        self._target = target
        self._version = version
        self._options = options
        self._name = ""

    def connect(self, login: Login) -> bool:
        self._name = str(next(self._names))
        options: dict[str, Any] = {
            "protocolVersion": self._version,
            "clientId": login.client_id,
            "clean": login.clean,
        }
        if self._version == 5 and not login.clean:
            options["properties"] = {"sessionExpiryInterval": SESSION_SECONDS}
        if login.username:
            options |= {"username": login.username, "password": login.password}
        if will := login.will:
            options["will"] = {
                "topic": will.topic,
                "payload": b64encode(will.payload).decode(),
                "qos": will.qos,
                "retain": will.retain,
            }
        if self._target.is_secure:
            options["ca"] = Path(self._target.authority).read_text("ascii")
        if files := self._target.files:
            options["cert"] = Path(files.certificate).read_text("ascii")
            options["key"] = Path(files.key).read_text("ascii")
        kinds = {"tcp": "mqtt", "tls": "mqtts"}
        kind = kinds.get(self._target.kind, self._target.kind)
        url = f"{kind}://localhost:{self._target.port}{self._target.path}"
        answer = self._call("connect", url=url, options=options | self._options)
        return bool(answer["present"])

    def subscribe(self, text: str, qos: int = 0, *, identifier: int = 0) -> int:
        answer = self._call("subscribe", filter=text, qos=qos, identifier=identifier)
        return int(answer["code"])

    def publish(self, message: Message) -> int:
        properties = _properties(message.extras)
        options: dict[str, Any] = {"qos": message.qos, "retain": message.retain}
        if self._version == 5 and properties:
            options["properties"] = properties
        return self._publish(message.topic, [message.payload], options)

    def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int) -> None:
        assert self._publish(topic, payloads, {"qos": qos}) == 0

    def receive(self) -> Message:
        return self._node.messages(self._name).get(timeout=WAIT_SECONDS)

    def topics_on_the_wire(self) -> list[str]:
        """Return the topics in the received PUBLISH packets; with an alias they are empty."""
        return list(self._call("topics")["topics"])

    def disconnect(self) -> None:
        self._call("disconnect")
        self._name = ""

    def drop(self) -> None:
        self._call("drop")
        self._name = ""

    def close(self) -> None:
        if self._name:
            self.drop()

    def _publish(self, topic: str, payloads: Sequence[bytes], options: dict[str, Any]) -> int:
        encoded = [b64encode(payload).decode() for payload in payloads]
        answer = self._call("publish", topic=topic, payloads=encoded, options=options)
        return int(answer["code"])

    def _call(self, do: str, **arguments: Any) -> Any:
        return self._node.call(do=do, client=self._name, **arguments)


def _properties(extras: Extras) -> dict[str, Any]:
    values = {
        "userProperties": dict(extras.user),
        "contentType": extras.content_type,
        "responseTopic": extras.response_topic,
        "correlationData": b64encode(extras.correlation).decode(),
        "messageExpiryInterval": extras.expiry,
    }
    return {name: value for name, value in values.items() if value}


def _message(told: Any) -> Message:
    return Message(
        topic=told["topic"],
        payload=b64decode(told["payload"]),
        qos=told["qos"],
        retain=told["retain"],
        extras=Extras(
            user=tuple((key, value) for key, value in told["user"]),
            content_type=told["contentType"],
            response_topic=told["responseTopic"],
            correlation=b64decode(told["correlation"]),
            expiry=told["expiry"],
            identifiers=tuple(told["identifiers"]),
        ),
    )
