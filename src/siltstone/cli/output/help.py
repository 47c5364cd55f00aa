"""The layout of help: as wide as the terminal, up to 100 columns; without colours in a pipe.

The docstring of a command is its help. The first line says in one imperative sentence what the
command does. Paragraphs with details follow. Lines that begin with a dollar sign are examples, and
are shown in a section of their own:

    Read rows in order of time.

    The command works beside a running broker.

    $ siltstone read messages --since -1h
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from inspect import cleandoc
from textwrap import wrap
from typing import Any, Final, TypeAlias, TypeVar

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

Function = TypeVar("Function", bound=Callable[..., Any])
Parameter: TypeAlias = TyperArgument | TyperOption

_INDENT: Final = "  "
# A longer name is on a line of its own, above its description.
_NAME_WIDTH_MAX: Final = 26
_WIDTH_MAX: Final = 100
_EXAMPLE: Final = "$ "
_UNBREAKABLE: Final = "\N{NO-BREAK SPACE}"
_HEADING: Final = "bold"
_NAME: Final = "cyan"


class Command(TyperCommand):
    """A command with the help layout of this module."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help on stdout; typer prints the formatter, which stays empty."""
        del formatter
        _show(_page(self, ctx))


class HelpGroup(TyperGroup):
    """A group of commands with the help layout of this module."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help on stdout, with the commands by panel."""
        del formatter
        _show(_page(self, ctx))


class App(typer.Typer):
    """Commands under one name; without a command the help is shown."""

    def __init__(self, line: str, *shown: str, cls: type[HelpGroup] = HelpGroup) -> None:
        text = "\n".join([line, "", *(f"{_EXAMPLE}{example}" for example in shown)])
        super().__init__(cls=cls, help=text, no_args_is_help=True)

    def command(
        self,
        name: str | None = None,
        *,
        cls: type[TyperCommand] | None = Command,
        **options: Any,
    ) -> Callable[[Function], Function]:
        """Add a command, as typer does."""
        return super().command(name, cls=cls, **options)


def examples(text: str) -> list[str]:
    """Return the examples of a help text, as a user types them."""
    lines = cleandoc(text).splitlines()
    return [line.removeprefix(_EXAMPLE) for line in lines if line.startswith(_EXAMPLE)]


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a help text without the examples, one line each."""
    parts = cleandoc(text).split("\n\n")
    return [" ".join(part.split()) for part in parts if part and not part.startswith(_EXAMPLE)]


def _show(lines: Iterable[Text]) -> None:
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for line in lines:
        console.print(line)


def _width() -> int:
    return min(Console(file=sys.stdout).width, _WIDTH_MAX) - 1


def _page(command: TyperCommand | TyperGroup, ctx: Any) -> Iterator[Text]:
    yield from _wrapped(f"Usage: {usage(command, ctx)}", hang=len("Usage: "))
    for paragraph in paragraphs(command.help or ""):
        yield Text()
        yield from _wrapped(paragraph)
    if shown := examples(command.help or ""):
        yield from _heading("Examples")
        yield from (Text(f"{_INDENT}{line}") for line in shown)
    for title, records in parameters(command, ctx).items():
        yield from _section(title, records)
    if isinstance(command, TyperGroup):
        yield from _commands(command, ctx)


def usage(command: TyperCommand | TyperGroup, ctx: Any) -> str:
    """Return how to call a command."""
    return " ".join([ctx.command_path, *_usage(command, ctx)])


def parameters(command: TyperCommand | TyperGroup, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Return the arguments and options by section, each with its notation and its description."""
    sections: dict[str, list[tuple[str, str]]] = {}
    given = [each for each in command.get_params(ctx) if isinstance(each, Parameter)]
    # Arguments first, then options in their order.
    for each in sorted(given, key=lambda parameter: isinstance(parameter, TyperOption)):
        if not each.hidden:
            usual = "Arguments" if isinstance(each, TyperArgument) else "Options"
            record = (_name(each, ctx), _description(each, ctx))
            sections.setdefault(each.rich_help_panel or usual, []).append(record)
    return sections


def _usage(command: TyperCommand | TyperGroup, ctx: Any) -> Iterator[str]:
    yield "[OPTIONS]"
    for parameter in command.get_params(ctx):
        if isinstance(parameter, TyperArgument):
            name = parameter.display_name_raw.strip("[]")
            yield name if parameter.required else f"[{name}]"
    if isinstance(command, TyperGroup):
        yield "COMMAND"


def _commands(group: TyperGroup, ctx: Any) -> Iterator[Text]:
    panels: dict[str, list[tuple[str, str]]] = {}
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if command is not None and not command.hidden:
            panel = getattr(command, "rich_help_panel", None) or "Commands"
            line = next(iter(paragraphs(command.help or "")), "")
            panels.setdefault(panel, []).append((name, line))
    widest = max(len(name) for records in panels.values() for name, _ in records)
    for title, records in panels.items():
        yield from _section(title, records, widest)
    yield Text()
    yield from _wrapped(f"Details of a command: {ctx.command_path} COMMAND --help")


def _section(title: str, records: list[tuple[str, str]], widest: int = 0) -> Iterator[Text]:
    yield from _heading(title)
    widths = [len(name) for name, _ in records if len(name) <= _NAME_WIDTH_MAX]
    column = max([widest, *widths], default=0)
    for name, description in records:
        yield from _record(name, description, column)


def _heading(title: str) -> Iterator[Text]:
    yield Text()
    yield Text(f"{title}:", style=_HEADING)


def _record(name: str, description: str, column: int) -> Iterator[Text]:
    """Lay out a name and its description, as a hanging paragraph."""
    before = " " * (len(_INDENT) + column + 2)
    wrapped = wrap(description, _width() - len(before), break_on_hyphens=False) or [""]
    lines = [line.replace(_UNBREAKABLE, " ") for line in wrapped]
    if len(name) > column:
        yield Text.assemble(_INDENT, (name, _NAME))
    else:
        yield Text.assemble(_INDENT, (name.ljust(column + 2), _NAME), lines.pop(0))
    yield from (Text(f"{before}{line}") for line in lines)


def _wrapped(text: str, hang: int = 0) -> Iterator[Text]:
    for line in wrap(text, _width(), subsequent_indent=" " * hang, break_on_hyphens=False):
        yield Text(line)


def _name(parameter: Parameter, ctx: Any) -> str:
    """Return the notation of a parameter: its names, and its value unless it is a flag."""
    if isinstance(parameter, TyperArgument):
        return parameter.display_name_raw.strip("[]")
    names = sorted(parameter.opts, key=len)
    forms = " / ".join([", ".join(names), *parameter.secondary_opts])
    return forms if parameter.is_flag else f"{forms} {_value(parameter, ctx)}"


def _value(option: TyperOption, ctx: Any) -> str:
    if option.metavar is not None:
        return option.metavar
    kind = option.display_type(ctx).strip("<>")
    return kind if "|" in kind else "N" if "int" in kind else "TEXT"


def _description(parameter: Parameter, ctx: Any) -> str:
    facts = [
        _range(parameter),
        f"env: {parameter.envvar}" if parameter.envvar else "",
        f"default: {default}" if (default := _default(parameter, ctx)) else "",
        "required" if parameter.required and isinstance(parameter, TyperOption) else "",
    ]
    # Do not break a line inside the brackets.
    shown = (f"[{fact}]".replace(" ", _UNBREAKABLE) for fact in facts if fact)
    return " ".join([parameter.help or "", *shown])


def _default(parameter: Parameter, ctx: Any) -> str:
    """Return the value that applies if the user gives none."""
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    value = parameter.get_default(ctx, call=False)
    if not parameter.show_default or value in (None, "", [], ()):
        return ""
    if isinstance(parameter, TyperOption) and parameter.is_flag and not parameter.secondary_opts:
        return ""
    if isinstance(value, bool) and isinstance(parameter, TyperOption):
        return (parameter.opts if value else parameter.secondary_opts)[0]
    return f"{value:g}" if isinstance(value, float) else str(getattr(value, "value", value))


def _range(parameter: Parameter) -> str:
    low, high = parameter.min, parameter.max
    if low is None and high is None:
        return ""
    if high is None:
        return f"at least {low}"
    return f"{low} to {high}" if low is not None else f"at most {high}"
