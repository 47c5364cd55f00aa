"""Warnings about settings in `[storage]` and `[topiclog]` that an existing database ignores.

A database keeps the settings with which it was created.
"""

from __future__ import annotations

import logging
import shlex
from typing import Any, Final

from siltstone.broker.settings.storage import Storage
from siltstone.broker.settings.topiclog import TopicLogSettings
from siltstone.logs import log
from siltstone.store.database import Database
from siltstone.store.slab.settings import FIXED, DatabaseSettings

_LOG: Final = logging.getLogger("siltstone.server")


def drift(section: Storage | TopicLogSettings, settings: DatabaseSettings) -> dict[str, Any]:
    """Return the settings of a section that differ from the database; defaults are left out."""
    wanted = section.database_settings()
    return {
        name: getattr(wanted, name)
        for name in sorted(section.model_fields_set & section.database_keys)
        if getattr(wanted, name) != getattr(settings, name)
    }


def command_for(changes: dict[str, Any], database: str, data: str) -> str:
    """Return the command that changes a database to these settings."""
    assignments = [f"{name}={_text(value)}" for name, value in changes.items()]
    return shlex.join(["siltstone", "db", "set", database, *assignments, "--data", data])


def tell_drift(section: Storage | TopicLogSettings, database: Database, data: str) -> None:
    """Log a warning about settings that have no effect, because the database has its own."""
    title = "[storage]" if isinstance(section, Storage) else "[topiclog]"
    changes = drift(section, database.settings)
    fixed = {name: changes.pop(name) for name in sorted(FIXED & changes.keys())}
    if fixed:
        log(
            _LOG,
            logging.WARNING,
            "storage_settings_fixed",
            database=database.name,
            settings=", ".join(fixed),
            remedy=f"remove them from {title}, or create another database",
        )
    if changes:
        log(
            _LOG,
            logging.WARNING,
            "storage_settings_ignored",
            database=database.name,
            remedy="run the command; it works while the broker runs",
            command=command_for(changes, database.name, data),
        )


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
