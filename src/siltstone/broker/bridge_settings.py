"""The settings of bridges, as Mosquitto's users know them: topics, directions, prefixes."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from siltstone.broker.setting_types import Count, FilterText, Noun, Settings, Size, wrong
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
ServerUrl = Annotated[str, AfterValidator(_url), Noun("a URL as mqtt://HOST[:PORT]")]


class BridgeTopic(Settings):
    """Topics that go over a bridge; the first that matches holds. A local topic is `local_prefix`
    and what the filter matches, the remote one `remote_prefix` and the same.
    """

    filter: FilterText = Field(description="The topics, without their prefix.")
    direction: Literal["out", "in", "both"] = Field(
        default="out", description="To the other broker, from it, or both."
    )
    qos: Count = Field(
        default=1, ge=0, le=2, description="The highest QoS that messages go over with."
    )
    local_prefix: str = Field(default="", description="What their names begin with here.")
    remote_prefix: str = Field(default="", description="What their names begin with there.")

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
    """Another broker that messages are exchanged with. What is to go there waits in a spool."""

    name: BridgeName = Field(description="What it is called here; the name of its spool.")
    server: ServerUrl = Field(description="Where it is; mqtts:// for TLS.")
    topics: tuple[BridgeTopic, ...] = Field(description="What goes over it.")
    version: Literal["5", "3.1.1"] = Field(default="5", description="The MQTT to speak.")
    client_id: str = Field(
        default="",
        description="Who we are there, and nobody else is; by default the name of this machine, a "
        "dot and that of the bridge.",
    )
    username: str = Field(default="", description="The user that we log in as.")
    password_file: str = Field(
        default="", description="File that has the user's password in its first line."
    )
    keep_alive: Count = Field(
        default=60, ge=1, le=65_535, description="The longest silence, in seconds."
    )
    authorities: str = Field(
        default="", description="File with the authorities of its certificate, as PEM."
    )
    certificate: str = Field(default="", description="File with a certificate of ours, as PEM.")
    key: str = Field(default="", description="File with the private key of it, as PEM.")
    spool_bytes_max: Size = Field(
        default=1024 * MIB, ge=MIB, description="Bytes of messages that wait for it."
    )
    when_full: Literal["refuse", "drop"] = Field(
        default="refuse",
        description="What becomes of publishes when so much waits: refused, or not sent over.",
    )

    @property
    def secure(self) -> bool:
        """Tell whether it is reached by TLS."""
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
