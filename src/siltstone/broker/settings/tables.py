"""The keys of a settings table that come from declared settings of a database."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, Field, create_model
from pydantic.fields import FieldInfo

from siltstone.broker.settings.kinds import (
    Count,
    Noun,
    OptionalSeconds,
    OptionalSize,
    Seconds,
    Settings,
    Size,
    wrong,
)
from siltstone.settings.declare import Declared, Kind, Scope, declared
from siltstone.store.slab.settings import DatabaseSettings

_TYPES: Final[Mapping[tuple[Kind, bool], Any]] = MappingProxyType(
    {
        (Kind.COUNT, False): Count,
        (Kind.SIZE, False): Size,
        (Kind.SIZE, True): OptionalSize,
        (Kind.SECONDS, False): Seconds,
        (Kind.SECONDS, True): OptionalSeconds,
    }
)


class DatabaseTable(Settings):
    """A table with settings of a database that the broker creates, beside keys of its own."""

    database_keys: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def ordered_fields(cls) -> Mapping[str, FieldInfo]:
        """Return the table's own keys, then those of the database."""
        names = sorted(cls.model_fields, key=cls.database_keys.__contains__)
        return {name: cls.model_fields[name] for name in names}

    def database_settings(self) -> DatabaseSettings:
        """Return the settings for a new database."""
        return DatabaseSettings(**self.model_dump(include=set(self.database_keys)))


def table_of(only: Collection[str] = ()) -> type[DatabaseTable]:
    """Return a table with a key for each setting of a database, or for some of them."""
    known = declared(DatabaseSettings)
    keys: Any = {
        field: (_type_of(known[field]), _field_of(known[field])) for field in only or known
    }
    model: type[DatabaseTable] = create_model("DatabaseKeys", __base__=DatabaseTable, **keys)
    model.database_keys = frozenset(keys)
    return model


def _type_of(known: Declared) -> Any:
    setting = known.setting
    if setting.kind is Kind.CHOICE:
        return Literal[setting.choices]
    if setting.kind is Kind.LEVELS:
        return Annotated[
            tuple[Annotated[Count, Field(ge=setting.low, le=setting.high)], ...],
            Field(min_length=1),
            Noun(f"a list of whole numbers from {setting.low} to {setting.high}"),
        ]
    value_type = _TYPES[setting.kind, known.optional]
    return value_type if setting.limit is None else Annotated[value_type, _at_most(setting.limit)]


_CHANGES: Final = {
    Scope.CREATION: " It cannot be changed later.",
    Scope.GENERATION: " A change applies to the next generation.",
}


def _field_of(known: Declared) -> Any:
    setting = known.setting
    bounds: dict[str, Any] = {}
    # The type of a list has the bounds of its items.
    if setting.kind is not Kind.LEVELS:
        bounds = {
            "ge": setting.low,
            "le": setting.high,
            "gt": setting.above,
            "multiple_of": setting.multiple_of,
        }
    fixed = _CHANGES.get(setting.scope, "")
    return Field(
        default=known.default,
        description=f"{setting.help}{fixed}",
        **{name: bound for name, bound in bounds.items() if bound is not None},
    )


def _at_most(limit: int) -> AfterValidator:
    def check(value: float | None) -> float | None:
        if value is not None and value > limit:
            raise wrong(f"must be at most {limit}, found {value}")
        return value

    return AfterValidator(check)
