from __future__ import annotations

import io

import pytest
from rich.console import Console

from siltstone.cli.output.output import (
    add_row,
    console_on,
    counted,
    facts,
    note,
    print_on,
    say,
    show,
    show_json,
    table,
    were,
)


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_a_table_has_numbers_to_the_right_and_no_blanks_at_the_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    listed = table("name", "rows", "note", right=("rows",))
    add_row(listed, ("metrics", "1,000", "x"))
    add_row(listed, ("m", "7", ""))
    show(listed)
    assert printed(capsys) == (
        "name      rows  note\n────────────────────\nmetrics  1,000  x\nm            7\n",
        "",
    )


def test_a_line_for_a_pipe_is_never_cut() -> None:
    file = io.StringIO()
    listed = table("value")
    add_row(listed, ("x" * 5000,))
    print_on(console_on(file), listed)
    assert file.getvalue().splitlines()[2] == "x" * 5000


def test_a_cell_that_is_too_wide_for_a_terminal_is_folded() -> None:
    file = io.StringIO()
    listed = table("value")
    add_row(listed, ("x" * 100,))
    target = Console(file=file, force_terminal=True, width=20, color_system=None)
    print_on(target, listed)
    assert "".join(line.strip() for line in file.getvalue().splitlines()[2:]) == "x" * 100


def test_nothing_that_is_shown_gives_orders_to_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    listed = table("a")
    add_row(listed, ("\x1b[2J[bold]\x07\n\u202e",))
    show(listed)
    show(facts([("n\x1b", "[red]v\r")]))
    say("[b]\x1b")
    out, _ = printed(capsys)
    assert out.splitlines()[2:] == [
        "\\x1b[2J[bold]\\x07\\n\\u202e",
        "n\\x1b  [red]v\\r",
        "[b]\\x1b",
    ]


def test_json_is_one_document_with_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show_json({"a": ["ü", 1, None]})
    assert printed(capsys) == ('{\n  "a": [\n    "ü",\n    1,\n    null\n  ]\n}\n', "")


def test_a_note_goes_beside_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    note("mind the gap")
    assert printed(capsys) == ("", "siltstone: mind the gap\n")


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1234567, "1,234,567 rows")]
)
def test_a_noun_agrees_with_its_number(number: int, text: str) -> None:
    assert counted(number, "row") == text


def test_a_verb_agrees_with_its_number() -> None:
    assert [were(number) for number in (0, 1, 2)] == ["were", "was", "were"]
