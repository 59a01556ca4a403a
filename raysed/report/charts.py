"""Charts, described once: PNG files for Markdown and TensorBoard (`draw`), and SVG on the page (`report_parts.html`).

The colours are those of Okabe and Ito, which people with a colour vision deficiency can tell apart.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from raysed.score.metrics import spearman

Colour = Literal["blue", "orange", "green", "grey", "pink", "sky"]
LINES: tuple[tuple[Colour, str], ...] = (("grey", "--"), ("blue", "-"), ("orange", "-."), ("green", ":"))
"""Colours and styles of up to four lines that may lie on each other."""
_REFERENCES: tuple[Colour, ...] = ("grey", "pink", "sky")
_HEX = dict(blue="#0072B2", orange="#D55E00", green="#009E73", grey="#6E6E6E", pink="#CC79A7", sky="#56B4E9")
_INK = "#222222"
_MOST_DOTS = 500
"""Dots of a scatter plot on the page: a sample shows the same, and many thousands would open slowly."""
_MOST_RECORDS, _MOST_OF_A_CURVE, _FEW_RECORDS = 1200, 80, 15
"""Records of all curves of a panel on the page, and of one; each record of a shorter curve has a mark."""
_BAND_PIXELS = 44
_DPI = 150
_GLYPH = 0.58
"""Width of a character by the size of its font; that of most text is less."""


@dataclass(frozen=True)
class Series:
    """Dots of one colour.

    Attributes:
        name: for the legend; without one it is not there.
        texts: what is shown of each dot; none: the line alone is drawn.
        line: style of the line that joins the dots, as matplotlib has it; empty: none.
        weight: whether it steps back behind others, or is seen beneath a line that lies on it.
        spread: what is shaded above and below the line.
        label: drawn on every dot.
    """

    x: np.ndarray
    y: np.ndarray
    colour: Colour
    name: str = ""
    texts: Sequence[str] = ()
    mark: Literal["dot", "ring", "bar", "none"] = "dot"
    line: str = ""
    weight: Literal["", "faint", "wide"] = ""
    spread: np.ndarray | None = None
    label: str = ""


@dataclass(frozen=True)
class Axis:
    """What an axis measures, from `low` at the left or bottom to `high`."""

    label: str
    low: float
    high: float
    is_logarithmic: bool = False

    @classmethod
    def of(cls, label: str, values: Any, is_logarithmic: bool = False) -> "Axis":
        """Return an axis on which all values have a place, with a little room at either end."""
        values = np.asarray(values, np.float64)
        ends = np.array([values.min(), values.max()])
        ends = np.log(ends) if is_logarithmic else ends
        room = 0.05 * (ends[1] - ends[0]) or 0.5
        low_high = ends + np.array([-room, room])
        low, high = (np.exp(low_high) if is_logarithmic else low_high).tolist()
        return cls(label, low, high, is_logarithmic)

    def place(self, value: float) -> float:
        """Return where a value lies, in percent of the way from `low` to `high`."""
        low, high, value = np.log([self.low, self.high, value]) if self.is_logarithmic else (self.low, self.high, value)
        return round(float(100 * (value - low) / (high - low)), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Return values with their texts."""
        low, high = sorted((self.low, self.high))
        locator = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10])
        if self.is_logarithmic:
            decades = np.log10(high / low)
            locator = LogLocator(subs=(1, 2, 3, 5, 7) if decades < 1 else (1, 2, 5) if decades < 2.5 else (1,))
        values = [value for value in locator.tick_values(low, high).tolist() if low <= value <= high]
        return [(value, f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}") for value in values]


@dataclass(frozen=True)
class Panel:
    """A pair of axes.

    Attributes:
        title: where there are several panels side by side.
        references: names and values of up to three horizontal lines.
        bands: names of horizontal bands from the top to the bottom; the axis y then counts them from 0.
    """

    x: Axis
    y: Axis
    series: Sequence[Series]
    title: str = ""
    references: Mapping[str, float] | None = None
    bands: Sequence[str] = ()

    @property
    def height(self) -> int:
        """The height on the page in pixels."""
        return _BAND_PIXELS * len(self.bands) if self.bands else 240

    @property
    def lines(self) -> list[tuple[str, float, Colour]]:
        """The references as name with value, value and colour."""
        found = zip((self.references or {}).items(), _REFERENCES)
        return [(f"{name}: {value:.1f}", value, colour) for (name, value), colour in found]

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Names and colours, each once."""
        named = [(series.name, series.colour) for series in self.series if series.name]
        return list(dict.fromkeys([*named, *((name, colour) for name, _, colour in self.lines)]))

    def dots(self, series: Series) -> list[tuple[float, float, str]]:
        """Return places from the left and from the top in percent, with texts; of very many dots a sample."""
        count = len(series.x)
        rows = np.arange(count)
        if series.line:
            curves = sum(bool(one.line) for one in self.series)
            most = max(2, min(_MOST_OF_A_CURVE, _MOST_RECORDS // curves))
            rows = np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))
        elif count > _MOST_DOTS:
            rows = np.sort(np.random.default_rng(0).choice(count, _MOST_DOTS, replace=False))
        found = []
        for i in rows.tolist():
            top = round(100 - self.y.place(series.y[i]), 2)
            found.append((self.x.place(series.x[i]), top, series.texts[i] if series.texts else ""))
        return found


@dataclass(frozen=True)
class Chart:
    """One or several panels, side by side or below each other, with a title that says what they show.

    Attributes:
        name: of its file, without the ending.
        note: on what the page leaves out.
        is_stacked: whether panels stand below each other in the picture.
    """

    name: str
    title: str
    panels: Sequence[Panel]
    note: str = ""
    is_stacked: bool = False

    @property
    def path(self) -> str:
        """Where the picture lies in the run directory."""
        return f"plots/{self.name}.png"


def curve_mark(count: int) -> Literal["dot", "none"]:
    """Return the mark for the records of a curve: those of short ones are seen."""
    return "dot" if count <= _FEW_RECORDS else "none"


Pairs = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""By model, two numbers [P] of each of the same P pairs of sentences."""


def finite(pairs: Pairs) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the models whose numbers can be drawn."""
    return {label: values for label, values in pairs.items() if np.isfinite(values[0]).all()}


def ranks_in_words(pairs: Pairs) -> str:
    """Return the rank correlations of several models' pairs, for a title."""
    return ", ".join(f"{label} {100 * spearman(*values):.1f}" for label, values in pairs.items())


def sample_note(pairs: Pairs) -> str:
    """Return what the page says where it shows a sample of the pairs."""
    count = max((len(values) for values, _ in pairs.values()), default=0)
    return f"{_MOST_DOTS} of {count:,} pairs, drawn by chance; lines are of all." if count > _MOST_DOTS else ""


# -- pictures --------------------------------------------------------------------------------------------------------


def draw(chart: Chart, path: Path) -> None:
    """Write a chart as a PNG file."""
    count = len(chart.panels)
    # Names are data: dollar signs in them begin no formula.
    with rc_context({"text.parse_math": False}):
        rows, columns = (count, 1) if chart.is_stacked else (1, count)
        width = 8.0 if columns == 1 else max(8.0, 3.6 * columns)
        height = 0.9 + 2.7 * rows if chart.is_stacked else 4.4
        if bands := chart.panels[0].bands:
            height = 1.7 + sum(0.24 + 0.18 * len(_wrapped(name, 3).splitlines()) for name in bands)
        names = list(dict.fromkeys(name for panel in chart.panels for name, _ in panel.legend))
        at_once = 4 if max(map(len, names), default=0) <= 16 else 2 if max(map(len, names)) <= 45 else 1
        height += 0 if chart.is_stacked else 0.22 * len(names) / at_once
        figure = Figure(figsize=(width, height), layout="constrained")
        all_axes = figure.subplots(rows, columns, sharex=chart.is_stacked, squeeze=False).flat
        handles: dict[str, Any] = {}
        for axes, panel in zip(all_axes, chart.panels):
            _draw_panel(axes, panel, width / columns, is_first=panel is chart.panels[0] or chart.is_stacked)
            found, labels = axes.get_legend_handles_labels()
            handles |= dict(zip(labels, found))
            if chart.is_stacked and found:
                place = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "frameon": False, "fontsize": 9}
                axes.legend(found, [_wrapped(label, 2.4, 9) for label in labels], **place)
            if chart.is_stacked and panel is not chart.panels[-1]:
                axes.set_xlabel("")
                axes.tick_params(labelbottom=False)
        if handles and not chart.is_stacked:
            texts = [_wrapped(name, (width - 1) / at_once, 9) for name in handles]
            place = {"loc": "outside lower left", "ncols": at_once, "frameon": False, "fontsize": 9}
            for handle in figure.legend(list(handles.values()), texts, **place).legend_handles:
                if isinstance(handle, PathCollection):
                    handle.set(alpha=1, sizes=[30])
        figure.suptitle(_wrapped(chart.title, width - 0.2, 11), fontsize=11, x=0.01, ha="left")
        figure.savefig(path, dpi=_DPI)


def _draw_panel(axes: Axes, panel: Panel, width: float, is_first: bool) -> None:
    for series in panel.series:
        _draw_series(axes, series)
    for (name, value, colour), dashes in zip(panel.lines, ((0, (5, 3)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))):
        axes.axhline(value, color=_HEX[colour], linestyle=dashes, linewidth=1.4, zorder=1, label=name)
    for axis, one, room in ((axes.xaxis, panel.x, width - 1), (axes.yaxis, panel.y, 3.2)):
        if one.is_logarithmic:
            (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
        axis.set_minor_locator(NullLocator())
        ticks = one.ticks()
        axis.set_ticks([value for value, _ in ticks], [text for _, text in ticks])
        axis.set_label_text(_wrapped(one.label, room) if axis is axes.xaxis or is_first else "")
    axes.set_xlim(panel.x.low, panel.x.high)
    axes.set_ylim(panel.y.low, panel.y.high)
    if panel.bands:
        places = [place + 0.68 for place in range(len(panel.bands))]
        axes.set_yticks(places, [_wrapped(name, 3) for name in panel.bands])
    if panel.title:
        axes.set_title(_wrapped(panel.title, width - 0.6), fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="x" if panel.bands else "y", color="#E9E9E9")


def _draw_series(axes: Axes, series: Series) -> None:
    colour, label = _HEX[series.colour], series.name or None
    if series.spread is not None:
        low, high = series.y - series.spread, series.y + series.spread
        axes.fill_between(series.x, low, high, color=colour, alpha=0.15, linewidth=0)
    if series.line:
        width, alpha = {"": (1.8, 1.0), "faint": (1.0, 0.45), "wide": (6.0, 0.35)}[series.weight]
        style = {"linewidth": width, "alpha": alpha, "marker": "o" if series.mark == "dot" else None, "ms": 3}
        axes.plot(series.x, series.y, series.line, color=colour, label=label, **style)
    elif series.mark == "bar":
        axes.vlines(series.x, series.y - 0.2, series.y + 0.2, color=_INK, linewidth=1.6, zorder=4)
    else:
        many = min(0.5, 400 / max(len(series.x), 1)) if series.weight == "faint" else 0.8
        face = "none" if series.mark == "ring" else colour
        size = 150 if series.label else 8 if series.weight == "faint" else 30
        style = {"facecolors": face, "edgecolors": colour, "linewidths": 0.9 * (face == "none")}
        axes.scatter(series.x, series.y, s=size, alpha=many, zorder=3, label=label, **style)
    for x, y in zip(series.x, series.y) if series.label else ():
        style = {"ha": "center", "va": "center", "color": "white", "fontsize": 8, "weight": "bold", "zorder": 4}
        axes.annotate(series.label, (x, y), **style)


def _wrapped(text: str, inches: float, size: float = 10) -> str:
    """Break text into lines of a width, at blanks, and at the hyphens of recipes that are longer than a line."""
    width = max(int(72 * inches / (_GLYPH * size)), 1)
    return textwrap.fill(text, width, break_on_hyphens=max(map(len, text.split()), default=0) > width)
