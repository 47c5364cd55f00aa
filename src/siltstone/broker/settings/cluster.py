"""The settings of a cluster of sites that replicate databases."""

from __future__ import annotations

import re
from typing import Final, Self

from pydantic import Field, model_validator

from siltstone.broker.settings.kinds import Count, Seconds, Settings, Size, wrong

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_PLACE: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}")


class ClusterSettings(Settings):
    """A cluster: several sites that each run a broker and replicate databases. It needs
    `siltstone[cluster]`.
    """

    name: str = Field(
        default="", description="Name of the cluster that this broker belongs to. Empty: none."
    )
    site: str = Field(
        default="", description="Name of this site. It must be unique in the cluster."
    )
    epoch: Count = Field(
        default=1,
        ge=1,
        le=1_000_000,
        description="Epoch of the cluster: the number of the last `siltstone cluster refound`, the "
        "same at all sites. 1: the cluster never began anew.",
    )
    seeds: str = Field(
        default="",
        description="Addresses as HOST:PORT, separated by commas, of the three or five sites whose "
        "NATS servers keep the shared logs. The NATS servers connect to each other there.",
    )
    listen: str = Field(
        default="",
        description="Address of this site, as HOST:PORT. Empty: the first seed that is a free "
        "address of this machine when the site starts for the first time. Another address than the "
        "seeds: the site keeps no shared log, and begins as an observer.",
    )
    secret_file: str = Field(
        default="",
        description="File with the secret that all sites share. Empty: a file of this user with "
        "the name of the cluster, which the first site creates.",
    )
    nats: str = Field(
        default="",
        description="URLs of the servers of your own NATS cluster, separated by commas, instead of "
        "`seeds`: nats:// or tls://, with user and password if they are needed. Empty: each site "
        "runs a server.",
    )
    nats_monitor: str = Field(
        default="",
        description="URLs of the monitoring pages of all servers of `nats`, separated by commas: "
        "http://HOST:PORT. A start checks there that the servers sync.",
    )
    nats_server: str = Field(
        default="", description="Path of nats-server. Empty: the one of siltstone[cluster]."
    )

    certificate: str = Field(
        default="",
        description="Certificate of this site, for the connections between the NATS servers and to "
        "them, with the hosts of `seeds` that are this site. Empty: the site issues one, from an "
        "authority that all sites derive from the secret.",
    )
    key: str = Field(default="", description="Private key of `certificate`, without a password.")
    authority: str = Field(
        default="",
        description="Certificates of the authorities that issued the certificates of all sites.",
    )

    zone: str = Field(
        default="",
        description="Name of the room, rack or power line of this site, or of anything else that "
        "several sites lose at once. The replicas of a shard are spread over the zones. Empty: the "
        "site is a zone of its own.",
    )
    away_after: Seconds = Field(
        default=60.0,
        ge=1,
        le=86400,
        description="Time after which the shared logs no longer keep messages for a site that is "
        "away. When the site returns, it copies from another site what the logs do not have.",
    )
    copy_rate: Size = Field(
        default=100 * 1024 * 1024,
        ge=64 * 1024,
        description="Largest number of bytes per second that this site copies from another site.",
    )

    scrub_interval: Seconds = Field(
        default=86400.0,
        ge=1,
        le=31536000,
        description="Time after which this site reads all its sealed segments again and compares "
        "their rows with those of the other sites.",
    )
    scrub_rate: Size = Field(
        default=16 * 1024 * 1024,
        ge=64 * 1024,
        description="Largest number of bytes per second that this check reads.",
    )

    @property
    def enabled(self) -> bool:
        """Whether this broker belongs to a cluster."""
        return bool(self.name)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.enabled:
            if self.site or self.seeds or self.listen or self.nats:
                raise wrong(
                    "is missing: site, seeds, listen and nats need the name of the cluster", "name"
                )
            return self
        if not self.site:
            raise wrong("is missing: a cluster needs the name of this site", "site")
        for key, name in (("name", self.name), ("site", self.site)):
            if not _NAME.fullmatch(name):
                raise wrong(f"must have 1 to 32 letters, digits, '_' and '-', found {name!r}", key)
        self._check_servers()
        files = (self.certificate, self.key, self.authority)
        if any(files) and not all(files):
            raise wrong("needs certificate, key and authority together, or none", "certificate")
        return self

    def _check_servers(self) -> None:
        """Check which NATS servers there are: those of the user, or one for each seed."""
        if self.nats:
            if self.seeds or self.listen:
                raise wrong(
                    "excludes seeds and listen: these are for servers that the sites start", "nats"
                )
            for url in self.nats.split(","):
                if not url.strip().startswith(("nats://", "tls://")):
                    raise wrong(
                        f"must begin with nats:// or tls://: {_without_user(url)!r}", "nats"
                    )
            if not self.nats_monitor:
                raise wrong("must name the monitoring pages of all servers", "nats_monitor")
            return
        if self.nats_monitor:
            raise wrong("is for servers of your own: set nats too", "nats_monitor")
        if not self.seeds:
            raise wrong("is missing: a cluster needs the addresses of its sites", "seeds")
        for place in self.seeds.split(","):
            if not _PLACE.fullmatch(place.strip()):
                raise wrong(f"must be HOST:PORT,HOST:PORT,…: {place.strip()!r}", "seeds")
        if self.listen and not _PLACE.fullmatch(self.listen.strip()):
            raise wrong(f"must be HOST:PORT: {self.listen!r}", "listen")


def _without_user(url: str) -> str:
    """Return a URL without a password, for an error."""
    return url.rpartition("@")[2].strip()
