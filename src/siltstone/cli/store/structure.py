"""`siltstone structure`: the learned topic structure of a database, as a tree with counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.text import Text
from rich.tree import Tree

from siltstone.cli.opening import open_reading
from siltstone.cli.options import DATA_DEFAULT, Data, Json, Name
from siltstone.cli.output.output import counted, printable, show, show_json
from siltstone.errors import UsageError
from siltstone.store.log.info import StreamInfo


@dataclass(frozen=True, slots=True)
class Pattern:
    """A learned structure: its rows, and the number of slabs that have any."""

    pattern: str
    rows: int
    slabs: int


@dataclass(slots=True)
class Level:
    """A node of the tree; `own` counts the rows whose topics end here, None if none can."""

    own: int | None = None
    below: int = 0
    children: dict[str, Level] = field(default_factory=dict)


def merge(streams: Iterable[StreamInfo]) -> list[Pattern]:
    """Merge the same structure of several slabs; sort by words."""
    rows: dict[str, int] = {}
    slabs: dict[str, int] = {}
    for stream in streams:
        rows[stream.pattern] = rows.get(stream.pattern, 0) + stream.rows
        slabs[stream.pattern] = slabs.get(stream.pattern, 0) + 1
    return [
        Pattern(pattern, rows[pattern], slabs[pattern])
        for pattern in sorted(rows, key=lambda text: text.split("/"))
    ]


def levels(patterns: Iterable[Pattern]) -> Level:
    """Arrange patterns by their levels."""
    root = Level()
    for each in patterns:
        node = root
        for word in each.pattern.split("/"):
            node.below += each.rows
            node = node.children.setdefault(word, Level())
        node.own = each.rows
    return root


def draw(title: str, root: Level) -> Tree:
    """Return the tree for users: varying levels last, an only child beside its parent."""
    tree = Tree(
        Text.assemble((printable(title), "bold"), "  ", (counted(root.below, "row"), "dim"))
    )
    pending = [(tree, root)]
    while pending:
        branch, node = pending.pop()
        for word in sorted(node.children, key=lambda text: (text == "+", text)):
            words, end = _path(word, node.children[word])
            pending.append((branch.add(_label(words, end)), end))
    return tree


def _path(word: str, node: Level) -> tuple[list[str], Level]:
    """Follow the nodes while there is only one child; return the words and the last node."""
    words = [word]
    while node.own is None and len(node.children) == 1:
        ((word, node),) = node.children.items()
        words.append(word)
    return words, node


def _label(words: list[str], node: Level) -> Text:
    shown = Text("/", style="dim").join(
        Text(printable(word) or '""', style="bold magenta" if word == "+" else "cyan")
        for word in words
    )
    if node.own is not None:
        shown.append(f"  {counted(node.own, 'row')}", style="green")
    if node.below:
        shown.append(f"  {node.below:,} below", style="dim")
    return shown


def structure(
    name: Name,
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation", metavar="N", help="Show only this generation.", show_default="all"
        ),
    ] = None,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Show the topic structure of a database as a tree.

    The store learns the structure from the topics. + is a level with many different words.
    The command works beside a running broker.

    $ siltstone structure messages
    """
    with open_reading(data) as store:
        database = store.database(name)
        streams = database.structure()
        known = sorted({slab.slab.generation for slab in database.slabs()})
    if generation is not None:
        if generation not in known:
            there = ", ".join(map(str, known))
            raise UsageError(
                f"database {name!r} has no generation {generation} (generations: {there})"
            )
        streams = [stream for stream in streams if stream.slab.generation == generation]
    patterns = merge(streams)
    if json:
        show_json(
            [{"pattern": each.pattern, "rows": each.rows, "slabs": each.slabs} for each in patterns]
        )
    else:
        show(draw(name, levels(patterns)))
