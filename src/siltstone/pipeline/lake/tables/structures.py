"""Structures decide which topics share a table. A pure function of known structures and new topics.

    bench/0/device/7/telemetry     a number never names a table: bench/+/device/+/telemetry
    site/line1/state               one word with a number names it,
    site/line2/state               two of one form do not: site/+/state
    home/kitchen/temperature       words with the same words below them, and payloads with the same
    home/bath/temperature          fields, are of one kind: home/+/temperature
    home/bath/humidity             the last words differ: home/+/humidity

A level that varies never becomes fixed again, so structures only grow: each earlier structure is in
the result, or a structure of the result covers it. The words of the first level, and the last words
of topics, become one structure only when there are many of them: they often name different things.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from siltstone.pipeline.lake.fields import Path
from siltstone.pipeline.lake.payloads import Decoder

# More words than these, of one kind, vary: on the first level, and at the end of topics.
MANY: Final = 10
# More words than these vary, of whatever kind they are: each structure has a table.
WORDS_MAX: Final = 1_000
# The part of their fields that the payloads of one kind have in common.
_ALIKE: Final = 0.5
_STEMS_AT_THE_END: Final = 3
_NUMBER: Final = re.compile(r"\d+([._:-]\d+)*")
_HEX: Final = re.compile(r"(?=(.*\d){2})(0x)?[0-9a-f]{6,}", re.IGNORECASE)
_MAC_OR_UUID: Final = re.compile(r"[0-9a-f]{2,}([:-][0-9a-f]{2,}){3,}", re.IGNORECASE)
_SERIAL: Final = re.compile(r"(?=(.*\d){3})(?=.*[A-Za-z])[A-Za-z0-9]{12,}")
_DIGITS: Final = re.compile(r"\d+")
_PLUS: Final = "+"
_Levels = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadKind:
    """The form of the payloads of a structure."""

    decode: Decoder
    fields: frozenset[Path] = frozenset()

    def is_like(self, other: PayloadKind) -> bool:
        """Return whether payloads of both can share a table."""
        if self.decode != other.decode:
            return False
        common = len(self.fields & other.fields)
        return common >= _ALIKE * len(self.fields | other.fields)

    def joined(self, other: PayloadKind) -> PayloadKind:
        """Return the kind of the payloads of both; documents have columns, so they win."""
        plain = self.decode in ("text", "raw")
        decode = other.decode if plain else self.decode
        return PayloadKind(decode=decode, fields=self.fields | other.fields)


def is_identifier(word: str) -> bool:
    """Return whether a word names one of many things, rather than a kind of thing."""
    return any(form.fullmatch(word) for form in (_NUMBER, _HEX, _MAC_OR_UUID, _SERIAL))


def find_structures(known: Mapping[str, PayloadKind]) -> dict[str, PayloadKind]:
    """Return the structures of these topics and structures: filters with + at varying levels."""
    root, special = _Node(), _Node()
    for pattern, kind in known.items():
        levels = pattern.split("/")
        # A leading wildcard does not match topics that begin with $.
        (special if pattern.startswith("$") else root).add(levels, kind)
    root.settle(is_root=True)
    for child in special.children.values():
        child.settle()
    return {"/".join(levels): kind for node in (root, special) for levels, kind in node.ends()}


class _Node:
    """The words that follow on a part of a topic, and the kind of payload that ends there."""

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.kind: PayloadKind | None = None

    def add(self, levels: Sequence[str], kind: PayloadKind) -> None:
        """Add a structure."""
        node = self
        for level in levels:
            node = node.children.setdefault(level, _Node())
        node.kind = kind if node.kind is None else node.kind.joined(kind)

    def ends(self, above: _Levels = ()) -> Iterator[tuple[_Levels, PayloadKind]]:
        """Yield the structures from here on."""
        if self.kind is not None:
            yield above, self.kind
        for word, child in self.children.items():
            yield from child.ends((*above, word))

    def settle(self, *, is_root: bool = False) -> None:
        """Find the varying levels from here on, the deepest first."""
        for child in self.children.values():
            child.settle()
        words = [word for word in self.children if word != _PLUS]
        if len(words) > WORDS_MAX:
            self._join(words)
            return
        self._join([word for word in words if is_identifier(word)])
        for similar in self._similar(is_root=is_root):
            self._join(similar)
        # A level that varies grows with each word that joins it, so others may belong to it then.
        while (varying := self.children.get(_PLUS)) is not None:
            belonging = [word for word, child in self.children.items() if child.belongs_to(varying)]
            if not belonging:
                return
            self._join(belonging)

    def belongs_to(self, varying: _Node) -> bool:
        """Return whether most of the structures from here on are those of a level that varies."""
        if self is varying:
            return False
        mine, others = dict(self.ends()), dict(varying.ends())
        common = mine.keys() & others.keys()
        return len(common) >= _ALIKE * len(mine) and all(
            mine[levels].is_like(others[levels]) for levels in common
        )

    def _join(self, words: Iterable[str]) -> None:
        """Let the words vary."""
        joined = [self.children.pop(word) for word in list(words)]
        if not joined:
            return
        varying = self.children.setdefault(_PLUS, _Node())
        for node in joined:
            for levels, kind in node.ends():
                varying.add(levels, kind)
        varying.settle()

    def _similar(self, *, is_root: bool) -> list[list[str]]:
        """Return words that vary, as they have the same below them, or one form."""
        groups: dict[tuple[_Levels, ...], list[tuple[str, dict[_Levels, PayloadKind]]]] = {}
        for word, child in self.children.items():
            if word != _PLUS:
                ends = dict(child.ends())
                groups.setdefault(tuple(sorted(ends)), []).append((word, ends))
        found: list[list[str]] = []
        for below, members in groups.items():
            is_end = below == ((),)
            for alike in _alike(members):
                stems = _stems(alike)
                if len(alike) > (MANY if is_root or is_end else 1):
                    found.append(alike)
                else:
                    least = _STEMS_AT_THE_END if is_end else 2
                    found += [words for words in stems if len(words) >= least]
        return found


def _alike(members: Sequence[tuple[str, dict[_Levels, PayloadKind]]]) -> list[list[str]]:
    """Return the words whose payloads are like those of the first word, group by group."""
    groups: list[tuple[dict[_Levels, PayloadKind], list[str]]] = []
    # A member is compared only with the groups that have one of its rare fields.
    common = Counter(path for _, ends in members for path in _first_kind(ends).fields)
    places: dict[Path | None, list[int]] = {}
    for word, ends in members:
        rare = _rare_fields(_first_kind(ends), common)
        for place in sorted({place for path in rare for place in places.get(path, ())}):
            first, words = groups[place]
            if all(first[levels].is_like(kind) for levels, kind in ends.items()):
                words.append(word)
                break
        else:
            for path in rare:
                places.setdefault(path, []).append(len(groups))
            groups.append((ends, [word]))
    return [words for _, words in groups]


def _first_kind(ends: Mapping[_Levels, PayloadKind]) -> PayloadKind:
    return ends[min(ends)]


def _rare_fields(kind: PayloadKind, common: Mapping[Path, int]) -> list[Path | None]:
    """Return the rarest fields of a kind: two kinds that are alike have one of these in common.

    With a smaller part of its fields, it could not have enough in common with another one. None
    stands for no fields.
    """
    fields = sorted(kind.fields, key=lambda path: (common[path], path))
    return [*fields[: len(fields) - ceil(_ALIKE * len(fields)) + 1]] or [None]


def _stems(words: Iterable[str]) -> list[list[str]]:
    """Return words that differ only in their numbers."""
    stems: dict[str, list[str]] = {}
    for word in words:
        stem = _DIGITS.sub("0", word)
        if "0" in stem and not word.startswith("$"):
            stems.setdefault(stem, []).append(word)
    return list(stems.values())
