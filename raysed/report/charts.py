"""Charts, described once: PNG (`draw`) and SVG (`report_parts.html`), in Okabe and Ito's colour-blind-safe colours."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Colour = Literal["blue", "orange", "green", "grey", "pink", "sky"]
LINES: tuple[tuple[Colour, str], ...] = (("blue", "-"), ("orange", "-."), ("green", ":"), ("grey", "--"))
"""Colours and styles of up to four lines that may overlap."""
_REFERENCES: tuple[Colour, ...] = ("grey", "pink", "sky")
_HEX = dict(blue="#0072B2", orange="#D55E00", green="#009E73", grey="#6E6E6E", pink="#CC79A7", sky="#56B4E9")
MOST_DOTS, _MOST_RECORDS = 500, 80
"""The page shows an even sample of at most this many dots of a scatter plot, or records of a curve."""
_GLYPH = 0.58
"""Upper estimate of the mean character width, in font sizes."""


@dataclass(frozen=True)
class Series:
    """Dots of one colour.

    Attributes:
        name: in the legend; empty: not listed.
        texts: tooltips of the dots; empty: the page shows only the line.
        line: matplotlib style of the line joining the dots; empty: none.
    """

    x: np.ndarray
    y: np.ndarray
    colour: Colour
    name: str = ""
    texts: Sequence[str] = ()
    mark: Literal["dot", "bar", "none"] = "dot"
    line: str = ""
    is_faint: bool = False


@dataclass(frozen=True)
class Axis:
    """What an axis measures; `low` is at the left or bottom."""

    label: str
    low: float
    high: float
    is_logarithmic: bool = False

    @classmethod
    def of(cls, label: str, values: Any, is_logarithmic: bool = False) -> Axis:
        """Return an axis that covers all values, with a small margin."""
        ends = np.array([np.min(values), np.max(values)], np.float64)
        ends = np.log(ends) if is_logarithmic else ends
        room = 0.05 * (ends[1] - ends[0]) or 0.5
        ends += (-room, room)
        return cls(label, *(np.exp(ends) if is_logarithmic else ends).tolist(), is_logarithmic)

    def place(self, value: float) -> float:
        """Return the position of a value, in percent from `low` to `high`."""
        low, high, value = np.log([self.low, self.high, value]) if self.is_logarithmic else (self.low, self.high, value)
        return round(float(100 * (value - low) / (high - low)), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Return tick values with their labels."""
        from matplotlib.ticker import LogLocator, MaxNLocator

        low, high = sorted((self.low, self.high))
        locator = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10])
        if self.is_logarithmic:
            locator = LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,))
        values = [value for value in locator.tick_values(low, high).tolist() if low <= value <= high]
        return [(value, f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}") for value in values]


@dataclass(frozen=True)
class Panel:
    """A pair of axes.

    Attributes:
        references: up to three horizontal lines, values by name.
        bands: names of horizontal bands, from the top; the axis y then counts them from 0.
    """

    x: Axis
    y: Axis
    series: Sequence[Series]
    title: str = ""
    references: Mapping[str, float] = field(default_factory=dict)
    bands: Sequence[str] = ()

    @property
    def lines(self) -> list[tuple[str, float, Colour]]:
        """References as (name with value, value, colour)."""
        found = zip(self.references.items(), _REFERENCES)
        return [(f"{name}: {value:.1f}", value, colour) for (name, value), colour in found]

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Distinct names with their colours."""
        named = [(series.name, series.colour) for series in self.series if series.name]
        return list(dict.fromkeys([*named, *((name, colour) for name, _, colour in self.lines)]))

    def dots(self, series: Series) -> list[tuple[float, float, str]]:
        """Return (x, y, text) with positions from the left and top in percent; a sample if there are very many."""
        most = _MOST_RECORDS if series.line else MOST_DOTS
        rows = np.unique(np.linspace(0, len(series.x) - 1, most).round().astype(int))
        places = [(self.x.place(series.x[i]), round(100 - self.y.place(series.y[i]), 2)) for i in rows]
        return [(x, y, series.texts[i] if series.texts else "") for (x, y), i in zip(places, rows)]


@dataclass(frozen=True)
class Chart:
    """Panels side by side. `name` is that of the file in `plots/`; `note` says what the page leaves out."""

    name: str
    title: str
    panels: Sequence[Panel]
    note: str = ""


# -- pictures --------------------------------------------------------------------------------------------------------


def draw(chart: Chart, path: Path) -> None:
    """Write a chart as a PNG file."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for panel in chart.panels for name, _ in panel.legend))
    width, height = max(8.0, 3.6 * len(chart.panels)), 4.4 + 0.22 * len(names)
    if bands := chart.panels[0].bands:
        height = 1.7 + sum(0.24 + 0.18 * len(_wrapped(name, 3).splitlines()) for name in bands)
    with rc_context({"text.parse_math": False}):  # a dollar sign in a name starts no formula
        figure = Figure(figsize=(width, height), layout="constrained")
        handles: dict[str, Any] = {}
        for axes, panel in zip(figure.subplots(1, len(chart.panels), squeeze=False).flat, chart.panels):
            _draw_panel(axes, panel, width / len(chart.panels))
            found, labels = axes.get_legend_handles_labels()
            handles |= dict(zip(labels, found))
        if handles:
            texts = [_wrapped(name, width - 1, 9) for name in handles]
            figure.legend(list(handles.values()), texts, loc="outside lower left", frameon=False, fontsize=9)
        figure.suptitle(_wrapped(chart.title, width - 0.2, 11), fontsize=11, x=0.01, ha="left")
        figure.savefig(path, dpi=150)


def _draw_panel(axes: Axes, panel: Panel, width: float) -> None:
    from matplotlib.ticker import NullLocator

    for series in panel.series:
        style: dict[str, Any] = {"color": _HEX[series.colour], "label": series.name or None}
        if series.line:
            style |= {"linewidth": 1.0, "alpha": 0.45} if series.is_faint else {"linewidth": 1.8}
            axes.plot(series.x, series.y, series.line, marker="o" if series.mark == "dot" else None, ms=3, **style)
        elif series.mark == "bar":
            axes.vlines(series.x, series.y - 0.2, series.y + 0.2, color="#222222", linewidth=1.6, zorder=4)
        else:
            size, alpha = (8, min(0.5, 400 / max(len(series.x), 1))) if series.is_faint else (30, 0.8)
            axes.scatter(series.x, series.y, s=size, alpha=alpha, linewidths=0, zorder=3, **style)
    for (name, value, colour), dashes in zip(panel.lines, ((0, (5, 3)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))):
        axes.axhline(value, color=_HEX[colour], linestyle=dashes, linewidth=1.4, zorder=1, label=name)
    axes.set(xscale="log" if panel.x.is_logarithmic else "linear", yscale="log" if panel.y.is_logarithmic else "linear")
    for axis, one, room in ((axes.xaxis, panel.x, width - 1), (axes.yaxis, panel.y, 3.2)):
        axis.set_minor_locator(NullLocator())
        axis.set_ticks(*zip(*one.ticks()))
        axis.set_label_text(_wrapped(one.label, room))
    axes.set(xlim=(panel.x.low, panel.x.high), ylim=(panel.y.low, panel.y.high))
    if panel.bands:
        axes.set_yticks(
            [place + 0.68 for place in range(len(panel.bands))], [_wrapped(name, 3) for name in panel.bands]
        )
    axes.set_title(_wrapped(panel.title, width - 0.6), fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="x" if panel.bands else "y", color="#E9E9E9")


def _wrapped(text: str, inches: float, size: float = 10) -> str:
    """Wrap text at spaces, and at hyphens if a word (such as a recipe) is longer than a line."""
    width = max(int(72 * inches / (_GLYPH * size)), 1)
    return textwrap.fill(text, width, break_on_hyphens=max(map(len, text.split()), default=0) > width)
