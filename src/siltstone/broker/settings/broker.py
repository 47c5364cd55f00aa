"""The settings of the broker: frozen values, validated when they are created.

A rule about two keys is checked by the class that has both. Files that settings name are not
checked here: the code that opens them reports errors.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from itertools import combinations
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from siltstone.broker.settings.access import AccessSettings
from siltstone.broker.settings.bridges import BridgeSettings
from siltstone.broker.settings.cluster import ClusterSettings
from siltstone.broker.settings.kinds import (
    DAY,
    U32_MAX,
    Count,
    Mode,
    OptionalBool,
    OptionalSeconds,
    OptionalSize,
    Seconds,
    Settings,
    Size,
    Texts,
    wrong,
)
from siltstone.broker.settings.storage import SessionSettings, ShareSettings, Storage
from siltstone.broker.settings.tier import TierProcessSettings
from siltstone.broker.settings.topiclog import TopicLogSettings
from siltstone.clock import CONFIRM_SECONDS, JUMP_SECONDS
from siltstone.store.slab.settings import DatabaseSettings

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
_SNAPSHOT_SECONDS: Final = 300.0
U16_MAX: Final = 65_535

# One byte, four bytes of length with seven bits each, and the largest length (2.1.4).
PACKET_SIZE_MAX: Final = 5 + 268_435_455

_EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
_DEFAULTS: Final = DatabaseSettings()


class Limits(Settings):
    """Limits of one client, and of all clients together."""

    connections_max: Count = Field(
        default=100_000, ge=1, description="Largest number of connected clients."
    )
    connections_per_address_max: Count = Field(
        default=0,
        ge=0,
        description="Largest number of connected clients from one address. 0: no limit.",
    )
    packet_size_max: Size = Field(
        default=16 * MIB,
        ge=128,
        le=PACKET_SIZE_MAX,
        description="Largest packet that a client may send. CONNACK announces it as Maximum "
        "Packet Size.",
    )
    control_size_max: Size = Field(
        default=256 * KIB,
        ge=KIB,
        le=PACKET_SIZE_MAX,
        description="Largest packet of any type except CONNECT and PUBLISH.",
    )
    filters_max: Count = Field(
        default=1000, ge=1, description="Largest number of filters in one SUBSCRIBE or UNSUBSCRIBE."
    )
    user_properties_max: Count = Field(
        default=1000,
        ge=1,
        description="Largest number of user properties in one packet, or in one will.",
    )
    properties_size_max: Size = Field(
        default=256 * KIB, ge=KIB, description="Largest size of all properties of one packet."
    )
    receive_max: Count = Field(
        default=1024,
        ge=1,
        le=U16_MAX,
        description="Largest number of unacknowledged QoS 1 and 2 messages from one client. "
        "CONNACK announces it as Receive Maximum.",
    )
    topic_alias_max: Count = Field(
        default=10,
        ge=0,
        le=U16_MAX,
        description="Largest number of topic aliases that one client may set.",
    )
    topic_alias_out_max: Count = Field(
        default=100,
        ge=0,
        le=U16_MAX,
        description="Largest number of topic aliases that the broker sets for one client. The "
        "limit of the client applies too.",
    )
    inflight_max: Count = Field(
        default=1024,
        ge=1,
        le=U16_MAX,
        description="Largest number of unacknowledged QoS 1 and 2 messages to one client.",
    )
    queued_messages_max: Count = Field(
        default=100_000, ge=1, description="Largest number of messages in the queue of one session."
    )
    queued_bytes_max: Size = Field(
        default=64 * MIB,
        ge=KIB,
        description="Largest size of the messages in the queue of one session.",
    )
    queued_bytes_total_max: Size = Field(
        default=GIB,
        ge=KIB,
        description="Largest size of the messages in the queues of all sessions together.",
    )
    queue_policy: Literal["drop-new", "drop-old"] = Field(
        default="drop-old",
        description="Which message the broker drops when a queue is full: the new one or the "
        "oldest one. A QoS 0 message never replaces a message of QoS 1 or 2. Messages that a "
        "durable session reads from the store are not dropped.",
    )
    refused_publish: Literal["acknowledge", "close"] = Field(
        default="acknowledge",
        description="Answer to a QoS 1 or 2 message that an MQTT 3.1.1 client may not publish. "
        "acknowledge: acknowledge and drop the message; close: close the connection.",
    )
    refusal_delay: Seconds = Field(
        default=5.0,
        ge=0,
        le=60,
        description="Time before the broker closes the connection of an MQTT 3.1.1 client whose "
        "message could not be stored.",
    )
    write_buffer_max: Size = Field(
        default=MIB,
        ge=KIB,
        description="Largest number of bytes in the send buffer of one connection. Further "
        "messages wait in the queue of the session.",
    )
    publish_rate_max: Count = Field(
        default=0,
        ge=0,
        description="Largest number of messages per second from one client. The broker reads from "
        "a faster client more slowly. 0: no limit.",
    )
    subscriptions_max: Count = Field(
        default=10_000, ge=1, description="Largest number of subscriptions of one client."
    )
    subscriptions_total_max: Count = Field(
        default=5_000_000,
        ge=1,
        description="Largest number of subscriptions of all clients together.",
    )
    topic_levels_max: Count = Field(
        default=128,
        ge=1,
        le=U16_MAX + 1,
        description="Largest number of levels in a topic or filter.",
    )
    client_id_size_max: Size = Field(
        default=1024, ge=23, le=U16_MAX, description="Largest size of a client id, in bytes."
    )
    connect_timeout: Seconds = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="Longest time from the accepted connection to a complete CONNECT, and again "
        "from the login to CONNACK.",
    )
    keep_alive_max: Count = Field(
        default=U16_MAX,
        ge=1,
        le=U16_MAX,
        description="Longest keep alive, in seconds. If a client asks for a longer one, or for "
        "none, CONNACK has this value as Server Keep Alive. 65535: no limit.",
    )
    session_expiry_max: Seconds = Field(
        default=7 * DAY,
        ge=0,
        le=U32_MAX,
        description="Longest time that a session may outlive its connection. If a client asks for "
        "more, CONNACK has this value. 4294967295: forever.",
    )
    sessions_max: Count = Field(
        default=1_000_000, ge=1, description="Largest number of sessions, online and offline."
    )
    retained_messages_max: Count = Field(
        default=1_000_000, ge=0, description="Largest number of retained messages."
    )
    retained_bytes_max: Size = Field(
        default=GIB, ge=0, description="Largest size of all retained messages together."
    )
    partial_bytes_max: Size = Field(
        default=256 * MIB,
        ge=MIB,
        description="Largest size of the incomplete packets of all clients together. The broker "
        "disconnects the client that exceeds it.",
    )
    pending_bytes_max: Size = Field(
        default=32 * MIB,
        ge=64 * KIB,
        description="Size of the messages that wait for the disk above which the broker stops "
        "reading from clients.",
    )


Kind = Literal["tcp", "tls", "ws", "wss", "unix"]
_SECURE: Final[tuple[Kind, ...]] = ("tls", "wss")

# The keys that only some kinds of listener have, and these kinds.
_KINDS_OF: Final[dict[str, tuple[Kind, ...]]] = {
    "host": ("tcp", "tls", "ws", "wss"),
    "port": ("tcp", "tls", "ws", "wss"),
    "path": ("ws", "wss", "unix"),
    "certificate": _SECURE,
    "key": _SECURE,
    "client_ca": _SECURE,
    "client_certificate": _SECURE,
    "mode": ("unix",),
}


class ListenerSettings(Settings):
    """An address where clients connect."""

    kind: Kind = Field(default="tcp", description="Transport of the listener.")
    host: str = Field(
        default="127.0.0.1", description='Address to listen on. "0.0.0.0" or "::": all addresses.'
    )
    port: Count = Field(
        default=1883, ge=0, le=U16_MAX, description="Port to listen on. 0: any free port."
    )
    path: str = Field(
        default="",
        description='Socket file (unix), or path of the URL (ws and wss; "/mqtt" by default).',
    )
    certificate: str = Field(
        default="", description="PEM file with the certificate chain (tls and wss)."
    )
    key: str = Field(default="", description="PEM file with the private key of the certificate.")
    client_ca: str = Field(
        default="", description="PEM file with the authorities that sign client certificates."
    )
    client_certificate: Literal["none", "optional", "required"] = Field(
        default="none", description="Whether clients need a certificate."
    )
    user_from_certificate: bool = Field(
        default=True, description="Whether the common name of the client certificate is the user."
    )
    allow_anonymous: OptionalBool = Field(
        default=None,
        description="Whether clients without a user name may connect. none: only on loopback and "
        "Unix sockets, and not with TLS if there is a password file or a hook.",
    )
    mode: Mode = Field(default=0o660, description="Permissions of the Unix socket file.")

    @property
    def secure(self) -> bool:
        """Whether the listener uses TLS."""
        return self.kind in _SECURE

    @property
    def url_path(self) -> str:
        """The path in the URL of a WebSocket."""
        return self.path or "/mqtt"

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the listener."""
        return self.kind == "unix" or _is_loopback(self.host)

    @property
    def anonymous_allowed(self) -> bool:
        """Whether a client may connect without a user name."""
        return self.local if self.allow_anonymous is None else self.allow_anonymous

    @property
    def knows_by_certificate(self) -> bool:
        """Whether a client can log in with its certificate only."""
        return self.client_certificate != "none" and self.user_from_certificate

    @property
    def address(self) -> str:
        """The address as a URL, for example tcp://127.0.0.1:1883."""
        if self.kind == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        path = self.url_path if self.kind in {"ws", "wss"} else ""
        return f"{self.kind}://{host}:{self.port}{path}"

    def collides(self, other: ListenerSettings) -> bool:
        """Return whether both listeners use the same address."""
        if self.kind == "unix" or other.kind == "unix":
            return self.kind == other.kind and self.path == other.path
        hosts = {self.host, other.host}
        return self.port == other.port != 0 and (
            len(hosts) == 1 or not hosts.isdisjoint(_EVERYWHERE)
        )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key, kinds in _KINDS_OF.items():
            if (
                self.kind not in kinds
                and getattr(self, key) != type(self).model_fields[key].default
            ):
                raise wrong(
                    f"is only for listeners of kind {' and '.join(kinds)}, and this one has kind "
                    f"{self.kind}",
                    key,
                )
        if self.kind == "unix" and not self.path:
            raise wrong("is missing: a unix listener needs the path of its socket file", "path")
        if self.kind in {"ws", "wss"} and not self.url_path.startswith("/"):
            raise wrong("must begin with /: it is the path of a URL", "path")
        for key in ("certificate", "key"):
            if self.secure and not getattr(self, key):
                raise wrong(f"is missing: {self.kind} needs a certificate and its key", key)
        if self.client_certificate != "none" and not self.client_ca:
            raise wrong(
                "is missing: client certificates need the authority that signs them", "client_ca"
            )
        return self


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class SnapshotSettings(Settings):
    """Snapshots of the whole state, in the directory `snapshots` of the data directory."""

    time_interval: OptionalSeconds = Field(
        default=None,
        ge=0,
        description='Time between snapshots. 0: never; none: 300 s if persistence = "snapshot", '
        "otherwise never. SIGUSR1 and `siltstone snapshot now` also write one.",
    )
    keep: Count = Field(default=2, ge=1, description="Number of snapshots that are kept.")
    memory_max: OptionalSize = Field(
        default=None,
        ge=0,
        description="Largest memory for the state that a snapshot loads. Beyond this limit, "
        "messages and payloads stay on disk until they are sent. none: a third of the memory that "
        "the process may still take when it loads the snapshot.",
    )


class LogSettings(Settings):
    """The log of the broker, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least important level of events that are logged."
    )
    format: Literal["human", "json"] = Field(
        default="human", description="Format of a line: text for people, or a JSON object."
    )


class FlightSettings(Settings):
    """Arrow Flight: programs on other machines read and append rows. The users are those of
    `access`.
    """

    enabled: bool = Field(default=False, description="Whether the broker serves Flight.")
    host: str = Field(
        default="127.0.0.1", description='Address to listen on. "0.0.0.0" or "::": all addresses.'
    )
    port: Count = Field(
        default=8815, ge=0, le=U16_MAX, description="Port to listen on. 0: any free port."
    )
    certificate: str = Field(
        default="",
        description="PEM file with the certificate chain. Without it, Flight does not use TLS.",
    )
    key: str = Field(default="", description="PEM file with the private key of the certificate.")
    client_ca: str = Field(
        default="",
        description="PEM file with the authorities that sign client certificates. If it is set, "
        "clients need a certificate.",
    )
    allow_anonymous: OptionalBool = Field(
        default=None,
        description="Whether clients without a login may connect. none: only on loopback, and not "
        "with TLS if there is a password file or a hook.",
    )
    managers: Texts = Field(
        default=(),
        description="Users that may manage the store over Flight, append to every database, and "
        "use transactions in every key-value database. Rights for topics do not limit them.",
    )

    @property
    def anonymous_allowed(self) -> bool:
        """Whether a client may connect without a user name."""
        return _is_loopback(self.host) if self.allow_anonymous is None else self.allow_anonymous

    @property
    def secure(self) -> bool:
        """Whether Flight uses TLS."""
        return bool(self.certificate)

    @property
    def address(self) -> str:
        """The address as a URL of Flight, for example grpc+tcp://127.0.0.1:8815."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"grpc+{'tls' if self.secure else 'tcp'}://{host}:{self.port}"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.certificate) != bool(self.key):
            missing = "key" if self.certificate else "certificate"
            raise wrong("is missing: TLS needs a certificate and its key", missing)
        if self.client_ca and not self.certificate:
            raise wrong("is only for TLS: set certificate and key too", "client_ca")
        if "" in self.managers:
            raise wrong("must not have an empty user name", "managers")
        return self


class BrokerSettings(Settings):
    """All settings of `siltstone serve`."""

    data: str = Field(
        default="siltstone-data", min_length=1, description="Directory that holds all databases."
    )
    persistence: Literal["store", "snapshot"] = Field(
        default="store",
        description="Where messages and sessions are kept. store: on disk; snapshot: in memory, "
        "with snapshots on disk.",
    )
    sys_interval: Seconds = Field(
        default=10.0, ge=0, description="Time between updates of the $SYS topics. 0: never."
    )
    clock_jump_max: Seconds = Field(
        default=JUMP_SECONDS,
        gt=0,
        description="Largest jump of the system clock that the broker follows at once.",
    )
    clock_confirm: Seconds = Field(
        default=CONFIRM_SECONDS,
        ge=0,
        description="Time after which the broker follows a system clock that jumped forward. "
        "Until then, nothing is dropped or expires because of the jump.",
    )
    drain_timeout: Seconds = Field(
        default=2.0,
        ge=0,
        le=600,
        description="Longest time that the broker waits for a client to read the last packets "
        "before the connection is closed.",
    )
    control_timeout: Seconds = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="Time after which the broker closes an idle connection to the control socket.",
    )
    limits: Limits = Field(default=Limits(), description="Limits of clients.")
    storage: Storage = Field(default=Storage(), description="How messages are stored.")
    access: AccessSettings = Field(default=AccessSettings(), description="Users and their rights.")
    share: ShareSettings = Field(default=ShareSettings(), description="Shared subscriptions.")
    sessions: SessionSettings = Field(
        default=SessionSettings(), description="Sessions that outlive their connections."
    )
    snapshot: SnapshotSettings = Field(
        default=SnapshotSettings(), description="Snapshots of the whole state."
    )
    log: LogSettings = Field(default=LogSettings(), description="Log of the broker.")
    flight: FlightSettings = Field(default=FlightSettings(), description="Arrow Flight.")
    tier: TierProcessSettings = Field(
        default=TierProcessSettings(), description="Delta tables of the messages."
    )
    topiclog: TopicLogSettings = Field(default=TopicLogSettings(), description="Topic logs.")
    cluster: ClusterSettings = Field(default=ClusterSettings(), description="Cluster of sites.")
    listeners: tuple[ListenerSettings, ...] = Field(
        default=(ListenerSettings(),), description="Addresses where clients connect."
    )
    bridge: tuple[BridgeSettings, ...] = Field(default=(), description="Bridges to other brokers.")

    def without_effect(self) -> dict[str, list[str]]:
        """Return the given settings that do nothing, by what turns them on.

        A table whose switch is off on purpose is left out.
        """
        found: dict[str, list[str]] = {}
        for table, switch in (
            ("flight", "enabled"),
            ("topiclog", "enabled"),
            ("tier", "continuous"),
        ):
            given = getattr(self, table).model_fields_set
            if given and switch not in given:
                found[f"{table}.{switch} = true"] = [f"{table}.{name}" for name in sorted(given)]
        stored = self.storage.model_fields_set & self.storage.database_keys
        if self.persistence == "snapshot" and stored:
            found['persistence = "store"'] = [f"storage.{name}" for name in sorted(stored)]
        return found

    def lets_in_anonymous(self, listener: ListenerSettings | FlightSettings) -> bool:
        """Return whether a listener accepts anonymous clients.

        The default is yes on loopback, except for a TLS listener of a broker with users: TLS is
        meant for clients of other machines.
        """
        has_users = bool(self.access.password_file or self.access.hook)
        if listener.allow_anonymous is None and listener.secure and has_users:
            return False
        return listener.anonymous_allowed

    @property
    def messages_settings(self) -> DatabaseSettings:
        """The settings for a new database of messages: in a cluster, it is replicated unless the
        settings say otherwise.
        """
        settings: DatabaseSettings = self.storage.database_settings()
        if self.cluster.enabled and "backend" not in self.storage.model_fields_set:
            return replace(settings, backend="replicated")
        return settings

    @property
    def snapshot_interval(self) -> float:
        """The seconds between two periodic snapshots, 0 for none."""
        if self.snapshot.time_interval is not None:
            return self.snapshot.time_interval
        return _SNAPSHOT_SECONDS if self.persistence == "snapshot" else 0.0

    def _check_needs_no_store(self) -> None:
        for key, enabled in (
            (("topiclog", "enabled"), self.topiclog.enabled),
            (("cluster", "name"), self.cluster.enabled),
            (("flight", "enabled"), self.flight.enabled),
            (("tier", "continuous"), self.tier.continuous),
        ):
            if enabled:
                raise wrong('needs persistence = "store"', *key)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.listeners:
            raise wrong("is empty: a broker needs at least one listener", "listeners")
        for (_, one), (index, other) in combinations(enumerate(self.listeners), 2):
            if one.collides(other):
                raise wrong(
                    f"has the address {other.address}, which conflicts with {one.address}",
                    "listeners",
                    index,
                )
        for (_, this), (index, that) in combinations(enumerate(self.bridge), 2):
            if this.name == that.name:
                raise wrong(f"is the name of another bridge: {that.name!r}", "bridge", index)
        if self.persistence == "snapshot":
            self._check_needs_no_store()
        if self.access.password_file or self.access.hook:
            return self
        if self.flight.enabled and not self.flight.anonymous_allowed:
            raise wrong(
                f"accepts no client at {self.flight.address}: set access.password_file or "
                "access.hook, or allow clients without a login with allow_anonymous = true",
                "flight",
            )
        for index, listener in enumerate(self.listeners):
            if not listener.anonymous_allowed and not listener.knows_by_certificate:
                raise wrong(
                    f"accepts no client at {listener.address}: set access.password_file or "
                    "access.hook, or allow clients without a login with allow_anonymous = true",
                    "listeners",
                    index,
                )
        return self
