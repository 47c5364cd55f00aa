"""A management verb: its name, its request and response, and the function that runs it.

The command line, the control socket and programs use the same verbs. `where` says which process
runs a verb:

    store    a process that has the lock of the data directory; never beside a broker
    broker   a running broker only
    either   the broker if one runs, else a process that takes the lock for the time of the verb

`run` needs only an open store. It blocks, and may be called on any thread. A broker has functions
of its own for verbs that change what it holds in memory; then `run` is for a store without one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from siltstone.errors import UsageError
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.log.write.partition import Columns

Where = Literal["store", "broker", "either"]
M = TypeVar("M", bound=BaseModel)
# Receives the name of the database and the rows that were stored. Called from any thread.
Announce = Callable[[str, Columns], None]


class RequiredRight(Enum):
    """The right that a verb needs: to look, to write rows, or to manage the store."""

    READ = "read"
    WRITE = "write"
    MANAGE = "manage"


class Request(BaseModel):
    """The fields of a request, without the name of the verb."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Response(BaseModel):
    """The fields of a response. A newer broker may send more than a command knows."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class PackedRequest(Request):
    """A request that is followed by bytes."""

    payload: bytes = Field(default=b"", exclude=True)


class PackedResponse(Response):
    """A response that is followed by bytes."""

    payload: bytes = Field(default=b"", exclude=True)


class Nothing(BaseModel):
    """A request without fields."""


class YesOrNo(RootModel[bool]):
    """Whether there was something to do."""


class Count(RootModel[int]):
    """The number of objects that a verb has found or changed."""


class Text(RootModel[str]):
    """One text."""


class Document(RootModel[Any]):
    """Any JSON value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The open store of the process that runs a verb, and the demands of this process on it.

    `uses` has the databases that the process itself needs, with the reason. If `creates_none` has a
    reason, no database may be created. `opened` receives every database that a verb opens.
    """

    store: Store
    uses: Mapping[str, str] = field(default_factory=dict)
    creates_none: str = ""
    announce: Announce = lambda _name, _rows: None
    opened: Callable[[Database], None] = lambda _database: None

    def check_free(self, name: str, action: str) -> None:
        """Check that this process does not use a database. Raises: UsageError."""
        if name in self.uses:
            raise UsageError(f"database {name!r} cannot be {action}: {self.uses[name]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One management verb; see the module."""

    name: str
    request: type[BaseModel]
    response: type[BaseModel]
    role: RequiredRight
    where: Where
    run: Callable[[Host, Any], Any] | None = None


def parse(model: type[M], fields: Any, payload: bytes = b"") -> M:
    """Check the fields of a request or response. Raises: UsageError that names the field."""
    if issubclass(model, PackedRequest | PackedResponse) and isinstance(fields, dict):
        fields = fields | {"payload": payload}
    elif payload:
        raise UsageError(f"the request takes no bytes after its line: bytes={len(payload)}")
    try:
        return model.model_validate(fields)
    except ValidationError as exc:
        raise UsageError(_complaint(exc)) from exc


_LACKS: Final = "missing"
_EXTRA: Final = "extra_forbidden"


def _complaint(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] == _LACKS:
        return f"the request lacks {place!r}"
    if first["type"] == _EXTRA:
        return f"the request has an unknown field: {place}"
    if first["type"] == "value_error":
        # The message of our own check has the name and the value.
        return str(first["msg"]).removeprefix("Value error, ")
    text = str(first["msg"])
    return f"{place}: {text[:1].lower()}{text[1:]}, got {first['input']!r:.100}"
