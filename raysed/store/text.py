"""Format tables, numbers and durations for people: terminal, report, model card."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MARKS = r"[\\`\[\]$~]|(?<=\S)\*|\*(?=\S)|(?<!\w)_|_(?!\w)"
"""Characters that Markdown interprets, depending on their neighbours."""
TEMPLATES = Path(__file__).parents[1] / "templates"


def render(template: str, **context: Any) -> str:
    """Render a file of `raysed/templates/`, `.html` with escaped values; filters are `code` (for backticks), `md`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
    from markupsafe import Markup, escape

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["code"] = lambda text: Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
    environment.filters["md"] = markdown
    return environment.get_template(template).render(context)


def markdown(text: str) -> str:
    r"""Escape a text for a paragraph or cell of Markdown; text in backticks stays code.

    >>> print(markdown("`a<b` <b>[me](http://x)</b> $5$ ` 2*3 snake_case"))
    `a<b` &lt;b>\[me\](http://x)&lt;/b> \$5\$ \` 2\*3 snake_case
    """
    parts = re.split(r"(?<!`)(`[^`]+`)(?!`)", " ".join(text.split()))
    for place in range(0, len(parts), 2):
        part = re.sub(_MARKS, r"\\\g<0>", parts[place])
        parts[place] = re.sub(r"&(?=#?\w+;)", "&amp;", part).replace("<", "&lt;")
    return "".join(parts)


@dataclass(frozen=True)
class Table:
    """A table for any output; false if it has no lines.

    Attributes:
        text: number of text columns, from the left; None: columns are numeric if all their cells are.
        names: ids of the lines, for links to them.
        has_total: whether the last line is the sum of the others.
        is_stacked: whether cells are long: phones show them below each other, and Markdown does not align them.
    """

    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    text: int | None = None
    names: Sequence[str] = ()
    has_total: bool = False
    is_stacked: bool = False

    def __bool__(self) -> bool:
        return bool(self.lines)

    @classmethod
    def of(cls, rows: Iterable[Any], columns: Mapping[str, Callable[[Any], str]], **options: Any) -> "Table":
        """Build a table with a line per row; `columns` maps headings to functions that make a row's cell.

        >>> print(Table.of([1, 2], {"number": str, "square": lambda row: f"{row * row}"}).plain())
        number  square
        ------  ------
             1       1
             2       4
        """
        return cls(list(columns), [[cell(row) for cell in columns.values()] for row in rows], **options)

    def plain(self) -> str:
        """Return aligned columns: text to the left, numbers to the right."""
        first, *rest = self._aligned(self._cells())
        rule = ["-" * len(cell) for cell in first]
        return "\n".join("  ".join(line).rstrip() for line in (first, rule, *rest))

    def markdown(self, aligned: bool = True) -> str:
        """Return the table as Markdown, with columns `aligned` for terminals."""
        cells = [[markdown(cell) for cell in line] for line in self._cells()]
        aligned = aligned and not self.is_stacked
        first, *rest = self._aligned(cells) if aligned else cells
        widths = map(len, first) if aligned else [3] * len(first)
        rule = ["-" * (width - right) + ":" * right for width, right in zip(widths, self.right())]
        return "\n".join(f"| {' | '.join(line)} |" for line in (first, rule, *rest))

    def latex(self) -> str:
        r"""Return the table as LaTeX's `tabular`, which needs no package.

        >>> print(Table(["a_b", "c"], [["d & e", "70.00 ± 0.50"]], text=1).latex())
        \begin{tabular}{lr}
        \hline
        a\_b & c \\
        \hline
        d \& e & $70.00 \pm 0.50$ \\
        \hline
        \end{tabular}
        """
        marks = {mark: rf"\{mark}" for mark in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
        escaped = [[cell.translate(str.maketrans(marks)) for cell in line] for line in self._cells()]
        cells = [[re.sub(r"^(\S+) ± (\S+)$", r"$\1 \\pm \2$", cell) for cell in line] for line in escaped]
        first, *rest = [f"{' & '.join(line)} \\\\" for line in cells]
        begin = rf"\begin{{tabular}}{{{''.join('lr'[right] for right in self.right())}}}"
        return "\n".join([begin, r"\hline", first, r"\hline", *rest, r"\hline", r"\end{tabular}"])

    def right(self) -> list[bool]:
        """Return which columns are numeric and so aligned to the right."""
        if self.text is not None:
            return [place >= self.text for place in range(len(self.header))]
        return [all(map(_is_number, column)) for column in zip(*self.lines)] or [True] * len(self.header)

    def _cells(self) -> list[list[str]]:
        """Return all cells without line breaks and bars, which would end a cell."""
        return [[" ".join(cell.split()).replace("|", "/") for cell in line] for line in (self.header, *self.lines)]

    def _aligned(self, cells: list[list[str]]) -> list[list[str]]:
        widths = [max(2, *map(len, column)) for column in zip(*cells)]  # a Markdown rule needs a dash and a colon
        columns = list(zip(widths, self.right()))
        return [
            [cell.rjust(w) if right else cell.ljust(w) for cell, (w, right) in zip(line, columns)] for line in cells
        ]


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.removesuffix("%").replace(".", "", 1).removeprefix("-").isdigit()


def number(value: float | None, style: str = ".2f") -> str:
    """Format a number for tables.

    >>> number(70.126), number(None), number(0.5, "+.1f")
    ('70.13', '-', '+0.5')
    """
    return "-" if value is None else format(value, style)


def times(speed: Mapping[str, float] | None) -> str:
    """Return how many times as fast something is, with its range over rounds.

    >>> times({"ratio": 0.5, "low": 0.496, "high": 0.52}), times({"ratio": 1.0, "low": 1.0, "high": 1.0}), times(None)
    ('0.50x (0.50 to 0.52)', '1x', '-')
    """
    if speed is None:
        return "-"
    ratio, low, high = (number(speed[key], ".2f" if speed[key] < 10 else ".0f") for key in ("ratio", "low", "high"))
    return f"{ratio}x ({low} to {high})" if speed["low"] < speed["high"] else f"{speed['ratio']:g}x"


def size(count: float) -> str:
    """Format a number of bytes for people.

    >>> size(512), size(5e6), size(1.25e10)
    ('0.0 MB', '5.0 MB', '12.5 GB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def duration(seconds: float, in_table: bool = False) -> str:
    """Format a duration for people; tables have tenths of a second, and two digits of minutes and seconds.

    >>> duration(7.4), duration(95), duration(7300)
    ('7 s', '1 min 35 s', '2 h 1 min')
    >>> [duration(seconds, in_table=True) for seconds in (9.44, 125, 7384)]
    ['9.4 s', '2 min 05 s', '2 h 03 min']
    """
    digits, style = (1, "02") if in_table else (0, "")
    if round(seconds, digits) < 60:
        return f"{seconds:.{digits}f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:{style}} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:{style}} min"


def printable(text: str) -> str:
    r"""Escape unprintable characters, which could move the cursor or clear the screen.

    >>> print(printable("found \x1b[2J"))
    found \x1b[2J
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shortened(text: str, longest: int) -> str:
    """Cut a text to `longest` characters.

    >>> shortened("It rains.", 9), shortened("It rains.", 5)
    ('It rains.', 'It r…')
    """
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def sentence(text: str) -> str:
    """Capitalise the first letter and add a full stop; empty text stays empty.

    >>> sentence("it rains"), sentence("")
    ('It rains.', '')
    """
    return f"{text[0].upper()}{text[1:]}." if text else ""
