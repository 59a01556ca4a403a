"""Markdown as text: one record for the text under each heading, without markup.

markdown-it-py parses CommonMark with GitHub's tables and strikethrough.
"""

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

_PART_CHARACTERS = 1 << 19
"""Parse this much at once, in 20 MB. Longer sections and blocks are divided."""
_HEADING_ID = re.compile(r"\s*\{[#.:][^{}]*\}$")
"""`{#install}` after a heading, for Pandoc and site generators."""
_TAG = re.compile("<[^<>]*>")


def sections(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str | None, str]]:
    """Yield the line, the title and the text of each section with text, from numbered lines.

    The title is the section's heading after those above it, e.g. `Install > On a GPU`; None before the first heading.
    The line is the heading's; before the first heading, the first text's.

    >>> list(sections(enumerate(["# Cats", "They *sleep*,", "[mostly](why.md).", "## Food", "- fish"], start=1)))
    [(1, 'Cats', 'They sleep, mostly.'), (4, 'Cats > Food', 'fish')]
    """
    headings: list[tuple[int, str]] = []
    title, number, texts, size = None, 0, [], 0
    for line, block in _blocks(lines):
        is_heading, text = block[0].type == "heading_open", _text(block)
        if texts and (is_heading or size + len(text) > _PART_CHARACTERS):
            yield number, title, " ".join(texts)
            texts, size = [], 0
        if is_heading:
            level = int(block[0].tag[1:])
            headings = [heading for heading in headings if heading[0] < level]
            headings.append((level, _HEADING_ID.sub("", text)))
            title, number = " > ".join(name for _, name in headings if name) or None, line
        elif text:
            number = number or line
            texts.append(text)
            size += len(text) + 1
    if texts:
        yield number, title, " ".join(texts)


def _blocks(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Sequence[Token]]]:
    """Yield the first line and the tokens of each outermost block, parsing part by part."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    lines, links, pending, first, is_end = iter(lines), {}, [], 1, False
    while not is_end:
        size, is_end = sum(map(len, pending)), True
        for _, line in lines:
            pending.append(line.replace("\r", " "))  # the parser would end the line
            size += len(line) + 1
            if size >= _PART_CHARACTERS:
                is_end = False
                break
        if first == 1:
            skipped = _front_matter(pending)
            pending[:skipped] = [""] * skipped
        tokens = parser.parse("\n".join(pending), links)
        starts = [place for place, token in enumerate(tokens) if token.level == 0 and token.nesting >= 0]
        blocks = [tokens[start:end] for start, end in pairwise([*starts, len(tokens)])]
        read = len(pending)
        if len(blocks) > 1 and not is_end:
            read = blocks.pop()[0].map[0]  # the last one may go on
        yield from ((first + block[0].map[0], block) for block in blocks)
        first, pending = first + read, pending[read:]


def _front_matter(lines: Sequence[str]) -> int:
    """Count the lines of YAML at the top; `---` before a blank line is a rule across the page instead."""
    if len(lines) < 2 or lines[0].rstrip() != "---" or not lines[1].strip():
        return 0
    return next((count for count, line in enumerate(lines[1:], 2) if line.rstrip() in ("---", "...")), 0)


def _text(tokens: Iterable[Token]) -> str:
    found = []
    for token in tokens:
        if token.type == "inline":
            found.append(_inline_text(token.children))
        elif token.type in ("fence", "code_block"):
            found.append(token.content)
        elif token.type == "html_block" and not token.content.lower().startswith(("<script", "<style")):
            first, *others = token.content.split("<!--")
            shown = first + " ".join(other.partition("-->")[2] for other in others)
            found.append(html.unescape(_TAG.sub(" ", shown)))
    return " ".join(" ".join(found).split())


def _inline_text(tokens: Iterable[Token]) -> str:
    """Return a block's text, with descriptions for images."""
    found = []
    for token in tokens:
        if token.type == "image":
            found.append(_inline_text(token.children or ()))  # None without a description
        elif token.type in ("text", "code_inline"):
            found.append(token.content)
        elif token.type in ("softbreak", "hardbreak") or token.content.lower().startswith("<br"):
            found.append(" ")
    return "".join(found)
