"""Who a client is and what it asks of its connection; and the CONNECT that says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from siltstone.mqtt.packets import Connect, Disconnect, Will
from siltstone.mqtt.properties import NO_PROPERTIES, Properties
from siltstone.mqtt.wire import Version

SESSION_FOREVER: Final = 0xFFFF_FFFF
WINDOW_DEFAULT: Final = 1000
# 3.1.1 has no receive maximum, so a server cannot tell what it takes: Mosquitto 2.0 acknowledges
# more messages of QoS 2 than this, and loses them. Its own clients send no more.
WINDOW_CAUTIOUS: Final = 20
# How many topic aliases the server may use towards us.
TOPIC_ALIAS_MAX: Final = 100

# A client that comes back finds its session for so long, and takes it along when it leaves.
_RETURN_SECONDS: Final = 3600


def default_window(version: Version, qos: int) -> int:
    """Return how many messages may wait for their acknowledgement where nobody says so."""
    return WINDOW_CAUTIOUS if version is Version.V3_1_1 and qos == 2 else WINDOW_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What stays the same over all connections of a client.

    `keep_session` asks for the session of an earlier run and leaves it to a later one.
    `reconnect` comes back after a loss, for `reconnect_seconds` at most, None being forever.
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
    # How many messages the server may send ahead of their acknowledgements; None: as it likes.
    receive_max: int | None = None
    reconnect: bool = False
    reconnect_seconds: float | None = None

    def connect(self, client_id: str, *, returning: bool) -> Connect:
        """Return the CONNECT of a first connection, or of one that comes back to its session.

        3.1.1 cannot give up a session when it leaves, so there one is kept only when asked for.
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
        """Return the DISCONNECT of a client that does not come back."""
        borrowed = self._expiry_seconds() and not self.keep_session
        if borrowed and self.version is Version.V5:
            return Disconnect(properties=Properties(session_expiry_interval=0))
        return Disconnect()

    def _expiry_seconds(self) -> int:
        if self.keep_session:
            return self.session_expiry_seconds
        return _RETURN_SECONDS if self.reconnect else 0
