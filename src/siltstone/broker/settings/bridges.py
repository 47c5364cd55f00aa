"""The settings of bridges, similar to those of Mosquitto: topics, directions, prefixes."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from siltstone.broker.settings.kinds import Count, FilterText, Noun, Settings, Size, wrong
from siltstone.client.target import parse_url
from siltstone.errors import InvalidTopicError, UsageError
from siltstone.topic.grammar import TopicFilter

MIB: Final = 1024 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def _name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise ValueError("invalid name")
    return text


def _url(text: str) -> str:
    try:
        url = parse_url(text)
    except UsageError as exc:
        raise wrong(str(exc)) from exc
    if url.topic is not None or url.username is not None:
        raise wrong("must be a URL without topic and user: set topics and username instead")
    return text


BridgeName = Annotated[
    str,
    AfterValidator(_name),
    Noun("a name of up to 64 letters, digits, _ and - that begins with a letter or digit"),
]
ServerUrl = Annotated[str, AfterValidator(_url), Noun("a URL such as mqtt://HOST[:PORT]")]


class BridgeTopic(Settings):
    """Topics that a bridge copies. The first entry that matches a topic applies. The local topic is
    `local_prefix` followed by the text that the filter matches; the remote topic is `remote_prefix`
    followed by the same text.
    """

    filter: FilterText = Field(description="Topic filter, without the prefix.")
    direction: Literal["out", "in", "both"] = Field(
        default="out",
        description="out: to the remote broker; in: from it; both: in both directions.",
    )
    qos: Count = Field(default=1, ge=0, le=2, description="Highest QoS of the copied messages.")
    local_prefix: str = Field(default="", description="Prefix of the topics on this broker.")
    remote_prefix: str = Field(default="", description="Prefix of the topics on the remote broker.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in ("local_prefix", "remote_prefix"):
            prefix: str = getattr(self, key)
            if any(char in prefix for char in "+#"):
                raise wrong("must not have the wildcards + and #", key)
            try:
                parsed = TopicFilter.parse(prefix + self.filter)
            except InvalidTopicError as exc:
                raise wrong(
                    f"and the filter are not a valid topic filter together: {exc}", key
                ) from exc
            if parsed.group is not None:
                raise wrong("and the filter must not make a shared filter ($share/…) together", key)
        return self


class BridgeSettings(Settings):
    """A bridge exchanges messages with another broker, the remote broker. Outgoing messages wait in
    a spool.
    """

    name: BridgeName = Field(description="Name of the bridge and of its spool.")
    server: ServerUrl = Field(description="URL of the remote broker. mqtts:// uses TLS.")
    topics: tuple[BridgeTopic, ...] = Field(description="Topics that the bridge copies.")
    version: Literal["5", "3.1.1"] = Field(
        default="5", description="MQTT version of the connection."
    )
    client_id: str = Field(
        default="",
        description="Client id at the remote broker. It must be unique there. The default is the "
        "name of this machine, a dot and the name of the bridge.",
    )
    username: str = Field(default="", description="User name at the remote broker.")
    password_file: str = Field(
        default="", description="File with the password of the user in its first line."
    )
    keep_alive: Count = Field(
        default=60, ge=1, le=65_535, description="Keep alive of the connection, in seconds."
    )
    authorities: str = Field(
        default="",
        description="PEM file with the authorities that sign the certificate of the remote broker.",
    )
    certificate: str = Field(
        default="", description="PEM file with the client certificate of the bridge."
    )
    key: str = Field(default="", description="PEM file with the private key of the certificate.")
    spool_bytes_max: Size = Field(
        default=1024 * MIB,
        ge=MIB,
        description="Largest size of the messages that wait for the remote broker.",
    )
    when_full: Literal["refuse", "drop"] = Field(
        default="refuse",
        description="What happens to a message when the spool is full. refuse: the publish is "
        "refused; drop: the message is stored here, but not copied.",
    )

    @property
    def secure(self) -> bool:
        """Whether the connection to the remote broker uses TLS."""
        return parse_url(self.server).tls

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.topics:
            raise wrong("is empty: a bridge needs at least one topic", "topics")
        for key in ("authorities", "certificate", "key"):
            if getattr(self, key) and not self.secure:
                raise wrong("is only for mqtts, and the URL has mqtt", key)
        if self.key and not self.certificate:
            raise wrong("is missing: a key needs its certificate", "certificate")
        if self.password_file and not self.username:
            raise wrong("is missing: a password needs a user name", "username")
        return self
