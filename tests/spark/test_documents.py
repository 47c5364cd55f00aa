"""Every code block of the documentation runs, or its page says why it cannot."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import siltstone
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.settings import DatabaseSettings
from tests.support.broker_process import run_command
from tests.support.certificates import Authority
from tests.support.documents import ROOT, RUNS, blocks, following, install_command, pages

# Examples whose results another test compares too; here only their other blocks run.
PYTHON_ELSEWHERE = {
    "docs/explanation/lake.md": "test_lake_docs.py",
    "docs/explanation/pipeline.md": "test_docs.py",
    "docs/reference/flight.md": "test_flight.py",
}
# What cannot run in a test; a new one needs a reason in its page and its number here.
NOT_RUN = 25

RUNNABLE = [page for page in pages() if any(each.language in RUNS for each in blocks(page))]


def test_every_block_has_a_language_and_every_page_is_looked_at() -> None:
    strange = [
        f"{each.page}:{each.line}: {each.language}"
        for page in pages()
        for each in blocks(page)
        if each.language not in {*RUNS, "text"}
    ]
    assert strange == []
    indented = [
        f"{page}: {found[0]}"
        for page in pages()
        if (found := indented_code((ROOT / page).read_text("utf-8")))
    ]
    assert indented == []
    assert set(PYTHON_ELSEWHERE) <= set(RUNNABLE)


def indented_code(text: str) -> list[str]:
    """Return what Markdown shows as code without a fence around it: lists are indented too."""
    plain = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    plain = re.sub(r"^(?:\d+\.|-) .*(?:\n+ +.*)*", "", plain, flags=re.MULTILINE)
    return re.findall(r"(?<=\n\n) {4}\S.*", plain)


def test_as_many_blocks_are_left_out_as_the_pages_give_reasons_for() -> None:
    left_out = [each for page in pages() for each in blocks(page) if each.reason is not None]
    assert len(left_out) == NOT_RUN, [
        f"{each.page}:{each.line}: {each.reason}" for each in left_out
    ]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader has: a store with messages, certificates, a user, and files to send."""
    directory = tmp_path_factory.mktemp("reader") / "home"
    directory.mkdir()
    settings = DatabaseSettings(segment_bytes=1 << 20, thresholds=(100, 0, 10, 0))
    with siltstone.open(directory / "siltstone-data") as store:
        messages = store.ensure("messages", settings)
        for number in range(40):
            plant = f"plant/{number % 9}"
            messages.append(
                [
                    Row(
                        f"{plant}/oven/temperature",
                        b'{"celsius": %d, "value": %d}' % (number, number),
                    ),
                    Row(f"{plant}/temp", b'{"value": %d, "unit": "C"}' % number),
                    Row(f"{plant}/oven/{number % 3}", b'{"value": 21.5, "at": {"x": 1}}'),
                ]
            ).wait()
    (directory / "etc").mkdir()
    authority = Authority(directory)
    shutil.copy(authority.file, directory / "ca.crt")
    for name in ("our-ca.pem", "plant-ca.pem", "ca.crt"):
        shutil.copy(authority.file, directory / "etc" / name)
    for name in ("server", "node", "client"):
        files = authority.server(name)
        shutil.copy(files.certificate, directory / "etc" / f"{name}.crt")
        shutil.copy(files.key, directory / "etc" / f"{name}.key")
    for name in ("alice", "analyst"):
        (directory / "secret.txt").write_text("secret\n", "utf-8")
        done = run_command(
            "passwd", str(directory / "etc" / "passwords"), name, "--stdin", stdin=b"secret\n"
        )
        assert done.returncode == 0
        (directory / "etc" / f"{name}.password").write_text("secret\n", "utf-8")
    (directory / "readings").mkdir()
    (directory / "readings" / "day.csv").write_text("site,sensor,payload\n1,oven,7\n", "utf-8")
    (directory / "etc" / "acl").write_text("user alice\ntopic readwrite plant/#\n", "utf-8")
    (directory / "report.txt").write_text("a report\n", "utf-8")
    install_command(directory / "bin")
    return directory


@pytest.mark.parametrize("page", RUNNABLE)
def test_the_blocks_of_a_page_run_one_after_the_other(
    page: str,
    template: Path,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = tmp_path / "home"
    shutil.copytree(template, directory)
    monkeypatch.chdir(directory)
    # One Spark for all pages: commands and examples find the one that runs, and leave it.
    monkeypatch.setattr("siltstone.pipeline.spark.session.start_session", lambda **_: spark)
    monkeypatch.setattr("siltstone.pipeline.start_session", lambda **_: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    with following(directory, {"spark": spark}) as reader:
        if any(each.language in {"sh", "console"} for each in blocks(page)):
            reader.start()
        todo = [each for each in blocks(page) if each.language in RUNS and each.reason is None]
        done = []
        for block in todo:
            if not (block.language == "python" and page in PYTHON_ELSEWHERE):
                reader.follow(block)
            done.append(block)
    assert done == todo
