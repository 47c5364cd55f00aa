"""The user's own NATS servers, and the settings that they need so that nothing acknowledged is
lost.

A start refuses servers that would lose data, and names the wrong setting. It asks the monitoring
page of each server, because the connection of a client does not tell whether a server syncs. A
server that does not answer is not checked, but most of them must answer.

The servers are checked again all the time, because a server may be restarted with other settings.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any, Final

from nats.aio.client import Client
from nats.errors import Error as NatsError

from siltstone.cluster.nats_process import PAYLOAD_MAX, Ports, check_syncs, read_monitor
from siltstone.cluster.settings import SiteSettings
from siltstone.cluster.shared_log import STREAM_BYTES, ApiError, ask
from siltstone.errors import SiltstoneError, UsageError

SERVERS_MIN: Final = 3
VERSION_MIN: Final = (2, 12)
_STREAMS_MIN: Final = 2


class UserNats:
    """The servers of the user, in the place of a process of this site."""

    def __init__(self, settings: SiteSettings) -> None:
        self._settings = settings

    async def start(self) -> Ports:
        """Check the servers; return where to connect. Raises: UsageError, SiltstoneError."""
        pages = self._settings.nats_monitor
        if len(pages) < SERVERS_MIN:
            raise UsageError(
                f"a NATS cluster needs at least {SERVERS_MIN} servers, so that one may fail: "
                f"cluster.nats_monitor names {len(pages)}"
            )
        known = await self._known()
        if 2 * len(known) <= len(pages):
            missing = ", ".join(page for page in pages if page not in known)
            raise SiltstoneError(
                f"most monitoring pages of NATS do not answer, so it is not known whether the "
                f"servers sync: {missing}"
            )
        check_servers(known)
        return Ports(client=self._settings.nats, monitor=next(iter(known)))

    async def danger(self, client: Client) -> str | None:
        """Check the servers and the account again. Return the problem that could lose data, "" if
        there is none. Return None if no server answers.
        """
        known = await self._known()
        if not known:
            return None
        # A server that has shut JetStream down stores nothing, so it can lose nothing.
        storing = {
            page: values
            for page, values in known.items()
            if values.get("jetstream", {}).get("config")
        }
        try:
            check_servers(storing)
            # Without an answer of JetStream, nothing is acknowledged either.
            with suppress(NatsError, ApiError, OSError, TimeoutError):
                await self.check_account(client)
        except UsageError as exc:
            return str(exc)
        return ""

    async def _known(self) -> dict[str, dict[str, Any]]:
        """Return the pages of the servers that answer."""
        pages = self._settings.nats_monitor
        answers = await asyncio.gather(*(self._look(page) for page in pages))
        return {page: values for page, values in zip(pages, answers, strict=True) if values}

    async def _look(self, page: str) -> dict[str, Any]:
        try:
            return await asyncio.to_thread(read_monitor, page.rstrip("/"), "varz")
        except (OSError, ValueError):
            return {}

    async def check_account(self, client: Client) -> None:
        """Check the limits that JetStream grants to this user. Raises: SiltstoneError,
        NatsError.
        """
        check_limits((await ask(client, "INFO"))["limits"])

    @property
    def host(self) -> None:
        """Return no host: the certificate of a server must name the host in its URL."""
        return None

    def is_alive(self) -> bool:
        """Return True: the servers are not watched."""
        return True

    async def stores(self) -> bool:
        """Return True: the space of the servers is not watched."""
        return True

    def reload(self) -> None:
        """Leave the certificates of the servers to the user."""

    async def stop(self) -> None:
        """Leave the servers alone."""


def check_servers(known: dict[str, dict[str, Any]]) -> None:
    """Check the answers of `/varz`, by the pages. Raises: SiltstoneError, UsageError."""
    servers: dict[str, str] = {}
    clusters: dict[str, str] = {}
    for page, values in known.items():
        try:
            _check_server(values)
            identity = str(values["server_id"])
        except SiltstoneError as exc:
            raise UsageError(f"{page}: {exc}") from exc
        except (KeyError, TypeError, AttributeError) as exc:
            raise UsageError(f"{page} is not the monitoring page of a NATS server: {exc}") from exc
        other = servers.setdefault(identity, page)
        if other != page:
            raise UsageError(f"cluster.nats_monitor names one server twice: {other} and {page}")
        clusters.setdefault(str(values.get("cluster", {}).get("name", "")), page)
    if len(clusters) > 1 or "" in clusters:
        names = ", ".join(f"{name or 'none'} at {page}" for name, page in clusters.items())
        raise UsageError(f"the NATS servers must be one cluster, but they are of several: {names}")


def _check_server(values: dict[str, Any]) -> None:
    version = str(values["version"])
    if not is_recent(version):
        wanted = ".".join(map(str, VERSION_MIN))
        raise UsageError(f"nats-server {version} is too old: {wanted} or newer is needed")
    check_syncs(values)
    if values["max_payload"] < PAYLOAD_MAX:
        raise UsageError(
            f"the NATS server takes too small messages: max_payload is {values['max_payload']}, "
            f"and must be at least {PAYLOAD_MAX}"
        )


def is_recent(version: str) -> bool:
    """Return whether a version of nats-server was tested with Siltstone, or is newer."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and tuple(map(int, numbers.groups())) >= VERSION_MIN


def check_limits(limits: dict[str, Any]) -> None:
    """Check the limits of an account of JetStream; -1 is none. Raises: UsageError."""
    for key, least in (("max_storage", STREAM_BYTES), ("max_streams", _STREAMS_MIN)):
        if 0 <= limits[key] < least:
            raise UsageError(
                f"the NATS account is too small: {key} is {limits[key]}, and must be at least "
                f"{least} for the first shard"
            )
