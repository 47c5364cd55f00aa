"""A NATS server of a site takes no connection without a certificate of the cluster."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePath

import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from siltstone.cluster.certificates import SiteCertificates, TlsFiles
from siltstone.cluster.nats_process import USER, NatsProcess, Ports
from siltstone.cluster.settings import Address, SiteSettings
from siltstone.errors import UsageError
from siltstone.fs.posix import PosixFileSystem
from tests.support.certificates import Authority, CertificateFiles
from tests.support.ports import free_port
from tests.support.sites import NAMES, three_sites, until

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("cluster")]
SECRET = b"the secret of this cluster"
DAY_US = 24 * 3600 * 1_000_000
HOST = "127.0.0.1"


class Server:
    """A NATS server of a site that is alone for now; it listens for routes too."""

    def __init__(self, directory: Path, given: TlsFiles | None, *, days: int) -> None:
        self.listen = Address(HOST, free_port())
        self.settings = SiteSettings(
            name="plant",
            site="a",
            seeds=(self.listen, Address(HOST, free_port())),
            listen=self.listen,
            secret=SECRET,
            directory=PurePath(directory),
        )
        self.certificates = certificates_of(directory, SECRET, given, days=days)
        self.process = NatsProcess(PosixFileSystem(), self.settings, self.certificates)
        self.ports = Ports(client="", monitor="")

    async def connect(self, context: ssl.SSLContext | None, password: str = "") -> Client:
        """Connect once, as a client with this certificate."""
        client = Client()
        await client.connect(
            self.ports.client,
            user=USER,
            password=password or self.settings.password("client"),
            tls=context,
            tls_hostname=HOST,
            allow_reconnect=False,
            max_reconnect_attempts=0,
            connect_timeout=10,
        )
        return client

    def certificate(self) -> bytes:
        """Return the certificate that the server presents to those who connect now."""
        port = int(self.ports.client.rpartition(":")[2])
        with socket.create_connection((HOST, port), 10.0) as plain:
            # The server says first that it wants TLS.
            assert b'"tls_required":true' in plain.recv(65536)
            with self.certificates.context.wrap_socket(plain, server_hostname=HOST) as tls:
                found = tls.getpeercert(binary_form=True)
                assert found is not None
                return found

    async def presents_another(self, before: bytes) -> None:
        """Wait until those who connect see another certificate."""
        await asyncio.to_thread(until, lambda: self.certificate() != before, "another certificate")


def certificates_of(
    directory: Path, secret: bytes, given: TlsFiles | None = None, *, days: int = 0
) -> SiteCertificates:
    """Return the certificates of a site that were made some days ago."""
    directory.mkdir(exist_ok=True)
    made = SiteCertificates(
        PosixFileSystem(),
        PurePath(directory),
        cluster="plant",
        site="a",
        secret=secret,
        hosts=[HOST],
        given=given,
    )
    made.prepare(_now_us() - days * DAY_US)
    return made


def _now_us() -> int:
    return time.time_ns() // 1000


@asynccontextmanager
async def server(
    directory: Path, given: TlsFiles | None = None, *, days: int = 0
) -> AsyncIterator[Server]:
    made = Server(directory, given, days=days)
    made.ports = await made.process.start()
    try:
        yield made
    finally:
        await made.process.stop()


def test_clients_need_a_certificate_of_the_cluster_and_the_password(tmp_path: Path) -> None:
    asyncio.run(_clients(tmp_path))


async def _clients(directory: Path) -> None:
    async with server(directory / "a") as nats:
        client = await nats.connect(nats.certificates.context)
        await client.close()
        bare = ssl.create_default_context(cafile=nats.certificates.files.authority)
        stranger = certificates_of(directory / "stranger", b"the secret of another cluster")
        fooled = ssl.create_default_context(cafile=nats.certificates.files.authority)
        fooled.load_cert_chain(stranger.files.certificate)
        refused = (NatsError, OSError, EOFError, asyncio.TimeoutError)
        for context in (bare, fooled, stranger.context):
            with pytest.raises(refused):
                await nats.connect(context)
        with pytest.raises(refused):
            await nats.connect(nats.certificates.context, password="x")  # noqa: S106 - a wrong one


def test_routes_need_a_certificate_of_the_cluster(tmp_path: Path) -> None:
    asyncio.run(_routes(tmp_path))


async def _routes(directory: Path) -> None:
    async with server(directory / "a") as nats:
        bare = ssl.create_default_context(cafile=nats.certificates.files.authority)
        for context, is_taken in ((bare, False), (nats.certificates.context, True)):
            answer = await asyncio.to_thread(_speak_as_route, nats.listen, context)
            # A server that trusts the certificate asks for the password next.
            assert (answer != b"") is is_taken


def _speak_as_route(address: Address, context: ssl.SSLContext) -> bytes:
    """Connect as a route, and return what the server says after the handshake."""
    with socket.create_connection((address.host, address.port), 10.0) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=HOST) as tls:
                tls.sendall(b'CONNECT {"user":"route","pass":"wrong"}\r\nPING\r\n')
                return tls.recv(65536)
        except (OSError, ssl.SSLError):
            return b""


def test_a_certificate_is_replaced_before_it_ends_and_connections_go_on(tmp_path: Path) -> None:
    asyncio.run(_renewed(tmp_path))


async def _renewed(directory: Path) -> None:
    async with server(directory / "a", days=61) as nats:
        client = await nats.connect(nats.certificates.context)
        before = await asyncio.to_thread(nats.certificate)
        assert not nats.certificates.renew(_now_us() - 2 * DAY_US)
        assert nats.certificates.renew(_now_us())
        nats.process.reload()
        await nats.presents_another(before)
        # The connection of before has not noticed.
        await client.flush(10)
        assert client.is_connected
        await client.close()


def test_certificates_of_the_user_are_replaced_while_the_server_runs(tmp_path: Path) -> None:
    asyncio.run(_given(tmp_path))


async def _given(directory: Path) -> None:
    authority = Authority(directory)
    first = authority.server()
    files = TlsFiles(
        certificate=PurePath(first.certificate),
        key=PurePath(first.key),
        authority=PurePath(authority.file),
    )
    async with server(directory / "a", files) as nats:
        before = await asyncio.to_thread(nats.certificate)
        assert not nats.certificates.renew(_now_us())
        damage(first)
        with pytest.raises(UsageError, match="cannot be used"):
            nats.certificates.renew(_now_us())
        authority.server()
        assert nats.certificates.renew(_now_us())
        nats.process.reload()
        await nats.presents_another(before)


def damage(files: CertificateFiles) -> None:
    """Write something else where a certificate is expected."""
    Path(files.certificate).write_bytes(b"not a certificate")


def test_a_site_with_another_secret_stays_outside(tmp_path: Path) -> None:
    with three_sites(tmp_path) as sites:
        sites.start()
        sites.wait_for_leader(*NAMES)
        other = tmp_path / "other"
        other.write_text("another secret, of 16 bytes")
        other.chmod(0o600)
        stranger = sites.brokers["c"]
        stranger.stop()
        stranger.set("cluster.secret_file", str(other))
        before = len(stranger.events())
        stranger.begin()
        stranger.wait_for("cluster_waiting", skip=before)
        sites.wait_for_leader("a", "b")
        sites.publish("a", "first", [b"%d" % i for i in range(5)])
        until(lambda: sites.status("a")["sites"]["c"]["state"] == "away", "c counts as away")
        assert len(stranger.events("cluster_joined")) == 1
