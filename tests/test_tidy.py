"""The house rules that no linter knows."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import siltstone

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "siltstone"
UNIT = ROOT / "tests" / "unit"

ENTRIES_MAX = 12
# Where everything is caught, once each: a thread, a connection, or the code of others ends there.
BROAD_HANDLERS: dict[str, str] = {
    "broker/access/access.py": "a hook is others' code: what it raises refuses the client",
    "flight/server.py": "Flight would send the traceback of a mistake of ours to the client",
    "guard.py": "a mistake of ours ends one connection, or one thing of a turn",
    "store/kv/rocks.py": "the binding raises plain exceptions, which are translated",
    "store/segment/ahead.py": "the thread that waits for the work raises its error",
    "store/writer/ticket.py": "a callback is others' code: the shard's thread goes on",
    "store/writer/queue.py": "a mistake of ours ends one shard, and leaves nobody waiting",
}
# Beside the commands, these make the file system of the machine: the functions that programs call,
# what Spark starts by its name, and processes. Everything else takes a file system.
EDGES = {
    "broker/server.py",
    "cluster/opening.py",
    "flight/client.py",
    "pipeline/answers.py",
    "pipeline/catalog.py",
    "pipeline/jobs/audit.py",
    "pipeline/jobs/learn.py",
    "pipeline/jobs/rollup.py",
    "pipeline/jobs/rewriting.py",
    "pipeline/jobs/tasks.py",
    "pipeline/jobs/tier.py",
    "pipeline/jobs/upkeep.py",
    "pipeline/source/source.py",
    "pipeline/source/writer.py",
    "pipeline/spark/session.py",
    "pipeline/sql.py",
    "pipeline/table.py",
    "spool/spool.py",
    "store/directory.py",
    "store/kv/rocks.py",
    "store/log/compact/worker.py",
}
TEXT_BYTES_MAX = 2_000_000

BANNED_MODULE_NAMES = {"base", "common", "helpers", "utils"}
# Pictures; the glossary has the noun that a reader knows.
PICTURES = re.compile(
    r"(?:Again|Arrears|Birth|Crowd|Deeds|Desk|Door|Errands?|Farewell|Gate|Keeping|Lanes?|Newcomers?|Sight|Wish(?:es)?)(?![a-z])"
)
BANNED_CLASS_SUFFIXES = ("Handler", "Manager", "Service")

MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root)/")
REGISTRY_HOST = re.compile(r"pypi\.org|pythonhosted\.org|https?://(?:127\.|localhost)\S*simple")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX)\b")


def python_files(*directories: str) -> list[Path]:
    found = [path for name in directories for path in (ROOT / name).rglob("*.py")]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def source_modules() -> list[str]:
    paths = python_files("src/siltstone")
    return [path.relative_to(SOURCE).as_posix() for path in paths if path.name != "__init__.py"]


def is_generated(path: Path) -> bool:
    """Say whether a directory is made by tools: caches, environments, builds."""
    hidden = path.name.startswith(".") and path.name not in {".ci", ".github"}
    return hidden or path.name in {"build", "dist", "__pycache__"} or path.suffix == ".egg-info"


def text_files(directory: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Yield what is committed, or may be: small files that decode as UTF-8."""
    for path in sorted(directory.iterdir()):
        if path.is_dir() and not path.is_symlink() and not is_generated(path):
            yield from text_files(path)
        elif path.name == ".git" or path == Path(__file__):
            # In a worktree .git is a file: the path of the clone.
            continue
        elif path.is_file() and path.stat().st_size <= TEXT_BYTES_MAX:
            try:
                yield path, path.read_text("utf-8")
            except UnicodeDecodeError:
                continue


def lines_with(pattern: re.Pattern[str], *, suffix: str = "") -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, text in text_files()
        if path.name.endswith(suffix)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text("utf-8"), str(path)))


def compiled_modules() -> tuple[str, ...]:
    """Return the list in setup.py, without running it."""
    lists: list[tuple[str, ...]] = [
        ast.literal_eval(node.value)
        for node in nodes(ROOT / "setup.py")
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPILED"
    ]
    assert len(lists) == 1
    return lists[0]


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Say whether a handler swallows everything; one that cleans up and raises again does not."""
    if isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None:
        return False
    caught = {node.id for node in ast.walk(handler.type or handler) if isinstance(node, ast.Name)}
    return handler.type is None or bool(caught & {"Exception", "BaseException"})


def test_a_package_can_be_seen_at_a_glance() -> None:
    entries = {
        package: sorted(
            path.name
            for path in (SOURCE / package).iterdir()
            if path.name not in {"__init__.py", "__pycache__"}
        )
        for package in packages(SOURCE, "*.py") - {"."}
    }
    assert {name: found for name, found in entries.items() if len(found) > ENTRIES_MAX} == {}


def test_the_architecture_has_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8").split("## Packages")[1]
    named = set(re.findall(r"`([\w/]+)`", text))
    rooms = {package for package in packages(SOURCE, "*.py") if package.count("/") < 1} - {"."}
    inner = {f"store/{path.stem}" for path in (SOURCE / "store").iterdir()} - {
        "store/__init__",
        "store/__pycache__",
    }
    assert rooms | inner <= named


def test_the_architecture_has_the_layers_that_are_checked() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8").split("## Packages")[1]
    rows = [
        re.findall(r"`([\w/]+)`", row.split("|")[1])
        for row in re.findall("^\\|.*", text, re.MULTILINE)
    ]
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    for contract in (contract for contract in contracts if contract["type"] == "layers"):
        (container,) = contract["containers"]
        prefix = container.removeprefix("siltstone").removeprefix(".")
        layers = [
            {f"{prefix}/{name.strip()}".lstrip("/") for name in layer.split("|")}
            for layer in contract["layers"]
        ]
        first = rows.index(sorted(layers[0]))
        assert [set(row) for row in rows[first : first + len(layers)]] == layers


def test_the_architecture_names_modules_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    named = set(re.findall(r"`([\w/]+\.py)`", text)) - {"setup.py"}
    assert sorted(name for name in named if not (SOURCE / name).is_file()) == []


def test_no_two_public_classes_have_one_name() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in python_files("src/siltstone"):
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_module_has_a_name_that_says_nothing() -> None:
    named = [
        path.relative_to(ROOT).as_posix()
        for path in python_files("src", "tests", "bench", "examples")
        if BANNED_MODULE_NAMES & {path.stem, path.stem.removeprefix("test_"), path.parent.name}
    ]
    assert named == []


def test_no_class_has_a_name_that_says_nothing() -> None:
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in python_files("src")
        for node in nodes(path)
        if isinstance(node, ast.ClassDef) and node.name.endswith(BANNED_CLASS_SUFFIXES)
    ]
    assert named == []


def test_no_class_or_module_has_a_picture_for_a_name() -> None:
    classes = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in python_files("src")
        for node in nodes(path)
        if isinstance(node, ast.ClassDef) and PICTURES.search(node.name)
    ]
    modules = [
        path
        for path in source_modules()
        if PICTURES.search(Path(path).stem.title().replace("_", ""))
    ]
    assert classes + modules == []


def test_every_sub_package_has_an_empty_init() -> None:
    packages = {path.parent for path in python_files("src/siltstone")} - {SOURCE}
    sizes = {
        package.relative_to(SOURCE).as_posix(): [
            path.stat().st_size for path in package.glob("__init__.py")
        ]
        for package in packages
    }
    # The pipeline is a package of its own to its users: it re-exports its public names.
    sizes.pop("pipeline")
    # The spool too.
    sizes.pop("spool")
    assert {name: size for name, size in sizes.items() if size != [0]} == {}


def packages(directory: Path, pattern: str) -> set[str]:
    """Return the directories below one that hold files of a pattern."""
    return {path.parent.relative_to(directory).as_posix() for path in directory.rglob(pattern)}


def test_unit_tests_mirror_the_packages() -> None:
    assert packages(UNIT, "test_*.py") == packages(SOURCE, "*.py")


def test_no_compiled_file_hides_a_module() -> None:
    assert [path for path in (ROOT / "src").rglob("*") if path.suffix in {".so", ".pyd"}] == []


def test_everything_is_caught_only_where_it_is_explained() -> None:
    broad = [
        path.relative_to(SOURCE).as_posix()
        for path in python_files("src/siltstone")
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler) and is_broad(node)
    ]
    assert sorted(broad) == sorted(BROAD_HANDLERS)


def test_file_systems_are_made_at_the_edges() -> None:
    makers = {
        path.relative_to(SOURCE).as_posix()
        for path in python_files("src/siltstone")
        for node in nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "PosixFileSystem"
    }
    assert {name for name in makers if not name.startswith("cli/")} == EDGES


def test_nothing_is_left_unfinished() -> None:
    assert lines_with(UNFINISHED) == []


def test_no_test_sleeps() -> None:
    sleeps = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files("tests")
        for node in nodes(path)
        if (isinstance(node, ast.Attribute) and node.attr == "sleep")
        or (isinstance(node, ast.Name) and node.id == "sleep")
    ]
    assert sleeps == []


# A call that raises unless what it is about is so; a machine's invariants are its asserts.
CHECKING = re.compile(r"raises|fail|check\w*|verify\w*|require\w*|run_state_machine_as_test")


def called_in(node: ast.AST) -> Iterator[str]:
    """Yield the names of the functions and methods that are called."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name | ast.Attribute):
            yield each.func.id if isinstance(each.func, ast.Name) else each.func.attr


def claims(node: ast.AST, functions: dict[str, ast.AST]) -> bool:
    """Tell whether a function, or one of its module that it calls, can find anything wrong."""
    seen: set[str] = set()
    left = [node]
    while left:
        one = left.pop()
        if any(isinstance(each, ast.Assert | ast.Raise) for each in ast.walk(one)):
            return True
        for name in called_in(one):
            if CHECKING.fullmatch(name):
                return True
            if name in functions and name not in seen:
                seen.add(name)
                left.append(functions[name])
    return False


def test_every_test_claims_something() -> None:
    silent = []
    for path in python_files("tests"):
        functions: dict[str, ast.AST] = {
            node.name: node
            for node in nodes(path)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        silent += [
            f"{path.relative_to(ROOT)}: {name}"
            for name, node in functions.items()
            if name.startswith("test_") and not claims(node, functions)
        ]
    assert silent == []


def test_no_text_names_a_path_of_one_machine() -> None:
    assert lines_with(MACHINE_PATH) == []


def test_no_text_names_a_package_registry() -> None:
    assert lines_with(REGISTRY_HOST) == []
    assert lines_with(re.compile(r"://|index-url|find-links|file:"), suffix=".lock") == []


def test_builds_use_the_locked_compiler() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        requires = tomllib.load(file)["build-system"]["requires"]
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    locked = set(re.findall(r"^[\w.-]+==[^ ]+", lock, re.MULTILINE))
    assert {pin.replace("[mypyc]", "") for pin in requires} - locked == set()


def test_every_compiled_module_exists() -> None:
    assert [module for module in compiled_modules() if not (ROOT / module).is_file()] == []


def is_safe_shift(node: ast.expr) -> bool:
    """Say whether a number is a literal, or surely one of Python: int(…)."""
    return isinstance(node, ast.Constant) or (
        isinstance(node, ast.Call) and ast.unparse(node.func) == "int"
    )


def test_no_compiled_module_shifts_left_by_a_native_integer() -> None:
    # mypyc writes i64(1) << x as 1 << x, also where the 1 is in a variable, so that C shifts an
    # int of 32 bits.
    shifts = [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module in compiled_modules()
        for node in nodes(ROOT / module)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.LShift)
        and not is_safe_shift(node.right)
    ]
    assert shifts == []


def slices(module: str) -> Iterator[ast.Subscript]:
    for node in nodes(ROOT / module):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            yield node


def test_no_compiled_module_takes_a_slice_between_its_ends_counted_from_behind() -> None:
    # mypyc fails where a slice of bytes ends before it begins: b"x"[2:-1] is no b"" there.
    found = [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module in compiled_modules()
        for node in slices(module)
        if isinstance(node.slice, ast.Slice)
        and node.slice.lower is not None
        and node.slice.upper is not None
        and ast.unparse(node.slice.upper).startswith("-")
    ]
    assert found == []


# mypyc puts an underscore before the name of an attribute; with it these are words of C.
WORDS_OF_C = {"_alignof", "_asm", "_const", "_inline", "_signed", "_thread", "_typeof", "_volatile"}


def test_no_attribute_of_a_compiled_module_becomes_a_word_of_c() -> None:
    found = [
        f"{module}:{node.lineno}: {node.attr}"
        for module in compiled_modules()
        for node in nodes(ROOT / module)
        if isinstance(node, ast.Attribute) and node.attr in WORDS_OF_C
    ]
    assert found == []


def docstring(value: type | FunctionType) -> str | None:
    """Return what the source says: a compiled class has no docstring, a dataclass always one."""
    path = ROOT / "src" / Path(*value.__module__.split(".")).with_suffix(".py")
    if not path.is_file():
        path = path.with_suffix("") / "__init__.py"
    found = [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == value.__name__
    ]
    # An overloaded function has its docstring in the last definition.
    return ast.get_docstring(found[-1])


def test_every_public_name_is_documented() -> None:
    public = {name: getattr(siltstone, name) for name in siltstone.__all__}
    documented = {
        name: docstring(value)
        for name, value in public.items()
        if inspect.isclass(value) or inspect.isfunction(value)
    }
    assert len(documented) > 40
    assert [name for name, text in documented.items() if not text] == []
