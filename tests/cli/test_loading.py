"""The line shown while a model is loaded."""

from __future__ import annotations

import io

import pytest

from chairlift.cli.loading import loading


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_what_is_loaded_and_nothing_stays() -> None:
    terminal = Terminal()
    with loading("a-model", terminal):
        assert terminal.getvalue() == "Loading a-model ..."
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_an_error_line_does_not_begin_behind_it() -> None:
    terminal = Terminal()
    with pytest.raises(ValueError), loading("a-model", terminal):
        raise ValueError
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_file_gets_nothing() -> None:
    file = io.StringIO()
    with loading("a-model", file):
        pass
    assert file.getvalue() == ""
