"""The control socket of a broker, in its data directory, for requests of operators and programs.

A request is one line of JSON, `{"do": name, …}`, with the name of a verb. The answer is one line
too, `{"ok": …}` or `{"error": text}`; `manage/wire.py` has the details. Only the user of the broker
(and root) can use the socket: its mode is 0600.

Verbs that change the state in memory run on the loop, by a function of the broker. All other verbs
run on a few threads, because they wait for the disk.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import PurePath
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from siltstone.broker.broker import Broker
from siltstone.broker.sessions.durables import Durables
from siltstone.broker.sessions.groups import StoredShareGroups
from siltstone.broker.sessions.turns import Turn
from siltstone.broker.snapshots.standstill import STANDSTILL_SECONDS, Standstill
from siltstone.errors import NotFoundError, RetryError, SiltstoneError, UsageError
from siltstone.fs.paths import StorePaths
from siltstone.fs.posix import PosixFileSystem
from siltstone.logs import log
from siltstone.manage.sessions import (
    MoveGroup,
    MoveSession,
    NameGroup,
    NameSession,
    no_group,
    no_session,
)
from siltstone.manage.transactions import (
    TRANSACTION_VERBS,
    ConnectionTransactions,
    TransactionThreads,
)
from siltstone.manage.verb import Host, Nothing, PackedResponse, RequiredRight, Verb, parse
from siltstone.manage.verbs import VERBS, run_verb
from siltstone.manage.wire import LINE_MAX, PAYLOAD_MAX, encode_error, encode_line
from siltstone.mqtt.reason import Reason
from siltstone.session.archive.keys import group_id, group_parts
from siltstone.session.archive.move import Timeline, find_place, move_group, move_session
from siltstone.session.archive.owned.group import OwnedGroup
from siltstone.session.archive.owned.session import OwnedSession

_MODE: Final = 0o600
# Verbs that wait for the disk at the same time.
_THREADS: Final = 4
# Requests with more than a line of bytes that are in memory at the same time.
_LARGE_MAX: Final = 4
_SAVE_SECONDS: Final = 30.0
# How long a request waits for its turn.
_TURN_SECONDS: Final = 10.0
_LOG: Final = logging.getLogger("siltstone.control")

Answer = Awaitable[object]
# Takes the request of a verb.
Deed = Callable[[Any], Answer]
ReadPayload = Callable[[int], Awaitable[bytes]]
T = TypeVar("T")


class Visit:
    """One connection to the socket.

    While it holds the broker, the broker does not read from clients. The hold ends with the
    connection, or after `STANDSTILL_SECONDS`. While the connection has a pin, no delivered rows are
    reclaimed.
    """

    def __init__(self, broker: Broker, threads: TransactionThreads | None = None) -> None:
        self._broker = broker
        self.transactions = None if threads is None else ConnectionTransactions(threads)
        self._standstill: Standstill | None = None
        self._unpin: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def hold(self) -> bool:
        """Stop the broker from reading; return whether everything published so far is stored."""
        self.release()
        self._standstill = standstill = Standstill(self._broker)
        is_still = await standstill.reach()
        self._timer = asyncio.get_running_loop().call_later(STANDSTILL_SECONDS, self.release)
        return is_still

    async def pin(self) -> bool:
        """Keep all rows until the connection ends, including those that are delivered meanwhile."""
        if self._unpin is None:
            self._unpin = self._broker.pins.take()
        await self._broker.pins.settled()
        return True

    @property
    def has_pin(self) -> bool:
        """Whether the connection has a pin."""
        return self._unpin is not None

    def end(self) -> None:
        """Release the hold, the pin and the transaction."""
        self.release()
        if self.transactions is not None:
            self.transactions.end()
        if self._unpin is not None:
            self._unpin()

    def release(self) -> bool:
        """End the hold; return whether nothing was stored during it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        standstill, self._standstill = self._standstill, None
        return standstill is not None and standstill.end()


class ControlOperations:
    """Answers requests: by a function of the broker, or by the verb itself on a thread.

    At most `_THREADS` verbs run on threads at a time; the others wait for their turn.
    """

    def __init__(self, broker: Broker, deeds: Mapping[str, Deed], host: Host | None = None) -> None:
        self._broker = broker
        self._deeds = deeds
        self._host = host
        # Functions of the broker that follow a verb, on the loop.
        self.afterwards: Mapping[str, Callable[[Any], None]] = {}
        self._transactions = None if host is None else TransactionThreads(host)
        self._slots = asyncio.Semaphore(_THREADS)
        self._large = asyncio.Semaphore(_LARGE_MAX)
        self._threads = ThreadPoolExecutor(_THREADS, "siltstone-manage")
        self._is_ending = False

    def visit(self) -> Visit:
        """Return the state of a new connection."""
        return Visit(self._broker, self._transactions)

    async def answer(
        self, line: bytes, visit: Visit | None = None, read: ReadPayload | None = None
    ) -> bytes:
        """Execute a request; return the answer. `read` returns the bytes after the line.

        Raises: ConnectionError if nothing after the line can be read.
        """
        try:
            request = json.loads(line)
            if visit is not None and request == {"do": "hold"}:
                return encode_line({"ok": await visit.hold()})
            if visit is not None and request == {"do": "release"}:
                return encode_line({"ok": visit.release()})
            if visit is not None and request == {"do": "pin"}:
                return encode_line({"ok": await visit.pin()})
            fields = dict(request) if isinstance(request, dict) else {}
            size = fields.pop("bytes", 0)
            if size == 0 or read is None:
                return await self._execute(fields, b"", visit)
            if type(size) is not int or not 0 < size <= PAYLOAD_MAX:
                raise ConnectionError("the number of bytes after the line is invalid")
            if size <= LINE_MAX:
                return await self._execute(fields, await read(size), visit)
            async with self._large:
                return await self._execute(fields, await read(size), visit)
        except RecursionError:
            return encode_error(UsageError("the request is nested too deeply"))
        except ValueError as exc:
            return encode_error(UsageError(str(exc)))
        except SiltstoneError as exc:
            return encode_error(exc)

    async def _execute(self, fields: dict[str, Any], payload: bytes, visit: Visit | None) -> bytes:
        """Run the verb of a request; return the answer. Raises: SiltstoneError."""
        name = str(fields.pop("do", ""))
        verb = VERBS.get(name)
        run = None if verb is None else self._runner(verb, visit)
        if verb is None or run is None:
            raise UsageError(
                "the broker does not know this request: broker and command must have the "
                "same version"
            )
        if self._is_ending:
            raise RetryError("the broker is stopping, try again")
        parsed = parse(verb.request, fields, payload)
        return _encoded(await run(parsed))

    def _runner(self, verb: Verb, visit: Visit | None) -> Deed | None:
        """Return the function for a verb; None if this broker has none."""
        if verb.name in self._deeds:
            return self._deeds[verb.name]
        transactions = None if visit is None else visit.transactions
        if transactions is not None and verb.name in TRANSACTION_VERBS:
            return partial(transactions.answer, verb.name)
        if verb.run is None or self._host is None:
            return None
        return partial(self._run, verb, self._host)

    async def _run(self, verb: Verb, host: Host, request: BaseModel) -> object:
        """Run a verb on a thread."""
        found = await self._in_thread(partial(run_verb, host, verb.name, request))
        if verb.name in self.afterwards:
            self.afterwards[verb.name](request)
        if verb.role is RequiredRight.MANAGE:
            fields = request.model_dump()
            log(_LOG, logging.WARNING, "store_managed", verb=verb.name, request=fields)
        return found

    async def _in_thread(self, work: Callable[[], T]) -> T:
        async with self._slots:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def end(self, seconds: float) -> None:
        """Refuse new requests, and wait for the verbs that run."""
        self._is_ending = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for _ in range(_THREADS):
                    await self._slots.acquire()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _encoded(response: object) -> bytes:
    if not isinstance(response, BaseModel):
        return encode_line({"ok": response})
    payload = response.payload if isinstance(response, PackedResponse) else b""
    answer: dict[str, Any] = {"ok": response.model_dump()}
    if payload:
        answer["bytes"] = len(payload)
    return encode_line(answer) + payload


def deeds_in_memory() -> dict[str, Deed]:
    """Return the requests of `Control` for a broker that has its sessions only in memory."""
    return dict.fromkeys(("kick", "drop", "move", "move-group", "drop-group", "groups"), _refuse)


async def _refuse(_: object) -> bool:
    raise UsageError(
        "this broker has its sessions and share groups only in memory, where commands cannot reach "
        'them; sessions.durable = true with persistence = "store" stores them'
    )


class Control:
    """Executes requests about sessions and share groups, on the loop."""

    def __init__(
        self,
        broker: Broker,
        durables: Durables,
        groups: StoredShareGroups,
        source: Timeline,
        *,
        turn_seconds: float = _TURN_SECONDS,
    ) -> None:
        self._broker = broker
        self._durables = durables
        self._groups = groups
        self._source = source
        self._turn_seconds = turn_seconds
        self.deeds: Mapping[str, Deed] = {
            "kick": self._kick,
            "drop": self._drop,
            "move": self._move,
            "move-group": self._move_group,
            "drop-group": self._drop_group,
            "groups": self._list_groups,
        }

    async def _kick(self, request: NameSession) -> bool:
        """End the connection of a client; return whether there was one."""
        return self._end(request.client_id)

    def _end(self, client_id: str) -> bool:
        client = self._broker.clients.get(client_id)
        if client is not None:
            client.end(Reason.ADMINISTRATIVE_ACTION)
        return client is not None

    async def _drop(self, request: NameSession) -> bool:
        """Delete a session; return whether there was one."""
        client_id = request.client_id
        is_connected = self._end(client_id)
        async with self._turn(client_id):
            if client_id in self._broker.clients:
                raise RetryError(f"client {client_id!r} connected again in the meantime, try again")
            owned = await self._take(client_id)
            if owned is None:
                return is_connected
            if owned.state.will is not None:
                # [MQTT-3.1.3-9]: the will is published when the session ends.
                told: asyncio.Future[Exception | None] = _future()
                self._broker.due_wills.publish_last(owned, owned.state.will, told.set_result)
                await told
            done: asyncio.Future[None] = _future()
            self._broker.subscriptions.forget(client_id)
            self._durables.drop_away(owned, lambda: done.set_result(None))
            await done
        log(_LOG, logging.WARNING, "session_dropped", client_id=client_id)
        return True

    async def _move(self, request: MoveSession) -> bool:
        """Move a session to another position; a connected client is disconnected."""
        client_id = request.client_id
        place = request.to
        self._end(client_id)
        async with self._turn(client_id), self._pinned():
            if client_id in self._broker.clients:
                raise RetryError(f"client {client_id!r} connected again in the meantime, try again")
            owned = await self._take(client_id)
            if owned is None:
                raise no_session(client_id)
            position = await self._in_thread(lambda: find_place(self._source, place))
            move_session(owned, position)
            await self._in_thread(owned.save)
        log(_LOG, logging.WARNING, "session_moved", client_id=client_id, to=place)
        return True

    async def _move_group(self, request: MoveGroup) -> bool:
        """Move a share group to another position; its members continue there."""
        text = request.group
        name, topic_filter = group_parts(text)
        place = request.to
        async with self._turn(text), self._pinned():
            position = await self._in_thread(lambda: find_place(self._source, place))
            saved: asyncio.Future[None] = _future()
            if self._groups.move(text, dict(position.serials), lambda: saved.set_result(None)):
                await asyncio.wait([saved], timeout=_SAVE_SECONDS)
                if not saved.done():
                    raise RetryError(
                        f"the share group could not be saved, see the log of the broker: "
                        f"group={text!r}"
                    )
            else:
                owned = await self._take_group(name, topic_filter)
                if owned is None and text in self._groups.groups:
                    raise RetryError(
                        f"share group {text!r} is not loaded, try again and see the log of the "
                        f"broker"
                    )
                if owned is None:
                    raise no_group(text)
                move_group(owned, position)
                await self._in_thread(owned.save)
        log(_LOG, logging.WARNING, "share_group_moved", group=text, to=place)
        return True

    async def _drop_group(self, request: NameGroup) -> bool:
        """Delete a share group without connected members; return whether there was one."""
        text = request.group
        name, topic_filter = group_parts(text)
        async with self._turn(text):
            group = self._groups.groups.get(text)
            if group is not None and group.is_open and not group.is_kept:
                raise UsageError(
                    f"share group {text!r} is not stored: it is in memory while it has members, "
                    f"and ends when the last one disconnects"
                )
            if group is not None:
                raise UsageError(f"the share group has members that are connected: group={text!r}")
            owned = await self._take_group(name, topic_filter)
            if owned is not None:
                await self._in_thread(owned.drop)
        if owned is not None:
            log(_LOG, logging.WARNING, "share_group_dropped", group=text)
        return owned is not None

    async def _list_groups(self, _: Nothing) -> list[dict[str, object]]:
        """Return the share groups with connected members."""
        return [
            {
                "group": group.text,
                "strategy": group.lending.strategy,
                "members": len(group.lending.members),
                "position": group.place(),
            }
            for group in self._groups.groups.values()
        ]

    async def come_back(self) -> int:
        """Correct saved sessions and groups whose last use is in the future; return their number.

        The clock was ahead when they were saved. Their expiry counts from now.
        """
        now_us, archive = self._broker.clock.now_us(), self._durables.archive
        count, after = 0, ""
        while sessions := await self._in_thread(partial(archive.list, after)):
            for session in sessions:
                if (session.away_since_us or 0) > now_us:
                    count += await self._session_back(session.client_id, now_us)
            after = sessions[-1].client_id
        after = ""
        while groups := await self._in_thread(partial(archive.list_groups, after)):
            for group in groups:
                if (group.empty_since_us or 0) > now_us:
                    count += await self._group_back(group.name, group.filter, now_us)
            after = group_id(groups[-1].name, groups[-1].filter)
        return count

    async def _session_back(self, client_id: str, now_us: int) -> bool:
        async with self._turn(client_id):
            if client_id in self._durables.sessions:
                return False
            owned = await self._take(client_id)
            if owned is None or (owned.state.away_since_us or 0) <= now_us:
                return False
            owned.put_meta(away_since_us=now_us)
            await self._in_thread(owned.save)
            return True

    async def _group_back(self, name: str, topic_filter: str, now_us: int) -> bool:
        text = group_id(name, topic_filter)
        async with self._turn(text):
            if text in self._groups.groups:
                return False
            owned = await self._take_group(name, topic_filter)
            if owned is None or (owned.state.empty_since_us or 0) <= now_us:
                return False
            owned.put_meta(empty_since_us=now_us)
            await self._in_thread(owned.save)
            return True

    async def _take(self, client_id: str) -> OwnedSession | None:
        """Load a disconnected session. The caller has its turn."""
        future: asyncio.Future[OwnedSession | SiltstoneError | None] = _future()
        self._durables.find(client_id, future.set_result)
        found = await future
        if isinstance(found, SiltstoneError):
            raise found
        return found

    async def _take_group(self, name: str, topic_filter: str) -> OwnedGroup | None:
        """Load a group without members. The caller has its turn."""
        archive = self._durables.archive
        return await self._in_thread(lambda: archive.take_group(name, topic_filter))

    @asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        """Wait for the turn of a session or group, and end the turn after the block.

        Raises: RetryError if earlier turns take too long.
        """
        turns = self._durables.turns
        begun: asyncio.Future[None] = _future()
        turn = Turn(name, lambda: begun.set_result(None))
        turn.waits_for = "a request of the command line"
        turns.begin(turn)
        try:
            await asyncio.wait([begun], timeout=self._turn_seconds)
            if not begun.done():
                holder = turns.holder(name)
                waits_for = "its turn" if holder is None else holder.waits_for
                raise RetryError(f"{name!r} is busy, try again: it waits for {waits_for}")
            yield
        finally:
            turns.withdraw(turn)
            turn.end()

    @asynccontextmanager
    async def _pinned(self) -> AsyncIterator[None]:
        """Keep all rows during the block: a session or group is about to need earlier ones."""
        release = self._broker.pins.take()
        try:
            await self._broker.pins.settled()
            yield
        finally:
            release()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, work)


def _future() -> asyncio.Future[T]:
    return asyncio.get_running_loop().create_future()


class ControlServer:
    """The open control socket."""

    def __init__(self, server: asyncio.Server, control: ControlOperations) -> None:
        self._server = server
        self.operations = control

    async def close(self, seconds: float) -> None:
        """Accept no more requests, and wait for those that run."""
        self._server.close()
        await self.operations.end(seconds)


async def serve_control(
    fs: PosixFileSystem, data: PurePath, control: ControlOperations, idle_timeout: float
) -> ControlServer | None:
    """Listen in the data directory; None if that fails, for example because its path is too long.

    A connection without a request for `idle_timeout` seconds is closed, unless it has a pin.
    """
    path = StorePaths(data).control_socket
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # This process has the lock of the directory, so no other process uses the old socket.
        with suppress(NotFoundError):
            fs.remove(path)
        sock.bind(str(path))
        # No client can connect before listen(), so the mode that bind() gave the file is harmless.
        fs.set_mode(path, _MODE)
        sock.listen()
    except (SiltstoneError, OSError) as exc:
        log(_LOG, logging.WARNING, "control_socket_failed", path=str(path), error=str(exc))
        sock.close()
        return None
    server = await asyncio.start_unix_server(
        lambda reader, writer: _serve(control, reader, writer, idle_timeout),
        sock=sock,
        limit=LINE_MAX,
    )
    return ControlServer(server, control)


async def _serve(
    control: ControlOperations,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    idle_timeout: float,
) -> None:
    visit = control.visit()

    async def read(size: int) -> bytes:
        return await asyncio.wait_for(reader.readexactly(size), idle_timeout)

    try:
        # A backup that has a pin sends no further request until it is written.
        while line := await asyncio.wait_for(
            reader.readline(), None if visit.has_pin else idle_timeout
        ):
            if not line.endswith(b"\n"):
                # The peer disconnected in the middle of a request.
                break
            writer.write(await control.answer(line, visit, read))
            await asyncio.wait_for(writer.drain(), idle_timeout)
    except (ConnectionError, EOFError, ValueError, TimeoutError):
        # The peer disconnected, sent a line that is too long, or was idle.
        pass
    finally:
        visit.end()
        writer.close()
