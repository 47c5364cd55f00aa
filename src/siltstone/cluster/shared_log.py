"""The shared log of one shard: a JetStream stream that is published to and tailed.

Only the order of the stream is relied on. A publish is sent without waiting for an answer: the
shard publishes a message again if it does not find it in its own tail. The tail is a consumer. It
is replaced by a new one, from the next sequence on, whenever a sequence is missing or the server is
silent.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from siltstone.errors import SiltstoneError
from siltstone.logs import log
from siltstone.store.shard.replicated.log import ReplicatedLog
from siltstone.store.writer.replication.codec import encode
from siltstone.store.writer.replication.follower import LogBounds
from siltstone.store.writer.replication.health import BoundsWatch
from siltstone.store.writer.replication.messages import Genesis, LogIdentity

_LOG: Final = logging.getLogger("siltstone.cluster")
STREAM_BYTES: Final = 4 * 1024 * 1024 * 1024
_API_SECONDS: Final = 2.0
_OPEN_SECONDS: Final = 15.0
_IDLE_SECONDS: Final = 0.5
# The server sends a heartbeat every idle period. After a silence of this length, create the
# consumer again.
_SILENT_SECONDS: Final = 2.0
# The rest of the log is for terms, drops and settings.
_ROWS_FULL: Final = 0.75
_LOOK_SECONDS: Final = 5.0
_BEHIND_SECONDS: Final = 1.0
_SECOND_NS: Final = 1_000_000_000
_NO_STREAM: Final = 10059


class ApiError(SiltstoneError):
    """JetStream refused a request."""

    def __init__(self, subject: str, code: int, text: str) -> None:
        super().__init__(f"JetStream refused {subject}: {text} ({code})")
        self.code = code


class NatsConnection:
    """The connection to NATS. There is another one after the server of this site was started again
    at another port.
    """

    def __init__(self) -> None:
        self.client = Client()


async def ask(client: Client, subject: str, request: dict[str, Any] | None = None) -> Any:
    """Send a request to JetStream; return the answer. Raises: ApiError, NatsError."""
    data = b"" if request is None else json.dumps(request).encode()
    asked = client.request(f"$JS.API.{subject}", data, timeout=_API_SECONDS)
    # A request on a connection that is being replaced may never end.
    answer = await asyncio.wait_for(asked, 2 * _API_SECONDS)
    values = json.loads(answer.data)
    if "error" in values:
        error = values["error"]
        raise ApiError(subject, error.get("err_code", 0), error.get("description", ""))
    return values


@dataclass(frozen=True, slots=True)
class StreamName:
    """The names of the stream of one shard."""

    stream: str

    @property
    def subject(self) -> str:
        """The subject of its messages."""
        return f"silt.log.{self.stream}"

    @classmethod
    def of(cls, identity: LogIdentity) -> StreamName:
        """Return the names for a shard."""
        return cls(f"silt_{identity.database.hex()}_{identity.shard}_e{identity.epoch}")


async def found_stream(
    client: Client, identity: LogIdentity, nonce: bytes, *, replicas: int, title: str
) -> None:
    """Create the stream of a shard, and publish its GENESIS until it is there.

    All sites may do it at the same time: equal streams are one, and a second GENESIS is ignored.
    """
    name = StreamName.of(identity)
    config = {
        "name": name.stream,
        "description": title,
        "subjects": [name.subject],
        "retention": "limits",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_msg_size": -1,
        "max_age": 0,
        "max_bytes": STREAM_BYTES,
        "discard": "new",
        "storage": "file",
        "num_replicas": replicas,
        "duplicate_window": 100_000_000,
        "deny_delete": True,
        "allow_direct": False,
        "metadata": {"nonce": nonce.hex()},
    }
    await ask(client, f"STREAM.CREATE.{name.stream}", config)
    await _publish_genesis(client, identity, nonce)


async def _publish_genesis(client: Client, identity: LogIdentity, nonce: bytes) -> None:
    subject = StreamName.of(identity).subject
    answer = await client.request(subject, encode(Genesis(identity, nonce)), timeout=5.0)
    if "error" in (values := json.loads(answer.data)):
        error = values["error"]
        raise ApiError(subject, error.get("err_code", 0), error.get("description", ""))


async def trim_genesis(client: Client, identity: LogIdentity, nonce: bytes) -> None:
    """Remove the first message of a stream that has nothing but GENESIS, so that a site without a
    mark copies from another one. A second GENESIS stays, which all sites ignore.
    """
    await _publish_genesis(client, identity, nonce)
    await ask(client, f"STREAM.PURGE.{StreamName.of(identity).stream}", {"seq": 2})


async def remove_stream(client: Client, identity: LogIdentity) -> None:
    """Remove the stream of a shard whose database was dropped, if it is still there.

    Raises: ApiError, NatsError.
    """
    try:
        await ask(client, f"STREAM.DELETE.{StreamName.of(identity).stream}")
    except ApiError as exc:
        if exc.code != _NO_STREAM:
            raise


def stream_of(identity: LogIdentity) -> str:
    """Return the name of the stream of a shard."""
    return StreamName.of(identity).stream


class LogTail:
    """Reads the stream of one shard for its log, and publishes to it. On the loop of the site."""

    def __init__(self, connection: NatsConnection, shard: ReplicatedLog, nonce: bytes) -> None:
        self.shard = shard
        self._connection = connection
        self._nonce = nonce
        self.name = StreamName.of(shard.identity)
        self._next = shard.view.progress.sequence + 1
        # The last sequence that the shard was given; it may not have taken it yet.
        self._read = shard.view.progress.sequence
        self._subscription: Subscription | None = None
        self._consumer = ""
        self._heard_at = 0.0
        self._again = asyncio.Event()
        self._bounds = BoundsWatch()
        self.first = 1
        self.last = 0
        # The size of the log, as a part of its maximum size.
        self.full = 0.0
        # The size of a message, on average.
        self.message_bytes = 0
        # While it is set, messages wait: the shard is about to be replaced by a copy.
        self.is_paused = False
        # The number of times in a row that the next message was missing.
        self.gaps = 0

    @property
    def _client(self) -> Client:
        return self._connection.client

    async def run(self) -> None:
        """Tail until the task is cancelled."""
        try:
            while self.shard.reads:
                try:
                    await self.look()
                    if self.first > self._next:
                        # The shard is copied from another site, and then has another tail.
                        await asyncio.sleep(_BEHIND_SECONDS)
                        continue
                    await asyncio.wait_for(self._open(), _OPEN_SECONDS)
                    await self._watch()
                except (TimeoutError, NatsError, ApiError, OSError) as exc:
                    log(
                        _LOG,
                        logging.DEBUG,
                        "log_unreachable",
                        stream=self.name.stream,
                        error=str(exc) or type(exc).__name__,
                    )
                    await asyncio.sleep(_IDLE_SECONDS)
        finally:
            await self._drop()

    def read_from(self, sequence: int) -> None:
        """Read again from a sequence on."""
        self._next = sequence
        self._again.set()

    async def publish(self, data: bytes) -> None:
        """Send a message. It may be lost."""
        with suppress(NatsError, OSError):
            await self._client.publish(self.name.subject, data)

    async def look(self) -> None:
        """Compare the bounds of the stream with what was read. Raises: ApiError, NatsError."""
        read_before = self._read
        info = await ask(self._client, f"STREAM.INFO.{self.name.stream}")
        state, config = info["state"], info["config"]
        nonce = bytes.fromhex(config.get("metadata", {}).get("nonce", ""))
        self.first, self.last = state["first_seq"], state["last_seq"]
        self.message_bytes = state["bytes"] // max(1, state["messages"])
        limit = config.get("max_bytes", 0)
        self.full = state["bytes"] / limit if limit > 0 else 0.0
        self.shard.limit_rows(is_full=self.full >= _ROWS_FULL)
        now_us = int(asyncio.get_running_loop().time() * 1e6)
        last = self._bounds.last(self.last, read_before=read_before, read=self._read, now_us=now_us)
        if nonce != self._nonce:
            self.shard.found(LogBounds(first=self.first, last=self.last, nonce=nonce))
        elif last is not None:
            self.shard.found(LogBounds(first=self.first, last=last, nonce=nonce))

    async def trim(self, below: int) -> None:
        """Remove the messages before a sequence. Raises: ApiError, NatsError."""
        await ask(self._client, f"STREAM.PURGE.{self.name.stream}", {"seq": below})

    async def _open(self) -> None:
        await self._drop()
        self._again.clear()
        inbox = self._client.new_inbox()
        self._subscription = await self._client.subscribe(
            inbox, cb=self._take, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        self._heard_at = asyncio.get_running_loop().time()
        answer = await ask(
            self._client,
            f"CONSUMER.CREATE.{self.name.stream}",
            {
                "stream_name": self.name.stream,
                "config": {
                    "deliver_subject": inbox,
                    "deliver_policy": "by_start_sequence",
                    "opt_start_seq": self._next,
                    "ack_policy": "none",
                    "replay_policy": "instant",
                    "max_deliver": 1,
                    "flow_control": True,
                    "idle_heartbeat": int(_IDLE_SECONDS * _SECOND_NS),
                    "inactive_threshold": 10 * _SECOND_NS,
                    "mem_storage": True,
                    "num_replicas": 1,
                },
            },
        )
        self._consumer = answer["name"]

    async def _drop(self) -> None:
        subscription, self._subscription = self._subscription, None
        consumer, self._consumer = self._consumer, ""
        if subscription is not None:
            with suppress(NatsError, OSError, asyncio.TimeoutError):
                await asyncio.wait_for(subscription.unsubscribe(), _API_SECONDS)
        if consumer and self._client.is_connected:
            with suppress(NatsError, ApiError, OSError, asyncio.TimeoutError):
                await ask(self._client, f"CONSUMER.DELETE.{self.name.stream}.{consumer}")

    async def _watch(self) -> None:
        """Wait until the consumer must be replaced."""
        loop = asyncio.get_running_loop()
        looked_at = loop.time()
        while not self._again.is_set():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._again.wait(), _IDLE_SECONDS)
            now = loop.time()
            if now - self._heard_at > _SILENT_SECONDS:
                return
            if now - looked_at > _LOOK_SECONDS:
                looked_at = now
                await self.look()

    async def _take(self, message: Msg) -> None:
        """Take a message of the consumer, or its heartbeat."""
        self._heard_at = asyncio.get_running_loop().time()
        headers = message.headers or {}
        if headers.get("Status"):
            await self._take_status(message, headers)
            return
        parts = (message.reply or "").split(".")
        # The reply subject has the sequence; with a domain it has two more parts before it.
        sequence = int(parts[5 if len(parts) == 9 else 7]) if parts[:2] == ["$JS", "ACK"] else 0
        if sequence < self._next:
            return
        if sequence > self._next:
            # Something was lost on the way, or the stream has a hole.
            if not self._again.is_set():
                self._again.set()
                self.gaps += 1
            return
        self.gaps = 0
        while self.shard.is_full or self.is_paused:
            await asyncio.sleep(0.01)
            self._heard_at = asyncio.get_running_loop().time()
        self._next = sequence + 1
        self._read = max(self._read, sequence)
        self.last = max(self.last, sequence)
        self.shard.deliver(sequence, message.data)

    async def _take_status(self, message: Msg, headers: dict[str, str]) -> None:
        reply = message.reply or headers.get("Nats-Consumer-Stalled", "")
        if reply:
            await self._client.publish(reply, b"")
        last = headers.get("Nats-Last-Stream", "")
        if last.isdigit() and int(last) >= self._next:
            # The consumer has sent a message that did not arrive.
            self._again.set()
        if headers.get("Status") != "100":
            self._again.set()
