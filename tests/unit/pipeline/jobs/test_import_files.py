from __future__ import annotations

import pytest

from siltstone.errors import UsageError
from siltstone.pipeline.jobs.import_files import shown, template_parts, write_id


def test_a_template_is_text_and_columns() -> None:
    assert template_parts("plant/{site}/x{sensor}", ["site", "sensor"]) == [
        (False, "plant/"),
        (True, "site"),
        (False, "/x"),
        (True, "sensor"),
    ]
    assert template_parts("{a}", ["a"]) == [(True, "a")]


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("", "a template of topics must look like 'plant/{site}/{sensor}', got"),
        ("a/{b", "a template of topics must look like 'plant/{site}/{sensor}', got"),
        ("a/+/{b}", "a template of topics must look like 'plant/{site}/{sensor}', got"),
        ("a/{c}", "unknown column 'c' .found: b"),
        ("a/{}", "unknown column ''"),
    ],
)
def test_what_gives_no_topic_is_refused(template: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        template_parts(template, ["b"])


def test_a_file_has_one_name_in_each_import() -> None:
    assert write_id("a", "file:/x") == write_id("a", "file:/x")
    assert len({write_id("a", "file:/x"), write_id("a", "file:/y"), write_id("b", "file:/x")}) == 3


def test_a_file_is_shown_by_its_path() -> None:
    assert shown("file:///a/my%20file.csv") == "/a/my file.csv"
    assert shown("file:/a/b.csv") == "/a/b.csv"
    assert shown("s3a://bucket/b.csv") == "s3a://bucket/b.csv"
