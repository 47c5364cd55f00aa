"""Real certificates, made for one test and written to its directory."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """A certificate and its key, both as PEM."""

    certificate: str
    key: str


class Authority:
    """Signs certificates; `file` is its own certificate, for peers that trust it."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory / name
        self._directory.mkdir()
        self._ca = trustme.CA(organization_name=name)
        self.file = str(self._directory / "ca.crt")
        self._ca.cert_pem.write_to_path(self.file)

    def server(self, name: str = "server") -> CertificateFiles:
        """Issue a certificate for this machine; it replaces an earlier one with the same name."""
        return self._write(name, self._ca.issue_cert("localhost", "127.0.0.1", "::1"))

    def client(self, user: str) -> CertificateFiles:
        """Issue a certificate with this common name."""
        return self._write(user, self._ca.issue_cert(f"{user}.test", common_name=user))

    def client_context(self, files: CertificateFiles | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts this authority and uses these files."""
        context = ssl.create_default_context(cafile=self.file)
        if files is not None:
            context.load_cert_chain(files.certificate, files.key)
        return context

    def _write(self, name: str, leaf: trustme.LeafCert) -> CertificateFiles:
        certificate = self._directory / f"{name}.crt"
        certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        key = self._directory / f"{name}.key"
        leaf.private_key_pem.write_to_path(str(key))
        return CertificateFiles(str(certificate), str(key))


def encrypt_key(files: CertificateFiles, password: bytes) -> None:
    """Encrypt the key with a password, in its own file."""
    path = Path(files.key)
    key = load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password))
    )
