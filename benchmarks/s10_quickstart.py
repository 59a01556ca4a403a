"""S10: the quickstart after its installation: how long it takes on this machine, and where the time goes.

    python benchmarks/s10_quickstart.py [--pairs 1]

Runs `jobs/ensemble_then_distill.py` with its default config in a fresh run directory, `--pairs` times.
"""

import tempfile
from pathlib import Path
from statistics import median

from harness import Figure, Sample, alternate, arguments, prepare, publish
from runs import stage_seconds, time_process

LIMIT = 240
"""Seconds that it may take on 2 cores."""
NAME, ALLOWED = "quickstart", f"{LIMIT} s"


def main() -> None:
    """Runs the quickstart and reads its timings."""
    options = arguments(__doc__, pairs=1).parse_args()
    prepare(options)
    stages: list[dict[str, float]] = []

    def quickstart(number: int) -> Sample:
        with tempfile.TemporaryDirectory() as directory:
            command = ["jobs/ensemble_then_distill.py", "--storage", directory, "--run", NAME]
            seconds = time_process(command, Path(directory) / "log.txt")
            stages.append(stage_seconds(directory, NAME))
        return Sample(seconds, 1)

    samples = alternate({NAME: quickstart}, options.pairs)
    samples[ALLOWED] = [Sample(LIMIT, 1)] * options.pairs
    notes = [stage_table(stages, [sample.seconds for sample in samples[NAME]])]
    publish(Figure("S10", "quickstart", "runs", samples, at_most={(NAME, ALLOWED): 1.0}, notes=notes), options)


def stage_table(stages: list[dict[str, float]], totals: list[float]) -> str:
    """Returns the median seconds of every stage, in the order in which they end first, as a table."""
    times = {name: median(found[name] for found in stages) for name in stages[0]}
    total = median(totals)
    times["start, checks, report, export"] = total - sum(times.values())
    times["whole process"] = total
    rows = [f"| {name} | {seconds:.1f} | {seconds / total:.0%} |" for name, seconds in times.items()]
    return "\n".join(["| stage | seconds | share |", "|---|---:|---:|", *rows])


if __name__ == "__main__":
    main()
