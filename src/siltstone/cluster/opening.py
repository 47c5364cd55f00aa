"""Make the site that the settings of a broker describe."""

from __future__ import annotations

from siltstone.clock import Clock
from siltstone.cluster.certificates import TlsFiles
from siltstone.cluster.secret import ensure_secret, read_secret
from siltstone.cluster.settings import Address, SiteSettings
from siltstone.cluster.site import ClusterSite
from siltstone.fs.paths import StorePaths
from siltstone.fs.posix import PosixFileSystem, absolute_path, config_directory


def make_site(
    *,
    name: str,
    epoch: int,
    site: str,
    seeds: str,
    listen: str,
    secret_file: str,
    nats: str,
    nats_monitor: str,
    nats_server: str,
    away_after: float,
    copy_rate: int,
    certificate: str,
    key: str,
    authority: str,
    zone: str,
    scrub_interval: float,
    scrub_rate: int,
    data: str,
    clock: Clock,
) -> ClusterSite:
    """Return a site of a cluster, not started yet. Raises: UsageError, NotFoundError."""
    fs = PosixFileSystem()
    if nats:
        # The user's servers have their own passwords and certificates.
        secret = b""
    elif secret_file:
        secret = read_secret(fs, absolute_path(secret_file))
    else:
        secret = ensure_secret(fs, config_directory() / f"{name}.secret")
    return ClusterSite(
        SiteSettings(
            name=name,
            epoch=epoch,
            site=site,
            seeds=() if nats else tuple(map(Address.parse, seeds.split(","))),
            nats=nats,
            nats_monitor=tuple(page.strip() for page in nats_monitor.split(",") if page.strip()),
            listen=Address.parse(listen) if listen else None,
            secret=secret,
            program=nats_server,
            away_after=away_after,
            copy_rate=copy_rate,
            zone=zone,
            scrub_interval=scrub_interval,
            scrub_rate=scrub_rate,
            directory=StorePaths(absolute_path(data)).cluster,
            tls=_given(certificate, key, authority),
        ),
        fs,
        clock,
    )


def _given(certificate: str, key: str, authority: str) -> TlsFiles | None:
    if not certificate:
        return None
    return TlsFiles(
        certificate=absolute_path(certificate),
        key=absolute_path(key),
        authority=absolute_path(authority),
    )
