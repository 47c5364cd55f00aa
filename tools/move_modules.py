"""Move modules to other packages, and rename classes: names only, no logic.

    python -m tools.move_modules tools/moves.txt

Each line of the plan is `old.module new.module` (`old.* new.*` for all other modules of a package),
or `old.module:OldName NewName` with the module's old name. Modules, their unit tests, imports,
dotted names, and paths in texts follow. The tool stops before it changes anything if two modules
would get one place.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
SOURCE: Final = ROOT / "src" / "siltstone"
UNIT: Final = ROOT / "tests" / "unit"
TEXTS: Final = ("*.py", "*.md", "*.toml", "*.yml", "*.sh", "*.svg", "Makefile")
# The history of the project has the names that modules had at the time.
KEPT: Final = ("CHANGELOG.md", "docs/decisions")
# Stands for the dot of an import that was rewritten, so that it is not rewritten again.
MARK: Final = "!"


def existing() -> set[str]:
    """Return the dotted names of all modules, without the name of the package."""
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for path in SOURCE.rglob("*.py")
        if path.name != "__init__.py"
    }


def read_plan(text: str) -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    """Return the new name of each module, and the new name of each class of an old module."""
    modules: dict[str, str] = {}
    classes: dict[tuple[str, str], str] = {}
    there = existing()
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        old, new = words
        if ":" in old:
            module, _, name = old.partition(":")
            classes[module, name] = new
        elif old.endswith(".*"):
            package = old[:-1]
            for name in sorted(there):
                rest = name.removeprefix(package)
                if rest != name and "." not in rest and name not in modules:
                    modules[name] = new[:-1] + rest
        else:
            modules[old] = new
    missing = sorted((set(modules) | {module for module, _ in classes}) - there)
    places = Counter(modules.get(name, name) for name in there)
    double = sorted(name for name, count in places.items() if count > 1)
    if missing or double:
        raise SystemExit(f"missing: {missing}; two modules for one place: {double}")
    return modules, classes


def texts() -> Iterator[Path]:
    """Yield the committed files that may name a module."""
    for name in git("ls-files", *TEXTS).splitlines():
        if not name.startswith(KEPT):
            yield ROOT / name


def imports_of_modules(text: str, modules: dict[str, str]) -> str:
    """Rewrite `from siltstone.package import module`."""
    lines = text.splitlines(keepends=True)
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    for node in sorted(found, key=lambda node: node.lineno, reverse=True):
        if not (node.module or "").startswith("siltstone"):
            continue
        package = (node.module or "").removeprefix("siltstone").lstrip(".")
        kept, moved = [], []
        for alias in node.names:
            old = f"{package}.{alias.name}".lstrip(".")
            if old in modules:
                place, _, name = modules[old].rpartition(".")
                shown = alias.asname or alias.name
                renamed = name if name == shown else f"{name} as {shown}"
                moved.append(f"from siltstone{MARK if place else ''}{place} import {renamed}")
            else:
                kept.append(ast.unparse(alias))
        if moved:
            indent = " " * node.col_offset
            if kept:
                moved.append(f"from {node.module} import {', '.join(kept)}")
            new = "".join(f"{indent}{line}\n" for line in moved)
            lines[node.lineno - 1 : node.end_lineno] = [new]
    return "".join(lines)


def rename_classes(text: str, old_module: str, classes: dict[tuple[str, str], str]) -> str:
    """Rename classes where they are defined, and where they are imported from there.

    An alias of the import goes: the new name says what the alias said.
    """
    names = {name: new for (module, name), new in classes.items() if module == old_module}
    modules: dict[str, dict[str, str]] = {}
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("siltstone"):
            continue
        module = (node.module or "").removeprefix("siltstone").lstrip(".")
        for alias in node.names:
            shown = alias.asname or alias.name
            if (module, alias.name) in classes:
                names[shown] = classes[module, alias.name]
            imported = f"{module}.{alias.name}".lstrip(".")
            modules[shown] = {
                name: new for (place, name), new in classes.items() if place == imported
            }
    renamed = _rename(text, names, modules) if names or any(modules.values()) else text
    for (_, old), new in classes.items():
        renamed = re.sub(rf"\b{old} as {new}\b", new, renamed)
    return renamed


def _rename(text: str, names: dict[str, str], modules: dict[str, dict[str, str]]) -> str:
    """Rename classes in code, and in quoted code; do not change prose."""
    quoted = re.compile(rf"""["'](?:\w+\[)?(?:{"|".join(names)})\b[^"']*["']""")
    word = re.compile(rf"\b(?:{'|'.join(names)})\b")
    lines = text.splitlines(keepends=True)
    before, owner = "", ""
    changes: list[tuple[int, int, int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        row, start = token.start
        known = modules.get(owner, {}) if before == "." else names
        if token.type == tokenize.NAME and token.string in known:
            changes.append((row, start, start + len(token.string), known[token.string]))
        elif names and before == "(" and quoted.fullmatch(token.string):
            new = word.sub(lambda found: names[found[0]], token.string)
            changes.append((row, start, start + len(token.string), new))
        before, owner = token.string, before
    for row, start, end, new in reversed(changes):
        line = lines[row - 1]
        lines[row - 1] = line[:start] + new + line[end:]
    done = "".join(lines)
    if not names:
        return done
    return re.sub(rf"`({'|'.join(names)})`", lambda found: f"`{names[found[1]]}`", done)


def moves(modules: dict[str, str]) -> list[tuple[Path, Path]]:
    """Return the old and new path of each module file, with its unit test of the same name."""
    found = []
    for old, new in modules.items():
        for root, prefix in ((SOURCE, ""), (UNIT, "test_")):
            before, after = (
                root.joinpath(*name.split(".")[:-1], f"{prefix}{name.split('.')[-1]}.py")
                for name in (old, new)
            )
            if before.is_file():
                found.append((before, after))
    return found


def git(*arguments: str | Path) -> str:
    """Run git in the clone."""
    return subprocess.run(
        ["git", *arguments],  # noqa: S607
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def move(steps: list[tuple[Path, Path]]) -> None:
    """Move files, and create `__init__.py` in every package."""
    # In two steps, with a temporary name: the target may be the old place of another module or
    # package.
    for before, _ in steps:
        git("mv", before, f"{before}.moving")
    for before, after in steps:
        after.parent.mkdir(parents=True, exist_ok=True)
        git("mv", f"{before}.moving", after)
    for directory in {parent for _, after in steps for parent in after.parents}:
        if SOURCE in directory.parents:
            (directory / "__init__.py").touch()
    for initial in sorted(SOURCE.rglob("__init__.py"), reverse=True):
        names = {path.name for path in initial.parent.iterdir()} - {"__pycache__"}
        if names == {"__init__.py"} and initial.stat().st_size == 0:
            git("rm", "-qf", initial)


def main() -> None:
    """Carry out a plan."""
    modules, classes = read_plan(Path(sys.argv[1]).read_text("utf-8"))
    dotted = "|".join(sorted((re.escape(name) for name in modules), key=len, reverse=True))
    slashed = dotted.replace(r"\.", "/")
    by_path = {old.replace(".", "/"): new.replace(".", "/") for old, new in modules.items()}
    tests = {
        before.relative_to(UNIT).as_posix(): after.relative_to(UNIT).as_posix()
        for before, after in moves(modules)
        if UNIT in before.parents
    }
    in_tests = re.compile(rf"\bunit/({'|'.join(map(re.escape, tests))})(?!\w)")
    in_dots = re.compile(rf"\bsiltstone\.({dotted})(?!\w)")
    in_path = re.compile(rf"(?<![\w.-])((?:src/)?(?:siltstone/)?)({slashed})\.py\b")
    # A file that imports nothing from the module of a class, and is none, is not parsed.
    homes = {module for module, _ in classes}
    imports = "|".join(map(re.escape, {home.rpartition(".")[0] for home in homes} | homes))
    wanted = re.compile(rf"^\s*from siltstone\.(?:{imports}) import", re.MULTILINE)
    names = "|".join(sorted({re.escape(name.rpartition(".")[2]) for name in modules})) or "(?!)"
    leaves = re.compile(rf"\b(?:{names})\b")
    for path in texts():
        text = before = path.read_text("utf-8")
        if path.suffix == ".py":
            module = ""
            if SOURCE in path.parents:
                module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
            if module in homes or (classes and wanted.search(text)):
                text = rename_classes(text, module, classes)
            if leaves.search(text):
                text = imports_of_modules(text, modules)
        if modules:
            text = in_dots.sub(lambda found: "siltstone." + modules[found[1]], text)
            text = in_path.sub(lambda found: f"{found[1]}{by_path[found[2]]}.py", text)
            text = in_tests.sub(lambda found: f"unit/{tests[found[1]]}", text)
        text = text.replace(f"siltstone{MARK}", "siltstone.")
        if text != before:
            path.write_text(text, "utf-8")
    move(moves(modules))


if __name__ == "__main__":
    main()
