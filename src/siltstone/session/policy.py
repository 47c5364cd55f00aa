"""What is written of a message, by policy: always, when somebody durable wants it, when somebody
misses it, or never.

`offline` writes what would be lost without it: a message of QoS 1 or 2 that a subscription of QoS 1
or 2 matches whose session is away. Clients that are connected get it from memory, so what they have
not acknowledged is lost with the broker.
"""

from __future__ import annotations

from typing import Literal

Policy = Literal["always", "subscribed", "offline", "never"]


def must_write(policy: Policy, *, qos: int, is_wanted: bool, is_missed: bool) -> bool:
    """Tell whether a message is to be written.

    It is wanted where a durable subscription matches it, missed where one of QoS 1 or 2 does whose
    session is away.
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
