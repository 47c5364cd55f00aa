"""The types of settings: their names, and how values are read and written.

Sizes are in bytes and may be written as text ("16 MiB"). Times are in seconds and may be written as
text ("30d", "1h30m"). Permissions may be written in octal. "none" stands for None, which TOML does
not have. The noun of a type is its name in error messages and in the reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from siltstone.errors import InvalidTopicError, UsageError
from siltstone.settings.quantities import parse_duration, parse_size
from siltstone.topic.grammar import TopicFilter

DAY: Final = 86_400.0
U32_MAX: Final = 4_294_967_295

_HOOK: Final = re.compile(r"([A-Za-z_][\w.]*:[A-Za-z_]\w*)?")
# The names that the store allows, except those that begin with _, which the broker uses itself.
_DATABASE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Settings(BaseModel):
    """The base class of settings: frozen, no unknown keys, no values in error messages."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        hide_input_in_errors=True,
    )

    @classmethod
    def ordered_fields(cls) -> Mapping[str, FieldInfo]:
        """Return the keys in the order in which they are shown."""
        return cls.model_fields


@dataclass(frozen=True, slots=True)
class Noun:
    """The name of a type in error messages and in the reference, and how its values are shown."""

    text: str
    show: Callable[[Any], str] = str


def size_text(size_bytes: int) -> str:
    """Return a size as exact text, with the largest unit that divides it."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return str(size_bytes)


def wrong(sentence: str, *key: str | int) -> PydanticCustomError:
    """Return the error for an invalid setting; `key` is the path of the setting in its model."""
    return PydanticCustomError("wrong", "{sentence}", {"sentence": sentence, "key": key})


def _number(value: Any) -> Any:
    # In Python, True is 1. The value true in a settings file does not mean a number.
    if isinstance(value, bool):
        raise ValueError("invalid number")  # noqa: TRY004 - pydantic expects it
    return value


def _size(value: Any) -> Any:
    if not isinstance(value, str):
        return _number(value)
    try:
        return parse_size(value)
    except UsageError as exc:
        raise ValueError("invalid size") from exc


def _seconds(value: Any) -> Any:
    if not isinstance(value, str):
        return _number(value)
    try:
        return parse_duration(value)
    except UsageError:
        # A number in another form, for example 1e3, or invalid text: pydantic checks it.
        return value


def _mode(value: Any) -> Any:
    return int(value, 8) if isinstance(value, str) else _number(value)


def _none(value: Any) -> Any:
    return None if value == "none" else value


def _topic_filter(text: str) -> str:
    try:
        parsed = TopicFilter.parse(text)
    except InvalidTopicError as exc:
        raise wrong(str(exc)) from exc
    if parsed.group is not None:
        raise wrong(f"must not be a shared filter ($share/…): {text!r}")
    return text


def _matching(pattern: re.Pattern[str]) -> AfterValidator:
    def check(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise ValueError("invalid text")
        return text

    return AfterValidator(check)


Count = Annotated[int, BeforeValidator(_number), Noun("a whole number")]
Size = Annotated[int, BeforeValidator(_size), Noun("a size", size_text)]
Seconds = Annotated[float, BeforeValidator(_seconds), Noun("a number of seconds")]
OptionalSize = Annotated[Size | None, BeforeValidator(_none), Noun("none, or a size", size_text)]
OptionalSeconds = Annotated[
    Seconds | None, BeforeValidator(_none), Noun("none, or a number of seconds")
]
OptionalBool = Annotated[bool | None, BeforeValidator(_none), Noun("true, false or none")]
Mode = Annotated[int, BeforeValidator(_mode), Field(ge=0, le=0o777), Noun("permissions", oct)]
Texts = Annotated[tuple[str, ...], Noun("a list of texts")]
FilterText = Annotated[str, AfterValidator(_topic_filter), Noun("a topic filter")]
HookName = Annotated[str, _matching(_HOOK), Noun('a text as "module:callable"')]
DatabaseName = Annotated[
    str,
    _matching(_DATABASE),
    Noun("a name of letters, digits, _, . and - that begins with a letter or digit"),
]

_NOUNS: Final[dict[Any, Noun]] = {bool: Noun("true or false"), str: Noun("a text")}


def expectation(field: FieldInfo) -> str:
    """Return the type and range of a setting, for example "a whole number from 1 to 9"."""
    noun = _noun(field)
    bounds = {
        name: noun.show(getattr(fact, name))
        for fact in field.metadata
        for name in ("ge", "gt", "le", "multiple_of")
        if hasattr(fact, name)
    }
    text = noun.text
    match bounds:
        case {"ge": low, "le": high}:
            text += f" from {low} to {high}"
        case {"gt": low, "le": high}:
            text += f" above {low}, up to {high}"
        case {"ge": low}:
            text += f", at least {low}"
        case {"gt": low}:
            text += f" above {low}"
        case _:
            pass
    return f"{text}, a multiple of {bounds['multiple_of']}" if "multiple_of" in bounds else text


def toml_text(field: FieldInfo, value: Any) -> str:
    """Return a value of a setting as TOML."""
    match value:
        case None:
            return '"none"'
        case bool():
            return str(value).lower()
        case str():
            return _toml_item(value)
        case tuple():
            return f"[{', '.join(_toml_item(item) for item in value)}]"
        case _:
            shown = _noun(field).show(value)
            return f'"{shown}"' if " " in shown else shown


def _toml_item(value: object) -> str:
    if not isinstance(value, str):
        return str(value)
    # The escapes of JSON are valid in TOML. TOML also requires an escape for U+007F.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _noun(field: FieldInfo) -> Noun:
    for fact in field.metadata:
        if isinstance(fact, Noun):
            return fact
    if get_origin(field.annotation) is Literal:
        return Noun(f"one of {', '.join(get_args(field.annotation))}")
    return _NOUNS.get(field.annotation, Noun("a list of tables"))
