from __future__ import annotations

import asyncio
import gc
import logging
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import PurePath
from typing import Any, cast

import pyarrow as pa
import pytest

from siltstone.broker import server as server_module
from siltstone.broker.access.access import Access
from siltstone.broker.control.clock_watch import ClockWatch
from siltstone.broker.control.sys_topics import SysTopics
from siltstone.broker.listen.sockets import Listener
from siltstone.broker.listen.transport import ClientTransport
from siltstone.broker.retained.messages import RetainedMessages
from siltstone.broker.server import EarlySignals, Server, run_server
from siltstone.broker.settings.broker import BrokerSettings, ListenerSettings
from siltstone.broker.settings.storage import SessionSettings
from siltstone.clock import GuardedClock
from siltstone.errors import ClosedError, OverloadedError, SiltstoneError, UsageError
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import Connect, Packet, Will
from siltstone.store.directory import Store
from siltstone.store.log.opening import RecoveryReport
from siltstone.store.log.read.scan import ReadReport
from siltstone.store.slab.settings import DatabaseSettings
from tests.support.broker_core import V5, ScriptedDatabase, decode_all, message


async def turn() -> None:
    """Let the loop go round once."""
    passed = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(passed.set_result, None)
    await passed


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await turn()


class Base(ScriptedDatabase):
    """A database that was opened without anything in it."""

    def __init__(self, name: str) -> None:
        super().__init__(automatic=False)
        self._name = name
        self.recovered: list[RecoveryReport] = []

    @property
    def name(self) -> str:
        return self._name

    def when_recovered(self, listener: Callable[[RecoveryReport], None]) -> None:
        for report in self.recovered:
            listener(report)

    @property
    def settings(self) -> DatabaseSettings:
        # There are no segments.
        return DatabaseSettings(compaction="off")

    @property
    def reports(self) -> list[RecoveryReport]:
        return self.recovered

    def leave_free(self, size_bytes: int) -> None:
        assert size_bytes in (64 * 1024 * 1024, 48 * 1024 * 1024)

    def read(
        self,
        topic_filter: str = "#",
        *,
        since_us: int = 0,
        until_us: int | None = None,
        columns: Sequence[str] = (),
        rows_max: int | None = None,
        report: ReadReport | None = None,
    ) -> Iterator[pa.RecordBatch]:
        return iter(())


class Shelf:
    """Of a store, what a server needs."""

    def __init__(self) -> None:
        self.path = PurePath("/")
        self.databases = {name: Base(name) for name in ("messages", "_retained")}

    def ensure(self, name: str, settings: object) -> Base:
        return self.databases[name]

    def failure(self) -> None:
        """No write has failed."""


class Door:
    """A listener without sockets."""

    def __init__(self, make_channel: Callable[[], ClientTransport], events: list[str]) -> None:
        self.make_channel = make_channel
        self.addresses = ("desk",)
        self.error: SiltstoneError | None = None
        self._events = events

    async def close(self) -> None:
        self._events.append("door closed")

    async def reload(self) -> None:
        self._events.append("door reloaded")
        if self.error is not None:
            raise self.error


class Transport(asyncio.Transport):
    """Notes what is written and asked for."""

    def __init__(self, name: str, events: list[str]) -> None:
        super().__init__({"peername": ("10.0.0.1", 1)})
        self._name = name
        self._events = events
        self.channel: ClientTransport | None = None

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        self._events += [
            f"{self._name} {type(packet).__name__}" for packet in decode_all(V5, bytes(data))
        ]

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.channel is None

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._events.append(f"{self._name} eof")

    def abort(self) -> None:
        self._events.append(f"{self._name} aborted")
        self.lose()

    def pause_reading(self) -> None:
        self._events.append(f"{self._name} paused")

    def resume_reading(self) -> None:
        self._events.append(f"{self._name} resumed")

    def lose(self) -> None:
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.connection_lost(None)


class Desk:
    """A server without sockets, and what happens to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.events: list[str] = []
        self.shelf = Shelf()
        self.doors: list[Door] = []
        self.collector: list[tuple[object, ...]] = []
        settings = {"sys_interval": 0, "drain_timeout": 600} | settings
        self.server = Server(
            BrokerSettings(sessions=SessionSettings(durable=False), **settings),
            cast("Store", self.shelf),
        )
        monkeypatch.setattr(server_module, "open_listener", self.open_door)
        monkeypatch.setattr(server_module, "open_control", self.open_nothing)
        monkeypatch.setattr(server_module, "raise_file_limit", lambda: 1_000_000)
        for name in ("collect", "freeze", "set_threshold"):
            monkeypatch.setattr(gc, name, partial(self.note, name))
        monkeypatch.setattr(server_module, "_POLL_SECONDS", 0)

    def note(self, *call: object) -> None:
        self.collector.append(call)

    async def open_door(
        self,
        loop: object,
        settings: object,
        make_channel: Callable[[], ClientTransport],
        **_: object,
    ) -> Listener:
        door = Door(make_channel, self.events)
        self.doors.append(door)
        return cast("Listener", door)

    async def open_nothing(self, *_: object) -> None:
        """Serve no control socket."""

    @property
    def database(self) -> Base:
        return self.shelf.databases["messages"]

    async def started(self) -> asyncio.Task[None]:
        opened = asyncio.Event()
        task = asyncio.create_task(self.server.run(lambda _: opened.set()))
        await opened.wait()
        return task

    def connect(self, name: str, will: Will | None = None) -> Transport:
        transport = Transport(name, self.events)
        transport.channel = self.doors[0].make_channel()
        transport.channel.connection_made(transport)
        self.send(transport, Connect(version=V5, client_id=name, will=will))
        return transport

    def send(self, transport: Transport, packet: Packet) -> None:
        assert transport.channel is not None
        transport.channel.data_received(encode(V5, packet))


class TestStopping:
    def test_first_the_disk_then_the_clients_then_their_wills(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def play(desk: Desk) -> None:
            task = await desk.started()
            transport = desk.connect("c", Will(topic=b"w", payload=b"last"))
            desk.send(transport, message("a", "x", 1, 1))
            await turn()
            desk.events.clear()
            desk.server.stop()
            await until(lambda: "c paused" in desk.events)
            assert desk.events == ["door closed", "c paused"]
            desk.database.settle()
            await until(lambda: "c eof" in desk.events)
            assert desk.events[2:] == ["c PubAck", "c Disconnect", "c resumed", "c eof"]
            transport.lose()
            await until(lambda: bool(desk.database.pending))
            for _ in range(10):
                await turn()
            assert not task.done()
            desk.database.settle()
            await task
            assert desk.database.rows == [(b"a", b"x"), (b"w", b"last")]

        asyncio.run(play(Desk(monkeypatch)))

    def test_who_does_not_read_the_end_is_closed_when_time_is_up(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def play(desk: Desk) -> None:
            task = await desk.started()
            desk.connect("c")
            desk.events.clear()
            desk.server.stop()
            await task
            assert "c aborted" in desk.events

        asyncio.run(play(Desk(monkeypatch, drain_timeout=0)))

    def test_a_connection_that_has_said_nothing_is_closed_too(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def play(desk: Desk) -> None:
            task = await desk.started()
            transport = Transport("c", desk.events)
            transport.channel = desk.doors[0].make_channel()
            transport.channel.connection_made(transport)
            desk.server.stop()
            await until(lambda: "c eof" in desk.events)
            assert not task.done()
            transport.lose()
            await task
            # It was told nothing: the version that it speaks is not known.
            told = [event for event in desk.events if event.startswith("c ")]
            assert told == ["c paused", "c resumed", "c eof"]

        asyncio.run(play(Desk(monkeypatch)))

    def test_a_client_that_waited_for_room_is_not_read_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def play(desk: Desk) -> None:
            task = await desk.started()
            transport = desk.connect("c")
            desk.send(transport, message("a", "x" * 70_000))
            await turn()
            desk.server.stop()
            await until(lambda: "door closed" in desk.events)
            desk.events.clear()
            desk.database.settle()
            await until(lambda: "c eof" in desk.events)
            assert desk.events == ["c Disconnect", "c resumed", "c eof"]
            transport.lose()
            await task

        asyncio.run(play(Desk(monkeypatch, limits={"pending_bytes_max": 65_536})))

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_ends_it(
        self, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
    ) -> None:
        async def play(desk: Desk) -> None:
            task = await desk.started()
            signal.raise_signal(number)
            await task
            assert desk.events.count("door closed") >= 1

        asyncio.run(play(Desk(monkeypatch)))


class TestReloading:
    async def reloaded(self, desk: Desk) -> None:
        """Send SIGHUP, and wait until it was obeyed."""
        task = await desk.started()
        signal.raise_signal(signal.SIGHUP)
        await until(lambda: "door reloaded" in desk.events)
        desk.server.stop()
        await task

    def test_sighup_reads_rights_and_certificates_again(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        threads: list[str] = []

        def load(*_: object) -> Access:
            threads.append(threading.current_thread().name)
            return Access(None, None, None)

        monkeypatch.setattr(server_module, "load_access", load)
        caplog.set_level(logging.INFO)
        asyncio.run(self.reloaded(Desk(monkeypatch)))
        main = threading.main_thread().name
        # The second time the loop runs, and files may take long.
        assert [name == main for name in threads] == [True, False]
        assert "reloaded" in [record.message for record in caplog.records]

    def test_what_cannot_be_read_stays_as_it_was_and_the_rest_is_read(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        answers: list[Access | UsageError] = [Access(None, None, None), UsageError("no such file")]

        def load(*_: object) -> Access:
            answer = answers.pop(0)
            if isinstance(answer, UsageError):
                raise answer
            return answer

        monkeypatch.setattr(server_module, "load_access", load)
        desk = Desk(monkeypatch)

        async def play() -> None:
            task = await desk.started()
            desk.doors[0].error = UsageError("no certificate")
            signal.raise_signal(signal.SIGHUP)
            await until(lambda: "door reloaded" in desk.events)
            desk.server.stop()
            await task

        asyncio.run(play())
        errors = [record.message for record in caplog.records if record.levelname == "ERROR"]
        assert errors == ["access_reload_failed", "certificates_reload_failed"]

    def test_sighup_is_ignored_while_the_broker_stops(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        desk = Desk(monkeypatch)

        async def play() -> None:
            task = await desk.started()
            desk.server.stop()
            await task
            # The end of the loop begins so.
            loop = asyncio.get_running_loop()
            await loop.shutdown_default_executor()
            # The loop handles signals in their order.
            handled = asyncio.Event()
            loop.add_signal_handler(signal.SIGUSR2, handled.set)
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGUSR2)
            await handled.wait()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run(play())
        assert "door reloaded" not in desk.events
        assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


class TestUpkeep:
    def swept(self, monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> list[str]:
        """Let a server look after its retained messages once; return what happened."""
        events: list[str] = []

        class Watched(RetainedMessages):
            def sweep(self, budget: int) -> int:
                events.append(f"swept {budget}")
                return 0

            def needs_compaction(self) -> bool:
                return "begun" not in events

            def compact(self) -> Generator[Callable[[], object], None, None]:
                events.append("begun")
                try:
                    yield from steps
                finally:
                    events.append("ended")

        monkeypatch.setattr(server_module, "RetainedMessages", Watched)
        monkeypatch.setattr(server_module, "_UPKEEP_SECONDS", 0)

        async def play(desk: Desk) -> None:
            task = await desk.started()
            await until(lambda: events.count("swept 1000") > 1)
            desk.server.stop()
            await task

        asyncio.run(play(Desk(monkeypatch)))
        return events[: events.index("ended") + 1]

    def test_what_blocks_is_done_in_a_thread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        threads: list[str] = []
        steps = [lambda: threads.append(threading.current_thread().name)] * 2
        assert self.swept(monkeypatch, *steps) == ["swept 1000", "begun", "ended"]
        assert len(threads) == 2
        assert threading.main_thread().name not in threads

    def test_a_step_that_fails_ends_this_compaction_and_nothing_else(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail() -> None:
            raise OverloadedError("too much")

        assert self.swept(monkeypatch, fail) == ["swept 1000", "begun", "ended"]
        warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert warnings == ["retained_log_compaction_failed"]

    @pytest.mark.parametrize(
        ("owner", "name"),
        [
            (Shelf, "failure"),
            (ClockWatch, "look"),
            (RetainedMessages, "sweep"),
            (RetainedMessages, "needs_compaction"),
            (SysTopics, "publish"),
        ],
    )
    @pytest.mark.parametrize("error", [ClosedError("the store is closed"), ValueError("ours")])
    def test_what_fails_once_ends_neither_the_broker_nor_the_looks_that_follow(
        self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: Exception
    ) -> None:
        real = getattr(owner, name)
        calls: list[str] = []

        def called(*args: Any) -> Any:
            calls.append(name)
            # The clock is looked at once before the broker has started.
            if len(calls) == 2:
                raise error
            return real(*args)

        monkeypatch.setattr(owner, name, called)
        monkeypatch.setattr(server_module, "_UPKEEP_SECONDS", 0)

        async def play(desk: Desk) -> None:
            task = await desk.started()
            await until(lambda: len(calls) > 4 or task.done())
            assert not task.done()
            desk.server.stop()
            await task

        asyncio.run(play(Desk(monkeypatch, sys_interval=0.001)))


class TestStarting:
    def test_what_recovery_mended_is_told(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def play(desk: Desk) -> None:
            task = await desk.started()
            desk.server.stop()
            await task

        desk = Desk(monkeypatch)
        sound = recovered()
        torn = recovered(torn_bytes=7)
        desk.database.recovered = [sound, torn]
        asyncio.run(play(desk))
        told = [getattr(record, "facts", {}) for record in caplog.records if record.levelno > 20]
        assert [(facts["database"], facts["torn_bytes"]) for facts in told] == [("messages", 7)]

    def test_the_collector_leaves_alone_what_is_there_and_looks_less_often(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        desk = Desk(monkeypatch)
        desk.server.stop()
        asyncio.run(desk.server.run())
        assert desk.collector == [("collect",), ("freeze",), ("set_threshold", 15_000, 0, 5_000)]

    def test_where_one_listener_cannot_open_the_others_are_closed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        listeners = (ListenerSettings(port=1), ListenerSettings(port=2))
        desk = Desk(monkeypatch, listeners=listeners)
        opened = desk.open_door

        async def open_one(
            loop: object, settings: ListenerSettings, *rest: Any, **more: Any
        ) -> Any:
            if settings.port == 2:
                raise UsageError("the address is in use")
            return await opened(loop, settings, *rest, **more)

        monkeypatch.setattr(server_module, "open_listener", open_one)
        with pytest.raises(UsageError, match="the address is in use"):
            asyncio.run(desk.server.run())
        assert desk.events == ["door closed"]

    def test_the_store_is_open_while_it_runs_and_then_closed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        events: list[str] = []

        @contextmanager
        def opened(path: str, *, clock: GuardedClock, cluster: None) -> Iterator[Shelf]:
            events.append(f"open {path}")
            yield Shelf()
            events.append("closed")

        async def run(_: Server, _started: object, _beside: object) -> None:
            events.append("run")

        monkeypatch.setattr(server_module, "open_store", opened)
        monkeypatch.setattr(Server, "run", run)
        assert run_server(BrokerSettings(data="here"), EarlySignals()) == 0
        assert events == ["open here", "run", "closed"]


def recovered(*, torn_bytes: int = 0) -> RecoveryReport:
    values: dict[str, Any] = dict.fromkeys(RecoveryReport.__dataclass_fields__, 0)
    values.update(torn_bytes=torn_bytes, rebuilt=[], foreign=[])
    return RecoveryReport(**values)
