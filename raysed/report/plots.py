"""The pictures of a report, one function each, which writes a PNG and returns its title.

The colours are those of Okabe and Ito, which people with a colour vision deficiency can tell apart; what
matters is also told apart by position, line style or label. A picture without numbers is left out.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from raysed.report.results import Results, display_name
from raysed.score.analysis import effective_rank
from raysed.score.metrics import spearman

BLUE, ORANGE, GREEN, GREY, INK = "#0072B2", "#D55E00", "#009E73", "#6E6E6E", "#222222"
_KIND_COLOURS = {"baseline": GREY, "base": GREY, "member": BLUE, "ensemble": ORANGE, "learner": GREEN}
_LINES = (
    {"color": GREY, "linestyle": "--", "linewidth": 2},
    {"color": BLUE, "linestyle": "-", "linewidth": 6, "alpha": 0.35},  # one that lies on it is seen
    {"color": ORANGE, "linestyle": "-.", "linewidth": 2},
    {"color": GREEN, "linestyle": ":", "linewidth": 2.4},
)
_REFERENCES = (("#6E6E6E", (0, (5, 3))), ("#CC79A7", (0, (1, 1.5))), ("#56B4E9", (0, (5, 2, 1, 2))))
"""Colours and dashes of horizontal lines."""
_DPI = 150
_GLYPH = 0.58
"""Width of a character by the size of its font; that of most text is less."""

Curves = Mapping[str, Sequence[Mapping[str, Any]]]
Spectra = Mapping[str, np.ndarray]
Pairs = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""By model, two numbers [P] of each of the same P pairs of sentences."""
FEW_EDITS = 4
"""Pairs of at most so many edits are set off in their picture (BERT-flow figure 2)."""


@dataclass(frozen=True)
class Training:
    """What the picture of like trainings shows.

    Attributes:
        what: they are, e.g. `member` or `learner`.
        curves: name to the records of a training, each with `step` and, where measured, `loss`, `dev` (x100) and
            `directions`.
        references: name to dev score (x100) of models to compare with, three at most.
        criterion: the correlation that the dev scores are.
    """

    what: str
    curves: Curves
    references: Mapping[str, float] = field(default_factory=dict)
    criterion: str = "spearman"

    def panels(self) -> dict[str, tuple[str, Mapping[str, tuple[np.ndarray, np.ndarray]]]]:
        """Returns by what was measured its name for an axis, and by training the updates [R] and values [R]."""
        labels = {
            "loss": "training loss",
            "held_out": "loss on held-out sentences",
            "dev": f"dev {self.criterion.title()} x100",
            "directions": "directions of the embeddings\n(few: collapsed)",
        }
        panels = {key: (label, self._series(key)) for key, label in labels.items()}
        return {key: (label, series) for key, (label, series) in panels.items() if series}

    def _series(self, key: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        found = {name: _series_of(records, key) for name, records in self.curves.items()}
        return {name: series for name, series in found.items() if len(series[0])}

    def styles(self) -> dict[str, tuple[str, str]]:
        """Returns colour and line of the trainings that are set off in all panels: those that end highest and lowest.

        All others are alike, and share a colour.
        """
        panels = self.panels()
        _, series = panels.get("dev") or next(iter(panels.values()))
        ranked = sorted(series, key=lambda name: series[name][1][-1], reverse=True)
        return {ranked[0]: (ORANGE, "-"), **({ranked[-1]: (GREEN, "--")} if len(ranked) > 1 else {})}


@dataclass(frozen=True)
class Pictured:
    """What is drawn of a run beside its scores; a part that it lacks is empty.

    Attributes:
        trainings: by node or recipe; a picture each, because losses of different kinds do not compare.
        spectra: see `plot_spectra`.
        agreement: see `plot_agreement`.
        agreement_task: the task that it is about.
        grids: see `plot_grid`; a picture each.
        distances: see `plot_edit_distance`.
        teachers: see `plot_speed`.
    """

    trainings: Mapping[str, Training] = field(default_factory=dict)
    spectra: Spectra = field(default_factory=dict)
    agreement: Pairs = field(default_factory=dict)
    agreement_task: str = ""
    grids: Sequence[Mapping[str, Any]] = ()
    distances: Pairs = field(default_factory=dict)
    teachers: Sequence[Mapping[str, Any]] = ()


def write_plots(directory: Path, results: Results, shown: Pictured) -> dict[str, str]:
    """Draws every picture that there are numbers for.

    Args:
        directory: where the PNG files go; made if it is not there.

    Returns:
        `<name of the directory>/<file>` to title, the scores first: what `Report.plots` takes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    titles = {
        "scores.png": plot_scores(directory / "scores.png", results),
        "speed.png": plot_speed(directory / "speed.png", shown.teachers, results),
        **{name: plot_grid(directory / name, grid) for grid in shown.grids for name in [f"grid-{grid['recipe']}.png"]},
        **{
            name: plot_training(directory / name, node, training)
            for node, training in shown.trainings.items()
            for name in [f"training-{node}.png"]
        },
        "spectrum.png": plot_spectra(directory / "spectrum.png", shown.spectra),
        "agreement.png": plot_agreement(directory / "agreement.png", shown.agreement, shown.agreement_task),
        "edit-distance.png": plot_edit_distance(directory / "edit-distance.png", shown.distances),
    }
    return {f"{directory.name}/{file}": title for file, title in titles.items() if title}


def plot_scores(path: Path, results: Results) -> str | None:
    """Draws a dot per model on one axis of average Spearman, a line per group; the bar is the group's mean.

    Returns:
        The title; None where nothing was scored.
    """
    groups = {
        group: [row.average(results.tasks) for row in results.counted if (row.recipe, row.kind) == group]
        for group in results.groups
    }
    if not groups:
        return None
    names = [_scores_label(*group, len(averages)) for group, averages in groups.items()]
    height = sum(0.24 + 0.18 * len(name.splitlines()) for name in names)
    figure = Figure(figsize=(8, 1.7 + height), layout="constrained")
    axes = figure.add_subplot()
    for y, ((recipe, kind), averages) in enumerate(groups.items()):
        scores = np.array([average for average in averages if average is not None])
        _draw_group(axes, y, scores, _KIND_COLOURS[kind])
        groups[recipe, kind] = scores.mean()
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.margins(x=0.1)
    measure = _wrapped(f"{results.short_measure} x100 on {tasks_in_words(results.tasks)}", 4)
    axes.set_xlabel(f"{measure}\n(number and bar: mean of the dots)")
    _clean(axes)
    axes.grid(axis="x", color="#E4E4E4")
    return _save(figure, path, _scores_title(groups))


def _scores_label(recipe: str, kind: str, count: int) -> str:
    name = display_name(recipe, kind, count)
    return _wrapped(name if kind in ("baseline", "base") else f"{name} · {recipe}", 3)


def _draw_group(axes: Axes, y: int, scores: np.ndarray, colour: str) -> None:
    """Dots side by side in the order of their scores, so that equal ones do not hide each other."""
    spread = np.linspace(-0.16, 0.16, len(scores)) if len(scores) > 1 else np.zeros(1)
    axes.scatter(np.sort(scores), y + spread, s=34, color=colour, alpha=0.8, linewidths=0, zorder=3)
    mean = scores.mean()
    if len(scores) > 1:
        axes.plot([mean, mean], [y - 0.3, y + 0.3], color=INK, linewidth=1.6, zorder=4)
    style = {"va": "center", "color": INK, "fontsize": 9}
    axes.annotate(f"{mean:.1f}", (scores.max(), y), (9, 0), textcoords="offset points", **style)


def _scores_title(means: Mapping[tuple[str, str], float]) -> str:
    best = max(means, key=means.__getitem__)
    base = means.get(("base", "base"))
    against = "" if base is None or best == ("base", "base") else f", base encoder {base:.1f}"
    recipe = "" if best[1] in ("baseline", "base") else f" ({best[0]})"
    return f"Best: {display_name(*best)}{recipe} {means[best]:.1f}{against}"


def tasks_in_words(tasks: Sequence[str]) -> str:
    """Returns the names of tasks, or how many they are where the names are too long for an axis."""
    names = ", ".join(tasks)
    return names if len(names) <= 50 else f"the mean of {len(tasks)} tasks"


def plot_speed(path: Path, models: Sequence[Mapping[str, Any]], results: Results) -> str | None:
    """Draws score against speed, a dot per model, with lines for what has no speed of its own to compare.

    Args:
        models: what `raysed.report.teachers.compare` returned: teachers, what they say together, the exported model.
        results: the scored models, for words alone and the untouched encoder.

    Returns:
        The title; None where there are not two models of which speed and score are known.
    """
    dots = models_with_speed(models)
    if not dots:
        return None
    lines = lines_without_speed(models, results)
    figure = Figure(figsize=(8, 4.2 + 0.22 * (len(dots) + len(lines))), layout="constrained")
    axes = figure.add_subplot()
    exported = dots[-1]
    for place, model in enumerate(dots, start=1):
        colour = GREEN if model is exported else BLUE
        x, y = model["sentences_per_second"], model["score"]
        axes.scatter(x, y, s=150, color=colour, linewidths=0, alpha=0.85, zorder=3, label=speed_in_words(place, model))
        axes.annotate(place, (x, y), ha="center", va="center", color="white", fontsize=8, weight="bold", zorder=4)
    for (name, value), (colour, dashes) in zip(lines.items(), _REFERENCES):
        axes.axhline(value, color=colour, linestyle=dashes, linewidth=1.4, zorder=1, label=f"{name}: {value:.1f}")
    axes.set_xscale("log")
    axes.margins(x=0.15, y=0.15)
    _label_in_full(axes)
    axes.set_xlabel("sentences per second on one process of this machine")
    axes.set_ylabel(_wrapped(f"{results.short_measure} x100 on {tasks_in_words(results.tasks)}", 3.4))
    figure.legend(loc="outside lower left", frameon=False, fontsize=9, markerscale=0.6)
    _clean(axes)
    best = max(dots[:-1], key=lambda model: model["score"])
    times = exported["sentences_per_second"] / best["sentences_per_second"]
    title = f"{exported['model']}: {exported['score']:.1f}, at {times:.2g} times the speed of the best teacher"
    return _save(figure, path, f"{title} ({best['model']}, {best['score']:.1f})")


def models_with_speed(models: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns those of which speed and score are known; none where there is nothing to compare the last one with.

    Args:
        models: see `plot_speed`.
    """
    dots = [model for model in models if model["sentences_per_second"] and model["score"] is not None]
    return dots if len(dots) > 1 and dots[-1] is models[-1] else []


def _label_in_full(axes: Axes) -> None:
    """Numbers such as 2,000 instead of powers of ten, on a logarithmic axis that may be shorter than one of them."""
    least, most = axes.get_xlim()
    decades = np.log10(most / least)
    subs = range(1, 10) if decades < 1 else (1, 2, 5) if decades < 3 else (1,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def speed_in_words(place: int, model: Mapping[str, Any]) -> str:
    """Returns what a legend says of one of `models_with_speed`, whose dot has this number."""
    parameters = f", {model['parameters'] / 1e6:.3g} million parameters" if model["parameters"] else ""
    speed = f"{model['sentences_per_second']:,.0f} sentences per second"
    return f"{place}  {model['model']}: {model['score']:.1f}, {speed}, {model['width']} dimensions{parameters}"


def lines_without_speed(models: Sequence[Mapping[str, Any]], results: Results) -> dict[str, float]:
    """Returns scores of what is not a dot: all teachers together, the best of words alone, and the untouched encoder.

    Args:
        models: see `plot_speed`.
    """
    found = {m["model"]: m["score"] for m in models[:-1] if m["width"] is None and m["score"] and "searches" not in m}
    rows = [(row, row.average(results.tasks)) for row in results.counted]
    words = [(score, row.recipe) for row, score in rows if row.kind == "baseline" and score is not None]
    if words:
        score, recipe = max(words)
        found[display_name(recipe, "baseline")] = score
    untouched = [score for row, score in rows if row.kind == "base" and score is not None]
    return found | ({"untouched encoder": untouched[0]} if untouched else {})


def plot_grid(path: Path, grid: Mapping[str, Any]) -> str | None:
    """Draws the dev scores of a grid against its lower bounds: a dot per model, their mean with its spread as a line.

    Bounds that were stopped early are hollow and not part of the line: their scores are those of fewer updates.

    Args:
        grid: as in `raysed.report.document.Report.grids`.

    Returns:
        The title, with the winner and its margin; None where there are not two bounds to compare.
    """
    bounds = sorted((bound for bound in grid["bounds"] if bound["scores"]), key=lambda bound: bound["lower_bound"])
    if len(bounds) < 2:
        return None
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    axes = figure.add_subplot()
    _draw_bounds(axes, bounds, grid["winner"])
    axes.set_xlabel("lower bound of the target")
    axes.set_ylabel(_wrapped(f"{grid['task']}, {grid['criterion'].title()} x100", 3.2))
    axes.margins(y=0.12)
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    _clean(axes)
    title = f"{grid['recipe']}: lower bound {grid['winner']:g} wins, {grid['statistic']} {grid['score']:.2f}"
    if grid["runner_up"] is not None:
        title += f"; {grid['margin']:.2f} above the next, {grid['runner_up']:g}"
    return _save(figure, path, title)


def _draw_bounds(axes: Axes, bounds: Sequence[Mapping[str, Any]], winner: float) -> None:
    whole = [bound for bound in bounds if bound["stopped_at"] is None]
    x, mean, std = (np.array([bound[key] or 0.0 for bound in whole]) for key in ("lower_bound", "mean", "std"))
    if len(whole) > 1 and std.any():
        axes.fill_between(x, mean - std, mean + std, color=BLUE, alpha=0.15, linewidth=0, label="± standard deviation")
    if len(whole) > 1:
        axes.plot(x, mean, color=BLUE, linewidth=1.8, label="mean")
    sorts = {
        "a model": ([b for b in whole if b["lower_bound"] != winner], {"s": 16, "color": BLUE, "linewidths": 0}),
        f"chosen: {winner:g}": (
            [b for b in whole if b["lower_bound"] == winner],
            {"s": 34, "color": ORANGE, "linewidths": 0, "zorder": 4},
        ),
        "stopped early (score of fewer updates)": (
            [b for b in bounds if b["stopped_at"] is not None],
            {"s": 16, "facecolors": "none", "edgecolors": GREY, "linewidths": 0.9},
        ),
    }
    for label, (group, style) in sorts.items():
        dots = np.array([(bound["lower_bound"], score) for bound in group for score in bound["scores"]])
        if len(dots):
            axes.scatter(*dots.T, alpha=0.75, label=label, **style)


def plot_training(path: Path, node: str, training: Training) -> str | None:
    """Draws losses, dev score and the directions of the embeddings of like trainings against their updates.

    Args:
        node: what they are trained to be, e.g. `ct` or `ct-sed`.

    Returns:
        The title; None where none has a record.
    """
    panels = training.panels()
    if not panels:
        return None
    figure = Figure(figsize=(8, 0.9 + 2.7 * len(panels)), layout="constrained")
    all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    styles = training.styles()
    for axes, (key, (label, series)) in zip(all_axes, panels.items()):
        _draw_curves(axes, series, styles, training.references if key == "dev" else {})
        axes.set_ylabel(label)
        if key == "directions":
            axes.set_ylim(bottom=0)
        if key == "loss" and min(y.min() for _, y in series.values()) > 0:
            axes.set_yscale("log")
        _clean(axes)
    all_axes[-1].set_xlabel("updates")
    all_axes[-1].margins(x=0.02)
    ends = [f"{key} {_mean_of(series, 0):.3g} to {_mean_of(series, -1):.3g}" for key, (_, series) in panels.items()]
    count = len(training.curves)
    of_whom = f"1 {training.what}" if count == 1 else f"{count} {training.what}s, on average"
    return _save(figure, path, f"Training of {node}, {of_whom}: {', '.join(ends)}")


def _series_of(records: Sequence[Mapping[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    points = [(record["step"], record[key]) for record in records if record.get(key) is not None]
    x, y = np.array(points, dtype=np.float64).reshape(-1, 2).T
    return x[np.isfinite(y)], y[np.isfinite(y)]


def _mean_of(series: Mapping[str, tuple[np.ndarray, np.ndarray]], position: int) -> float:
    return float(np.mean([y[position] for _, y in series.values()]))


def _draw_curves(
    axes: Axes,
    series: Mapping[str, tuple[np.ndarray, np.ndarray]],
    styles: Mapping[str, tuple[str, str]],
    references: Mapping[str, float],
) -> None:
    for (name, value), (colour, dashes) in zip(references.items(), _REFERENCES):
        axes.axhline(value, color=colour, linestyle=dashes, linewidth=1.4, zorder=1, label=f"{name}: {value:.1f}")
    others = [name for name in series if name not in styles]
    for name in [*(name for name in styles if name in series), *others]:
        x, y = series[name]
        marker = "o" if len(x) < 15 else None
        if name in styles:
            (colour, style), label = styles[name], f"{name}, ends at {y[-1]:.3g}"
            axes.plot(x, y, style, color=colour, linewidth=1.8, marker=marker, ms=3, zorder=3, label=label)
        else:
            label = "the others" if name == others[0] else None
            axes.plot(x, y, color=BLUE, linewidth=1.0, marker=marker, ms=2, alpha=0.45, label=label)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)


def plot_spectra(path: Path, spectra: Spectra) -> str | None:
    """Draws the singular values of embedding matrices on a logarithmic axis, e.g. before and after a flow.

    Args:
        spectra: label to what `raysed.score.analysis.singular_values` returned; at most four.

    Returns:
        The title, with the effective ranks; None where there is no spectrum.
    """
    if not spectra:
        return None
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    ranks = {label: effective_rank(values) for label, values in spectra.items()}
    for (label, values), style in zip(spectra.items(), _LINES):
        kept = values[values > 1e-6]  # the rest is rounding noise, and a logarithm has no zero
        axes.plot(np.arange(1, len(kept) + 1), kept, **style, label=_wrapped(label, 3.4))
    axes.set_yscale("log")
    axes.set_xlabel("number of the singular value, largest first")
    axes.set_ylabel("size relative to the largest")
    figure.legend(loc="outside lower center", ncols=4 if max(map(len, spectra)) <= 16 else 2, frameon=False)
    _clean(axes)
    ways = ", ".join(f"{label} {rank:.0f}" for label, rank in ranks.items())
    return _save(figure, path, f"Singular values of the embeddings; effective rank: {ways}")


def plot_agreement(path: Path, agreement: Pairs, task: str = "") -> str | None:
    """Draws predicted cosine against gold score, a panel per model, with the mean cosine of ten gold bins.

    Args:
        agreement: label to (cosines [P], gold scores [P]) of the same task.

    Returns:
        The title, with the rank correlations; None where there is no model.
    """
    if not agreement:
        return None
    size = (4.2 if len(agreement) > 1 else 6.3, 4.3)
    figure, ranks = _panels(agreement, size, _draw_agreement, "gold score (line: mean cosine)", sharex=True)
    figure.axes[0].set_ylabel("predicted cosine")
    return _save(figure, path, f"Predicted cosine and gold score{task and f' on {task}'}; Spearman: {ranks}")


def _panels(
    pairs: Pairs,
    size: tuple[float, float],
    draw: Callable[[Axes, np.ndarray, np.ndarray], None],
    x: str,
    **shared: bool,
) -> tuple[Figure, str]:
    """A figure with a panel of that size, in inches, per model; and the rank correlations in words."""
    figure = Figure(figsize=(size[0] * len(pairs), size[1]), layout="constrained")
    ranks = []
    for axes, (label, numbers) in zip(
        figure.subplots(1, len(pairs), sharey=True, squeeze=False, **shared)[0], pairs.items()
    ):
        draw(axes, *numbers)
        axes.set_title(_wrapped(label, size[0] - 0.6), fontsize=10)
        axes.set_xlabel(x)
        _clean(axes)
        ranks.append(f"{label} {100 * spearman(*numbers):.1f}")
    return figure, ", ".join(ranks)


def _draw_agreement(axes: Axes, cosine_P: np.ndarray, gold_P: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    jitter_P = rng.uniform(-0.006, 0.006, len(gold_P)) * np.ptp(gold_P)  # gold scores are few and far between
    axes.scatter(gold_P + jitter_P, cosine_P, s=7, alpha=min(0.5, 400 / len(gold_P)), color=BLUE, linewidths=0)
    axes.plot(*means_of_bins(cosine_P, gold_P), "o-", color=ORANGE, linewidth=2, markersize=5)


def means_of_bins(cosine_P: np.ndarray, gold_P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean gold score and the mean cosine of the pairs in each of ten bins of gold scores that has any."""
    edges = np.linspace(gold_P.min(), gold_P.max(), 11)
    bin_P = np.clip(np.searchsorted(edges, gold_P, side="right") - 1, 0, 9)
    filled = [bin_P == i for i in np.unique(bin_P)]
    return np.array([gold_P[in_P].mean() for in_P in filled]), np.array([cosine_P[in_P].mean() for in_P in filled])


def plot_edit_distance(path: Path, distances: Pairs) -> str | None:
    """Draws edit distance against similarity, a panel per model; pairs of few edits are set off (BERT-flow figure 2).

    Args:
        distances: label to (similarities [P], edit distances in words [P]) of the same pairs: the gold score's first,
            then, for example, the base's and the calibrated model's cosines.

    Returns:
        The title, with the rank correlations; None where there is no model.
    """
    if not distances:
        return None
    size = (3.4 if len(distances) > 1 else 6.8, 4.0)
    figure, ranks = _panels(distances, size, _draw_distances, "similarity")
    first = figure.axes[0]
    first.set_ylabel("edit distance in words")
    first.yaxis.set_major_locator(MaxNLocator(integer=True))
    legend = figure.legend(
        *first.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, markerscale=2
    )
    for handle in legend.legend_handles:
        handle.set_alpha(1)
    return _save(figure, path, f"Similarity and edit distance; Spearman: {ranks}")


def _draw_distances(axes: Axes, similarity_P: np.ndarray, distance_P: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    y_P = distance_P + rng.uniform(-0.35, 0.35, len(distance_P))  # distances are whole numbers
    x_P = similarity_P + rng.uniform(-0.006, 0.006, len(distance_P)) * np.ptp(similarity_P)
    few_P = distance_P <= FEW_EDITS
    for chosen, colour, label in ((~few_P, BLUE, "other pairs"), (few_P, ORANGE, f"at most {FEW_EDITS} edits")):
        alpha = min(0.6, 600 / max(len(few_P), 1))
        axes.scatter(x_P[chosen], y_P[chosen], s=8, alpha=alpha, color=colour, linewidths=0, label=label)
    # Few pairs are far longer than the others, and would press these together.
    axes.set_ylim(-1, 1.1 * np.quantile(distance_P, 0.995) + 1)


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="#EEEEEE")


def _wrapped(text: str, inches: float, size: float = 10) -> str:
    r"""Breaks text into lines of a width, at blanks, and at the hyphens of recipes that are longer than a line.

    >>> _wrapped("ct-sed-flow (exported)", 1)
    'ct-sed-flow\n(exported)'
    """
    width = max(int(72 * inches / (_GLYPH * size)), 1)
    return textwrap.fill(text, width, break_on_hyphens=max(map(len, text.split()), default=0) > width)


def _save(figure: Figure, path: Path, title: str) -> str:
    figure.suptitle(_wrapped(title, figure.get_figwidth() - 0.2, 11), fontsize=11, x=0.01, ha="left")
    figure.savefig(path, dpi=_DPI)
    return title
