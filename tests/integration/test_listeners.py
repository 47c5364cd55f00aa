"""Listeners on real sockets: TCP, WebSocket, Unix; certificates have a file of their own."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from siltstone.broker.settings.broker import Limits, ListenerSettings
from tests.support.echo import (
    LOOP_NAMES,
    LOOPS,
    MQTT,
    ask,
    closed,
    counted_runner,
    echo,
    listening,
    refusal,
    websocket,
)


@pytest.fixture(params=LOOPS, ids=LOOP_NAMES)
def runner(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[asyncio.Runner]:
    with counted_runner(request.param, monkeypatch) as runner:
        yield runner


def test_tcp_echoes_without_delay(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with listening(ListenerSettings(port=0)) as listener:
            assert listener.addresses == (f"tcp://127.0.0.1:{listener.port}",)
            assert await ask(listener.port, bytes(100_000), 100_000) == bytes(100_000)
            assert await ask(listener.port, b"delay?", 1) == b"\x01"

    runner.run(scenario())


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_the_host_of_all_takes_ipv4_and_ipv6(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        settings = ListenerSettings(host="::", port=0, allow_anonymous=True)
        async with listening(settings) as listener:
            assert listener.addresses == (f"tcp://[::]:{listener.port}",)
            for host in ("127.0.0.1", "::1"):
                reader, writer = await asyncio.open_connection(host, listener.port)
                assert await echo(reader, writer, b"both") == b"both"
                await closed(writer)

    runner.run(scenario())


def test_a_port_in_use_is_a_sentence_and_is_free_again_after_close(
    runner: asyncio.Runner,
) -> None:
    async def scenario() -> None:
        async with listening(ListenerSettings(port=0)) as listener:
            settings = ListenerSettings(port=listener.port)
            assert await refusal(settings) == (
                f"cannot listen on tcp://127.0.0.1:{listener.port}: the address is in use, stop "
                "what listens there or choose another port"
            )
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            await echo(reader, writer, b"open")
        async with listening(settings) as again:
            assert again.port == settings.port
            # Who was connected before still is.
            assert await echo(reader, writer, b"still") == b"still"
            assert await ask(again.port, b"new", 3) == b"new"
        await closed(writer)
        with pytest.raises(ConnectionRefusedError):
            await ask(settings.port, b"", 0)

    runner.run(scenario())


@pytest.mark.parametrize("host", ["a..b", "a\udcff", "x" * 70])
def test_a_host_name_that_cannot_be_encoded_is_a_sentence(
    runner: asyncio.Runner, host: str
) -> None:
    assert runner.run(refusal(ListenerSettings(host=host, port=0))) == (
        f"cannot listen on tcp://{host}:0: invalid host name or path"
    )


def test_an_address_of_another_machine_is_a_sentence(runner: asyncio.Runner) -> None:
    settings = ListenerSettings(host="192.0.2.1", port=0)
    assert runner.run(refusal(settings)) == (
        "cannot listen on tcp://192.0.2.1:0: this machine does not have the address"
    )


def test_a_storm_of_connections_is_accepted(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with listening(ListenerSettings(port=0)) as listener:
            answers = await asyncio.gather(*(ask(listener.port, b"hi", 2) for _ in range(300)))
            assert answers == [b"hi"] * 300

    runner.run(scenario())


def test_ws_echoes_to_a_stock_client(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with listening(ListenerSettings(kind="ws", port=0)) as listener:
            (address,) = listener.addresses
            assert address == f"ws://127.0.0.1:{listener.port}/mqtt"
            async with websocket(address) as client:
                assert client.subprotocol == "mqtt"
                assert client.response is not None
                assert "Sec-WebSocket-Extensions" not in client.response.headers
                await client.send(b"whole")
                assert await client.recv() == b"whole"
                await client.send([b"in ", b"frag", b"ments"])
                pieces = b""
                while len(pieces) < 12:
                    pieces += cast("bytes", await client.recv())
                assert pieces == b"in fragments"
                await (await client.ping())
                await client.send(b"delay?")
                assert await client.recv() == b"\x01"
            assert (client.close_code, client.close_reason) == (1000, "")
            with pytest.raises(InvalidStatus, match="404"):
                async with websocket(address, path="/other"):
                    pass

    runner.run(scenario())


class RawClient:
    """A WebSocket client whose bytes are sent as the test wants them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frames = ClientProtocol(parse_uri("ws://localhost/mqtt"), subprotocols=[MQTT])

    async def send(self, size: int) -> None:
        """Send what there is to say in pieces of this size."""
        data = b"".join(self.frames.data_to_send())
        for start in range(0, len(data), size):
            self.writer.write(data[start : start + size])
            await self.writer.drain()

    async def shake_hands(self, size: int = 1000) -> None:
        self.frames.send_request(self.frames.connect())
        await self.send(size)
        self.frames.receive_data(await self.reader.readuntil(b"\r\n\r\n"))
        (response,) = self.frames.events_received()
        assert isinstance(response, Response)
        assert response.status_code == 101

    async def receive(self) -> list[Frame]:
        """Return the frames of one piece of data; none are at the end."""
        if data := await self.reader.read(65_536):
            self.frames.receive_data(data)
        else:
            self.frames.receive_eof()
        return cast("list[Frame]", self.frames.events_received())


@asynccontextmanager
async def raw_websocket(limits: Limits | None = None) -> AsyncIterator[RawClient]:
    """Connect to a listener that goes with the connection."""
    async with listening(ListenerSettings(kind="ws", port=0), limits) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        try:
            yield RawClient(reader, writer)
        finally:
            await closed(writer)


def test_ws_takes_any_split_of_the_bytes(runner: asyncio.Runner) -> None:
    sent = b"".join(bytes([number]) * number for number in range(200))

    async def scenario() -> None:
        async with raw_websocket() as client:
            await client.shake_hands(size=1)
            for number in range(200):
                client.frames.send_binary(bytes([number]) * number)
            await client.send(size=1)
            echoed = b""
            while len(echoed) < len(sent):
                echoed += b"".join(frame.data for frame in await client.receive())
            assert echoed == sent
            client.frames.send_close(1000)
            await client.send(size=1)
            while client.frames.state is not State.CLOSED:
                await client.receive()
            assert client.frames.close_code == 1000

    runner.run(scenario())


@pytest.mark.parametrize("kind", ["text", "too big"])
def test_who_breaks_the_rules_can_read_why(runner: asyncio.Runner, kind: str) -> None:
    async def scenario() -> None:
        async with raw_websocket(Limits(packet_size_max=1024)) as client:
            await client.shake_hands()
            # As many small packets as a client may pack into one frame.
            client.frames.send_binary(bytes(64 * 1024))
            await client.send(65_536)
            if kind == "text":
                client.frames.send_text(b"text")
            else:
                client.frames.send_binary(bytes(64 * 1024 + 1))
            # What it says on top must not make the system reset the connection before it reads.
            for _ in range(64):
                client.frames.send_binary(bytes(64 * 1024))
            await client.send(65_536)
            while client.frames.state is not State.CLOSED:
                await client.receive()
            assert client.frames.close_code == {"text": 1003, "too big": 1009}[kind]

    runner.run(scenario())


def unix(path: Path, mode: int = 0o660) -> ListenerSettings:
    return ListenerSettings(kind="unix", path=str(path), mode=mode)


async def ask_unix(path: Path, data: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        return await echo(reader, writer, data)
    finally:
        await closed(writer)


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_a_unix_socket_has_its_mode_and_is_removed_at_close(
    runner: asyncio.Runner, tmp_path: Path, mode: int
) -> None:
    path = tmp_path / "mqtt.sock"

    async def scenario() -> None:
        async with listening(unix(path, mode)) as listener:
            assert listener.addresses == (f"unix://{path}",)
            assert listener.port == 0
            assert stat.S_IMODE(path.stat().st_mode) == mode
            assert await ask_unix(path, bytes(100_000)) == bytes(100_000)
            await listener.reload()
            assert await ask_unix(path, b"still") == b"still"
        assert not path.exists()
        await listener.close()

    runner.run(scenario())


def test_a_dead_socket_file_is_replaced(runner: asyncio.Runner, tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()

    async def scenario() -> None:
        async with listening(unix(path)):
            assert await ask_unix(path, b"alive") == b"alive"

    runner.run(scenario())


def test_a_live_socket_file_is_left_alone(runner: asyncio.Runner, tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"

    async def scenario() -> None:
        async with listening(unix(path)):
            assert await refusal(unix(path)) == (
                f"cannot listen on unix://{path}: another server listens there; stop it or "
                f"choose another path: path={path}"
            )
            assert await ask_unix(path, b"first") == b"first"

    runner.run(scenario())


def test_a_live_socket_whose_queue_is_full_is_left_alone(
    runner: asyncio.Runner, tmp_path: Path
) -> None:
    path = tmp_path / "mqtt.sock"
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))
        assert "another server listens there" in runner.run(refusal(unix(path)))
    assert path.is_socket()


def test_a_file_or_a_link_that_is_no_socket_is_left_alone(
    runner: asyncio.Runner, tmp_path: Path
) -> None:
    data, pipe = tmp_path / "data", tmp_path / "pipe"
    data.write_bytes(b"rows")
    os.mkfifo(pipe)
    for path in (data, pipe):
        assert runner.run(refusal(unix(path))) == (
            f"cannot listen on unix://{path}: a file that is not a socket has this path; "
            f"choose another path: path={path}"
        )
    assert data.read_bytes() == b"rows"
    assert pipe.is_fifo()


def test_a_path_without_a_directory_or_too_long_is_a_sentence(
    runner: asyncio.Runner, tmp_path: Path
) -> None:
    path = tmp_path / "missing" / "mqtt.sock"
    assert runner.run(refusal(unix(path))) == (
        f"cannot listen on unix://{path}: the directory of the socket file does not exist"
    )
    path = tmp_path / ("x" * 108)
    assert runner.run(refusal(unix(path))) == (
        f"cannot listen on unix://{path}: AF_UNIX path too long"
    )
