"""The charts of `report.html`: the numbers of `raysed.report.plots`, each of which is shown where one points at it.

The template draws them as SVG, in percent of the room that there is, so that text keeps its size on a phone. No library
is embedded: a report would carry 50 kB to 4.5 MB of somebody else's code for what takes a page of SVG.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator

from raysed.report.plots import (
    BLUE,
    FEW_EDITS,
    GREEN,
    GREY,
    ORANGE,
    Pairs,
    Pictured,
    Spectra,
    Training,
    lines_without_speed,
    means_of_bins,
    models_with_speed,
    speed_in_words,
    tasks_in_words,
)
from raysed.report.results import Results, display_name
from raysed.store.text import number, shortened

Colour = Literal["blue", "orange", "green", "grey", "pink", "sky"]
_COLOURS: Mapping[str, Colour] = {BLUE: "blue", ORANGE: "orange", GREEN: "green", GREY: "grey"}
_OF_KIND: Mapping[str, Colour] = {
    "baseline": "grey",
    "base": "grey",
    "member": "blue",
    "ensemble": "orange",
    "learner": "green",
}
_OF_REFERENCES: tuple[Colour, ...] = ("grey", "pink", "sky")
_OF_LINES: tuple[Colour, ...] = ("grey", "blue", "orange", "green")
_MOST_DOTS = 500
"""Dots of a scatter plot: a sample shows the same, and a file of many thousands would open slowly."""
_MOST_RECORDS = 1200
"""Records of all curves of a panel together, likewise."""
_MOST_OF_A_CURVE, _FEW_RECORDS = 80, 15
"""Of a curve of few records each is seen; those of longer ones are found by pointing at the line."""
_BAND = 44
"""Height of a line of the chart of scores, in pixels."""


@dataclass(frozen=True)
class Dot:
    """A place in a panel, and what is shown where one points at it."""

    x: float
    y: float
    text: str = ""


@dataclass(frozen=True)
class Series:
    """Dots of one colour.

    Attributes:
        dots: in the order in which a line joins them.
        colour: its name.
        name: for the legend; without one it is not there.
        mark: how the dots are drawn.
        is_line: whether a line joins them.
        is_faint: whether it steps back behind others.
        is_wide: whether its line is seen beneath one that lies on it.
    """

    dots: Sequence[Dot]
    colour: Colour
    name: str = ""
    mark: Literal["dot", "ring", "bar", "none"] = "dot"
    is_line: bool = False
    is_faint: bool = False
    is_wide: bool = False


@dataclass(frozen=True)
class Axis:
    """What an axis measures, from `low` at the left or bottom to `high`."""

    label: str
    low: float
    high: float
    is_logarithmic: bool = False

    @classmethod
    def of(cls, label: str, values: Any, is_logarithmic: bool = False) -> "Axis":
        """Returns an axis with a little room at either end.

        Args:
            values: that must have a place on it.
        """
        values = np.asarray(values, np.float64)
        ends = np.array([values.min(), values.max()])
        ends = np.log(ends) if is_logarithmic else ends
        room = 0.05 * (ends[1] - ends[0]) or 0.5
        low_high = ends + np.array([-room, room])
        low, high = (np.exp(low_high) if is_logarithmic else low_high).tolist()
        return cls(label, low, high, is_logarithmic)

    def place(self, value: float) -> float:
        """Returns where a value lies, in percent of the way from `low` to `high`."""
        low, high, value = np.log([self.low, self.high, value]) if self.is_logarithmic else (self.low, self.high, value)
        return round(float(100 * (value - low) / (high - low)), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Returns values with their texts."""
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
        x: from left to right.
        y: from the bottom to the top.
        series: what is drawn.
        title: where there are several panels of a kind.
        references: name, value and colour of horizontal lines.
        bands: names of horizontal bands from the top to the bottom; the axis y then counts them from 0.
    """

    x: Axis
    y: Axis
    series: Sequence[Series]
    title: str = ""
    references: Sequence[tuple[str, float, Colour]] = ()
    bands: Sequence[str] = ()

    @property
    def height(self) -> int:
        """In pixels."""
        return _BAND * len(self.bands) if self.bands else 240

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Names and colours, each once."""
        named = [(series.name, series.colour) for series in self.series if series.name]
        return list(dict.fromkeys([*named, *((f"{name}: {value:.1f}", c) for name, value, c in self.references)]))


@dataclass(frozen=True)
class Chart:
    """One or several panels, side by side where there is room, and a note on what they leave out."""

    panels: Sequence[Panel]
    note: str = ""


@dataclass(frozen=True)
class PairTexts:
    """The P pairs of sentences of a task."""

    first: Sequence[str] = field(default_factory=list)
    second: Sequence[str] = field(default_factory=list)

    def of(self, row: int) -> str:
        """Returns a pair on two lines, 80 characters of each sentence; nothing where there are none."""
        return "\n".join(shortened(texts[row], 80) for texts in (self.first, self.second) if texts)


def draw_charts(results: Results, shown: Pictured, texts: PairTexts | None = None) -> dict[str, Chart]:
    """Returns a chart for every picture that `raysed.report.plots.write_plots` draws, by the name of its file.

    Args:
        texts: the pairs of sentences of the task that `shown.agreement` is about.
    """
    charts = {
        "scores.png": _scores(results),
        "speed.png": _speed(shown.teachers, results),
        **{f"grid-{grid['recipe']}.png": _grid(grid) for grid in shown.grids},
        **{f"training-{node}.png": _training(training) for node, training in shown.trainings.items()},
        "spectrum.png": _spectra(shown.spectra),
        "agreement.png": _agreement(shown.agreement, shown.agreement_task, texts or PairTexts()),
        "edit-distance.png": _edit_distance(shown.distances),
    }
    return {file: chart for file, chart in charts.items() if chart.panels}


# -- scores and speed ------------------------------------------------------------------------------------------------


def _scores(results: Results) -> Chart:
    """A band per group with a dot per model, the mean as a bar, and its interval as a line."""
    if not results.groups:
        return Chart([])
    series, bands = [], []
    for place, ((recipe, kind), entry) in enumerate(results.groups.items()):
        name = display_name(recipe, kind, entry["n"])
        title = name if kind in ("baseline", "base") else f"{name} · {recipe}"
        bands.append(f"{title}  {entry['mean']:.1f}")
        series += _of_group(results, recipe, kind, entry, place + 0.68)
    x = Axis.of(
        f"{results.short_measure} x100 on {tasks_in_words(results.tasks)}; bar: mean, line: its 95 % interval",
        [dot.x for one in series for dot in one.dots],
    )
    return Chart([Panel(x, Axis("", len(bands), 0), series, bands=bands)])


def _of_group(results: Results, recipe: str, kind: str, entry: Mapping[str, Any], y: float) -> list[Series]:
    rows = [row for row in results.counted if (row.recipe, row.kind) == (recipe, kind)]
    scores = [(row, row.average(results.tasks)) for row in rows]
    several = entry["n"] > 1
    dots = [Dot(score, y, f"{recipe} {row.index}: {score:.2f}") for row, score in scores if score is not None]
    mean = f"{display_name(recipe, kind, entry['n'])}{', mean' if several else ''}: {number(entry['mean'])}"
    if "low" in entry:
        mean += f" ({entry['low']:.1f} to {entry['high']:.1f})"
    of_all = Dot(entry["mean"], y, mean)
    found = [Series(dots, _OF_KIND[kind])] if several else [Series([of_all], _OF_KIND[kind])]
    ends = [Dot(entry[end], y) for end in ("low", "high") if end in entry]
    line = [Series(ends, "grey", mark="none", is_line=True, is_faint=True)] if ends else []
    return [*line, *found, *([Series([of_all], "grey", mark="bar")] if several else [])]


def _speed(models: Sequence[Mapping[str, Any]], results: Results) -> Chart:
    dots = models_with_speed(models)
    if not dots:
        return Chart([])
    series = []
    for place, model in enumerate(dots, start=1):
        words = speed_in_words(place, model)
        colour: Colour = "green" if model is dots[-1] else "blue"
        series.append(Series([Dot(model["sentences_per_second"], model["score"], words)], colour, words))
    lines = lines_without_speed(models, results)
    x = Axis.of("sentences per second on one process of this machine", [one.dots[0].x for one in series], True)
    y = Axis.of(
        f"{results.short_measure} x100 on {tasks_in_words(results.tasks)}",
        [*lines.values(), *(one.dots[0].y for one in series)],
    )
    return Chart([Panel(x, y, series, references=_references(lines))])


def _references(lines: Mapping[str, float]) -> list[tuple[str, float, Colour]]:
    return [(name, value, colour) for (name, value), colour in zip(lines.items(), _OF_REFERENCES)]


# -- trainings -------------------------------------------------------------------------------------------------------


def _grid(grid: Mapping[str, Any]) -> Chart:
    """As `plots.plot_grid`: bounds that were stopped early are hollow, and not part of the line of means."""
    bounds = sorted((bound for bound in grid["bounds"] if bound["scores"]), key=lambda bound: bound["lower_bound"])
    if len(bounds) < 2:
        return Chart([])
    series = [_of_bound(bound, grid["winner"]) for bound in bounds]
    whole = [bound for bound in bounds if bound["stopped_at"] is None]
    means = [Dot(b["lower_bound"], b["mean"], f"{b['lower_bound']:g}, mean: {b['mean']:.2f}") for b in whole]
    line = [Series(means, "blue", "mean", mark="none", is_line=True)] if len(means) > 1 else []
    x = Axis.of("lower bound of the target", [bound["lower_bound"] for bound in bounds])
    y = Axis.of(f"{grid['task']}, {grid['criterion'].title()} x100", [s for bound in bounds for s in bound["scores"]])
    return Chart([Panel(x, y, [*line, *series])])


def _of_bound(bound: Mapping[str, Any], winner: float) -> Series:
    stopped, value = bound["stopped_at"], bound["lower_bound"]
    after = "" if stopped is None else f", stopped after update {stopped:,}"
    dots = [Dot(value, score, f"{value:g}: {score:.2f}{after}") for score in bound["scores"]]
    if stopped is not None:
        return Series(dots, "grey", "stopped early (score of fewer updates)", mark="ring")
    return Series(dots, "orange", f"chosen: {value:g}") if value == winner else Series(dots, "blue", "a model")


def _training(training: Training) -> Chart:
    panels = training.panels()
    styles = training.styles() if panels else {}
    return Chart([_panel_of(key, *panel, styles, training) for key, panel in panels.items()])


def _panel_of(
    key: str,
    label: str,
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    styles: Mapping[str, tuple[str, str]],
    training: Training,
) -> Panel:
    most = max(2, min(_MOST_OF_A_CURVE, _MOST_RECORDS // len(curves)))
    others = [name for name in curves if name not in styles]
    series = []
    for name in [*others, *(name for name in styles if name in curves)]:
        x_R, y_R = curves[name]
        dots = [
            Dot(x_R[i], y_R[i], f"{name}, update {x_R[i]:,.0f}: {y_R[i]:.4g}") for i in _evenly(len(x_R), most).tolist()
        ]
        mark = "dot" if len(dots) <= _FEW_RECORDS else "none"
        if name in styles:
            ends = f"{name}, ends at {y_R[-1]:.3g}"
            series.append(Series(dots, _COLOURS[styles[name][0]], ends, mark, is_line=True))
        else:
            legend = "the others" if name == others[0] else ""
            series.append(Series(dots, "blue", legend, mark, is_line=True, is_faint=True))
    references = _references(training.references) if key == "dev" else []
    values = np.concatenate([y_R for _, y_R in curves.values()])
    x = Axis.of("updates", np.concatenate([x_R for x_R, _ in curves.values()]))
    y = Axis.of(label, [*values, *(value for _, value, _ in references)], key == "loss" and values.min() > 0)
    return Panel(x, y, series, references=references)


def _evenly(count: int, most: int) -> np.ndarray:
    """Positions that are evenly spread over `count`, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))


# -- embeddings ------------------------------------------------------------------------------------------------------


def _spectra(spectra: Spectra) -> Chart:
    kept = {label: values[values > 1e-6] for label, values in spectra.items()}
    kept = {label: values for label, values in kept.items() if len(values)}
    if not kept:
        return Chart([])
    series = []
    for (label, values), colour in zip(kept.items(), _OF_LINES):
        places = _evenly(len(values), _MOST_OF_A_CURVE).tolist()
        dots = [Dot(i + 1, values[i], f"{label}, number {i + 1}: {values[i]:.3g}") for i in places]
        series.append(Series(dots, colour, label, mark="none", is_line=True, is_wide=colour == "blue"))
    x = Axis.of("number of the singular value, largest first", [1, max(map(len, kept.values()))])
    y = Axis.of("size relative to the largest", np.concatenate(list(kept.values())), is_logarithmic=True)
    return Chart([Panel(x, y, series)])


def _agreement(agreement: Pairs, task: str, texts: PairTexts) -> Chart:
    panels = []
    agreement = {label: values for label, values in agreement.items() if np.isfinite(values[0]).all()}
    cosines = [cosine_P for cosine_P, _ in agreement.values()]
    for label, (cosine_P, gold_P) in agreement.items():
        rows = _sampled(len(gold_P))
        dots = [
            Dot(gold_P[i], cosine_P[i], f"graded {gold_P[i]:.2f}, cosine {cosine_P[i]:.2f}\n{texts.of(i)}".strip())
            for i in rows.tolist()
        ]
        means = [Dot(x, y, f"mean cosine {y:.2f}") for x, y in zip(*means_of_bins(cosine_P, gold_P))]
        series = [
            Series(dots, "blue", is_faint=True),
            Series(means, "orange", "mean cosine", is_line=True),
        ]
        x = Axis.of(f"gold score{task and f' of {task}'}", gold_P)
        panels.append(Panel(x, Axis.of("predicted cosine", np.concatenate(cosines)), series, title=label))
    return Chart(panels, _note(agreement))


def _edit_distance(distances: Pairs) -> Chart:
    panels = []
    distances = {label: values for label, values in distances.items() if np.isfinite(values[0]).all()}
    for label, (similarity_P, distance_P) in distances.items():
        rows = _sampled(len(distance_P))
        near, far = rows[distance_P[rows] <= FEW_EDITS], rows[distance_P[rows] > FEW_EDITS]
        shown = {"other pairs": ("blue", far), f"at most {FEW_EDITS} edits": ("orange", near)}
        # Distances are whole numbers: moved apart a little, equal ones do not hide each other.
        y_P = distance_P + np.random.default_rng(0).uniform(-0.35, 0.35, len(distance_P))
        series = [
            Series(
                [
                    Dot(similarity_P[i], y_P[i], f"{distance_P[i]:g} edits, similarity {similarity_P[i]:.2f}")
                    for i in some
                ],
                colour,
                name,
                is_faint=True,
            )
            for name, (colour, some) in shown.items()
            if len(some)
        ]
        x, y = Axis.of("similarity", similarity_P), Axis.of("edit distance in words", y_P)
        panels.append(Panel(x, y, series, title=label))
    return Chart(panels, _note(distances))


def _sampled(count: int) -> np.ndarray:
    """The same rows for every model, so that its panels can be compared."""
    if count <= _MOST_DOTS:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, _MOST_DOTS, replace=False))


def _note(pairs: Pairs) -> str:
    count = max((len(values) for values, _ in pairs.values()), default=0)
    return f"{_MOST_DOTS} of {count:,} pairs, drawn by chance; lines are of all." if count > _MOST_DOTS else ""
