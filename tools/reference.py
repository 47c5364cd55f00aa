"""Write the generated pages of docs/reference: python -m tools.reference.

The pages are committed; tests/test_reference.py fails if one differs from the code. Settings have
their own generator, which users can run too: `siltstone config reference`.
"""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer

from siltstone.cli.main import build
from siltstone.cli.mqtt.config import reference_text
from siltstone.cli.output.help import examples, paragraphs, parameters, usage
from siltstone.settings.declare import declared
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.tx.settings import KeyValueSettings

ROOT: Final = Path(__file__).resolve().parent.parent
REFERENCE: Final = ROOT / "docs" / "reference"

# The public names of the library by purpose, in the order of the page.
TOPICS: Final = {
    "Open a store": "open Store",
    "Databases of messages": "Database Row Columns Batch Read Ticket Status TopicFilter",
    "Feeds and positions": "FeedReader FeedRead Change Position StreamRef StreamIterator",
    "Settings and inspection": "DatabaseSettings SlabId SlabInfo StreamInfo Hole ReadReport "
    "COLUMNS SCHEMA",
    "Key-value databases": "KeyValueDatabase KeyValueSettings Transaction CommitTicket Committed "
    "KeyIterator KeyRead OwnedMaps OwnedMap count_in COMMIT_SERIAL LATEST MONOTONIC "
    "OWNED_MAP_SETTINGS",
    "Other processes and machines": "connect RunningNode RunningStore RunningDatabase "
    "RunningKeyValue RunningTransaction Connection",
    "Errors": "SiltstoneError RetryError ConflictError OverloadedError OutcomeUnknownError "
    "UsageError InvalidTopicError NotFoundError ExistsError LockedError ClosedError FencedError "
    "PreconditionError Unmet QuotaExceededError StorageFullError SlabDroppedError "
    "CorruptionError DiskError PoisonedError",
}

# Classes whose fields are declared settings.
SETTINGS: Final = {"DatabaseSettings": DatabaseSettings, "KeyValueSettings": KeyValueSettings}

# The operations of a file system, which a test does not call itself.
_FILES: Final = (
    "create open read exists make_directory rename link symlink readlink remove remove_directory "
    "sync_directory lock free_bytes disk_bytes list scan_entries scan"
)

# Methods for the broker and the pipeline only, which are not documented.
INTERNAL: Final = {
    "Database": "block_logs choose extents failure feed_source has_stored leave_free may_hold "
    "on_commit refresh reports",
    "KeyValueDatabase": "failure shard_of",
    "RunningStore": "borrow give_back run",
    "Store": "failure keyvalue_places",
    "Ticket": "resolve",
    "CommitTicket": "settle tell operations",
    "FeedReader": "put end",
    "FeedRead": "picked",
    "Position": "is_of of resolved shards",
    "FaultyFileSystem": f"{_FILES} fault check",
    "MemoryFileSystem": f"{_FILES} reading changing take_space",
    "Fault": "matches",
    "Pause": "matches",
}

GENERATED: Final = "<!-- Made by `python -m tools.reference`: change the code, not this page. -->"

_COMMANDS: Final = f"""\
# Commands

{GENERATED}

`siltstone COMMAND --help` prints the same text. The exit statuses are:

| status | meaning |
|---|---|
| 0 | The command succeeded. Stopping a `--continuous` job with Ctrl-C also exits with 0. |
| 1 | `verify` or `pipeline audit` found damage, `snapshot diff` found a difference, `sub -W` \
ended before `-C` was reached, or the output was closed. |
| 2 | The arguments, the settings or the input are wrong. The message says what to change. |
| 3 | The operation failed: a full or failing disk, damaged data, a quota, a broker that refused \
or did not answer. |
| 130, 143 | Ctrl-C or SIGTERM ended the command. |

[Commands beside a running broker](../how-to/commands-beside-a-broker.md) says which commands need
the broker to be stopped.
"""

_PYTHON: Final = f"""\
# Python API

{GENERATED}

All names of this page are in the package `siltstone`. Those of the last two sections are in
`siltstone.pipeline` and `siltstone.testing`.
Names that end in `_us` are integers: microseconds since 1970, UTC. Time
ranges are half-open: `since_us` is included, `until_us` is not.

To read the rows of a filter in a time range, call
[`Database.read`](#databaseread)`(filter, since_us=…, until_us=…)`.
To read a range and then continue with new rows, use [`Database.feed`](#databasefeed).
"""


def commands_page() -> str:
    """Return the reference of all commands and their options."""
    root = typer.main.get_command(build([]))
    return "\n".join([_COMMANDS, *_command_parts(root, "siltstone")])


def _command_parts(command: Any, name: str) -> Iterator[str]:
    nested: dict[str, Any] = getattr(command, "commands", {})
    context = command.make_context(name, [], resilient_parsing=True)
    if " " in name:
        level = "##" if nested or name.count(" ") == 1 else "###"
        said = command.help or ""
        shown = examples(said)
        text = _prose("\n\n".join(paragraphs(said)))
        yield f"{level} `{name}`\n\n{text}\n"
        if not nested:
            yield "\n".join(["```text", usage(command, context), "", *shown, "```\n"])
            yield from _option_rows(command, context)
    for child, inner in nested.items():
        yield from _command_parts(inner, f"{name} {child}")


def _option_rows(command: Any, context: Any) -> Iterator[str]:
    records = [record for section in parameters(command, context).values() for record in section]
    # Every command has --help.
    shown = [record for record in records if record[0] != "--help"]
    if not shown:
        return
    yield "| option | meaning |\n|---|---|"
    for notation, text in shown:
        # The help keeps the words of a default on one line with no-break spaces.
        plain = text.replace("\N{NO-BREAK SPACE}", " ")
        yield f"| {_code_cell(notation)} | {_cell(_prose(plain))} |"
    yield ""


def _code_cell(text: str) -> str:
    """Return code for a cell of a table; a backslash before a pipe would be shown in the site."""
    if "|" not in text:
        return f"`{_cell(text)}`"
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;<wbr>')}</code>"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def python_page() -> str:
    """Return the reference of the library, from the source: compiled classes have no docstrings."""
    parts = [_PYTHON]
    places = _imports("siltstone.public")
    for title, names in TOPICS.items():
        parts.append(f"## {title}\n")
        for name in names.split():
            parts += _named(name, *places.pop(name))
    assert not places, f"public names without a section in tools/reference.py: {sorted(places)}"
    parts.append("## siltstone.pipeline\n")
    for name, place in _imports("siltstone.pipeline").items():
        parts += _named(name, *place)
    parts.append("## siltstone.testing\n")
    parts += _named("MemoryDisk", "siltstone.testing", "MemoryDisk")
    places = _imports("siltstone.testing")
    for name in (
        "Fault",
        "Pause",
        "FaultyFileSystem",
        "MemoryFileSystem",
        "PowerCut",
        "ManualClock",
    ):
        parts += _named(name, *places[name])
    return "\n".join(parts)


def _source(module: str) -> ast.Module:
    path = ROOT / "src" / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text("utf-8"))


def _imports(module: str) -> dict[str, tuple[str, str]]:
    """Return the names that a module imports, each with its module and its name there."""
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in _source(module).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _named(public: str, module: str, name: str) -> Iterator[str]:
    for node in _source(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _class(public, node)
        # An overloaded function is described by its last definition.
        if isinstance(node, ast.FunctionDef) and node.name == name and not node.decorator_list:
            return _function(public, node)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
            return iter([f"### {public}\n\n```text\n{_unwrapped(node)}\n```\n"])
    raise LookupError(f"{module} has no {name}")


def _unwrapped(node: ast.AnnAssign) -> str:
    text = ast.unparse(node)
    return text if len(text) < 200 else f"{text[:60].rstrip()}…"


def _class(public: str, node: ast.ClassDef) -> Iterator[str]:
    yield f"### {public}\n"
    bases = ", ".join(map(ast.unparse, node.bases))
    yield f"```text\nclass {public}{f'({bases})' if bases else ''}\n```\n"
    yield f"{_prose(ast.get_docstring(node) or '')}\n"
    if kind := SETTINGS.get(public):
        yield from _setting_rows(kind)
    fields = [
        f"| `{ast.unparse(item.target)}` | {_code(item.annotation)} | {_code(item.value)} |"
        for item in node.body
        if isinstance(item, ast.AnnAssign) and not ast.unparse(item.target).startswith("_")
    ]
    if fields and public not in SETTINGS:
        yield "\n".join(["| field | type | default |", "|---|---|---|", *fields, ""])
    hidden = INTERNAL.get(public, "").split()
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name not in hidden and item.name[0] != "_":
            yield from _function(f"{public}.{item.name}", item)


def _setting_rows(kind: type[Any]) -> Iterator[str]:
    yield "| field | default | value | meaning |\n|---|---|---|---|"
    for known in declared(kind).values():
        cells = (f"`{known.field}`", f"`{known.default!r}`", known.expected, known.setting.help)
        yield f"| {' | '.join(map(_cell, cells))} |"
    yield ""


def _code(node: ast.expr | None) -> str:
    return "" if node is None else _code_cell(ast.unparse(node))


def _function(public: str, node: ast.FunctionDef) -> Iterator[str]:
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix("cls").lstrip(", ")
    returned = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    kind = (
        "property " if any(ast.unparse(mark) == "property" for mark in node.decorator_list) else ""
    )
    call = f"{public}({arguments}){returned}" if not kind else f"{public}{returned}"
    if len(call) > 110:
        call = f"{public}(\n    " + ",\n    ".join(_split(arguments)) + f",\n){returned}"
    yield f"{'####' if '.' in public else '###'} {public}\n\n```text\n{kind}{call}\n```\n"
    yield f"{_prose(ast.get_docstring(node) or '')}\n"


def _split(arguments: str) -> list[str]:
    """Split at the commas between arguments, not at those inside brackets."""
    parts, depth = [""], 0
    for character in arguments:
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _prose(text: str) -> str:
    """Return a docstring as Markdown; columns that are aligned by spaces are kept."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if re.search(r"\S {2,}\S", paragraph) and "\n" in paragraph:
            paragraphs.append(f"```text\n{paragraph}\n```")
        else:
            plain = " ".join(paragraph.split())
            pieces = plain.split("`")
            pieces[::2] = [
                re.sub(r"([*])", r"\\\1", piece).replace("<", "&lt;") for piece in pieces[::2]
            ]
            paragraphs.append(_wrapped("`".join(pieces)))
    return "\n\n".join(paragraphs)


def _wrapped(text: str) -> str:
    return re.sub(r"(.{1,140})(?:\s+|$)", r"\1\n", text).strip()


def pages() -> dict[Path, str]:
    """Return the generated pages by their files."""
    return {
        REFERENCE / "commands.md": commands_page(),
        REFERENCE / "configuration.md": reference_text(),
        REFERENCE / "python-api.md": python_page(),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, "utf-8")
