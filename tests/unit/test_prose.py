"""Docstrings, comments and messages have no sentence of more than forty words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_WORDS = 40
ROOMS = ("controller", "emulation", "hostlib", "netfold", "p4", "simulation", "tests")
# A paragraph ends at an empty line, a heading or an indented example; an item of a list is one of its own.
BREAK = re.compile(r"\n\s*\n|:\n|\n(?=\s*(?:- |[├└]|[\w, .*]+: ))|\n(?=    \s+\S)")
END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[A-Z\"'(`])")
WORD = re.compile(r"[^\W_]")


def too_long(text: str) -> Iterator[str]:
    """The sentences of a text that have too many words."""
    for paragraph in BREAK.split(text):
        for sentence in END.split(paragraph):
            words = [word for word in sentence.split() if WORD.search(word)]
            if len(words) > MOST_WORDS:
                yield f"{len(words)} words: {' '.join(words)}"


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, and of each string that documents a constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of what is raised with a literal message; a value in it counts as a word."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
            continue
        for argument in node.exc.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield node.lineno, argument.value
            elif isinstance(argument, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "X" for part in argument.values]
                yield node.lineno, "".join(parts)


def python_comments(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of comments; those on lines that follow each other are one."""
    begin, parts, column = 0, list[str](), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        alone = not token.line[: token.start[1]].strip()
        if not (alone and parts and token.start == (begin + len(parts), column)):
            if parts:
                yield begin, "\n".join(parts)
            begin, parts, column = token.start[0], [], token.start[1] if alone else -1
        parts.append(token.string.lstrip("#! "))
    if parts:
        yield begin, "\n".join(parts)


def cpp_comments(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of `//` comments; those on lines that follow each other are one."""
    begin, parts = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        code, mark, comment = line.partition("//")
        if mark and not code.strip() and parts and number == begin + len(parts):
            parts.append(comment.strip())
            continue
        if parts:
            yield begin, "\n".join(parts)
        begin, parts = number, [comment.strip()] if mark else []


def test_a_sentence_ends_where_readers_see_its_end() -> None:
    long = " ".join(["word"] * 41)
    assert len(list(too_long(f"Short. {long}. Short."))) == 1
    assert not list(too_long(" ".join(["word"] * 40) + ". " + " ".join(["Word"] * 40)))
    assert not list(too_long("Args:\n    one: " + " ".join(["word"] * 30) + "\n    two: " + " ".join(["word"] * 30)))


@pytest.mark.parametrize("room", ROOMS)
def test_no_sentence_of_the_python_code_is_too_long(room: str) -> None:
    found = []
    for path in sorted((ROOT / room).rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        for line, prose in [*docstrings(tree), *messages(tree), *python_comments(text)]:
            found += [f"{path.relative_to(ROOT)}:{line}: {sentence}" for sentence in too_long(prose)]
    assert not found, "\n".join(found)


def test_no_sentence_of_the_native_code_is_too_long() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {sentence}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.[ch]*"))
        if path.suffix in (".cpp", ".h")
        for line, prose in cpp_comments(path.read_text())
        for sentence in too_long(prose)
    ]
    assert not found, "\n".join(found)
