"""The division of the file descriptors of the process between the store and connections.

Each connection takes one descriptor. The store must always be able to start a segment or to read,
however many clients are connected. The broker therefore refuses connections before the descriptors
run out.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from siltstone.broker.listen.admission import Admission
from siltstone.logs import log

_LOG: Final = logging.getLogger("siltstone.server")
# Reserved for segments and tables that are opened later, files that are being replaced, and
# sockets that close slowly.
STORAGE: Final = 128
# Reserved for topic logs, which keep files open all the time.
TOPIC_LOGS: Final = 64
# The smallest useful number of connections, granted even if the limit is lower.
_CONNECTIONS_MIN: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The largest numbers of connections at the same time."""

    clients: int
    topic_logs: int


def share_descriptors(
    limit: int, in_use: int, *, clients_wanted: int, topic_logs_wanted: int = 0
) -> Shares:
    """Return the descriptors left for connections; topic logs get at most a quarter of them.

    The minimum of `_CONNECTIONS_MIN` has precedence over the quarter.
    """
    kept = STORAGE + (TOPIC_LOGS if topic_logs_wanted else 0)
    free = max(2 * _CONNECTIONS_MIN, limit - in_use - kept)
    topic_logs = min(topic_logs_wanted, max(_CONNECTIONS_MIN, free // 4))
    return Shares(clients=min(clients_wanted, free - topic_logs), topic_logs=topic_logs)


def tell_shares(shares: Shares, limit: int, *, clients_wanted: int, topic_logs_wanted: int) -> None:
    """Log a warning for each setting that allows more connections than the limit."""
    for setting, wanted, allowed in (
        ("limits.connections_max", clients_wanted, shares.clients),
        ("topiclog.connections_max", topic_logs_wanted, shares.topic_logs),
    ):
        if allowed < wanted:
            log(
                _LOG,
                logging.WARNING,
                "open_files_limit_low",
                setting=setting,
                wanted=wanted,
                allowed=allowed,
                limit=limit,
                remedy="raise the limit (ulimit -n, LimitNOFILE) or lower the setting",
            )


def tell_refused(admission: Admission, address: str, now: float) -> None:
    """Log a warning that connections were refused, with the number since the last warning."""
    if count := admission.refused(now):
        log(
            _LOG,
            logging.WARNING,
            "connections_refused",
            count=count,
            last_address=address,
            connections=admission.connections,
            remedy="raise limits.connections_max, limits.connections_per_address_max or the "
            "limit of open files (ulimit -n, LimitNOFILE)",
        )
