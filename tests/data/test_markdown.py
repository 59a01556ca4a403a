"""Markdown as a corpus: what is a record, what is its text, and which files count."""

import gzip
import re
import time
import tracemalloc

import pytest

from raysed.config import CorpusConfig, TaskConfig
from raysed.data.corpus import CorpusReport, find_sources, sentence_chunks
from raysed.data.graded import load_task
from raysed.data.markdown import sections
from raysed.data.rows import Schema, column_names, read
from raysed.data.sources import local_file
from raysed.errors import UserError

TITLED = Schema(
    "corpus.source",
    "sentences",
    {("sentence",): [("sentence",), ("text",)]},
    "sentence or text",
    optional={"heading": "title", "other": "url"},
    text=("sentence",),
    bare=("sentence",),
)
GUIDE = """\
---
title: Guide
# no heading
---
Before any heading,
on two lines.

# Install

Run the **installer** of `raysed`
or [read on](https://example.org/a_(b) "Title"),
see ![the *logo*](logo.png) and [this][1]. <!-- not shown -->

## On a GPU {#gpu}

```bash
# no heading
pip install raysed   # fast
```

Empty
-----

### snake_case & more ###

1. First &amp; best,
   wrapped.
   - Nested \\*star\\*
2. > Quoted

<!--
# no heading

<b>neither -> this</b>
-->

| card | speed |
|:-----|------:|
| H100 | ~~2~~<br>3 |

<p align="center"><b>HTML</b></p><style>

Usage
=====
Text.

[1]: https://example.org
"""
RECORDS = [
    (5, None, "Before any heading, on two lines."),
    (8, "Install", "Run the installer of raysed or read on, see the logo and this."),
    (14, "Install > On a GPU", "# no heading pip install raysed # fast"),
    (24, "Install > Empty > snake_case & more", "First & best, wrapped. Nested *star* Quoted card speed H100 2 3 HTML"),
    (43, "Usage", "Text."),
]


def records(text: str) -> list[tuple[int, str | None, str]]:
    return list(sections(enumerate(text.split("\n"), start=1)))


def corpus(*sources) -> list[str]:
    config = CorpusConfig(source=[str(source) for source in sources])
    return [text for _, chunk in sentence_chunks(config, 0, CorpusReport()) for text in chunk]


@pytest.fixture
def write(tmp_path):
    def write(name: str, data: str | bytes = ""):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return write


def test_each_heading_with_text_is_a_record():
    assert records(GUIDE) == RECORDS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("# Only\n## Headings\n", []),
        ("No heading,\n\nat all.", [(1, None, "No heading, at all.")]),
        ("---\n\nA rule, not YAML.\n\n---\n", [(3, None, "A rule, not YAML.")]),
        ("---\na: never closed\n", [(2, None, "a: never closed")]),
        ("# A\n- # in a list\n\n> # quoted\n\n    # as code", [(1, "A", "in a list quoted # as code")]),
        ("#\nText.\n## B\nMore.", [(1, None, "Text."), (3, "B", "More.")]),
        ("### Deep\na\n## Up\nb\n### Down\nc", [(1, "Deep", "a"), (3, "Up", "b"), (5, "Up > Down", "c")]),
        ("# A\na\rb\n# B\nc", [(1, "A", "a b"), (3, "B", "c")]),
        ("![](a.png)\n# B\n[![C](c.svg)](d)", [(2, "B", "C")]),
        ("<script>\nx = 1\n</script>\n\ny", [(5, None, "y")]),
    ],
)
def test_unusual_pages(text, expected):
    assert records(text) == expected


def test_a_schema_is_offered_text_and_title(write):
    """The same with Windows' line ends, a byte order mark and compression; sentences of `.txt` have no title."""
    data = b"\xef\xbb\xbf" + GUIDE.replace("\n", "\r\n").encode()
    for path in (write("guide.md", GUIDE), write("guide.MARKDOWN", data), write("guide.md.gz", gzip.compress(data))):
        table = read(local_file(path), TITLED)
        numbers, titles, texts = zip(*RECORDS)
        assert table.columns == {"sentence": [*texts], "heading": [*titles], "other": [None] * 5}
        assert tuple(table.numbers) == numbers
        assert table.where(1) == f"{path}, line 8" and column_names(local_file(path)) == ["title", "text"]
    assert read(local_file(write("a.txt", "a\tb\n")), TITLED).columns["heading"] == [None]


def test_markdown_that_is_not_utf8_has_a_line(write):
    path = write("a.md", b"# Caf\xc3\xa9\n\nCaf\xe9\n")
    with pytest.raises(UserError, match=rf"^{re.escape(str(path))}, line 3: not valid UTF-8 \(byte 0xe9\)"):
        read(local_file(path), TITLED)


def test_markdown_beside_other_text_counts_only_if_it_is_named(write, tmp_path):
    readme, data = write("data/README.md", "# Data\nWhat it is."), write("data/a/b.txt", "A sentence.")
    pages = [write("docs/b/page.markdown", "In a folder."), write("docs/a.md", "# A\nOn top.")]
    assert corpus(tmp_path / "data") == corpus(tmp_path / "data/**") == ["A sentence."]
    assert corpus(tmp_path / "docs") == corpus(tmp_path / "docs/**/*.m*") == ["On top.", "In a folder."]
    assert corpus(data.parent, tmp_path / "data/*.md", pages[0]) == ["A sentence.", "What it is.", "In a folder."]
    assert corpus(readme) == ["What it is."]


def test_only_plain_text_can_be_markdown(write, tmp_path):
    """Messages name `.md` where it would be right."""
    page, other, endings = write("a.md", "# A\nB"), write("b/a.xlsx"), ".txt, .jsonl, .csv, .tsv, .parquet"
    with pytest.raises(UserError, match=rf"is not a file of graded pairs; supported endings are {endings}, and the"):
        load_task("mine", TaskConfig(source=str(page)))
    with pytest.raises(UserError, match=rf"supported endings are {endings}, .md, .markdown, and the text"):
        find_sources(CorpusConfig(source=str(other.parent)))
    pairs = Schema("sts", "pairs", {("a", "b"): [("a", "b")]}, "a and b", bare=("a", "b"))
    asks_more = Schema("corpus", "texts", {("s",): [("text",)], ("q",): [("q",)]}, "text, and q,", bare=("s",))
    has_names = Schema("corpus", "texts", {("s",): [("text",)]}, "text")
    for path, schema in ((page, pairs), (page, has_names), (page, asks_more), (write("a.txt", "a"), asks_more)):
        with pytest.raises(UserError, match=rf"{path.name}: columns .* has no columns; use .jsonl, .csv, .tsv or "):
            read(local_file(path), schema)


def test_a_large_file_is_read_in_parts(write):
    """Parts begin with a block and share links; a section too large for a part is divided, and memory is bounded."""
    page = "```\n" + "# code of a shell\n" * 20 + "```\n[Words][link], *many*.\n"
    text = "[link]: https://example.org\n" + "".join(f"{'#' * (1 + i % 4)} Part {i}\n{page}" for i in range(4000))
    expected = [(2 + 24 * i, f"Part {i}", "# code of a shell " * 20 + "Words, many.") for i in range(4000)]
    assert [(line, title.split(" > ")[-1], text) for line, title, text in records(text)] == expected
    line = "Words of a line. " * 50
    lines = ["# One", *[line, ""] * 2_500, *[f"- {line}"] * 2_500]
    tracemalloc.start()
    try:
        found = [(title, len(text)) for _, title, text in sections(enumerate(lines, start=1))]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    sizes = [size for _, size in found]
    assert sum(sizes) + len(sizes) == 5_000 * len(line) and max(sizes) <= 1 << 19
    assert {title for title, _ in found} == {"One"} and peak < 15e6


@pytest.mark.parametrize("piece", ["<p", "<!-- ", "---\na\n"])
def test_hostile_pages_take_linear_time(piece):
    """If time were quadratic, it would be minutes."""
    start = time.process_time()
    records("<p>" * (piece == "<p") + piece * ((1 << 18) // len(piece)))
    assert time.process_time() - start < 10
