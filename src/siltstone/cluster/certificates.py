"""The certificates by which the NATS servers of a cluster and their clients know each other.

Every site has the secret of the cluster, so every site can derive the same certificate authority
from it: nothing has to be exchanged. A site issues a certificate for itself at each start, and
again long before that certificate ends. The user may give certificates of another authority
instead.

The certificate and its key are in one file, so that both are replaced at once.
"""

from __future__ import annotations

import hmac
import ipaddress
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import PurePath
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from siltstone.errors import SiltstoneError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import replace_file

_LIFE: Final = timedelta(days=90)
_RENEW: Final = timedelta(days=30)
# Clocks of sites differ.
_EARLIER: Final = timedelta(days=1)
# The authority is the same at each start, and at each site.
_SINCE: Final = datetime(2020, 1, 1, tzinfo=UTC)
_UNTIL: Final = datetime(2120, 1, 1, tzinfo=UTC)
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The files of a certificate, its key, and the certificate of the authority."""

    certificate: PurePath
    key: PurePath
    authority: PurePath


class Authority:
    """The certificate authority of a cluster."""

    def __init__(self, cluster: str, secret: bytes) -> None:
        seed = hmac.new(secret, f"{cluster}/authority".encode(), "sha256").digest()
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self._name = _name(f"siltstone cluster {cluster}")
        public = self._key.public_key()
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(1)
            .not_valid_before(_SINCE)
            .not_valid_after(_UNTIL)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._key, None)
        )

    @property
    def pem(self) -> bytes:
        """The certificate of the authority."""
        return self._certificate.public_bytes(Encoding.PEM)

    def issue(self, site: str, hosts: Iterable[str], now: datetime) -> bytes:
        """Return a new certificate of a site, for connections that it takes and makes, and its
        key.
        """
        key = Ed25519PrivateKey.generate()
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        names = dict.fromkeys([*hosts, *_LOOPBACK])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_name(site))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLIER)
            .not_valid_after(now + _LIFE)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([_alternative(name) for name in names]),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, None)
        )
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return certificate.public_bytes(Encoding.PEM) + private


class SiteCertificates:
    """The certificates of one site: its own ones, or those that the user gave."""

    def __init__(
        self,
        fs: FileSystem,
        directory: PurePath,
        *,
        cluster: str,
        site: str,
        secret: bytes,
        hosts: Iterable[str],
        given: TlsFiles | None,
    ) -> None:
        self._fs = fs
        self._site = site
        self._hosts = tuple(hosts)
        self._given = given
        self._authority = None if given is not None else Authority(cluster, secret)
        own = directory / "site.pem"
        self.files = given or TlsFiles(
            certificate=own, key=own, authority=directory / "authority.pem"
        )
        self._seen: tuple[bytes, ...] = ()
        self._context: ssl.SSLContext | None = None

    def prepare(self, now_us: int) -> None:
        """Issue a certificate, or check the ones that were given. Raises: UsageError."""
        if self._authority is not None:
            now = datetime.fromtimestamp(now_us / 1e6, UTC)
            replace_file(self._fs, self.files.authority, self._authority.pem)
            issued = self._authority.issue(self._site, self._hosts, now)
            replace_file(self._fs, self.files.certificate, issued)
        self._context = self._load()
        self._seen = self._read()

    def renew(self, now_us: int) -> bool:
        """Replace certificates that end soon, or load those that the user has replaced; return
        whether something changed. Raises: UsageError if the new ones cannot be used; the old ones
        stay in use.
        """
        if self._authority is not None:
            (certificate, *_) = x509.load_pem_x509_certificates(self._read()[0])
            now = datetime.fromtimestamp(now_us / 1e6, UTC)
            if certificate.not_valid_after_utc - now > _RENEW:
                return False
            issued = self._authority.issue(self._site, self._hosts, now)
            replace_file(self._fs, self.files.certificate, issued)
        found = self._read()
        if found == self._seen:
            return False
        self._load()
        # Connections that are made from now on use them.
        self._fill(self.context)
        self._seen = found
        return True

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context of NATS clients."""
        assert self._context is not None, "the certificates are prepared"
        return self._context

    def _read(self) -> tuple[bytes, ...]:
        files = self.files
        try:
            return tuple(
                self._fs.read(path) for path in (files.certificate, files.key, files.authority)
            )
        except SiltstoneError as exc:
            raise UsageError(f"a certificate of the cluster cannot be read: {exc}") from exc

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._fill(context)
        return context

    def _fill(self, context: ssl.SSLContext) -> None:
        try:
            context.load_verify_locations(self.files.authority)
            context.load_cert_chain(self.files.certificate, self.files.key, _no_password)
        except OSError as exc:
            raise UsageError(
                f"the certificates of the cluster cannot be used: {exc}: "
                f"certificate={self.files.certificate} key={self.files.key} "
                f"authority={self.files.authority}"
            ) from exc


def _no_password() -> str:
    raise UsageError("the key of the cluster's certificate has a password: remove it")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
