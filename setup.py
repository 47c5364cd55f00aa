"""Compile the hot modules with mypyc, in one group so that they call each other natively.

Compiled files go into the wheel and to build/compiled, never into src. A later build of the same
sources reuses them, because compiling takes minutes. Without a working C compiler, or with
SILTSTONE_PURE=1, the same modules are packed as plain Python. An editable install is plain Python
too, so that an edit takes effect at once.
"""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from shutil import copyfile, rmtree
from typing import cast

from mypyc.build import mypycify
from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

KEPT = Path("build/compiled")
KEY = KEPT / "KEY"
# 0 compiles in two thirds of the time; the modules are slower.
OPT_LEVEL = os.environ.get("SILTSTONE_OPT_LEVEL", "3")
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
# Commands that need extensions; other commands only read the metadata, and an editable install has
# no extensions.
BUILDING = {"bdist_wheel", "build", "build_ext"}

# The one list of compiled modules; tests/test_tidy.py reads it from here.
COMPILED = (
    "src/siltstone/broker/deliver/backpressure.py",
    "src/siltstone/broker/publish/append.py",
    "src/siltstone/broker/broker.py",
    "src/siltstone/broker/snapshots/capture.py",
    "src/siltstone/broker/listen/shell.py",
    "src/siltstone/broker/listen/transport.py",
    "src/siltstone/broker/connect/connection.py",
    "src/siltstone/broker/publish/receive.py",
    "src/siltstone/broker/connect/keep_alive.py",
    "src/siltstone/broker/publish/rate.py",
    "src/siltstone/broker/deliver/requests.py",
    "src/siltstone/broker/snapshots/load.py",
    "src/siltstone/broker/deliver/router.py",
    "src/siltstone/broker/deliver/shares.py",
    "src/siltstone/broker/control/statistics.py",
    "src/siltstone/broker/publish/observers.py",
    "src/siltstone/broker/sessions/timers.py",
    "src/siltstone/store/feed/rows/committed.py",
    "src/siltstone/store/feed/rows/decode.py",
    "src/siltstone/store/feed/dispatch.py",
    "src/siltstone/store/feed/groups.py",
    "src/siltstone/store/feed/hub.py",
    "src/siltstone/store/feed/pool.py",
    "src/siltstone/guard.py",
    "src/siltstone/store/kv/keys.py",
    "src/siltstone/mqtt/connection.py",
    "src/siltstone/mqtt/flow.py",
    "src/siltstone/mqtt/publish.py",
    "src/siltstone/mqtt/splitter.py",
    "src/siltstone/clock.py",
    "src/siltstone/store/segment/body.py",
    "src/siltstone/store/segment/frame.py",
    "src/siltstone/store/segment/writer.py",
    "src/siltstone/rows/batch.py",
    "src/siltstone/rows/stored.py",
    "src/siltstone/session/durable/backlog.py",
    "src/siltstone/session/sending/delivery.py",
    "src/siltstone/session/sending/inflight.py",
    "src/siltstone/session/lending.py",
    "src/siltstone/session/sending/outbox.py",
    "src/siltstone/session/durable/progress.py",
    "src/siltstone/session/durable/reader.py",
    "src/siltstone/session/session.py",
    "src/siltstone/session/sending/waiting.py",
    "src/siltstone/session/durable/wanted.py",
    "src/siltstone/snapshot/format/codec.py",
    "src/siltstone/snapshot/format/digests.py",
    "src/siltstone/snapshot/loader.py",
    "src/siltstone/snapshot/format/stream.py",
    "src/siltstone/snapshot/writer.py",
    "src/siltstone/store/log/write/committer.py",
    "src/siltstone/store/log/write/frame_builder.py",
    "src/siltstone/store/log/write/layout.py",
    "src/siltstone/topic/matcher.py",
    "src/siltstone/topic/structure.py",
    "src/siltstone/store/tx/arguments.py",
    "src/siltstone/store/tx/commit/committer.py",
    "src/siltstone/store/tx/commit/changes.py",
    "src/siltstone/store/tx/commit/conflicts.py",
    "src/siltstone/store/tx/operations.py",
    "src/siltstone/store/tx/commit/pending.py",
    "src/siltstone/store/tx/commit/layout.py",
    "src/siltstone/store/tx/commit/shard.py",
    "src/siltstone/store/tx/view.py",
    "src/siltstone/store/tx/commit/ticket.py",
    "src/siltstone/store/tx/transaction.py",
    "src/siltstone/store/writer/commit_log.py",
    "src/siltstone/store/writer/queue.py",
    "src/siltstone/store/writer/ticket.py",
    "src/siltstone/broker/deliver/feeds.py",
    "src/siltstone/store/slab/space.py",
)


def inputs() -> list[Path]:
    """Return the files that the extensions are made from.

    mypyc copies the Final constants of the modules that a compiled module imports.
    """
    compiled = [Path(name) for name in COMPILED]
    places = {Path("src", *name.split(".")) for path in compiled for name in imported_names(path)}
    modules = {file for at in places for file in (at.with_suffix(".py"), at / "__init__.py")}
    return sorted({Path("setup.py"), *compiled, *filter(Path.is_file, modules)})


def imported_names(path: Path) -> set[str]:
    """Return everything that a module imports from Siltstone; not all of it are modules."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in names if name.partition(".")[0] == "siltstone"}


def key_of_inputs() -> str:
    """Return a digest of everything that the extensions depend on."""
    compiler = [os.environ.get(name, "") for name in ("CC", "CFLAGS", "LDFLAGS")]
    tools = [sys.version, SUFFIX, version("mypy"), OPT_LEVEL, *compiler]
    digest = sha256(repr(tools).encode())
    for path in inputs():
        digest.update(f"\n{path.as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def is_kept() -> bool:
    """Return whether build/compiled has the extensions of exactly these sources."""
    return KEY.is_file() and KEY.read_text("ascii") == key_of_inputs()


KEY_AT_START = key_of_inputs()


class BuildAfresh(build):
    """Do not pack modules of an earlier build: their sources may be gone."""

    def run(self) -> None:
        rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildAllOrNone(build_ext):
    """Keep the pure form when one extension fails: a part of a group cannot be imported."""

    def build_extensions(self) -> None:
        if is_kept():
            self._copy_kept()
            return
        super().build_extensions()
        built = [Path(self.get_ext_fullpath(extension.name)) for extension in self.extensions]
        if all(path.exists() for path in built):
            self._keep(built)
        else:
            for path in built:
                path.unlink(missing_ok=True)

    def _copy_kept(self) -> None:
        for extension in self.extensions:
            path = Path(self.get_ext_fullpath(extension.name))
            path.parent.mkdir(parents=True, exist_ok=True)
            copyfile(KEPT / path.relative_to(self.build_lib), path)

    def _keep(self, built: list[Path]) -> None:
        rmtree(KEPT, ignore_errors=True)
        for path in built:
            kept = KEPT / path.relative_to(self.build_lib)
            kept.parent.mkdir(parents=True, exist_ok=True)
            copyfile(path, kept)
        # The key is written last, so a partial copy has none. It is the key at the start of the
        # build: if a source was edited during the build, the next build compiles it.
        KEY.write_text(KEY_AT_START, "ascii")


def kept_extensions() -> list[Extension]:
    """Return the extensions in build/compiled; they have no sources."""
    names = [path.relative_to(KEPT).as_posix() for path in sorted(KEPT.rglob(f"*{SUFFIX}"))]
    return [Extension(name.removesuffix(SUFFIX).replace("/", "."), []) for name in names]


def extensions() -> list[Extension]:
    """Return the extensions to compile; none if plain Python was requested."""
    if os.environ.get("SILTSTONE_PURE") == "1" or not BUILDING & set(sys.argv):
        return []
    if is_kept():
        return kept_extensions()
    # Types are checked by `make types`. An isolated build has none of the dependencies, so it uses
    # no strict settings and treats missing imports as Any.
    options = ["--config-file=", "--ignore-missing-imports"]
    built = mypycify(
        [*options, *COMPILED],
        opt_level=OPT_LEVEL,
        group_name="siltstone",
        target_dir="build/mypyc",
    )
    for extension in built:
        extension.optional = True
    return cast("list[Extension]", built)


setup(ext_modules=extensions(), cmdclass={"build": BuildAfresh, "build_ext": BuildAllOrNone})
