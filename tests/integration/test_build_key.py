"""The digest by which compiled extensions are taken from an earlier build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest

ROOT = Path(__file__).parents[2]
# Runs the module of the build without building anything. Tells the key at the start, and then the
# one after each edit of a file that is named; last whether an extension counts as kept.
SCRIPT = """
import runpy, sys
from pathlib import Path
from types import SimpleNamespace
names, sys.argv = sys.argv[1:], ["setup.py", "--name"]
build = runpy.run_path("setup.py")
print(build["KEY_AT_START"])
for name in names:
    with Path(name).open("a") as source:
        source.write("# edited")
    print(build["key_of_inputs"]())
Path("lib").mkdir()
Path("lib/made.so").write_bytes(b"")
build["BuildAllOrNone"]._keep(SimpleNamespace(build_lib="lib"), [Path("lib/made.so")])
assert Path("build/compiled/made.so").is_file()
print(build["is_kept"]())
"""
COMPILED = "src/siltstone/store/log/write/frame_builder.py"
# Its constants are copied into the modules that import it.
IMPORTED = "src/siltstone/errors.py"
OTHERS = ("src/siltstone/cli/store/clock.py", "README.md")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        copy(ROOT / name, tmp_path)
    copytree(ROOT / "src", tmp_path / "src", ignore=ignore_patterns("__pycache__", "*.egg-info"))
    return tmp_path


def told(tree: Path, *edited: str) -> list[str]:
    """Return the keys before and after each edit of a copy of the sources, and what is kept."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *edited],
        cwd=tree,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-len(edited) - 2 :]


def test_the_key_changes_with_what_the_extensions_are_made_from(tree: Path) -> None:
    *keys, is_kept = told(tree, COMPILED, IMPORTED, "setup.py")
    assert len(set(keys)) == 4
    # A source that was edited during a build is compiled by the next one.
    assert is_kept == "False"


def test_the_key_stays_when_other_files_change(tree: Path) -> None:
    *keys, is_kept = told(tree, *OTHERS)
    assert (len(keys), len(set(keys)), is_kept) == (3, 1, "True")


def test_the_key_changes_with_a_module_that_is_imported_from_its_package(tree: Path) -> None:
    statements = {
        "store/tx/one.py": "from siltstone.store.tx import one",
        "store/tx/two.py": "from siltstone.store.tx import (\n    two,\n)",
        "store/three/__init__.py": "from siltstone.store import three",
        "store/tx/four.py": "import siltstone.store.tx.four as fourth",
    }
    names = [f"src/siltstone/{path}" for path in statements]
    for name in names:
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text("LIMIT = 1\n")
    with (tree / COMPILED).open("a") as source:
        source.write("\n" + "\n".join(statements.values()) + "\n")
    *keys, _ = told(tree, *names)
    assert len(set(keys)) == 1 + len(names)
