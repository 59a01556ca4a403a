"""S5: the whole job, raysed against the shortest sentence-transformers script that does the same work.

    python benchmarks/s5_whole_job.py [--full] [--pairs 5] [--members 4] [--updates 50] [--sentences 2000]

Members by Contrastive Tension, their mean over the corpus, a learner of one epoch, its score on STS-B dev. Each side is
a process with all cores of this machine, from its start to its end: `jobs/ensemble_then_distill.py` with a config, and
`s5_peer.py`. raysed's process also scores the base and the members, exports the learner and writes a report with plots;
no setting leaves that out. Both sides have the same directory of M3, whose dropout is zero.

`--full` is 200 updates and the whole corpus, about half an hour a pair on 2 cores. The default has a quarter of the
updates and fewer sentences, so what is fixed (imports, Ray, the report) counts more in it.

`--bf16` is for both sides; `--set` hands other settings to raysed.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from harness import Figure, Sample, alternate, arguments, encoder_directory, prepare, publish
from harness import sentences as read_sentences
from runs import TASK, settings, stage_seconds, time_job, time_process, write_lines


def main() -> None:
    """Runs both scripts in turn."""
    parser = arguments(__doc__, sentences=2000)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--updates", type=int, default=50, help="of each member")
    parser.add_argument("--full", action="store_true", help="4 members, 200 updates, the whole corpus")
    parser.add_argument("--bf16", action="store_true", help="both train in mixed precision")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="for raysed")
    options = parser.parse_args()
    if options.full:
        options.members, options.updates, options.sentences = 4, 200, None
    prepare(options)
    if not options.dev.exists():
        sys.exit("--dev: both sides score their learner on a file of graded pairs")
    with tempfile.TemporaryDirectory() as directory:
        work = Work(options, Path(directory))
        samples = alternate({"raysed": work.raysed, "sentence-transformers": work.peer}, options.pairs)
    size = f"{options.members} members x {options.updates} updates, mean, learner over {work.count:,} sentences"
    title = f"{size}, {'bf16' if options.bf16 else 'fp32'}"
    publish(
        Figure("S5", title, "jobs", samples, {("raysed", "sentence-transformers"): 2.0}, notes=work.notes(samples)),
        options,
    )


@dataclass
class Work:
    """Both processes, and what the notes say of them.

    Attributes:
        options: the script's.
        directory: for everything that they read and write.
        stages: seconds of raysed's stages, by round.
    """

    options: argparse.Namespace
    directory: Path
    stages: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        texts = read_sentences(self.options)
        self.count = len(texts)
        self._corpus = write_lines(self.directory / "corpus.txt", texts)
        self._model = _without_dropout(encoder_directory(self.directory / "m3"))

    def raysed(self, number: int) -> Sample:
        """Runs the job with a config of its own."""
        options, run = self.options, f"round-{number}"
        gpu = options.device == "cuda"
        work = options.members, options.updates, gpu, options.bf16
        content = settings(self.directory, self._corpus, options.dev, *work)
        content |= {"run": run}
        content["encoder"] |= {"path": str(self._model), "model_kwargs": {}}
        seconds = time_job(content, options.overrides)
        self.stages.append(stage_seconds(self.directory, run))
        rows = json.loads((self.directory / run / "report.json").read_text())["rows"]
        learner = next(row for row in rows if row["kind"] == "learner")
        return Sample(seconds, 1, learner["metrics"][TASK]["spearman"])

    def peer(self, number: int) -> Sample:
        """Runs the peer's script."""
        options, log = self.options, self.directory / f"peer-{number}.log"
        command = ["benchmarks/s5_peer.py", "--device", options.device, *["--bf16"] * options.bf16]
        for name, value in {
            "model": self._model,
            "corpus": self._corpus,
            "dev": options.dev.resolve(),
            "members": options.members,
            "updates": options.updates,
        }.items():
            command += [f"--{name}", str(value)]
        seconds = time_process(command, log)
        return Sample(seconds, 1, float(re.findall(r"^dev (\S+)", log.read_text(), re.MULTILINE)[-1]))

    def notes(self, samples: dict[str, list[Sample]]) -> list[str]:
        """Says how long both took, and where raysed's time went."""
        times = [f"{name} {statistics.median(s.seconds for s in side):.0f} s" for name, side in samples.items()]
        stages = {name: statistics.median(found[name] for found in self.stages) for name in self.stages[0]}
        stages["all else"] = statistics.median(s.seconds for s in samples["raysed"]) - sum(stages.values())
        where = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in stages.items())
        return [f"Medians of the whole process: {', '.join(times)}. raysed's time by stage: {where}."]


def _without_dropout(model: Path) -> Path:
    """Both sides train without dropout: raysed because that is its default, the peer because the model has none."""
    config = json.loads((model / "config.json").read_text())
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (model / "config.json").write_text(json.dumps(config | off))
    return model


if __name__ == "__main__":
    main()
