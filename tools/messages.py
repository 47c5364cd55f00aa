"""Print every message that the code can show to a user: errors, log events, notes and help texts.

    python tools/messages.py                            all of src
    python tools/messages.py src/siltstone/cli          one package, or one file
    python tools/messages.py --kind error --kind log    only these kinds
    python tools/messages.py --banned                   only texts with words that STYLE.md bans

One line is one message: `path:line: kind: text`. An expression inside a text is in braces. The
script reads the syntax tree, so it finds a text only where the text is written: as an argument of
an error, of a log call, of a function that prints, or of an option.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Functions that show their arguments, and the kind of message of each.
KINDS: Final = {
    "log": "log",
    "note": "note",
    "echo": "say",
    "say": "say",
    "ask": "ask",
    "confirm": "ask",
    "confirm_drop": "ask",
    "waiting": "progress",
    "counting": "progress",
    "BadParameter": "error",
    "refused": "error",
    "refuse": "error",
    "fail": "error",
    # Reasons that are sent to clients, errors in settings, and findings of verify.
    "end": "error",
    "wrong": "error",
    "corrupt": "error",
    "damaged": "error",
    "find": "error",
    "Option": "help",
    "Argument": "help",
    "Typer": "help",
    "Field": "help",
}
# Only these arguments of an option or of a setting are shown.
SHOWN_KEYWORDS: Final = frozenset({"help", "description", "show_default", "metavar", "epilog"})
# STYLE.md, "Plain English".
BANNED: Final = re.compile(
    r"\b(?:who|whoever|whom|nobody|somebody|so many|so long|amiss|mend\w*|unasked|what is|"
    r"is no(?! longer)|are no(?! longer)|passed? over|goes? on|go on|tells? of)\b|^such\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A text, and its place in the source."""

    path: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.path}:{self.line}: {self.kind}: {self.text}"


def messages(path: Path) -> Iterator[Message]:
    """Yield the messages of one file, in their order."""
    tree = ast.parse(path.read_text("utf-8"), str(path))
    found: list[Message] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (kind := _kind(node)) is not None:
            found += [
                Message(path=path, line=text.lineno, kind=kind, text=_joined(text))
                for text in _texts(node, kind)
            ]
        elif isinstance(node, ast.FunctionDef) and path.parent.name == "cli":
            found += _command_help(path, node)
    yield from sorted(found, key=lambda message: message.line)


def _kind(call: ast.Call) -> str | None:
    name = _name(call.func)
    if name.endswith("Error") or name in {"Finding", "KeyboardInterrupt"}:
        return "error"
    if name == "__init__" and "super()" in ast.unparse(call.func):
        return "error"
    return KINDS.get(name)


def _name(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.removeprefix("_")
        case _:
            return ""


def _command_help(path: Path, node: ast.FunctionDef) -> Iterator[Message]:
    """Yield the docstring of a command, which its help shows."""
    takes = [ast.unparse(default) for default in node.decorator_list]
    text = ast.get_docstring(node)
    is_command = any("command" in name or "takes_" in name for name in takes)
    if text and (is_command or node.name == path.stem.rstrip("_")):
        yield Message(path=path, line=node.lineno + 1, kind="help", text=" ".join(text.split()))


def _texts(call: ast.Call, kind: str) -> Iterator[ast.expr]:
    """Yield the arguments that are texts, or choose between texts."""
    given = [] if kind == "help" else list(call.args)
    given += [each.value for each in call.keywords if kind != "help" or each.arg in SHOWN_KEYWORDS]
    for argument in given:
        yield from _branches(argument)


def _branches(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.IfExp(body=one, orelse=other):
            yield from _branches(one)
            yield from _branches(other)
        case ast.Constant(value=str()) | ast.JoinedStr():
            yield node
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            if any(_branches(left)) or any(_branches(right)):
                yield node
        case _:
            return


def _joined(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            shown = text
        case ast.JoinedStr(values=parts):
            shown = "".join(map(_joined, parts))
        case ast.FormattedValue(value=value):
            shown = f"{{{ast.unparse(value)}}}"
        case ast.BinOp(left=left, right=right):
            shown = _joined(left) + _joined(right)
        case _:
            shown = f"{{{ast.unparse(node)}}}"
    return shown.replace("\n", "\\n")


def main() -> int:
    """Print the messages of the files that the command line names."""
    parser = argparse.ArgumentParser(description="Print every message that the code can show.")
    parser.add_argument("paths", nargs="*", type=Path, default=[Path("src")])
    parser.add_argument("--kind", action="append", choices=sorted({*KINDS.values()}))
    parser.add_argument("--banned", action="store_true", help="only texts with banned words")
    chosen = parser.parse_args()
    for root in chosen.paths:
        for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            for message in messages(path):
                is_kind = not chosen.kind or message.kind in chosen.kind
                if is_kind and (not chosen.banned or BANNED.search(message.text)):
                    sys.stdout.write(f"{message}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
