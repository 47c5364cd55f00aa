"""The compiled form of every hot module does what its source says: both forms are run on the same
inputs, each in a process of its own, and the outcomes are compared.
"""

from __future__ import annotations

import ast
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.forms import SUBJECTS
from tests.test_tidy import compiled_modules

ROOT = Path(__file__).parents[2]
# One short run for everybody, always on the same cases.
SEED = 1
ROUNDS = 1
TOUCHING_CASES = 25
# At most this share of the functions of a compiled module may be run by no case.
TOUCHED_SHARE_MISSING = 0.5
SOAK_ROUNDS = 200
SOAK_SEEDS = 2
TIMEOUT_SECONDS = 3_600
# Where threads choose the order of some events, a case is run so often to see how it may end.
THREADED = {"durable"}
ATTEMPTS = 6

pytestmark = pytest.mark.forms


@pytest.fixture(scope="module")
def pure() -> Path:
    """Return the sources; compiled files are never beside them."""
    return ROOT / "src"


def run(*arguments: object, path: Path | None = None) -> list[str]:
    """Run cases in the installed form, or in that of the sources at a path; return its lines."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # The order of sets must not differ between the two.
    environment["PYTHONHASHSEED"] = "0"
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.forms", *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout.splitlines()


def parts_of(subjects: Iterable[str], rounds: int) -> list[str]:
    return [f"{subject}:0:{SUBJECTS[subject][1] * rounds}" for subject in subjects]


def first_difference(pure: Path, seed: int, part: str) -> str:
    """Return the first case of a part that ends differently, with both outcomes."""
    subject, start, stop = part.split(":")
    low, high = int(start), int(stop)
    while high - low > 1:
        middle = (low + high) // 2
        half = f"{subject}:{low}:{middle}"
        if run(seed, half)[1:] == run(seed, half, path=pure)[1:]:
            low = middle
        else:
            high = middle
    case = f"{subject}:{low}:{high}"
    shown = run("--show", seed, case) + run("--show", seed, case, path=pure)
    return "\n".join([f"seed={seed} case={case}", *(line[:4_000] for line in shown)])


def unshared(pure: Path, seed: int, part: str) -> str:
    """Return the cases of threads, which may end in several ways, in which no way was ever common
    to both forms; nothing where there is none.
    """
    seen: tuple[dict[str, set[str]], dict[str, set[str]]] = ({}, {})
    left: set[str] = set()
    for _ in range(ATTEMPTS):
        for ways, path in zip(seen, (None, pure), strict=True):
            for line in run("--show", seed, part, path=path)[1:]:
                _, case, outcome = line.split(" ", 2)
                ways.setdefault(case, set()).add(outcome)
        left = {case for case, ways in seen[0].items() if not ways & seen[1][case]}
        if not left:
            return ""
    return f"seed={seed} part={part} cases={sorted(left)}"


def compare(pure: Path, seed: int, parts: list[str]) -> None:
    compiled_lines = run(seed, *parts)
    pure_lines = run(seed, *parts, path=pure)
    assert pure_lines[0] == "form pure Python"
    if compiled_lines[0] != "form compiled":
        # With --form=pure or SILTSTONE_PURE=1 this is not asked for.
        pytest.fail("nothing is compiled, so there are no two forms to compare")
    differing = [
        part
        for part, ours, others in zip(parts, compiled_lines[1:], pure_lines[1:], strict=True)
        if ours != others
    ]
    found = [
        (unshared if part.partition(":")[0] in THREADED else first_difference)(pure, seed, part)
        for part in differing
    ]
    assert [text for text in found if text] == []


def test_both_forms_agree_on_every_case(pure: Path) -> None:
    compare(pure, SEED, parts_of(SUBJECTS, ROUNDS))


def functions_of(module: str) -> set[str]:
    """Return the qualified names of the functions that a module defines, without protocols."""
    found: set[str] = set()

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                if not any("Protocol" in ast.unparse(base) for base in child.bases):
                    walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + child.name)

    walk(ast.parse((ROOT / module).read_text("utf-8")), "")
    return found


def test_the_cases_run_most_functions_of_every_compiled_module(pure: Path) -> None:
    parts = [f"{subject}:0:{TOUCHING_CASES}" for subject in SUBJECTS]
    lines = run("--touched", SEED, *parts, path=pure)
    touched = {tuple(line.split(" ")[1:]) for line in lines if line.startswith("touched ")}
    missing = {
        module: sorted(names - {name for at, name in touched if at == module})
        for module in compiled_modules()
        if (names := functions_of(module))
    }
    assert {
        module: names
        for module, names in missing.items()
        if len(names) > TOUCHED_SHARE_MISSING * len(functions_of(module))
    } == {}


@pytest.mark.soak
@pytest.mark.parametrize("subject", SUBJECTS)
def test_both_forms_agree_on_millions_of_cases(pure: Path, subject: str) -> None:
    for _ in range(SOAK_SEEDS):
        seed = random.SystemRandom().randrange(1 << 32)
        [part] = parts_of([subject], SOAK_ROUNDS)
        sys.stderr.write(f"seed={seed} case={part}\n")
        compare(pure, seed, [part])
