"""The settings of a client, and the CONNECT and DISCONNECT packets that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from siltstone.mqtt.packets import Connect, Disconnect, Will
from siltstone.mqtt.properties import NO_PROPERTIES, Properties
from siltstone.mqtt.wire import Version

SESSION_FOREVER: Final = 0xFFFF_FFFF
WINDOW_DEFAULT: Final = 1000
# 3.1.1 has no receive maximum, so a server cannot announce its limit. Mosquitto 2.0 acknowledges
# more QoS 2 messages than this, and loses them. Its own clients send no more.
WINDOW_CAUTIOUS: Final = 20
# How many topic aliases the server may use for this client.
TOPIC_ALIAS_MAX: Final = 100

# How long the server keeps the session of a client that reconnects; a clean DISCONNECT ends it.
_RETURN_SECONDS: Final = 3600


def default_window(version: Version, qos: int) -> int:
    """Return the default number of messages that may wait for their acknowledgement."""
    return WINDOW_CAUTIOUS if version is Version.V3_1_1 and qos == 2 else WINDOW_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The settings for all connections of a client.

    `keep_session` continues the session of an earlier run and keeps it for a later one. `reconnect`
    connects again after a loss, for at most `reconnect_seconds`; None means without limit.
    """

    client_id: str
    version: Version = Version.V5
    username: str | None = None
    password: bytes | None = None
    keep_alive_seconds: int = 60
    keep_session: bool = False
    session_expiry_seconds: int = SESSION_FOREVER
    will: Will | None = None
    window: int = WINDOW_DEFAULT
    # The number of unacknowledged messages that the server may send; None means the default of the
    # protocol.
    receive_max: int | None = None
    reconnect: bool = False
    reconnect_seconds: float | None = None

    def connect(self, client_id: str, *, returning: bool) -> Connect:
        """Return the CONNECT of a first connection, or of one that returns to its session.

        A client of 3.1.1 cannot end its session when it disconnects, so it keeps one only with
        `keep_session`.
        """
        is_v5 = self.version is Version.V5
        return Connect(
            version=self.version,
            client_id=client_id,
            clean_start=not (self.keep_session or (returning and is_v5)),
            keep_alive_seconds=self.keep_alive_seconds,
            username=self.username,
            password=self.password,
            will=self.will,
            properties=Properties(
                session_expiry_interval=self._expiry_seconds() or None,
                topic_alias_maximum=TOPIC_ALIAS_MAX,
                receive_maximum=self.receive_max,
            )
            if is_v5
            else NO_PROPERTIES,
        )

    def disconnect(self) -> Disconnect:
        """Return the DISCONNECT of a client that does not return."""
        borrowed = self._expiry_seconds() and not self.keep_session
        if borrowed and self.version is Version.V5:
            return Disconnect(properties=Properties(session_expiry_interval=0))
        return Disconnect()

    def _expiry_seconds(self) -> int:
        if self.keep_session:
            return self.session_expiry_seconds
        return _RETURN_SECONDS if self.reconnect else 0
