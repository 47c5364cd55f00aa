"""How the file descriptors of the process are shared out: some for storage, the rest for clients.

A connection takes one each. What the store needs to roll a segment or to read must never depend on
how many clients are there, so connections end before descriptors do.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from siltstone.broker.listen.admission import Admission
from siltstone.logs import log

_LOG: Final = logging.getLogger("siltstone.server")
# Segments and tables that are opened later, files that are replaced, sockets that close slowly.
STORAGE: Final = 128
# The logs of topics that hold one all the time.
TOPIC_LOGS: Final = 64
# Fewer connections make no broker; with less than this the limit itself is the fault.
_CONNECTIONS_MIN: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How many connections there may be at once."""

    clients: int
    topic_logs: int


def share_descriptors(
    limit: int, in_use: int, *, clients_wanted: int, topic_logs_wanted: int = 0
) -> Shares:
    """Return what is left for connections; topic logs get a quarter of it at most."""
    kept = STORAGE + (TOPIC_LOGS if topic_logs_wanted else 0)
    free = max(2 * _CONNECTIONS_MIN, limit - in_use - kept)
    topic_logs = min(topic_logs_wanted, max(_CONNECTIONS_MIN, free // 4))
    return Shares(clients=min(clients_wanted, free - topic_logs), topic_logs=topic_logs)


def tell_shares(shares: Shares, limit: int, *, clients_wanted: int, topic_logs_wanted: int) -> None:
    """Warn where the settings allow more connections than the limit does."""
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
    """Warn of a connection that got no place, and of those since the last warning."""
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
