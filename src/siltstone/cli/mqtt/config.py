"""`siltstone config`: the settings in effect, the source of each, and their reference.

`serve` has the same options; both read the settings with `settings_from`.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from os import environ
from pathlib import Path, PurePath
from typing import Annotated, Any, Final, TypeAlias, get_args

import typer

from siltstone.broker.settings.broker import BrokerSettings
from siltstone.broker.settings.kinds import Settings, expectation, toml_text
from siltstone.broker.settings.load import (
    FLAGS,
    Key,
    LoadedSettings,
    dotted_name,
    field_of,
    find_file,
    key_of,
    known_keys,
    model_of,
    read_settings,
    variable_name,
)
from siltstone.cli.output.help import App
from siltstone.cli.output.output import note, printable
from siltstone.errors import UsageError
from siltstone.fs.posix import PosixFileSystem

app = App("Show the settings of the broker.", "siltstone config show")


def _option(flag: str, metavar: str, text: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=text, show_default=False)


def _flag(flag: str, metavar: str = "") -> Any:
    """Return the option of a key, with the description of the key."""
    key = key_of(FLAGS[flag])
    field = field_of(key)
    text = field.description or ""
    if key[0] == "listeners":
        text = f"First listener: {text[:1].lower()}{text[1:]}"
    metavar = metavar or "|".join(get_args(field.annotation)) or str(key[-1]).upper()
    return _option(flag, metavar, text)


DataFlag = Annotated[str | None, _flag("--data", "DIR")]
HostFlag = Annotated[str | None, _flag("--host")]
PortFlag = Annotated[str | None, _flag("--port")]
LogLevelFlag = Annotated[str | None, _flag("--log-level")]
LogFormatFlag = Annotated[str | None, _flag("--log-format")]
ClusterFlag = Annotated[str | None, _flag("--cluster", "NAME")]
SiteFlag = Annotated[str | None, _flag("--site", "NAME")]
SeedsFlag = Annotated[str | None, _flag("--seeds", "HOST:PORT,…")]
ConfigFlag = Annotated[
    Path | None,
    _option(
        "--config",
        "FILE",
        "Settings file. Default: $SILTSTONE_CONFIG, then ./siltstone.toml if it exists.",
    ),
]
SetFlag = Annotated[
    list[str] | None,
    _option("--set", "KEY=VALUE", "Any setting, as in limits.receive_max=100. Repeatable."),
]


def settings_from(
    config: Path | None, assignments: Iterable[str] | None, **named: str | None
) -> LoadedSettings:
    """Read the settings, given the flags by name; --set and the other flags override the file.

    Raises: Exit, after printing each error on a line of its own.
    """
    fs = PosixFileSystem()
    try:
        overrides = dict(map(_assignment, assignments or ()))
        for flag in FLAGS:
            value = named[flag.removeprefix("--").replace("-", "_")]
            overrides |= {} if value is None else {flag: value}
        file = find_file(config, environ, fs=fs)
        return read_settings(_followed(file), environ, overrides, fs=fs)
    except UsageError as exc:
        for line in str(exc).splitlines():
            note(line)
        raise typer.Exit(2) from None


def hush_libraries() -> None:
    """Keep gRPC from writing to stderr, unless the user has set its verbosity.

    Otherwise every failed TLS handshake would be a line in another format. Call it before gRPC
    starts.
    """
    environ.setdefault("GRPC_VERBOSITY", "NONE")


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text}: expected KEY=VALUE, as in limits.receive_max=100")
    return key.strip(), value


def _followed(file: PurePath | None) -> PurePath | None:
    # The file system of the store does not follow links, but a settings file is often a link.
    return Path(file).resolve() if file is not None and Path(file).is_symlink() else file


@app.command("show")
def show(
    data: DataFlag = None,
    host: HostFlag = None,
    port: PortFlag = None,
    config: ConfigFlag = None,
    log_level: LogLevelFlag = None,
    log_format: LogFormatFlag = None,
    cluster: ClusterFlag = None,
    site: SiteFlag = None,
    seeds: SeedsFlag = None,
    assignments: SetFlag = None,
) -> None:
    """Show the settings in effect as TOML.

    A comment says where each value came from: file, environment or option. Values without a
    comment are defaults.

    $ siltstone config show
    $ siltstone config show --config siltstone.toml --set limits.receive_max=100
    """
    loaded = settings_from(
        config,
        assignments,
        data=data,
        host=host,
        port=port,
        log_level=log_level,
        log_format=log_format,
        cluster=cluster,
        site=site,
        seeds=seeds,
    )
    sys.stdout.write(effective_toml(loaded.settings, loaded.origin))


@app.command("reference")
def reference() -> None:
    """Print the reference of all settings as Markdown.

    $ siltstone config reference
    """
    sys.stdout.write(reference_text())


Origin: TypeAlias = Callable[[Key], str | None]


def effective_toml(settings: BrokerSettings, origin: Origin = lambda _: None) -> str:
    """Return the settings as a TOML file with the same effect."""
    return "\n".join(_toml_lines(settings, (), "", origin)) + "\n"


def _toml_lines(model: Settings, key: Key, title: str, origin: Origin) -> Iterator[str]:
    """Yield the lines of a table, values first: in TOML all lines after a title belong to it."""
    below: list[tuple[Settings, Key, str]] = []
    if title:
        yield from ("", title)
    for name, field in model.ordered_fields().items():
        value = getattr(model, name)
        path = (*key, name)
        dotted = ".".join(part for part in path if isinstance(part, str))
        if isinstance(value, Settings):
            below.append((value, path, f"[{dotted}]"))
        elif isinstance(value, tuple) and value and isinstance(value[0], Settings):
            below += [(item, (*path, at), f"[[{dotted}]]") for at, item in enumerate(value)]
        else:
            given = origin(path)
            comment = "" if given is None else f"  # {printable(given)}"
            yield f"{name} = {toml_text(field, value)}{comment}"
    for item, path, heading in below:
        yield from _toml_lines(item, path, heading, origin)


_WIDTH: Final = 140
_INTRODUCTION: Final = """\
# Settings

`siltstone serve` reads its settings from four places. A later place wins over an earlier one, for
each key separately:

1. the defaults in the tables below;
2. a TOML file: `--config FILE`, else `$SILTSTONE_CONFIG`, else `siltstone.toml` in the working
   directory, if it exists;
3. environment variables: `SILTSTONE_` and the key in capitals, with two underscores for each dot;
4. flags: `--data`, `--host` and `--port` (of the first listener), `--log-level`, `--log-format`,
   and `--set KEY=VALUE` for every key.

These three are equivalent, in `siltstone.toml`, in the environment and as a flag:

```toml
[limits]
packet_size_max = "4 MiB"
```

```text
SILTSTONE_LIMITS__PACKET_SIZE_MAX=4MiB
--set limits.packet_size_max=4MiB
```

**Sizes** are a number of bytes, or a text with a unit: KiB, MiB, GiB, kB, MB, GB. **Times** are a
number of seconds, or a text with units: "250ms", "90s", "1h30m", "30d", "2w". The word `none`
removes a limit where the table allows it.

In the environment and in flags, write a list or a table as JSON. A number selects one item of a
list:

```text
SILTSTONE_LISTENERS='[{"port": 1883}, {"kind": "ws", "port": 8083}]'
SILTSTONE_LISTENERS__1__PORT=8084
--set 'storage.rules=[{"filter": "debug/#", "store": "never"}]'
```

File paths are relative to the working directory. The broker reads its settings once, at its start.
SIGHUP reloads the password file, the access list and the certificates.

The broker does not start with a wrong value, an unknown key, or an unknown variable that begins
with `SILTSTONE_`. The error names the place and the expected value. `siltstone serve --check`
checks the settings without starting the broker. `siltstone config show` prints where each value
came from.

A listener that other machines can reach refuses anonymous clients, unless it has
`allow_anonymous = true`. So does a TLS listener on loopback, if there is a password file or a hook.
The broker does not start with a listener that no client could log in to.

`siltstone config reference` prints this page.
"""


def reference_text() -> str:
    """Return the text of docs/reference/configuration.md."""
    keys = known_keys()
    tables = dict.fromkeys(key[:-1] for key in keys)
    sections = (_section(table, [key for key in keys if key[:-1] == table]) for table in tables)
    return "\n".join([_INTRODUCTION, *sections])


def _section(table: Key, keys: Iterable[Key]) -> str:
    model = model_of(table)
    assert model is not None
    name = dotted_name(tuple(part for part in table if part != 0))
    title = f"`[[{name}]]`" if table[-1:] == (0,) else f"`[{name}]`"
    rows = [_row(key) for key in keys if model_of(key) is None]
    return "\n".join(
        [
            f"## {title if table else 'Top level'}\n",
            f"{textwrap.fill(' '.join((model.__doc__ or '').split()), _WIDTH)}\n",
            "| key | value | default | environment variable | meaning |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _row(key: Key) -> str:
    field = field_of(key)
    default = "" if field.is_required() else f"`{toml_text(field, field.default)}`"
    if key == ("listeners",):
        default = "one, as below"
    cells = (f"`{key[-1]}`", expectation(field), default, f"`{variable_name(key)}`")
    return f"| {' | '.join(cells)} | {field.description} |"
