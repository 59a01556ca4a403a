"""Charts by matplotlib: SVG on the page, PNG beside it, in Okabe and Ito's colour-blind-safe colours."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#6e6e6e"
INK, _RULE = "#1f2328", "#d8dee4"
_VARIABLES = dict(blue=BLUE, orange=ORANGE, green=GREEN, grey=GREY, ink=INK, rule=_RULE)
"""Colours by their variable in report.css, which has others for dark screens."""
_STYLE = {
    "text.parse_math": False,  # a dollar sign in a name starts no formula
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.titlesize": 9,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), _RULE),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "axes.grid": True,
    "axes.axisbelow": True,
}
_SINGLE_INCHES, _PANEL_INCHES = 5.6, 4.2
_CHARACTER_INCHES = 0.08


@dataclass(frozen=True)
class Chart:
    """Panels side by side, each a function that draws on axes; `name` is the file's in `plots/`."""

    name: str
    title: str
    panels: Sequence[Callable[[Axes], None]]
    height: float = 3.2

    def save(self, path: Path) -> None:
        """Write a PNG file, with the title."""
        with self.figure() as figure:
            figure.suptitle(self.title, x=0.01, ha="left", wrap=True)
            figure.savefig(path, dpi=150)

    def svg(self) -> str:
        """Return an SVG element for the page, whose style sheet defines the colours."""
        text = io.StringIO()
        with self.figure() as figure:
            unwanted = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(text, format="svg", transparent=True, metadata=unwanted)
        svg = re.sub(r'<g id="[^"]*">', "<g>", text.getvalue().partition("<svg")[2])  # charts number their groups alike
        for name, colour in _VARIABLES.items():
            svg = svg.replace(f": {colour}", f": var(--{name})")
        return f"<svg{svg}".strip()

    @contextmanager
    def figure(self) -> Iterator[Figure]:
        """Draw the panels and below them one legend."""
        from matplotlib import rc_context  # only when a report is written
        from matplotlib.figure import Figure

        count = len(self.panels)
        width = _SINGLE_INCHES if count == 1 else _PANEL_INCHES * count
        with rc_context({**_STYLE, "svg.hashsalt": self.name}):  # the salt keeps ids of several charts apart
            figure = Figure(figsize=(width, self.height), layout="constrained")
            handles = {}
            for draw, axes in zip(self.panels, figure.subplots(1, count, squeeze=False).flat):
                draw(axes)
                handles |= dict(zip(*reversed(axes.get_legend_handles_labels())))
                for label in (axes.title, axes.xaxis.label, axes.yaxis.label):
                    label.set_wrap(True)
            if handles:
                columns = max(int(width / _CHARACTER_INCHES / (max(map(len, handles)) + 6)), 1)
                figure.legend(handles.values(), handles, loc="outside lower left", ncols=columns)
                figure.set_figheight(self.height + 0.2 * -(-len(handles) // columns))
            yield figure
