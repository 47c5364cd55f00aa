"""The declaration of settings: each is declared once, beside the code that it configures.

A setting is a field of a frozen dataclass. Its annotation has a `Setting`: the kind of its values,
their bounds, the help, and whether the setting can change. From that one declaration come

- the check when the dataclass is created (`check_values`),
- the key in the settings file, the environment variable and `--set` (`broker/settings/tables.py`),
- the option of `db create` and `kv create`, and the names that `db set` takes (`cli/store/`),
- the rows of the reference pages.

Values of settings are plain: int, float, str, bool, tuples of int, and None for no limit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cache
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, get_args, get_type_hints

from siltstone.errors import UsageError
from siltstone.settings.quantities import format_duration, format_size, parse_duration, parse_size

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

S = TypeVar("S", bound="DataclassInstance")


class Kind(Enum):
    """The kinds of values of a setting; the text is their name in messages."""

    COUNT = "number"
    SIZE = "size"
    SECONDS = "time"
    LEVELS = "numbers"
    CHOICE = "text"
    FLAG = "true or false"


class Scope(Enum):
    """The time when a setting may be given, and the data to which a change applies.

    CREATION: when the database is created. GENERATION: at any time; the settings of the encoding,
    which the generations that begin later have. LIVE: at any time; everything that is written later
    has it.
    """

    CREATION = "creation"
    GENERATION = "generation"
    LIVE = "live"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The values that a setting may have, and how people read and write it.

    `low` and `high` belong to the range, `above` does not. `limit` is a technical limit, which is
    named only when a value exceeds it. `option` is the name on the command line; without it, it is
    the name of the field.
    """

    kind: Kind
    help: str
    scope: Scope = Scope.LIVE
    option: str = ""
    low: int | None = None
    high: int | None = None
    above: int | None = None
    limit: int | None = None
    multiple_of: int | None = None
    choices: tuple[str, ...] = ()

    def within(
        self, *, low: int | None = None, high: int | None = None, limit: int | None = None
    ) -> Setting:
        """Return the same setting with other bounds."""
        return replace(self, low=low, high=high, above=None, limit=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A setting with the field that declares it."""

    field: str
    setting: Setting
    optional: bool
    default: Any

    @property
    def option(self) -> str:
        """The name on the command line, without dashes before it."""
        return self.setting.option or self.field.replace("_", "-")

    @property
    def metavar(self) -> str:
        """The value in the help of an option."""
        match self.setting.kind:
            case Kind.COUNT:
                return "N"
            case Kind.SIZE:
                return "SIZE"
            case Kind.SECONDS:
                return "TIME"
            case Kind.LEVELS:
                return "N,N…"
            case Kind.CHOICE:
                return "|".join(self.setting.choices)
            case Kind.FLAG:
                return "true|false"

    @property
    def expected(self) -> str:
        """The allowed values in words, for example "a number from 1 to 16384"."""
        setting = self.setting
        match setting.kind:
            case Kind.FLAG:
                text = setting.kind.value
            case Kind.CHOICE:
                text = f"one of {', '.join(setting.choices)}"
            case Kind.LEVELS:
                text = f"one or more numbers{_range(setting, '')}"
            case _:
                unit = " seconds" if setting.kind is Kind.SECONDS else ""
                text = f"a {setting.kind.value}{_range(setting, unit)}"
        if setting.multiple_of is not None:
            text += f", a multiple of {setting.multiple_of}"
        return f"{text}, or none" if self.optional else text

    def complaint(self, value: object) -> str | None:
        """Return what a value must be, None for a value that is allowed."""
        if value is None:
            return None if self.optional else self.expected
        match self.setting.kind:
            case Kind.FLAG:
                return None if isinstance(value, bool) else self.expected
            case Kind.CHOICE:
                return None if value in self.setting.choices else self.expected
            case Kind.LEVELS:
                if not isinstance(value, tuple) or not value:
                    return self.expected
                return next(filter(None, map(self._complaint_of_number, value)), None)
            case Kind.COUNT | Kind.SIZE | Kind.SECONDS:
                return self._complaint_of_number(value)

    def _complaint_of_number(self, value: object) -> str | None:
        setting = self.setting
        kinds = int | float if setting.kind is Kind.SECONDS else int
        if not isinstance(value, kinds) or isinstance(value, bool):
            return self.expected
        # A comparison with NaN is false, so each bound is written as a condition that must hold.
        fits = (
            (setting.low is None or value >= setting.low)
            and (setting.high is None or value <= setting.high)
            and (setting.above is None or value > setting.above)
            and (setting.multiple_of is None or value % setting.multiple_of == 0)
        )
        if not fits:
            return self.expected
        within = setting.limit is None or value <= setting.limit
        return None if within else f"at most {setting.limit}"

    def parse(self, text: str) -> Any:
        """Parse a text from the command line. Raises: UsageError."""
        if self.optional and text == NONE:
            return None
        match self.setting.kind:
            case Kind.COUNT:
                return _parse_count(text)
            case Kind.SIZE:
                return parse_size(text)
            case Kind.SECONDS:
                return parse_duration(text)
            case Kind.LEVELS:
                return _parse_levels(text)
            case Kind.CHOICE:
                return text
            case Kind.FLAG:
                return _parse_flag(text)

    def show(self, value: Any) -> str:
        """Return the readable text of a value, which `parse` reads."""
        if value is None:
            return NONE
        match self.setting.kind:
            case Kind.SIZE:
                return format_size(value)
            case Kind.SECONDS:
                return format_duration(value)
            case Kind.LEVELS:
                return ",".join(map(str, value))
            case Kind.FLAG:
                return str(value).lower()
            case Kind.COUNT | Kind.CHOICE:
                return str(value)


# The text for a limit that is not set.
NONE: Final = "none"
_FLAGS: Final = MappingProxyType({"true": True, "false": False})
# Returns the name of a setting in the form that the user typed.
Naming = Callable[[Declared], str]


def _range(setting: Setting, unit: str) -> str:
    if setting.above is not None:
        return f" above {setting.above}{unit}"
    if setting.low is not None and setting.high is not None:
        return f" from {setting.low} to {setting.high}{unit}"
    return f" of at least {setting.low}{unit}" if setting.low is not None else ""


def _parse_count(text: str) -> int:
    try:
        return int(text)
    except ValueError as exc:
        raise UsageError(f"expected a whole number, got {text!r}") from exc


def _parse_levels(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as exc:
        raise UsageError(
            f"expected numbers with commas between them, such as 100,10, got {text!r}"
        ) from exc


def _parse_flag(text: str) -> bool:
    if text not in _FLAGS:
        raise UsageError(f"expected true or false, got {text!r}")
    return _FLAGS[text]


def declared(kind: type[Any]) -> Mapping[str, Declared]:
    """Return the settings that a dataclass declares, by field, in their order."""
    return _declared(cast("Hashable", kind))


@cache
def _declared(kind: Any) -> Mapping[str, Declared]:
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, Declared] = {}
    for field in fields(kind):
        value_type, *facts = get_args(hints[field.name])
        [setting] = [fact for fact in facts if isinstance(fact, Setting)]
        found[field.name] = Declared(
            field=field.name,
            setting=setting,
            optional=NoneType in get_args(value_type),
            default=field.default,
        )
    return MappingProxyType(found)


# The values of the settings of scope GENERATION, by field, in the order of the dataclass.
Encoding = tuple[tuple[str, Any], ...]


def encoding_of(settings: DataclassInstance) -> Encoding:
    """Return the settings of the encoding, which never change inside a generation."""
    known = declared(type(settings)).values()
    return tuple(
        (each.field, getattr(settings, each.field))
        for each in known
        if each.setting.scope is Scope.GENERATION
    )


def with_encoding(settings: S, encoding: Encoding) -> S:
    """Return settings with another encoding; an empty one changes nothing."""
    return replace(settings, **dict(encoding)) if encoding else settings


def pending(settings: DataclassInstance, encodings: Iterable[Encoding]) -> dict[str, list[Any]]:
    """Return the settings that differ from these encodings, with the values that they have there.

    They are the settings that apply from the next generation on.
    """
    found: dict[str, list[Any]] = {}
    for encoding in encodings:
        for field, value in encoding:
            known = found.get(field, [])
            if value != getattr(settings, field) and value not in known:
                found[field] = [*known, value]
    return found


def fixed_fields(kind: type[Any]) -> frozenset[str]:
    """Return the fields that cannot change after the database was created."""
    known = declared(kind).values()
    return frozenset(each.field for each in known if each.setting.scope is Scope.CREATION)


def by_field(known: Declared) -> str:
    """Name a setting as programs do: by its field."""
    return f"setting {known.field}"


def check_values(kind: type[Any], values: Mapping[str, Any], *, name: Naming = by_field) -> None:
    """Check values of settings by their declarations. Raises: UsageError for the first wrong one.

    Each key must be a setting of the dataclass.
    """
    known = declared(kind)
    for field, value in values.items():
        if (expected := known[field].complaint(value)) is not None:
            raise wrong_value(name(known[field]), expected, value)


def wrong_value(name: str, expected: str, value: object) -> UsageError:
    """Return the error for a wrong value of a setting."""
    return UsageError(f"{name} must be {expected}: {name.removeprefix('setting ')}={value!r}")


def values_of(settings: DataclassInstance) -> dict[str, Any]:
    """Return the values of all settings by field."""
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


def to_values(settings: DataclassInstance) -> dict[str, Any]:
    """Return the values of all settings as JSON values."""
    values = values_of(settings)
    return {name: list(value) if type(value) is tuple else value for name, value in values.items()}


def from_values(kind: type[S], values: Mapping[str, Any]) -> S:
    """Create settings from JSON values. Raises: UsageError."""
    if unknown := sorted(set(values) - declared(kind).keys()):
        raise UsageError(f"unknown database settings: {', '.join(unknown)}")
    plain = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return kind(**plain)


def with_changes(settings: S, changes: Mapping[str, Any]) -> S:
    """Return settings with changes. Raises: UsageError, also for a setting that cannot change."""
    changed = from_values(type(settings), to_values(settings) | dict(changes))
    before, after = values_of(settings), values_of(changed)
    fixed = sorted(fixed_fields(type(settings)))
    if names := [name for name in fixed if before[name] != after[name]]:
        raise UsageError(
            f"these settings cannot change after a database was created: {', '.join(names)}"
        )
    return changed
