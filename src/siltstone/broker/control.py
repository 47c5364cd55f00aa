"""What a broker does for people who run it: over a socket in its data directory, for its own user.

A request is a line of JSON, `{"do": name, …}`; the answer is one too, `{"ok": …}` or `{"error":
text}`. The socket can be used by whoever may write the directory, and nobody else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Any, Final, TypeVar

from siltstone.broker.broker import Broker
from siltstone.broker.durables import Durables
from siltstone.broker.groups import Groups
from siltstone.errors import NotFoundError, RetryError, SiltstoneError, UsageError
from siltstone.feed.reading import StoreSource
from siltstone.fs.posix import PosixFileSystem
from siltstone.logs import log
from siltstone.mqtt.reason import Reason
from siltstone.session.archive_keys import group_parts
from siltstone.session.moving import Place, find_place, move_group, move_session
from siltstone.session.owned_group import OwnedGroup
from siltstone.session.owned_session import OwnedSession

CONTROL: Final = "control.sock"
_MODE: Final = 0o600
_LINE_MAX: Final = 1 << 20
_SAVE_SECONDS: Final = 30.0
_LOG: Final = logging.getLogger("siltstone.control")

Answer = Awaitable[object]
T = TypeVar("T")


class Control:
    """Carries requests out, on the loop."""

    def __init__(
        self, broker: Broker, durables: Durables, groups: Groups, source: StoreSource
    ) -> None:
        self._broker = broker
        self._durables = durables
        self._groups = groups
        self._source = source
        self._deeds: Mapping[str, Callable[[Mapping[str, Any]], Answer]] = {
            "kick": self._kick,
            "drop": self._drop,
            "move": self._move,
            "move-group": self._move_group,
            "drop-group": self._drop_group,
        }

    async def answer(self, line: bytes) -> bytes:
        """Carry a request out; return the answer."""
        try:
            request = json.loads(line)
            deed = self._deeds.get(str(request.get("do"))) if isinstance(request, dict) else None
            if deed is None:
                raise UsageError("this broker does not know the request")
            result: dict[str, object] = {"ok": await deed(request)}
        except KeyError as exc:
            result = {"error": f"the request lacks {exc}"}
        except (SiltstoneError, ValueError) as exc:
            result = {"error": str(exc)}
        return json.dumps(result).encode() + b"\n"

    async def _kick(self, request: Mapping[str, Any]) -> bool:
        """End the connection of a client; tell whether there was one."""
        return self._end(str(request["client_id"]))

    def _end(self, client_id: str) -> bool:
        client = self._broker.clients.get(client_id)
        if client is not None:
            client.end(Reason.ADMINISTRATIVE_ACTION)
        return client is not None

    async def _drop(self, request: Mapping[str, Any]) -> bool:
        """End a session for good; tell whether there was one."""
        client_id = str(request["client_id"])
        is_connected = self._end(client_id)
        owned = await self._take(client_id)
        if owned is None:
            return is_connected
        loop = asyncio.get_running_loop()
        if owned.state.will is not None:
            # [MQTT-3.1.3-9]: with its session ends the delay of its will.
            told: asyncio.Future[None] = loop.create_future()
            self._broker.publish_saved_will(
                client_id, owned.state.will, None, lambda _: told.set_result(None)
            )
            await told
        done = loop.create_future()
        self._broker.subscriptions.forget(client_id)
        self._durables.drop_away(owned, lambda: done.set_result(None))
        await done
        self._durables.turns.end(client_id)
        return True

    async def _move(self, request: Mapping[str, Any]) -> bool:
        """Move a session in time; its client, if it is connected, must connect again."""
        client_id = str(request["client_id"])
        place = _place_of(request)
        self._end(client_id)
        owned = await self._take(client_id)
        if owned is None:
            raise NotFoundError(f"there is no durable session of {client_id!r}")
        try:
            position = await self._in_thread(lambda: find_place(self._source, place))
            move_session(owned, position)
            await self._in_thread(owned.save)
        finally:
            self._durables.turns.end(client_id)
        return True

    async def _move_group(self, request: Mapping[str, Any]) -> bool:
        """Move a share group in time; its members go on from there."""
        text = str(request["group"])
        name, topic_filter = group_parts(text)
        place = _place_of(request)
        position = await self._in_thread(lambda: find_place(self._source, place))
        await self._turn(text)
        try:
            saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._groups.move(text, dict(position), lambda: saved.set_result(None)):
                await asyncio.wait([saved], timeout=_SAVE_SECONDS)
                if not saved.done():
                    raise RetryError(f"the group could not be saved: group={text!r}")
                return True
            owned = await self._take_group(name, topic_filter)
            if owned is None:
                raise NotFoundError(f"there is no share group {text!r}")
            move_group(owned, position)
            await self._in_thread(owned.save)
        finally:
            self._durables.turns.end(text)
        return True

    async def _drop_group(self, request: Mapping[str, Any]) -> bool:
        """End a share group that has no members; tell whether there was one."""
        text = str(request["group"])
        name, topic_filter = group_parts(text)
        await self._turn(text)
        try:
            if text in self._groups.groups:
                raise UsageError(f"the group has members: group={text!r}")
            owned = await self._take_group(name, topic_filter)
            if owned is not None:
                await self._in_thread(owned.drop)
        finally:
            self._durables.turns.end(text)
        return owned is not None

    async def _take(self, client_id: str) -> OwnedSession | None:
        """Take a session that is away when it is its turn; the turn goes on where there is one."""
        await self._turn(client_id)
        future: asyncio.Future[OwnedSession | SiltstoneError | None]
        future = asyncio.get_running_loop().create_future()
        self._durables.find(client_id, future.set_result)
        found = await future
        if found is None or isinstance(found, SiltstoneError):
            self._durables.turns.end(client_id)
            if found is not None:
                raise found
            return None
        return found

    async def _take_group(self, name: str, topic_filter: str) -> OwnedGroup | None:
        """Take a group that has no members; it is its turn."""
        archive = self._durables.archive
        return await self._in_thread(lambda: archive.take_group(name, topic_filter))

    async def _turn(self, name: str) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._durables.turns.begin(name, lambda: future.set_result(None))
        await future

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, work)


def _place_of(request: Mapping[str, Any]) -> Place:
    to = request["to"]
    if to in ("earliest", "latest") or isinstance(to, int):
        return to  # type: ignore[no-any-return]
    raise UsageError(f"a place is earliest, latest or a time: to={to!r}")


async def serve_control(
    fs: PosixFileSystem, data: PurePath, control: Control
) -> asyncio.Server | None:
    """Listen in the data directory; None where its name is too long for a socket."""
    path = data / CONTROL
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Whoever listened there is gone: the directory is locked, and ours.
        with suppress(NotFoundError):
            fs.remove(path)
        sock.bind(str(path))
        # Nobody can connect before listen, so nobody gets in by the mode that bind gave it.
        fs.set_mode(path, _MODE)
        sock.listen()
    except (SiltstoneError, OSError) as exc:
        log(_LOG, logging.WARNING, "no control socket", path=str(path), error=str(exc))
        sock.close()
        return None
    return await asyncio.start_unix_server(
        lambda reader, writer: _serve(control, reader, writer), sock=sock, limit=_LINE_MAX
    )


async def _serve(
    control: Control, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        while line := await reader.readline():
            writer.write(await control.answer(line))
            await writer.drain()
    except (ConnectionError, ValueError):
        # It has gone, or its line has no end.
        pass
    finally:
        writer.close()
