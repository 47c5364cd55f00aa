"""Certificates of listeners: shown, asked for, renewed, and refused; all of them real."""

from __future__ import annotations

import asyncio
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from siltstone.broker.listen.tls import server_context
from siltstone.broker.settings.broker import Limits, ListenerSettings
from siltstone.errors import UsageError
from tests.support.certificates import Authority, CertificateFiles, encrypt_key
from tests.support.echo import (
    LOOP_NAMES,
    LOOPS,
    REFUSED,
    Echo,
    ask,
    closed,
    counted_runner,
    echo,
    listening,
    tls_settings,
    websocket,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "listeners.md"


@pytest.fixture(params=LOOPS, ids=LOOP_NAMES)
def runner(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[asyncio.Runner]:
    with counted_runner(request.param, monkeypatch) as runner:
        yield runner


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def shown(port: int, context: ssl.SSLContext) -> bytes:
    """Return the certificate that the server shows, as DER."""
    _, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost"
    )
    try:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(certificate, bytes)
        return certificate
    finally:
        await closed(writer)


def der(files: CertificateFiles) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(files.certificate).read_text("ascii"))


def test_tls_echoes_and_asks_for_no_certificate(
    runner: asyncio.Runner, authority: Authority
) -> None:
    async def scenario() -> None:
        shows = authority.client_context(authority.client("sensor-7"))
        async with listening(tls_settings(authority.server())) as listener:
            assert listener.addresses == (f"tls://127.0.0.1:{listener.port}",)
            answer = await ask(listener.port, bytes(100_000), 100_000, authority.client_context())
            assert answer == bytes(100_000)
            assert await ask(listener.port, b"who?", 6, shows) == b"nobody"

    runner.run(scenario())


def test_nothing_older_than_tls_1_2_is_spoken(authority: Authority) -> None:
    context = server_context(tls_settings(authority.server()))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION


def test_a_required_certificate_must_be_shown_and_names_the_user(
    runner: asyncio.Runner, authority: Authority, tmp_path: Path
) -> None:
    settings = tls_settings(
        authority.server(), client_ca=authority.file, client_certificate="required"
    )
    strangers = Authority(tmp_path, "strangers").client("sensor-7")

    async def scenario() -> None:
        async with listening(settings) as listener:
            known = authority.client_context(authority.client("sensor-7"))
            assert await ask(listener.port, b"who?", 8, known) == b"sensor-7"
            for refused in (None, strangers):
                with pytest.raises(REFUSED):
                    await ask(listener.port, b"who?", 8, authority.client_context(refused))
            # The others never came as far as a channel.
            assert Echo.connections.echoes_made == 1

    runner.run(scenario())


def test_an_optional_certificate_may_be_left_out_but_not_be_wrong(
    runner: asyncio.Runner, authority: Authority, tmp_path: Path
) -> None:
    settings = tls_settings(
        authority.server(), client_ca=authority.file, client_certificate="optional"
    )
    strangers = Authority(tmp_path, "strangers").client("sensor-7")

    async def scenario() -> None:
        async with listening(settings) as listener:
            assert await ask(listener.port, b"who?", 6, authority.client_context()) == b"nobody"
            known = authority.client_context(authority.client("sensor-7"))
            assert await ask(listener.port, b"who?", 8, known) == b"sensor-7"
            with pytest.raises(REFUSED):
                await ask(listener.port, b"who?", 8, authority.client_context(strangers))

    runner.run(scenario())


def test_reload_swaps_the_certificate_and_keeps_who_is_connected(
    runner: asyncio.Runner, authority: Authority
) -> None:
    files = authority.server()
    first = der(files)
    context = authority.client_context()

    async def scenario() -> None:
        async with listening(tls_settings(files)) as listener:
            addresses = listener.addresses
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", listener.port, ssl=context, server_hostname="localhost"
            )
            assert await shown(listener.port, context) == first
            second = der(authority.server())
            assert await shown(listener.port, context) == first
            for _ in range(3):
                await listener.reload()
                assert await shown(listener.port, context) == second != first
            assert await echo(reader, writer, b"old") == b"old"
            assert listener.addresses == addresses
            await closed(writer)
        with pytest.raises(ConnectionRefusedError):
            await shown(listener.port, context)

    runner.run(scenario())


def test_reload_forgets_the_authorities_that_are_gone(
    runner: asyncio.Runner, authority: Authority, tmp_path: Path
) -> None:
    newer = Authority(tmp_path, "newer")
    trusted = tmp_path / "trusted.crt"
    trusted.write_bytes(Path(authority.file).read_bytes())
    renewed = Path(newer.file).read_bytes()
    settings = tls_settings(
        authority.server(), client_ca=str(trusted), client_certificate="required"
    )
    old = authority.client_context(authority.client("old"))
    new = authority.client_context(newer.client("new"))

    async def scenario() -> None:
        async with listening(settings) as listener:
            assert await ask(listener.port, b"who?", 3, old) == b"old"
            trusted.write_bytes(renewed)
            await listener.reload()
            assert await ask(listener.port, b"who?", 3, new) == b"new"
            with pytest.raises(REFUSED):
                await ask(listener.port, b"who?", 3, old)

    runner.run(scenario())


def test_a_reload_of_a_bad_file_keeps_the_old_certificate(
    runner: asyncio.Runner, authority: Authority
) -> None:
    files = authority.server()
    first = der(files)

    def spoil() -> None:
        Path(files.certificate).write_text("renewal failed", "ascii")

    async def scenario() -> None:
        async with listening(tls_settings(files)) as listener:
            spoil()
            with pytest.raises(UsageError, match="certificate must contain a PEM certificate"):
                await listener.reload()
            assert await shown(listener.port, authority.client_context()) == first
            second = der(authority.server())
            await listener.reload()
            assert await shown(listener.port, authority.client_context()) == second

    runner.run(scenario())


def test_a_bad_certificate_key_or_authority_is_named(authority: Authority) -> None:
    def sentence(**changes: str) -> str:
        values = {"client_certificate": "required", "client_ca": authority.file, **changes}
        with pytest.raises(UsageError) as refused:
            server_context(tls_settings(server, **values))
        return str(refused.value).removeprefix("cannot listen on tls://127.0.0.1:0: ")

    server, other = authority.server(), authority.server("other")
    sealed = authority.server("sealed")
    encrypt_key(sealed, b"quarry")
    assert sentence(certificate=server.key) == (
        f"certificate must contain a PEM certificate: path={server.key}"
    )
    assert sentence(key="/nowhere/server.key") == (
        "key cannot be read: No such file or directory: path=/nowhere/server.key"
    )
    assert sentence(key=server.certificate) == (
        f"key must contain a PEM private key: path={server.certificate}"
    )
    assert sentence(key=other.key) == (
        f"key does not match the certificate: path={other.key} certificate={server.certificate}"
    )
    assert sentence(certificate=sealed.certificate, key=sealed.key) == (
        f"key is encrypted; decrypt the file, the broker does not ask for its password: "
        f"path={sealed.key}"
    )
    assert sentence(client_ca="/nowhere/ca.pem") == (
        "client_ca cannot be read: No such file or directory: path=/nowhere/ca.pem"
    )
    assert sentence(client_ca=other.key) == (
        f"client_ca must contain a PEM certificate: path={other.key}"
    )


def test_wss_echoes_and_knows_the_certificate(runner: asyncio.Runner, authority: Authority) -> None:
    settings = tls_settings(
        authority.server(), kind="wss", client_ca=authority.file, client_certificate="required"
    )
    context = authority.client_context(authority.client("sensor-7"))

    async def scenario() -> None:
        async with listening(settings) as listener:
            (address,) = listener.addresses
            assert address == f"wss://127.0.0.1:{listener.port}/mqtt"
            async with websocket(address, context) as client:
                await client.send(b"who?")
                assert await client.recv() == b"sensor-7"
                await client.send(bytes(100_000))
                answer = b""
                while len(answer) < 100_000:
                    answer += cast("bytes", await client.recv())
            assert client.close_code == 1000
            with pytest.raises(REFUSED):
                async with websocket(address, authority.client_context()):
                    pass

    runner.run(scenario())


@pytest.mark.parametrize("kind", ["tls", "ws", "wss"])
def test_who_says_nothing_is_dropped_in_time(
    runner: asyncio.Runner, authority: Authority, kind: str
) -> None:
    if kind == "ws":
        settings = ListenerSettings(kind="ws", port=0)
    else:
        settings = tls_settings(authority.server(), kind=kind)

    async def dropped(port: int, context: ssl.SSLContext | None) -> None:
        # A slow machine may not get as far as to end the handshake of TLS.
        with suppress(ConnectionError):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname="localhost" if context else None
            )
            try:
                assert await reader.read() == b""
            finally:
                await closed(writer)

    async def scenario() -> None:
        async with listening(settings, Limits(connect_timeout=0.1)) as listener:
            await dropped(listener.port, None)
            if kind == "wss":
                await dropped(listener.port, authority.client_context())

    runner.run(scenario())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl command")
def test_the_openssl_commands_of_the_documents_work(runner: asyncio.Runner, tmp_path: Path) -> None:
    (commands,) = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    subprocess.run(["/bin/sh", "-e", "-c", commands], cwd=tmp_path, check=True, capture_output=True)
    certificate = CertificateFiles(str(tmp_path / "server.crt"), str(tmp_path / "server.key"))
    authority = str(tmp_path / "ca.crt")
    context = ssl.create_default_context(cafile=authority)
    context.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")

    async def scenario() -> None:
        settings = tls_settings(certificate, client_ca=authority, client_certificate="required")
        async with listening(settings) as listener:
            assert await ask(listener.port, b"who?", 8, context) == b"sensor-7"

    runner.run(scenario())
