from __future__ import annotations

import io
import sys

import pytest

from siltstone.cli.output.streams import ClosedOutput, is_terminal, standard_input
from siltstone.errors import UsageError
from tests.support.command_line import Keyboard


def test_an_input_that_is_closed_is_asked_for_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="standard input is closed; redirect a file"):
        standard_input()
    assert not is_terminal()


@pytest.mark.parametrize("terminal", [True, False])
def test_an_input_is_read_as_bytes_and_may_be_a_terminal(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    monkeypatch.setattr("sys.stdin", Keyboard(b"\xff\n", terminal=terminal))
    assert (standard_input().read(), is_terminal()) == (b"\xff\n", terminal)


def test_an_output_that_is_closed_fails_as_a_full_disk_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", io.TextIOWrapper(io.BufferedWriter(ClosedOutput()), "utf-8"))
        sys.stdout.write("x")
        with pytest.raises(OSError, match="standard output is closed"):
            sys.stdout.flush()
        with pytest.raises(OSError, match="standard output is closed"):
            sys.stdout.close()
        assert sys.stdout.closed
