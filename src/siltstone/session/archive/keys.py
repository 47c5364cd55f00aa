"""Where the archive keeps what: topics of a plain map, whose first and third words are fixed.

    session/<client>/state  owner  progress  received     one row each
    session/<client>/filter/<filter>                      one row for each subscription
    session/<client>/extra/<packet id>                    one for each message in no store
    group/<group>/state  owner  progress
    due/<time>/<will|expiry|group>/<client or group>      what happens when, 16 hexadecimal digits
    connected/<client>                                    who is connected
    away/<filter>/qos/<n>                                 how many that are away have it
    count/<sessions|groups|run>

`owner` has the serial of the commit by which its owner took it, and every save requires it. Words
sort as their texts do, so a list goes in order of client ids and the timers in order of time.
"""

from __future__ import annotations

import hashlib
from typing import Final

from siltstone.errors import UsageError
from siltstone.topic.grammar import TopicFilter

# A word with more characters is replaced by its hash, or topics would not fit their 64 KiB.
WORD_CHARACTERS_MAX: Final = 4096

COUNT_SESSIONS: Final = "count/sessions"
COUNT_GROUPS: Final = "count/groups"
COUNT_RUN: Final = "count/run"
CONNECTED_FILTER: Final = "connected/+"
AWAY_FILTER: Final = "away/+/qos/+"
SESSIONS_FILTER: Final = "session/+/state"
GROUPS_FILTER: Final = "group/+/state"

# What may be in no topic shares its escape with the character before it, so that words keep their
# order: a text never has one of these escapes without its second character.
_ESCAPES: Final = str.maketrans(
    {
        '"': '"\x01',
        "#": '"\x02',
        "*": "*\x01",
        "+": "*\x02",
        ".": ".\x01",
        "/": ".\x02",
    }
)
_HASHED: Final = '"\x03'


def word(text: str) -> str:
    """Return a text as one level of a topic: another one for every text."""
    if len(text) > WORD_CHARACTERS_MAX:
        return _HASHED + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return text.translate(_ESCAPES)


class SessionKeys:
    """The topics of one session."""

    __slots__ = ("_prefix", "all", "owner", "progress", "received", "state", "word")

    def __init__(self, client_id: str) -> None:
        self.word = word(client_id)
        prefix = self._prefix = f"session/{self.word}/"
        self.state = prefix + "state"
        self.owner = prefix + "owner"
        self.progress = prefix + "progress"
        self.received = prefix + "received"
        # As a filter: whatever there is of it.
        self.all = prefix + "#"

    def filter(self, text: str) -> str:
        """Return the topic of a subscription."""
        return f"{self._prefix}filter/{word(text)}"

    def message(self, packet_id: int) -> str:
        """Return the topic of a message that is in no store."""
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
    """Return the filter by which members join a group; a group is known by it."""
    return f"$share/{name}/{topic_filter}"


def group_parts(text: str) -> tuple[str, str]:
    """Return the name and the filter of a group by that. Raises: UsageError."""
    topic_filter = TopicFilter.parse(text)
    if topic_filter.group is None:
        raise UsageError(f"a share group has the form $share/NAME/FILTER, got {text!r}")
    return topic_filter.group, b"/".join(topic_filter.levels).decode()


def due_topic(at_us: int, kind: str, owner_word: str) -> str:
    """Return the topic of a timer."""
    return f"due/{at_us:016x}/{kind}/{owner_word}"


def due_time(topic: str) -> int:
    """Return the time of a timer by its topic."""
    return int(topic.split("/", 2)[1], 16)


def away_topic(topic_filter: str, qos: int) -> str:
    """Return the topic that counts who is away and has a filter."""
    return f"away/{word(topic_filter)}/qos/{qos}"
