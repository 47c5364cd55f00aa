"""The policies that decide whether a message is written to the store.

`always` writes every message, and `never` writes none. `subscribed` writes a message that a durable
subscription matches. `offline` writes only messages that would be lost otherwise: a message of QoS
1 or 2 that matches a subscription of QoS 1 or 2 whose session is not connected. Connected clients
receive the message from memory, so a crash of the broker loses the messages that they have not
acknowledged.
"""

from __future__ import annotations

from typing import Literal

Policy = Literal["always", "subscribed", "offline", "never"]


def must_write(policy: Policy, *, qos: int, is_wanted: bool, is_missed: bool) -> bool:
    """Tell whether a message must be written.

    `is_wanted`: a durable subscription matches it. `is_missed`: a durable subscription of QoS 1 or
    2 matches it, and the session of that subscription is not connected.
    """
    match policy:
        case "always":
            return True
        case "subscribed":
            return is_wanted
        case "offline":
            return qos > 0 and is_missed
        case "never":
            return False
