"""Relations at full width: whether a learner gains if it also learns how similar its teachers find sentences.

    python benchmarks/relations.py --local ../shared/data

To the distance from the combined teachers (`sed.loss: unit_mse`), whose vectors a projection has cut to the learner's
width, comes the mean squared difference of the batch's cosine matrix from the mean of the teachers' own matrices, each
of all coordinates. A batch is 16 sentences with their three nearest by the combined vectors, so that some cosines are
high, or 64 sentences as they come; it is a function of seed and step. Text, tasks, steps and settings are those of
controls.py, whose row of three teachers is what these are compared with. ROWS have the weight of the new loss and the
number of nearest sentences.

The page is `relations.md` beside the headline's. The same command continues what was stopped.

Sources: Jasper and Stella (arXiv:2412.19048), whose similarity loss this is; jina-embeddings-v5 (arXiv:2602.15547).
"""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch.nn import functional as F

from raysed.config import CorpusConfig, load_config
from raysed.data.batches import Batches
from raysed.data.corpus import CorpusReport, sentence_chunks
from raysed.data.parquet import SentenceTable, Source, matrix
from raysed.data.targets import TargetBatch
from raysed.data.tokens import TokenTable, pack
from raysed.model.combination import side_by_side
from raysed.process import prepare_process
from raysed.train.stages import sed

from controls import SUFFIX, THREE, shorter, trained_options
from harness import ROOT
from headline import ALL, SIX, TEACHERS, Arm, Bench, Scores, loaded, write_comparison
from headline_data import texts

ARM = Arm(SIX, ALL)
ROWS = {
    "relations 10": (10, 3),
    "relations 100": (100, 3),
    "relations 10, no nearest": (10, 0),
    "relations 0": (0, 3),
}
DRAWN, WEIGHT, NEAREST, SEED = (f"RELATIONS_{name}" for name in ("DRAWN", "WEIGHT", "NEAREST", "SEED"))
"""Environment of a job: directory of the run's text and embeddings, its row, and its seed."""
LEAST_CORRELATION = 0.9
"""Of cosines of the teachers' own vectors with those of the targets, of random pairs; otherwise rows are mixed up."""


@dataclass(frozen=True)
class Related(TargetBatch):
    """Sentences with their targets, and the mean of the teachers' cosine matrices, [B, B]."""

    cosines_BB: torch.Tensor = field(kw_only=True)


class Neighbourhoods(Batches):
    """Batches of sentences with their nearest ones, held in memory."""

    def __init__(self, targets: Source, drawn: Path, batch_size: int, seed: int):
        table = SentenceTable(targets)
        rows = table.rows(0, len(table), ["id", "input_ids", "target"])
        super().__init__(len(rows), batch_size, seed)
        self._tokens, self._targets_ND = TokenTable.from_arrow(rows), matrix(rows["target"])
        files = [pq.read_table(drawn / f"{name}.parquet", columns=["embedding"]) for name in TEACHERS[ALL]]
        wide_ND = side_by_side([matrix(file["embedding"]) for file in files], is_unit=True)
        self._wide_ND = (wide_ND / np.sqrt(len(files))).astype(np.float32)[in_order(drawn)][self._tokens.ids]
        check_rows(self._wide_ND, self._targets_ND)
        self._nearest = nearest(self._targets_ND, int(os.environ[NEAREST]))

    def __call__(self, step: int) -> Related:
        sources = self.batch_size // (self._nearest.shape[1] + 1)
        epoch, index = divmod(step, self.count // sources)
        order = np.random.default_rng([self.seed, epoch]).permutation(self.count)
        chosen = order[index * sources : (index + 1) * sources]
        rows = np.unique(np.concatenate([chosen, self._nearest[chosen].ravel()]))
        wide = torch.from_numpy(self._wide_ND[rows])
        return Related(
            pack(self._tokens.take(rows), few_shapes=self.few_shapes),
            torch.from_numpy(self._targets_ND[rows]),
            cosines_BB=wide @ wide.T,
        )


def in_order(drawn: Path) -> np.ndarray:
    """Returns which line of the text each sentence of a run is: runs of other seeds read it in another order."""
    line_of = {text: line for line, text in enumerate(texts(drawn / "text.txt"))}
    corpus = CorpusConfig(source=str(drawn / "text.txt"), sentences=len(line_of))
    chunks = sentence_chunks(corpus, int(os.environ[SEED]), CorpusReport())
    return np.array([line_of[text] for _, chunk in chunks for text in chunk])


def check_rows(wide_ND: np.ndarray, targets_ND: np.ndarray) -> None:
    """Raises RuntimeError unless both have the same sentences in the same order."""
    pairs = np.random.default_rng(0).integers(len(wide_ND), size=(2, 2000))
    cosines = [side_by_side([x_ND], is_unit=True)[pairs] for x_ND in (wide_ND, targets_ND)]
    found = np.corrcoef(*[(first * second).sum(1) for first, second in cosines])[0, 1]
    if found < LEAST_CORRELATION:
        raise RuntimeError(f"vectors and targets have other sentences or orders: cosines correlate by {found:.2f}")


def nearest(x_ND: np.ndarray, count: int, block: int = 1024) -> np.ndarray:
    """Returns the rows most similar to each row, itself left out, [N, count]."""
    unit = F.normalize(torch.from_numpy(x_ND), dim=1)
    found = []
    for start in range(0, len(unit), block):
        cosines = unit[start : start + block] @ unit.T
        cosines[torch.arange(len(cosines)), start + torch.arange(len(cosines))] = -2
        found.append(cosines.topk(count, dim=1).indices)
    return torch.cat(found).numpy()


class Relations(sed.Distillation):
    """Distillation with the loss of relations."""

    def loss(self, batch: Related) -> torch.Tensor:
        unit_BD = F.normalize(self.learner(batch.tokens).float(), dim=1)
        with torch.autocast(unit_BD.device.type, enabled=False):
            distance = sed.unit_mse(unit_BD, batch.targets)
            difference = (unit_BD @ unit_BD.T - batch.cosines_BB)[~torch.eye(len(unit_BD), dtype=torch.bool)]
            return distance + float(os.environ[WEIGHT]) * difference.square().mean()

    forward = loss


def job() -> None:
    """Runs `jobs/ensemble_then_distill.py`, in which distillation has the new loss and its batches."""
    sys.path.insert(0, str(ROOT))
    from raysed.cli import main_of
    from raysed.commands.run import job, parser

    drawn = Path(os.environ[DRAWN])
    kind = type(sed.STAGE)
    kind.objective = lambda self, settings, start: Relations(start.encoder, settings.dropout, settings.loss)
    kind.batches = lambda self, settings, start: Neighbourhoods(
        start.data["targets"], drawn, settings.batch_size, start.seed
    )
    sys.exit(main_of(job, parser()))


def main() -> None:
    """Trains what is missing, scores all, and writes the page."""
    parser = trained_options(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS), help="train these rows alone")
    arguments = parser.parse_args()
    prepare_process()
    bench = Bench.of(arguments)
    drawn = bench.drawn(ARM, 0)
    bench.more = [*bench.more, shorter(load_config(bench.config("relations"), bench.more))]
    for row in arguments.only:
        for seed in arguments.seeds:
            learn(bench, row, seed, drawn)
    if arguments.unscored:
        return
    names = [THREE, *map(named, ROWS)]
    scores = Scores.of(bench.learners(names), loaded(bench.data, bench.sample), bench.results)
    pairs = [(name, THREE) for name in names[1:]]
    write_comparison("Relations at full width", scores, pairs, bench.results / "relations.md")


def named(row: str) -> str:
    """Returns the name of a learner."""
    return f"{ARM.name}, {row}{SUFFIX}"


def learn(bench: Bench, row: str, seed: int, drawn: Path) -> None:
    """Trains one seed unless its learner exists."""
    run = f"{row.replace(',', '').replace(' ', '-')}-{seed}"
    path, (weight, count) = bench.config(run), ROWS[row]
    overrides = [*bench.more, *ARM.overrides(load_config(path, bench.more), drawn, seed)]
    os.environ |= {DRAWN: str(drawn), WEIGHT: str(weight), NEAREST: str(count), SEED: str(seed)}
    bench.train_once(named(row), seed, path, overrides, script=("benchmarks/relations.py", "job"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["job"]:
        sys.argv.pop(1)
        job()
    else:
        main()
