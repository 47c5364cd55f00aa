"""Runs the command of Siltstone with another version of what the sites of a cluster exchange.

`1` takes the frozen modules of tests/data/wire-1, which wrote version 1 first. They use the present
classes: a class that is renamed is renamed there too, and nothing else changes. `2` writes records
of a version that does not exist, whose bytes differ in the number only, and reads both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

FROZEN = Path(__file__).parent.parent / "data" / "wire-1"
_STORE = "siltstone.store"
CODEC = f"{_STORE}.writer.replication.codec"
FILES = {
    CODEC: "codec.txt",
    f"{_STORE}.shard.replicated.calls": "calls.txt",
    f"{_STORE}.shard.replicated.payloads": "payloads.txt",
    f"{_STORE}.shard.replicated.kv.calls": "kv-calls.txt",
    f"{_STORE}.shard.replicated.kv.records": "kv-records.txt",
}
# What the records of version 2 change in the module of version 1.
CHANGES = {
    "VERSION: Final = 1\n": "VERSION: Final = 2\n",
    "    if version != VERSION:\n": "    if version not in (1, VERSION):\n",
}


class _Loader(SourceLoader):
    """Loads one module from a text."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._text = text

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str) -> bytes:
        if path != self._path:
            # Nothing compiled is kept.
            raise OSError(path)
        return self._text.encode()


class _Finder(MetaPathFinder):
    """Finds the modules that are replaced."""

    def __init__(self, texts: dict[str, tuple[str, str]]) -> None:
        self._texts = texts

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._texts:
            return None
        place, text = self._texts[fullname]
        return spec_from_loader(fullname, _Loader(place, text))


def texts_of(version: str) -> dict[str, tuple[str, str]]:
    """Return the path and the text of each module that a version replaces."""
    if version == "1":
        paths = {name: FROZEN / file for name, file in FILES.items()}
        return {name: (str(path), path.read_text("utf-8")) for name, path in paths.items()}
    assert version == "2"
    spec = find_spec(CODEC)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text("utf-8")
    for before, after in CHANGES.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return {CODEC: (spec.origin, text)}


def command(version: str) -> tuple[str, ...]:
    """Return the command of this version."""
    return (sys.executable, "-m", "tests.support.other_version", version)


def main() -> None:
    """Run the command."""
    version = sys.argv.pop(1)
    finder = _Finder(texts_of(version))
    for name in FILES:
        # The search for the module has imported some.
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, finder)
    from siltstone.cli.main import run  # noqa: PLC0415 - now with the other modules

    run()


if __name__ == "__main__":
    main()
