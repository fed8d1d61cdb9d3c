"""Pages are read by people in a hurry: no sentence of README and docs is longer than forty words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MOST_WORDS = 40

FENCED = re.compile(r"^ *```.*?^ *```$", re.M | re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
LIST_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +", re.M)
CODE = re.compile(r"(`+).+?\1", re.S)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|<https?://[^>]*>")
# Not after these: e.g., i.e., et al., Mr. A sentence begins with a capital, a number, code or a quotation.
END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bal)(?<!\bvs)(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_]*[A-Z0-9\x00])")
WORD = re.compile(r"\w|\x00")


def paragraphs(page: str) -> Iterator[str]:
    """Running text: paragraphs, list items, headings; without code blocks, tables and comments."""
    text = COMMENT.sub("", FENCED.sub("\n\n", page))
    text = re.sub(
        r"^(?: {4}|\t)(?! *(?:[-*]|\d+\.) ).*$", "", text, flags=re.M
    )  # code, or what continues a nested item
    text = re.sub(r"^ *\|.*$", "", text, flags=re.M)
    text = re.sub(r"^#+ (.*)$", r"\n\1\n", text, flags=re.M)
    text = LIST_ITEM.sub("\n\n", text)
    for block in re.split(r"\n\s*\n", text):
        if block.strip():
            yield " ".join(block.split())


def sentences(page: str) -> Iterator[str]:
    """Each sentence, with code as one word and links as their text."""
    for paragraph in paragraphs(page):
        plain = CODE.sub("\x00", LINK.sub(lambda link: link[1] or "\x00", paragraph))
        yield from (each for each in END.split(plain) if each)


def words(sentence: str) -> int:
    return sum(1 for word in sentence.split() if WORD.search(word))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_is_longer_than_forty_words(page: Path) -> None:
    long = [f"{words(each)}: {each}" for each in sentences(page.read_text()) if words(each) > MOST_WORDS]
    assert long == [], "\n".join(long)


def test_what_counts_as_a_sentence() -> None:
    page = """# A heading. With two

One sentence, e.g. this one; `code with many words` counts once. Another (see
[the link's text](elsewhere.md)). "A third?" Yes.

- an item
- another item. `Code` begins this.

| a table | of words |
|---|---|

    a code block
<!-- a comment. -->
```text
More code.
```
"""
    assert [each.replace("\x00", "`") for each in sentences(page)] == [
        "A heading.",
        "With two",
        "One sentence, e.g. this one; ` counts once.",
        "Another (see the link's text).",
        '"A third?',
        "Yes.",
        "an item",
        "another item.",
        "` begins this.",
    ]
    assert words("One sentence, - e.g. \x00 counts") == 5
