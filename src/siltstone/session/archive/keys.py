"""The topics under which the archive stores its rows. The first and third levels are fixed.

    session/<client>/state  owner  progress  received     one row each
    session/<client>/filter/<filter>                      one row for each subscription
    session/<client>/extra/<packet id>                    one for each message not in the store
    group/<group>/state  owner  progress
    due/<time>/<will|expiry|group>/<client or group>      timers, the time in 16 hex digits
    connected/<client>                                    clients that are connected
    away/<filter>/qos/<n>                                 number of disconnected subscribers
    count/<sessions|groups|run>

`owner` holds the serial of the commit by which the current owner took the session or group.
Every save requires this serial. Words sort as their texts do, so lists are in the order of
client ids and timers are in the order of time.
"""

from __future__ import annotations

import hashlib
from typing import Final

from siltstone.errors import UsageError
from siltstone.topic.grammar import TopicFilter

# A longer word is replaced by its hash; otherwise topics would exceed 64 KiB.
WORD_CHARACTERS_MAX: Final = 4096

COUNT_SESSIONS: Final = "count/sessions"
COUNT_GROUPS: Final = "count/groups"
COUNT_RUN: Final = "count/run"
CONNECTED_FILTER: Final = "connected/+"
AWAY_FILTER: Final = "away/+/qos/+"
SESSIONS_FILTER: Final = "session/+/state"
GROUPS_FILTER: Final = "group/+/state"

# A character that a topic level cannot contain shares its escape with the character before it, so
# that words keep the order of their texts. In a word, the first character of an escape is always
# followed by its second. Of each two, the one that is part of both escapes is replaced first.
_ESCAPES: Final = (
    ('"', '"\x01'),
    ("#", '"\x02'),
    ("*", "*\x01"),
    ("+", "*\x02"),
    (".", ".\x01"),
    ("/", ".\x02"),
)
_HASHED: Final = '"\x03'


def word(text: str) -> str:
    """Return a text as one topic level; different texts give different levels."""
    if len(text) > WORD_CHARACTERS_MAX:
        return _HASHED + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    # `str.translate` takes four to ten times as long, and a session may have thousands of filters.
    for character, escape in _ESCAPES:
        text = text.replace(character, escape)
    return text


class SessionKeys:
    """The topics of one session."""

    __slots__ = (
        "_prefix",
        "all",
        "owner",
        "progress",
        "received",
        "state",
        "word",
    )

    def __init__(self, client_id: str) -> None:
        self.word = word(client_id)
        prefix = self._prefix = f"session/{self.word}/"
        self.state = prefix + "state"
        self.owner = prefix + "owner"
        self.progress = prefix + "progress"
        self.received = prefix + "received"
        # A filter for all rows of the session.
        self.all = prefix + "#"

    def filter(self, text: str) -> str:
        """Return the topic of a subscription."""
        return f"{self._prefix}filter/{word(text)}"

    def message(self, packet_id: int) -> str:
        """Return the topic of a message that is not in the store."""
        return f"{self._prefix}extra/{packet_id:05d}"


class GroupKeys:
    """The topics of one share group."""

    __slots__ = ("all", "id", "owner", "progress", "state", "word")

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.word = word(group_id)
        prefix = f"group/{self.word}/"
        self.state = prefix + "state"
        self.owner = prefix + "owner"
        self.progress = prefix + "progress"
        self.all = prefix + "#"


def group_id(name: str, topic_filter: str) -> str:
    """Return the filter by which members join a group; it identifies the group."""
    return f"$share/{name}/{topic_filter}"


def group_parts(text: str) -> tuple[str, str]:
    """Return the name and the filter of a group by its id. Raises: UsageError."""
    topic_filter = TopicFilter.parse(text)
    if topic_filter.group is None:
        raise UsageError(f"a share group has the form $share/NAME/FILTER, got {text!r}")
    return topic_filter.group, b"/".join(topic_filter.levels).decode()


def due_topic(at_us: int, kind: str, owner_word: str) -> str:
    """Return the topic of a timer."""
    return f"due/{at_us:016x}/{kind}/{owner_word}"


def due_time(topic: str) -> int:
    """Return the time of a timer, from its topic."""
    return int(topic.split("/", 2)[1], 16)


def away_topic(filter_word: str, qos: int) -> str:
    """Return the topic that counts the disconnected sessions with the filter of a word."""
    return f"away/{filter_word}/qos/{qos}"
