"""The cluster of a broker, from its settings. Imported only if the settings name one."""

from __future__ import annotations

from siltstone.broker.settings.broker import BrokerSettings
from siltstone.clock import Clock
from siltstone.cluster.secret import ensure_secret, read_secret
from siltstone.cluster.settings import Address, ClusterSettings
from siltstone.cluster.site import ClusterSite
from siltstone.fs.paths import StorePaths
from siltstone.fs.posix import PosixFileSystem, absolute_path, config_directory


def make_site(settings: BrokerSettings, clock: Clock) -> ClusterSite:
    """Return this broker as a site of its cluster, not started yet. Raises: UsageError."""
    section, fs = settings.cluster, PosixFileSystem()
    if section.secret_file:
        secret = read_secret(fs, absolute_path(section.secret_file))
    else:
        secret = ensure_secret(fs, config_directory() / f"{section.name}.secret")
    return ClusterSite(
        ClusterSettings(
            name=section.name,
            site=section.site,
            seeds=tuple(map(Address.parse, section.seeds.split(","))),
            listen=Address.parse(section.listen) if section.listen else None,
            secret=secret,
            program=section.nats_server,
            directory=StorePaths(absolute_path(settings.data)).cluster,
        ),
        fs,
        clock,
    )
