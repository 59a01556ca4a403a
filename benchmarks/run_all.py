"""All figures of speed, one after the other, into one dated page.

    python benchmarks/run_all.py [--quick | --full] [--out PAGE.md] [--corpus FILE] [--dev FILE] [NAME ...]

Names are numbers of figures, `s1 s9`; without any, all run. `--corpus` and `--dev` are a text and graded pairs in the
place of the usual ones. Sizes are those of `SIZES` below, which take a bit over an hour on 2 cores; `--full` measures
all as the figures are defined, and `--quick` shows only that the scripts run. A script that fails is named in the page,
the others go on, and the exit code is 1.
"""

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness import ROOT, where

HERE = Path(__file__).resolve().parent
BF16 = "--bf16 --set members.precision=bf16 --set sed.precision=bf16"
SIZES = {
    "normal": {
        "s1": ["--updates 12 --quality-updates 120 --pairs 3"],
        "s2": ["--updates 12 --pairs 3"],
        "s3": ["--sentences 4000 --pairs 3"],
        "s4": ["--sentences 4000 --pairs 2"],
        "s5": ["--pairs 2", f"{BF16} --pairs 2", f"--full {BF16} --pairs 1"],
        "s6": ["--pairs 2"],
        "s7": ["--pairs 3"],
        "s8": ["--updates 6 --sentences 1000 --pairs 3"],
        "s9": ["--pairs 3"],
        "s10": ["--pairs 2"],
    },
    "full": {
        "s1": ["--updates 20 --quality-updates 200"],
        "s5": ["--full", f"--full {BF16}"],
        "s6": ["--updates 200 --sentences 12000"],
        "s7": ["--updates 50 --learner-updates 100"],
    },
    "quick": {
        "s1": ["--updates 2 --quality-updates 0 --pairs 1"],
        "s2": ["--updates 2 --quality-updates 0 --pairs 1"],
        "s3": ["--sentences 100 --probe 64 --pairs 1"],
        "s4": ["--sentences 60 --teachers 2 --pairs 1"],
        "s5": ["--sentences 64 --members 2 --updates 3 --pairs 1"],
        "s6": ["--sentences 64 --members 2 --updates 3 --pairs 1"],
        "s7": ["--sentences 64 --members 2 --updates 2 --learner-updates 3 --rows 500 --factor 2 --pairs 1"],
        "s8": ["--sentences 64 --updates 2 --pairs 1"],
        "s9": ["--pairs 1"],
        "s10": ["--pairs 1"],
    },
}
"""Options of each run of a figure; one that is not listed runs once, with its defaults."""


@dataclass(frozen=True)
class Outcome:
    """What became of one script.

    Attributes:
        name: e.g. `s1_ct_updates.py`.
        seconds: wall time.
        found: what it wrote as JSON; None where it failed.
    """

    name: str
    seconds: float
    found: dict | None


def main() -> int:
    """Runs the scripts and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="figures to run")
    size = parser.add_mutually_exclusive_group()
    for name, meaning in (("quick", "one tiny turn of everything"), ("full", "the sizes of the definitions")):
        size.add_argument(f"--{name}", dest="size", action="store_const", const=name, default="normal", help=meaning)
    parser.add_argument("--out", type=Path, default=HERE / f"{datetime.date.today()}-speed.md")
    parser.add_argument("--corpus", type=Path, help="a text, one sentence a line")
    parser.add_argument("--dev", type=Path, help="graded pairs to score on")
    options = parser.parse_args()
    data = [f"--{name}={path.resolve()}" for name in ("corpus", "dev") if (path := getattr(options, name))]
    outcomes = []
    for script in scripts(options.names):
        for words in SIZES[options.size].get(script.name.split("_")[0], [""]):
            outcomes.append(run(script, words.split() + data))
            options.out.write_text(page(outcomes))  # after every run: a page that was cut short is worth something
    failed = [outcome.name for outcome in outcomes if outcome.found is None]
    print(f"\n{options.out}: {len(outcomes) - len(failed)} figures" + f", failed: {', '.join(failed)}" * bool(failed))
    return 1 if failed else 0


def scripts(names: list[str]) -> list[Path]:
    """Returns the scripts of some figures, or of all, by number.

    Raises:
        SystemExit: there is no such figure.
    """
    found = {match[1]: path for path in HERE.glob("s*.py") if (match := re.match(r"(s\d+)_(?!peer)", path.name))}
    for name in names:
        if name not in found:
            sys.exit(f"there is no figure {name}; there are {', '.join(sorted(found, key=_number))}")
    return [found[name] for name in sorted(names or found, key=_number)]


def run(script: Path, words: list[str]) -> Outcome:
    """Runs one script, which shows its own progress."""
    print(f"\n== {script.name} {' '.join(words)}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        written = Path(directory) / "figure.json"
        started = time.perf_counter()
        done = subprocess.run([sys.executable, str(script), *words, "--json", str(written)], cwd=ROOT, check=False)
        seconds = time.perf_counter() - started
        complete = done.returncode == 0 and written.exists()
        return Outcome(script.name, seconds, json.loads(written.read_text()) if complete else None)


def page(outcomes: list[Outcome]) -> str:
    """Returns the page: where it was measured, what each figure took, and the figures."""
    minutes = sum(outcome.seconds for outcome in outcomes) / 60
    lines = [f"# Speed, {datetime.date.today()}", "", f"{where()}; {minutes:.0f} min in all.", ""]
    lines += ["| script | seconds | |", "|---|---:|---|"]
    lines += [f"| `{o.name}` | {o.seconds:.0f} | {'' if o.found else 'failed'} |" for o in outcomes]
    for outcome in outcomes:
        if outcome.found:
            command = re.sub(r" --json [^` ]+", "", outcome.found["where"].rpartition("`")[0])
            lines += ["", outcome.found["markdown"].rstrip(), "", f"{command}`, {outcome.seconds:.0f} s"]
    return "\n".join([*lines, ""])


def _number(name: str) -> int:
    return int(name[1:])


if __name__ == "__main__":
    sys.exit(main())
