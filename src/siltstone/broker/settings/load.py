"""The settings of the broker: defaults, then siltstone.toml, the environment, and flags.

Later sources win, key by key. Every key can be given in each source. A variable joins the words of
a key with two underscores (SILTSTONE_LIMITS__PACKET_SIZE_MAX), a flag with dots. A number selects
an item of a list (listeners.0.port). A whole list or table is given as JSON.

Each error is one line: the source, the key, the expected value and the value found. The sources of
pydantic-settings merge values before they are checked and forget the source of each value, so this
module fills the models.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any, Final, TypeAlias, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from siltstone.broker.settings.broker import BrokerSettings
from siltstone.broker.settings.kinds import Settings, expectation
from siltstone.errors import NotFoundError, UsageError
from siltstone.fs.api import FileSystem

FILE_NAME: Final = "siltstone.toml"
PREFIX: Final = "SILTSTONE_"
FILE_VARIABLE: Final = "SILTSTONE_CONFIG"
# Variables that are not settings: the path of the settings file, the password of client commands,
# and options of build and tests.
NOT_SETTINGS: Final = frozenset(
    {FILE_VARIABLE, "SILTSTONE_PASSWORD", "SILTSTONE_PURE", "SILTSTONE_REQUIRE_PEERS"}
)

# The keys with a flag of their own; other keys are given with --set.
FLAGS: Final[Mapping[str, str]] = {
    "--data": "data",
    "--host": "listeners.0.host",
    "--port": "listeners.0.port",
    "--log-level": "log.level",
    "--log-format": "log.format",
    "--cluster": "cluster.name",
    "--site": "cluster.site",
    "--seeds": "cluster.seeds",
}

Key: TypeAlias = tuple[str | int, ...]
_FOUND_LENGTH_MAX: Final = 60
# Examples of values with a unit, by a part of the text that describes what a key accepts.
_EXAMPLES: Final = {"a size": '4096 or "4 MiB"', "a number of seconds": '2.5 or "250ms"'}


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings, and the source of each value that was given."""

    settings: BrokerSettings
    origins: Mapping[Key, str]

    def origin(self, key: Key) -> str | None:
        """Return the source of a value; None for a default."""
        return _origin(self.origins, key)


def read_settings(
    file: PurePath | None,
    environment: Mapping[str, str],
    overrides: Mapping[str, str],
    *,
    fs: FileSystem,
) -> LoadedSettings:
    """Read the settings, with the source of each value; the names of overrides are keys or FLAGS.

    Raises: UsageError, with a line for each error.
    """
    draft = _Draft()
    if file is not None:
        draft.tree = _read_file(fs, file)
        draft.origins = dict.fromkeys(_leaves(draft.tree), str(file))
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in NOT_SETTINGS:
            draft.put_variable(name, environment[name])
    for flag, text in overrides.items():
        draft.put_flag(flag, text)
    return draft.finish()


def find_file(
    named: PurePath | None, environment: Mapping[str, str], *, fs: FileSystem
) -> PurePath | None:
    """Return the settings file: the given one, that of the environment, or a local one."""
    if named is not None:
        return named
    if from_environment := environment.get(FILE_VARIABLE):
        return PurePath(from_environment)
    here = PurePath(FILE_NAME)
    return here if fs.exists(here) else None


def variable_name(key: Key) -> str:
    """Return the environment variable of a key."""
    return PREFIX + "__".join(map(str, key)).upper()


def dotted_name(key: Key) -> str:
    """Return a key in the form of flags and error messages."""
    return ".".join(
        part if part.replace("-", "_").isidentifier() or part.isdecimal() else json.dumps(part)
        for part in map(str, key)
    )


def key_of(dotted: str) -> Key:
    """Return the key of a name with dots."""
    return _key(dotted.split("."))


def known_keys() -> list[Key]:
    """Return all keys, tables and lists before their contents; of a list only index 0."""
    return list(_keys_of(BrokerSettings, ()))


def model_of(key: Key) -> type[Settings] | None:
    """Return the model of a key that is a table; None for another or unknown key."""
    shape = _shape(key)
    return shape if isinstance(shape, type) and issubclass(shape, Settings) else None


def field_of(key: Key) -> FieldInfo:
    """Return the field of a known key, or of the list that contains it."""
    while isinstance(key[-1], int):
        key = key[:-1]
    model = model_of(key[:-1])
    assert model is not None
    return model.model_fields[key[-1]]


def _keys_of(model: type[Settings], prefix: Key) -> Iterator[Key]:
    for name, field in model.ordered_fields().items():
        key: Key = (*prefix, name)
        yield key
        if _is_list(field.annotation):
            key = (*key, 0)
        if below := model_of(key):
            yield from _keys_of(below, key)


class _Draft:
    """The values so far, as JSON values, with their sources and errors."""

    def __init__(self) -> None:
        self.tree: dict[str, Any] = {}
        self.origins: dict[Key, str] = {}
        self._complaints: list[str] = []

    def put_variable(self, name: str, text: str) -> None:
        """Add an environment variable; an unknown one is an error."""
        key = _key(name.removeprefix(PREFIX).lower().split("__"))
        if variable_name(key) == name and _shape(key) is not None:
            self._put(key, text, name)
        else:
            nearest = _nearest(name.upper(), map(variable_name, known_keys()))
            self._complaints.append(f"{name}: unknown variable{nearest}")

    def put_flag(self, flag: str, text: str) -> None:
        """Add the value of a flag, or of a key of --set; an unknown key is an error."""
        key = _key(FLAGS.get(flag, flag).replace("-", "_").split("."))
        origin = flag if flag in FLAGS else f"--set {dotted_name(key)}"
        if _shape(key) is not None:
            self._put(key, text, origin)
        else:
            self._complaints.append(f"{origin}: unknown key{_nearest_key(key)}")

    def finish(self) -> LoadedSettings:
        """Check all values, and return the settings. Raises: UsageError."""
        settings = None
        try:
            settings = BrokerSettings.model_validate(self.tree)
        except ValidationError as exc:
            self._complaints += [
                f"{_blamed(self.origins, key)}: {dotted_name(key)}: {sentence}"
                for key, sentence in _sentences(exc.errors(include_url=False), self.tree)
            ]
        if settings is None or self._complaints:
            # Without its cause, which could show secret values.
            raise UsageError("\n".join(self._complaints)) from None
        return LoadedSettings(settings, self.origins)

    def _put(self, key: Key, text: str, origin: str) -> None:
        try:
            value = json.loads(text) if _is_list(_shape(key)) or model_of(key) else text
            self.tree = _with(self.tree, key, value)
        except json.JSONDecodeError as exc:
            found = f"invalid JSON from character {exc.pos + 1} on"
            sentence = f"expected {_expected(key)} as JSON, found {found}"
            self._complaints.append(f"{origin}: {dotted_name(key)}: {sentence}")
        except (ValueError, RecursionError):
            sentence = "is nested too deeply, or has a number with too many digits"
            self._complaints.append(f"{origin}: {dotted_name(key)}: {sentence}")
        except IndexError:
            self._complaints.append(f"{origin}: {dotted_name(key)}: skips an index of its list")
        else:
            below = [known for known in self.origins if known[: len(key)] == key]
            self.origins = {k: v for k, v in self.origins.items() if k not in below}
            self.origins[key] = origin


def _with(node: Any, key: Key, value: Any, depth: int = 0) -> Any:
    """Return the node at a depth of the key, with the value set below it.

    Missing tables and lists are created. Raises: IndexError for an index beyond the next one of a
    list.
    """
    if depth == len(key):
        return value
    part = key[depth]
    if isinstance(part, int):
        if node is None:
            default = field_of(key[:depth]).default
            node = [{} if isinstance(item, BaseModel) else item for item in default]
        if isinstance(node, list):
            if part > len(node):
                raise IndexError(part)
            item = _with(node[part] if part < len(node) else None, key, value, depth + 1)
            return [*node[:part], item, *node[part + 1 :]]
    elif node is None or isinstance(node, dict):
        table = node or {}
        return table | {part: _with(table.get(part), key, value, depth + 1)}
    # The file has a value of a wrong type here, which the models report.
    return node


def _read_file(fs: FileSystem, file: PurePath) -> dict[str, Any]:
    """Read a TOML file. Raises: UsageError."""
    try:
        encoded = fs.read(file)
    except NotFoundError as exc:
        raise UsageError(f"{file}: the file does not exist") from exc
    try:
        return tomllib.loads(encoded.decode())
    except UnicodeDecodeError as exc:
        line = encoded.count(b"\n", 0, exc.start) + 1
        raise UsageError(f"{file}: invalid UTF-8 (at line {line})") from exc
    except tomllib.TOMLDecodeError as exc:
        end = f"at the end, line {len(encoded.splitlines())}"
        found = str(exc).replace("at end of document", end)
        raise UsageError(f"{file}: invalid TOML: {found[:1].lower()}{found[1:]}") from exc


def _leaves(node: Any, key: Key = ()) -> Iterator[Key]:
    """Yield the keys of all values that are neither tables nor lists of tables."""
    if isinstance(node, list) and any(isinstance(item, dict) for item in node):
        node = dict(enumerate(node))
    if not isinstance(node, dict):
        yield key
        return
    for part, below in node.items():
        yield from _leaves(below, (*key, part))


def _key(words: Iterable[str]) -> Key:
    return tuple(int(word) if word.isdecimal() else word for word in words)


def _shape(key: Key) -> Any:
    """Return the type of a key: a model, a tuple type, or another type; None if it is unknown."""
    shape: Any = BrokerSettings
    for part in key:
        if isinstance(part, int):
            shape = get_args(shape)[0] if _is_list(shape) else None
        else:
            fields = getattr(shape, "model_fields", {})
            shape = fields[part].annotation if part in fields else None
    return shape


def _is_list(shape: Any) -> bool:
    return get_origin(shape) is tuple


def _expected(key: Key) -> str:
    """Return what a key accepts, with an example where a unit may follow the number."""
    if model_of(key):
        return "a table"
    text = expectation(field_of(key))
    return next(
        (f"{text}, such as {shown}" for noun, shown in _EXAMPLES.items() if noun in text), text
    )


def _sentences(errors: list[ErrorDetails], tree: Any) -> Iterator[tuple[Key, str]]:
    """Yield the key and the message of each validation error."""
    for error in errors:
        key: Key = error["loc"]
        match error["type"]:
            case "wrong":
                yield (*key, *error["ctx"]["key"]), error["msg"]
            case "extra_forbidden":
                yield key, f"unknown key{_nearest_key(key)}"
            case "missing":
                yield key, f"is missing, expected {_expected(key)}"
            case "too_short" if error["ctx"]["actual_length"] < len(error["input"]):
                # Items were refused, each with an error of its own.
                continue
            case _:
                yield key, f"expected {_expected(key)}, found {_found(_given(tree, key))}"


def _given(tree: Any, key: Key) -> Any:
    """Return the original value of a key."""
    for part in key:
        tree = tree[part]
    return tree


def _found(value: Any) -> str:
    match value:
        case []:
            return "an empty list"
        case dict():
            return "a table"
        case list():
            return "a list"
        case bool():
            return str(value).lower()
        case str() if len(value) > _FOUND_LENGTH_MAX:
            return f"{value[:_FOUND_LENGTH_MAX]!r}…"
        case _:
            return repr(value) if isinstance(value, str) else str(value)


def _origin(origins: Mapping[Key, str], key: Key) -> str | None:
    """Return the source of a value, or of the table or list that contains it."""
    given = (origins.get(key[:length]) for length in range(len(key), 0, -1))
    return next((origin for origin in given if origin is not None), None)


def _blamed(origins: Mapping[Key, str], key: Key) -> str:
    """Return the source in which to fix a key: its own source, or that of its neighbours."""
    if origin := _origin(origins, key):
        return origin
    near = (
        [origin for known, origin in origins.items() if known[:length] == key[:length]]
        for length in range(len(key), -1, -1)
    )
    # The defaults are valid, so some source is wrong. An empty list in a file has no known key.
    found = next(filter(None, near), [])
    return ", ".join(dict.fromkeys(found)) or "the settings file"


def _nearest_key(key: Key) -> str:
    """Return a suggestion: a key of the same table, or one with that name elsewhere."""
    while len(key) > 1 and _shape(key[:-1]) is None:
        key = key[:-1]
    model = model_of(key[:-1])
    above = model_of(key[:1])
    if len(key) > 2 and above is not None and str(key[-1]) in above.model_fields:
        return f", it is set for the whole database: {dotted_name((key[0], key[-1]))}"
    beside = _nearest(str(key[-1]), model.model_fields if model else ())
    elsewhere = {str(each[-1]): dotted_name(each) for each in known_keys()}
    close = get_close_matches(str(key[-1]), elsewhere, n=1)
    if beside or not close:
        return beside or "; 'siltstone config reference' lists all keys"
    return f", did you mean {elsewhere[close[0]]}?"


def _nearest(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word, list(known), n=1)
    return f", did you mean {close[0]}?" if close else ""
