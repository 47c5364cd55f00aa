"""The common options of `siltstone pub` and `siltstone sub`: the server and the client."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import randbelow, token_hex
from typing import Annotated, Final

import typer

from siltstone.cli.options import converted
from siltstone.cli.output.output import note
from siltstone.cli.shared_options import takes_options
from siltstone.client.client import Client
from siltstone.client.connection import Deliver
from siltstone.client.packet_ids import PACKET_ID_MAX
from siltstone.client.refusal import RefusedError, system_words
from siltstone.client.session import NO_SUBSCRIPTIONS, ClientSession, WantedSubscriptions
from siltstone.client.settings import SESSION_FOREVER, WINDOW_DEFAULT, ClientSettings
from siltstone.client.target import (
    PORT,
    PORT_TLS,
    ServerUrl,
    Target,
    TcpTarget,
    UnixTarget,
    parse_url,
)
from siltstone.client.tls import show_certificate
from siltstone.clock import SystemClock
from siltstone.errors import OutcomeUnknownError, PeerError, RetryError, UsageError
from siltstone.mqtt.packets import Will
from siltstone.mqtt.properties import NO_PROPERTIES, Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.settings.quantities import parse_duration
from siltstone.topic.grammar import check_topic

_SERVER: Final = "Server"
_SESSION: Final = "Session"
_WILL: Final = "Will"
_TLS: Final = "TLS"
# The errors of OpenSSL for a peer that does not use TLS.
_PLAIN_PORT: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
# The codes of OpenSSL for a certificate whose authority is not trusted.
_NO_AUTHORITY: Final = frozenset({18, 19, 20, 21})
_NO_LOGIN: Final = frozenset({Reason.NOT_AUTHORIZED, Reason.BAD_USER_NAME_OR_PASSWORD})
_IS_TLS: Final = f"Does this port use TLS? Port {PORT} usually does not."
_VERSIONS: Final = {
    "3.1.1": Version.V3_1_1,
    "311": Version.V3_1_1,
    "mqttv311": Version.V3_1_1,
    "5": Version.V5,
    "mqttv5": Version.V5,
}


def parse_version(text: str) -> Version:
    """Parse a version of MQTT, in the usual form or that of Mosquitto. Raises: UsageError."""
    version = _VERSIONS.get(text.lower())
    if version is None:
        raise UsageError(f"unknown MQTT version {text!r} (supported: 3.1.1 and 5)")
    return version


def parse_seconds(text: str) -> int:
    """Parse whole seconds in the range of MQTT, or `forever`. Raises: UsageError."""
    seconds = SESSION_FOREVER if text == "forever" else int(parse_duration(text))
    if not 0 <= seconds <= SESSION_FOREVER:
        raise UsageError(f"{text!r} is too long; MQTT allows at most {SESSION_FOREVER - 1} seconds")
    return seconds


def _nothing() -> None:
    """Do nothing: all messages to publish are already queued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPlan:
    """The settings that the options result in."""

    settings: ClientSettings
    target: Target
    tls: ssl.SSLContext | None
    # The topic in the URL of --url.
    topic: str | None

    def session(self, wanted: WantedSubscriptions = NO_SUBSCRIPTIONS) -> ClientSession:
        """Return a new session.

        A session that the server kept may contain packet ids of an earlier run. The server would
        take new packets with these ids for repetitions, so a kept session starts with a random id.
        """
        first = randbelow(PACKET_ID_MAX) + 1 if self.settings.keep_session else 1
        return ClientSession(self.settings, wanted, first_packet_id=first)

    def client(
        self, session: ClientSession, *, deliver: Deliver, wanted: Callable[[], None] = _nothing
    ) -> Client:
        """Return the client of a session; it prints a note when the connection is lost and
        restored.
        """
        return Client(
            self.settings,
            session,
            self.target,
            clock=SystemClock(),
            deliver=deliver,
            wanted=wanted,
            note=note,
            tls=self.tls,
        )


@contextmanager
def hinted(chosen: ClientPlan, session: ClientSession) -> Iterator[None]:
    """Add a hint about TLS, the login or the broker to the error of a connection that never
    worked.
    """
    try:
        yield
    except (OutcomeUnknownError, PeerError) as exc:
        if chosen.tls is None and isinstance(chosen.target, TcpTarget) and not session.met:
            exc.args = (f"{exc}. Does this port require TLS (--tls, --cafile)?", *exc.args[1:])
        raise
    except RefusedError as exc:
        cause = exc.__cause__
        if isinstance(cause, ssl.SSLError) and cause.reason in _PLAIN_PORT:
            exc.args = (f"{exc}. {_IS_TLS}", *exc.args[1:])
        elif isinstance(cause, ssl.SSLCertVerificationError) and cause.verify_code in _NO_AUTHORITY:
            exc.args = (f"{exc}; --cafile names an authority to trust", *exc.args[1:])
        elif exc.reason in _NO_LOGIN and not session.met and chosen.settings.username is None:
            exc.args = (f"{exc}; no user name was sent (--username)", *exc.args[1:])
        raise
    except RetryError as exc:
        if chosen.tls is not None and isinstance(exc.__cause__, ConnectionResetError):
            exc.args = (f"{exc}. {_IS_TLS}", *exc.args[1:])
        elif isinstance(exc.__cause__, ConnectionRefusedError | FileNotFoundError):
            exc.args = (f"{exc}; 'siltstone serve' starts a broker", *exc.args[1:])
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options, as typer parses them."""

    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            "-h",
            help="Host name or address of the broker.",
            show_default="localhost",
            rich_help_panel=_SERVER,
        ),
    ] = None
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            "-p",
            min=1,
            max=65_535,
            help="Port of the broker.",
            show_default=f"{PORT}; {PORT_TLS} with TLS",
            rich_help_panel=_SERVER,
        ),
    ] = None
    unix: Annotated[
        str | None,
        typer.Option(
            "--unix",
            metavar="PATH",
            help="Connect to a Unix socket instead.",
            rich_help_panel=_SERVER,
        ),
    ] = None
    url: Annotated[
        ServerUrl | None,
        typer.Option(
            "--url",
            "-L",
            parser=converted(parse_url),
            metavar="URL",
            help="Broker, user and topic in one: mqtt://user@host:port/topic, or mqtts://….",
            rich_help_panel=_SERVER,
        ),
    ] = None
    username: Annotated[
        str | None,
        typer.Option("--username", "-u", help="Name of the user.", rich_help_panel=_SERVER),
    ] = None
    password: Annotated[
        str | None,
        typer.Option(
            "--password",
            "-P",
            envvar="SILTSTONE_PASSWORD",
            help="Password. Other users of this machine can see it here; prefer --password-file.",
            rich_help_panel=_SERVER,
        ),
    ] = None
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help="File with the password in its first line.",
            rich_help_panel=_SERVER,
        ),
    ] = None
    client_id: Annotated[
        str | None,
        typer.Option("--id", "-i", help="Client id.", show_default="a random one"),
    ] = None
    version: Annotated[
        Version | None,
        typer.Option(
            "--version",
            "-V",
            parser=converted(parse_version),
            metavar="3.1.1|5",
            help="Version of MQTT.",
            show_default="5",
            rich_help_panel=_SERVER,
        ),
    ] = None
    keep_alive: Annotated[
        int,
        typer.Option(
            "--keep-alive",
            "-k",
            metavar="SECONDS",
            min=0,
            max=65_535,
            help="Longest time without a packet before the client sends a ping; 0 turns pings off.",
            rich_help_panel=_SESSION,
        ),
    ] = 60
    keep_session: Annotated[
        bool,
        typer.Option(
            "--keep-session",
            "-c",
            help="Resume the session of --id, and keep it for the next run.",
            rich_help_panel=_SESSION,
        ),
    ] = False
    session_expiry: Annotated[
        int | None,
        typer.Option(
            "--session-expiry",
            "-x",
            parser=converted(parse_seconds),
            metavar="TIME",
            help="Time that the broker keeps the session after a disconnect, for example 1h or 7d.",
            show_default="forever",
            rich_help_panel=_SESSION,
        ),
    ] = None
    reconnect: Annotated[
        bool,
        typer.Option(
            "--reconnect",
            help="Reconnect after a lost connection, and resend unacknowledged messages.",
            rich_help_panel=_SESSION,
        ),
    ] = False
    reconnect_timeout: Annotated[
        float | None,
        typer.Option(
            "--reconnect-timeout",
            parser=converted(parse_duration),
            metavar="TIME",
            help="Stop when the broker cannot be reached for this long, for example 30s.",
            show_default="never",
            rich_help_panel=_SESSION,
        ),
    ] = None
    will_topic: Annotated[
        str | None,
        typer.Option(
            "--will-topic",
            help="Topic of the message that the broker publishes if this client disappears.",
            rich_help_panel=_WILL,
        ),
    ] = None
    will_message: Annotated[
        str | None,
        typer.Option("--will-message", help="Payload of the will.", rich_help_panel=_WILL),
    ] = None
    will_qos: Annotated[
        int,
        typer.Option("--will-qos", min=0, max=2, help="QoS of the will.", rich_help_panel=_WILL),
    ] = 0
    will_retain: Annotated[
        bool, typer.Option("--will-retain", help="Retain the will.", rich_help_panel=_WILL)
    ] = False
    will_delay: Annotated[
        int | None,
        typer.Option(
            "--will-delay",
            parser=converted(parse_seconds),
            metavar="TIME",
            help="Time before the broker publishes the will, for example 10s.",
            rich_help_panel=_WILL,
        ),
    ] = None
    tls: Annotated[
        bool,
        typer.Option(
            "--tls",
            help="Use TLS and trust the certificate authorities of this machine.",
            rich_help_panel=_TLS,
        ),
    ] = False
    cafile: Annotated[
        Path | None,
        typer.Option(
            "--cafile",
            metavar="FILE",
            help="Use TLS and trust the certificate authorities in this file.",
            rich_help_panel=_TLS,
        ),
    ] = None
    cert: Annotated[
        Path | None,
        typer.Option(
            "--cert", metavar="FILE", help="Certificate of this client.", rich_help_panel=_TLS
        ),
    ] = None
    key: Annotated[
        Path | None,
        typer.Option(
            "--key", metavar="FILE", help="Private key of the certificate.", rich_help_panel=_TLS
        ),
    ] = None
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Accept a certificate that names another host.",
            rich_help_panel=_TLS,
        ),
    ] = False


def takes_client_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of ClientOptions to a command, which receives them as `client`."""
    return takes_options(command, ClientOptions, "client")


def plan(options: ClientOptions, *, role: str, window: int = WINDOW_DEFAULT) -> ClientPlan:
    """Combine the options; `role` is part of a generated client id.

    Raises: UsageError.
    """
    version = options.version or Version.V5
    if options.keep_session and not options.client_id:
        raise UsageError("--keep-session needs a client id; name one with --id")
    if options.session_expiry is not None and not options.keep_session:
        raise UsageError("--session-expiry needs --keep-session; pass both")
    if options.session_expiry is not None and version is Version.V3_1_1:
        raise UsageError("--session-expiry needs MQTT 5; leave out --version 3.1.1")
    if options.reconnect_timeout is not None and not options.reconnect:
        raise UsageError("--reconnect-timeout needs --reconnect; pass both")
    url = options.url
    password = _password(options)
    if password is None and url is not None and url.password is not None:
        password = url.password.encode()
    expiry = SESSION_FOREVER if options.session_expiry is None else options.session_expiry
    random_id = f"siltstone-{role}-{token_hex(4)}"
    return ClientPlan(
        settings=ClientSettings(
            client_id=random_id if options.client_id is None else options.client_id,
            version=version,
            username=options.username or (None if url is None else url.username),
            password=password,
            keep_alive_seconds=options.keep_alive,
            keep_session=options.keep_session,
            session_expiry_seconds=expiry,
            will=_will(options, version),
            window=window,
            reconnect=options.reconnect,
            reconnect_seconds=options.reconnect_timeout,
        ),
        target=_target(options),
        tls=_tls_context(options),
        topic=None if url is None else url.topic,
    )


def encoded_topic(text: str) -> bytes:
    """Return the bytes of a topic of the command line. Raises: UsageError."""
    topic = text.encode(errors="surrogateescape")
    check_topic(topic)
    return topic


def _uses_tls(options: ClientOptions) -> bool:
    files = (options.cafile, options.cert, options.key)
    named = options.tls or options.insecure or any(file is not None for file in files)
    return named or (options.url is not None and options.url.tls)


def _target(options: ClientOptions) -> Target:
    addressed = options.host is not None or options.port is not None
    if addressed + (options.unix is not None) + (options.url is not None) > 1:
        raise UsageError("--host and --port, --unix and --url exclude each other; use one way")
    if options.url is not None:
        return TcpTarget(options.url.host, options.url.port)
    if options.unix is not None:
        if _uses_tls(options):
            raise UsageError("a Unix socket has no TLS; leave out --unix or the TLS options")
        return UnixTarget(options.unix)
    port = options.port or (PORT_TLS if _uses_tls(options) else PORT)
    return TcpTarget(options.host or "localhost", port)


def _password(options: ClientOptions) -> bytes | None:
    if options.password_file is not None:
        return options.password_file.read_bytes().partition(b"\n")[0].removesuffix(b"\r")
    if options.password is not None:
        return options.password.encode(errors="surrogateescape")
    return None


def _will(options: ClientOptions, version: Version) -> Will | None:
    if options.will_topic is None:
        if options.will_message is not None or options.will_retain or options.will_qos:
            raise UsageError("a will needs a topic; name it with --will-topic")
        return None
    if options.will_delay is not None and version is Version.V3_1_1:
        raise UsageError("--will-delay needs MQTT 5; leave out --version 3.1.1")
    return Will(
        topic=encoded_topic(options.will_topic),
        payload=(options.will_message or "").encode(errors="surrogateescape"),
        qos=options.will_qos,
        retain=options.will_retain,
        properties=Properties(will_delay_interval=options.will_delay)
        if options.will_delay
        else NO_PROPERTIES,
    )


def _tls_context(options: ClientOptions) -> ssl.SSLContext | None:
    if not _uses_tls(options):
        return None
    if options.key is not None and options.cert is None:
        raise UsageError("--key needs a certificate; name it with --cert")
    try:
        context = ssl.create_default_context(cafile=options.cafile)
    except OSError as exc:
        raise UsageError(f"cannot use --cafile {options.cafile}: {system_words(exc)}") from exc
    context.check_hostname = not options.insecure
    if options.cert is not None:
        try:
            show_certificate(context, certificate=options.cert, key=options.key)
        except UsageError as exc:
            raise UsageError(f"cannot use --cert {options.cert}: {exc}") from exc
    return context
