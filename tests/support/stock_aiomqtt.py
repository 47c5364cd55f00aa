"""aiomqtt, on its own loop in a thread."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine, Sequence
from threading import Thread
from typing import Any, TypeVar

import aiomqtt

from tests.support.stock_clients import WAIT_SECONDS, ClosedError, Login, Message, Target
from tests.support.stock_paho import (
    extras_of,
    identifier_properties,
    properties_of,
    session_properties,
    tls_context,
)

PROTOCOLS = {4: aiomqtt.ProtocolVersion.V311, 5: aiomqtt.ProtocolVersion.V5}

T = TypeVar("T")


class AioClient:
    """A client of aiomqtt. It does not return the reason code of an acknowledged publish."""

    def __init__(self, target: Target, version: int) -> None:
        self._target = target
        self._version = version
        self._client: aiomqtt.Client | None = None
        self._loop = asyncio.new_event_loop()
        # It never reads the error of a connection that it has finished with, and asyncio would
        # report it.
        self._loop.set_exception_handler(lambda loop, context: None)
        self._thread = Thread(target=self._loop.run_forever)
        self._thread.start()

    def connect(self, login: Login) -> bool:
        return self._run(self._connect(login))

    async def _connect(self, login: Login) -> bool:
        is_v5 = self._version == 5
        will = None
        if login.will is not None:
            will = aiomqtt.Will(
                login.will.topic, login.will.payload, login.will.qos, login.will.retain
            )
        client = aiomqtt.Client(
            "localhost",
            self._target.port,
            identifier=login.client_id,
            username=login.username or None,
            password=login.password or None,
            protocol=PROTOCOLS[self._version],
            clean_session=None if is_v5 else login.clean,
            clean_start=login.clean if is_v5 else 3,
            properties=session_properties(login) if is_v5 else None,
            will=will,
            timeout=WAIT_SECONDS,
            tls_context=tls_context(self._target) if self._target.is_secure else None,
        )
        try:
            await client.__aenter__()
        except aiomqtt.MqttCodeError as exc:
            code: Any = exc.rc
            raise ClosedError(getattr(code, "value", code)) from exc
        self._client = client
        # aiomqtt does not return it; the tests of other clients check it.
        return not login.clean

    def subscribe(self, text: str, qos: int = 0, *, identifier: int = 0) -> int:
        codes = self._run(
            self._aio.subscribe(text, qos, properties=identifier_properties(identifier))
        )
        (code,) = codes
        return code if isinstance(code, int) else code.value

    def publish(self, message: Message) -> int:
        self._run(
            self._aio.publish(
                message.topic,
                message.payload,
                message.qos,
                message.retain,
                properties_of(message.extras) if self._version == 5 else None,
            )
        )
        return 0

    def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int) -> None:
        async def publish() -> None:
            await asyncio.gather(*(self._aio.publish(topic, payload, qos) for payload in payloads))

        self._run(publish())

    def receive(self) -> Message:
        message = self._run(anext(self._aio.messages))
        assert isinstance(message.payload, bytes)
        return Message(
            topic=message.topic.value,
            payload=message.payload,
            qos=message.qos,
            retain=message.retain,
            extras=extras_of(message.properties),
        )

    def disconnect(self) -> None:
        self._run(self._aio.__aexit__(None, None, None))
        self._client = None

    def drop(self) -> None:
        connection = self._aio._client.socket()  # noqa: SLF001 - it always says goodbye
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)
        self._leave()

    def close(self) -> None:
        if self._client is not None:
            self._leave()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _leave(self) -> None:
        async def leave() -> None:
            try:
                await self._aio.__aexit__(None, None, None)
            except aiomqtt.MqttError:
                return

        self._run(leave())
        self._client = None

    @property
    def _aio(self) -> aiomqtt.Client:
        assert self._client is not None
        return self._client

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS)
