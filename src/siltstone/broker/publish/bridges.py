"""Creation of the bridges that the settings define."""

from __future__ import annotations

import socket
import ssl
from functools import partial
from pathlib import PurePath

from siltstone.bridge.bridge import Bridge, Here, publisher_of
from siltstone.bridge.outbound import WaitingBytes
from siltstone.bridge.settings import LinkSettings, LinkTopic
from siltstone.broker.broker import Broker
from siltstone.broker.publish.internal import publish_here
from siltstone.broker.settings.bridges import BridgeSettings
from siltstone.client.refusal import system_words
from siltstone.client.settings import ClientSettings, default_window
from siltstone.client.target import TcpTarget, parse_url
from siltstone.client.tls import show_certificate
from siltstone.errors import UsageError
from siltstone.fs.api import FileSystem
from siltstone.mqtt.wire import Version
from siltstone.spool import ensure

# How many unacknowledged messages the remote broker may send.
_RECEIVE_MAX = 256
_SPOOLS = "spool"
_DEAD_SUFFIX = ".dead"


def open_links(broker: Broker, fs: FileSystem, data: PurePath) -> list[Bridge]:
    """Open every bridge; messages published from now on are kept for its remote broker.

    Raises: SiltstoneError for files or spools that cannot be opened.
    """
    links: list[Bridge] = []
    for bridge in broker.settings.bridge:
        settings = link_settings(bridge, fs)
        spool = ensure(data / _SPOOLS / bridge.name, fs=fs)
        link = Bridge(
            settings,
            spool,
            Here(
                publish=partial(publish_here, broker, publisher_of(bridge.name)),
                pace=WaitingBytes(broker.bridge.hold, broker.bridge.release),
            ),
            fs=fs,
            clock=broker.clock,
            dead_letters=data / _SPOOLS / f"{bridge.name}{_DEAD_SUFFIX}",
        )
        broker.taps.add(link)
        links.append(link)
    return links


def link_settings(bridge: BridgeSettings, fs: FileSystem) -> LinkSettings:
    """Return the settings of a link, with the contents of the files that they name.

    Raises: UsageError, DiskError.
    """
    url = parse_url(bridge.server)
    version = Version.V5 if bridge.version == "5" else Version.V3_1_1
    password = None
    if bridge.password_file:
        password = fs.read(PurePath(bridge.password_file)).partition(b"\n")[0].rstrip(b"\r")
    return LinkSettings(
        name=bridge.name,
        target=TcpTarget(url.host, url.port),
        tls=client_context(bridge) if url.tls else None,
        client=ClientSettings(
            client_id=bridge.client_id or f"{socket.gethostname()}.{bridge.name}",
            version=version,
            username=bridge.username or None,
            password=password,
            keep_alive_seconds=bridge.keep_alive,
            keep_session=True,
            window=default_window(version, max(topic.qos for topic in bridge.topics)),
            receive_max=_RECEIVE_MAX,
            reconnect=True,
        ),
        topics=tuple(
            LinkTopic(
                pattern=topic.filter,
                direction=topic.direction,
                qos=topic.qos,
                local_prefix=topic.local_prefix,
                remote_prefix=topic.remote_prefix,
            )
            for topic in bridge.topics
        ),
        spool_bytes_max=bridge.spool_bytes_max,
        when_full=bridge.when_full,
    )


def client_context(bridge: BridgeSettings) -> ssl.SSLContext:
    """Return the TLS context for the remote broker. Raises: UsageError."""
    where = f"bridge {bridge.name!r} cannot use"
    try:
        context = ssl.create_default_context(cafile=bridge.authorities or None)
    except OSError as exc:
        raise UsageError(f"{where} {bridge.authorities}: {system_words(exc)}") from exc
    if bridge.certificate:
        try:
            show_certificate(context, certificate=bridge.certificate, key=bridge.key)
        except UsageError as exc:
            raise UsageError(f"{where} its certificate: {exc}") from exc
    return context
