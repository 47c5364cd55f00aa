"""The settings of one site of a cluster, and the passwords that are derived from its secret."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import PurePath

from siltstone.cluster.certificates import TlsFiles
from siltstone.errors import UsageError


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address that a text names. Raises: UsageError."""
        host, _, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(f"expected HOST:PORT, got {text!r}")
        return cls(host, int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSettings:
    """One site of a cluster.

    `seeds` has the addresses of the NATS servers that keep the shared logs, and `listen` the one of
    this site; if it is not set, the site takes the first free seed of this machine and keeps it. A
    site that listens elsewhere keeps no shared log. Sites of one `zone` may fail together. `nats`
    has the URLs of a NATS cluster of the user's own. `program` is the nats-server to run, "" to
    find it.
    """

    name: str
    # The number of times that the logs have begun, with other seeds each time.
    epoch: int = 1
    site: str
    seeds: tuple[Address, ...]
    listen: Address | None
    secret: bytes
    nats: str = ""
    # The monitoring pages of these servers.
    nats_monitor: tuple[str, ...] = ()
    program: str = ""
    directory: PurePath
    # The time after which a silent site leaves the in-sync sites.
    away_after: float = 60.0
    # Bytes per second that are copied from another site.
    copy_rate: int = 100 * 1024 * 1024
    # Certificates that the user gives; without them the site issues its own.
    tls: TlsFiles | None = None
    zone: str = ""
    # The interval at which all sealed segments are read and compared, and the rate of reading.
    scrub_interval: float = 86400.0
    scrub_rate: int = 16 * 1024 * 1024

    @property
    def keeps_logs(self) -> bool:
        """Whether the NATS server of this site keeps shared logs."""
        return bool(self.nats) or self.listen is None or self.listen in self.seeds

    @property
    def replicas(self) -> int:
        """The number of copies of each shared log: as many as there are servers, 3 at most."""
        return max(1, min(3, len(self.nats_monitor if self.nats else self.seeds)))

    @property
    def scope(self) -> str:
        """The name of the cluster in this epoch: servers of another epoch are strangers."""
        return self.name if self.epoch == 1 else f"{self.name}.{self.epoch}"

    @property
    def log_directory(self) -> PurePath:
        """The directory of the shared logs of this epoch."""
        return self.directory / ("jetstream" if self.epoch == 1 else f"jetstream-{self.epoch}")

    def password(self, purpose: str) -> str:
        """Return the password for a purpose; it does not tell the secret."""
        text = f"{self.scope}/{purpose}".encode()
        return hmac.new(self.secret, text, "sha256").hexdigest()
