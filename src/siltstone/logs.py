"""Structured logs on stderr: one line for each event and its facts.

    2026-01-31T12:00:00.123Z info    client_connected client_id=c1 address=127.0.0.1:50000
    {"time": "2026-01-31T12:00:00.123Z", "level": "info", "event": "client_connected", …}

A client cannot forge a record with its names: characters that end a line or move the cursor are
escaped, long values are cut, and the lines of a traceback are indented. Facts with a secret name,
such as password, are masked.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

LOGGER: Final = "siltstone"

_SECRETS: Final = frozenset({"credentials", "passphrase", "password", "secret", "token"})
_MASK: Final = "***"
_VALUE_LENGTH_MAX: Final = 300
# Characters that would hide where a value begins or ends.
_QUOTED: Final = frozenset(" \"'=\\")


def log(logger: logging.Logger, level: int, event: str, /, **facts: object) -> None:
    """Log an event with its facts.

    The event is a literal in snake_case, which tools match and docs/reference/log-events.md lists.
    Everything that varies, such as a value of a client, is a fact.
    """
    if logger.isEnabledFor(level):
        logger.log(level, event, extra={"facts": facts}, stacklevel=2)


def start_logging(
    *, level: str, form: Literal["human", "json"], stream: TextIO | None = None
) -> None:
    """Send the logs of this process to a stream, stderr by default.

    Siltstone's own events are logged from `level` on, those of libraries from a warning on. A
    second call replaces the first.
    """
    lines = _Lines(sys.stderr if stream is None else stream)
    lines.setFormatter(_HumanFormatter() if form == "human" else _JsonFormatter())
    root = logging.getLogger()
    for earlier in [known for known in root.handlers if isinstance(known, _Lines)]:
        root.removeHandler(earlier)
    root.addHandler(lines)
    logging.getLogger(LOGGER).setLevel(level.upper())


class _Lines(logging.StreamHandler[TextIO]):
    """The handler of this module, to distinguish it from other handlers."""


class _HumanFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = (f"{_escaped(name)}={_quoted(value)}" for name, value in _facts(record).items())
        head = f"{_moment(record)} {record.levelname.lower():7}"
        line = " ".join([head, _escaped(record.getMessage()), *facts])
        # Because of the indentation, no line of a traceback looks like an event.
        trace = (f"\n    {_escaped(text)}" for text in _trace(self, record).split("\n") if text)
        return line + "".join(trace)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, object] = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        # The time, level and event replace facts of the same name.
        document = document | _facts(record) | document
        if trace := _trace(self, record):
            document["traceback"] = trace
        return json.dumps(document)


def _moment(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
    return f"{moment.isoformat(timespec='milliseconds')}Z"


def _facts(record: logging.LogRecord) -> dict[str, object]:
    """Return the facts for output; a record of a library also has the name of its logger."""
    known: Mapping[str, Any] = getattr(record, "facts", {})
    facts = {
        name: _MASK if name.rpartition("_")[2] in _SECRETS else _plain(value)
        for name, value in known.items()
    }
    if record.name.partition(".")[0] != LOGGER:
        facts["logger"] = record.name
    return facts


def _plain(value: object) -> object:
    """Return a value that JSON can represent, cut to a maximum length."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _VALUE_LENGTH_MAX else f"{text[:_VALUE_LENGTH_MAX]}…"


def _quoted(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    if text and text.isprintable() and _QUOTED.isdisjoint(text):
        return text
    doubled = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_escaped(doubled)}"'


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return "" if record.exc_info is None else formatter.formatException(record.exc_info)
