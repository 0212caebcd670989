"""What commands print."""

import pytest

from harness.cli.output import say_words


def test_sentences_are_broken_between_words_on_a_terminal_and_nowhere_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    say_words("a sentence of more than one line\nand another")
    assert capsys.readouterr().out == "a sentence of more than one line\nand another\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    say_words("a sentence of more than one line\nand another")
    assert capsys.readouterr().out == "a sentence of more\nthan one line\nand another\n"
