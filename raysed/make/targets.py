"""Target tables: the mean of an ensemble's members, the embeddings of external teachers, and their combination.

They are made from blocks of the corpus that a stream of actors publishes (see `raysed.cluster.streaming`): memory in
flight is O(D) per sentence and ensemble for any number of teachers, and a stopped run continues with missing blocks.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raysed.cluster.work import Work
from raysed.config import CombinationConfig, EncodePrecision
from raysed.data.parquet import SentenceTable, open_table
from raysed.data.queries import roles_in
from raysed.data.targets import ROWS_PER_GROUP, TargetWriter, matrix, with_column, with_targets
from raysed.data.tokens import TokenTable
from raysed.errors import UserError
from raysed.make.work import Named, layers_file
from raysed.model.combination import Combination, fit_combination, side_by_side, turn
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.model.head import START, VARIANCE
from raysed.model.int8 import COMPARED
from raysed.model.precision import uses_bf16
from raysed.model.pretrained import load_checkpoint, load_start
from raysed.model.prompts import embed_by_role
from raysed.model.teacher import load_teacher
from raysed.score.ensemble import Ensemble
from raysed.score.tasks import mean_embeddings
from raysed.store.progress import steps

COMBINATION = "combination.npz"  # the fitted combination, next to the targets
CHOICE = "choice.json"  # which teachers are best together on the dev task
_SMALLEST_BLOCK, _LARGEST_BLOCK = 256, 4096  # sentences, all lost with their worker
_SENTENCES_AT_ONCE = {"cpu": 1024, "cuda": _LARGEST_BLOCK}
"""Sentences to embed at once: enough of equal length to fill a pass, few enough to need little memory."""
_VERIFIED_ROWS = 32
_CALIBRATION = 300  # sentences that a teacher is quantized on: with 64, cosines are 0.01 lower
_MAX_DIFFERENCE = {"fp32": 2e-2, "bf16": 5e-2, "auto": 5e-2, "int8": 5e-2}
"""Of a target, by its precision, from its fp32 re-encoding, relative to the largest target or 1."""
_TURN_SENTENCES = 4 * ROWS_PER_GROUP  # sentences that decide how targets are turned: many more than dimensions
_LEAST_VARIANCE = 1e-4  # floor of starting variances, relative to their mean: dimensions without content have none

Block = tuple[Callable[[], Path], Named]
"""A function that fetches a block's file, and the block's metadata."""


# -- the mean of members ---------------------------------------------------------------------------------------------


def block_rows(rows: int) -> int:
    """Return the sentences per block: fewer for a small corpus, to keep several actors busy.

    >>> block_rows(10**6), block_rows(6000), block_rows(300)
    (4096, 500, 256)
    """
    return min(max(rows // 12, _SMALLEST_BLOCK), _LARGEST_BLOCK)


class MeanBlocks:
    """Add its teachers' embeddings to the running float32 sums of a block; the last of a chain divides.

    `inputs["part"]` has the table number and directory of each teacher; `inputs["counts"]` the number of teachers per
    table for the last of a chain, otherwise nothing.
    """

    columns = ("id", "input_ids")

    def __init__(self, inputs: Named, settings: Named, work: Work):
        paths: dict[int, list[Path]] = {}
        for index, path in inputs["part"]:
            paths.setdefault(index, []).append(path)
        trusted = inputs["encoder"].trust_remote_code
        self._rows_at_once = _SENTENCES_AT_ONCE[work.device]
        self._columns = [f"target-{index}" for index in paths]
        self._sums = teacher_sums(list(paths.values()), work.token_budget, work.device, trusted, work.precision)
        self._counts, self._target_precision = inputs["counts"], settings["target_precision"]

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the block with its sums."""
        tokens = TokenTable.from_arrow(table)
        cuts = np.split(np.arange(len(tokens)), range(self._rows_at_once, len(tokens), self._rows_at_once))
        parts = [self._sums(tokens.take(rows)) for rows in cuts]
        for column, sums in zip(self._columns, zip(*parts, strict=True), strict=True):
            sums_BD = np.concatenate(sums)
            if column in table.column_names:
                sums_BD += matrix(table.column(column))
            table = with_column(table, column, sums_BD)
        return table

    def blocks(self, table: pa.Table) -> list[tuple[pa.Table, dict[str, Any]]]:
        """Return the block of each target table, and its metadata."""
        rows = table.select(["id", "input_ids"])
        means = [matrix(table.column(f"target-{i}")) / np.float32(count) for i, count in enumerate(self._counts)]
        return [(with_targets(rows, means_BD, self._target_precision), {}) for means_BD in means]


def mean_targets(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """Join the blocks of a target table, and re-encode some rows: none may be lost, repeated or mixed up."""
    blocks: Sequence[Block] = inputs["blocks"]
    writer = TargetWriter(out)
    for path, _ in blocks:
        writer.add(open_table(path()).read())
    writer.close(len(SentenceTable(inputs["corpus"])))
    trusted, precision = inputs["encoder"].trust_remote_code, settings["precision"]
    verified = verify_targets(out, inputs["teachers"], trusted, precision)
    return {"teachers": len(inputs["teachers"]), "rows": writer.rows, "verified": verified}


def teacher_sums(
    groups: Sequence[Sequence[Path]],
    token_budget: int | None,
    device: str = "cpu",
    trust_remote_code: bool = False,
    precision: EncodePrecision = "fp32",
) -> Callable[[TokenTable], list[np.ndarray]]:
    """Load teachers; return a function that sums each group's raw last-layer embeddings of B sentences, float32 [B, D].

    SED section 4 averages embeddings without normalisation, and section 5.1 pools the last layer.
    """

    def load(path: Path) -> Encoder:
        encoder = load_checkpoint(path, trust_remote_code).to(device).eval()
        if uses_bf16(precision, encoder):
            encoder.round_weights()
        return encoder

    encoders = [[load(path) for path in paths] for paths in groups]

    def sums(table: TokenTable) -> list[np.ndarray]:
        return [sum(encode(e, table, token_budget=token_budget)[0] for e in group) for group in encoders]

    return sums


def verify_targets(
    directory: Path, teachers: Sequence[Path], trust_remote_code: bool = False, precision: EncodePrecision = "fp32"
) -> float:
    """Re-encode 32 random rows in fp32, one teacher in memory at a time; return the largest difference.

    A larger one is tolerated if targets may be in bf16.

    Raises:
        RuntimeError: a target does not belong to its sentence.
    """
    table = SentenceTable(directory)
    rows = np.random.default_rng(len(table)).choice(len(table), min(_VERIFIED_ROWS, len(table)), replace=False)
    # Sorted, so that no row group is read twice.
    picked = [table.rows(int(row), int(row) + 1, ("id", "input_ids", "target")) for row in np.sort(rows)]
    sample = pa.concat_tables(picked)
    tokens = TokenTable.from_arrow(sample)
    target_BD = matrix(sample.column("target"))
    sums_BD = np.zeros_like(target_BD)
    for path in teachers:
        embed = teacher_sums([[path]], token_budget=1, trust_remote_code=trust_remote_code)
        sums_BD += embed(tokens)[0]
        del embed  # before the next teacher is loaded
    difference_BD = np.abs(sums_BD / len(teachers) - target_BD)
    scale = max(float(np.abs(target_BD).max()), 1.0)
    largest = float(difference_BD.max())
    if largest > _MAX_DIFFERENCE[precision] * scale:
        wrong = tokens.ids[difference_BD.max(1).argmax()]
        raise RuntimeError(f"the target of sentence {wrong} is not the mean of its teachers (off by {largest:.3g})")
    return largest


def mean_of_members(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """Write the members' mean embeddings of the evaluation's sentences, as those of one teacher."""
    file = layers_file(settings["layers"])
    mean_UD = mean_embeddings([np.load(path / file) for path in inputs["embeddings"]])
    np.save(out / file, mean_UD)
    return {"width": mean_UD.shape[1], "parameters": None, "sentences_per_second": None}


# -- external teachers -----------------------------------------------------------------------------------------------


class TeacherBlocks:
    """Embed blocks of sentences with one external teacher.

    Teacher and text identify a block, so another combination or a larger corpus computes only new ones.
    """

    columns = ("id", "sentence", "of")
    is_keyed = True

    def __init__(self, inputs: Named, settings: Named, work: Work):
        self._path, about = inputs["teacher"].path, (work.token_budget, work.device, work.precision)
        self._teacher = load_teacher(inputs["teacher"], *about, int8=inputs.get("int8"))

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the block with its embeddings; refuse non-finite ones."""
        sentences = table.column("sentence").to_pylist()
        x_BD = embed_by_role(self._teacher.embed, sentences, roles_in(table))
        broken = np.flatnonzero(~np.isfinite(x_BD).all(1))
        if len(broken):
            first = sentences[broken[0]][:60]
            raise UserError(f"teachers: {self._path!r}: its embedding of {first!r} is not finite")
        return with_column(table.select(["id"]), "target", x_BD)

    def blocks(self, table: pa.Table) -> list[tuple[pa.Table, dict[str, Any]]]:
        """Return the block as it is."""
        return [(table, {})]


def teacher_in_int8(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """Quantize a teacher on sentences of the corpus; return how near its vectors are to those in fp32, or why not."""
    if work.device != "cpu":
        return {"reason": "this run embeds on GPUs"}
    table = SentenceTable(inputs["corpus"])
    rows = np.random.default_rng(len(table)).permutation(len(table))[: COMPARED + _CALIBRATION]
    texts = {row: table.rows(row, row + 1, ("sentence",)).column(0)[0].as_py() for row in np.sort(rows).tolist()}
    teacher = load_teacher(inputs["teacher"], work.token_budget)
    return teacher.write_int8([texts[row] for row in rows.tolist()], out)


def teacher_rows(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """Record that all blocks of a teacher's embeddings are there; they are not copied."""
    (out / "blocks").write_text(f"{len(inputs['blocks'])}\n")
    return {"blocks": len(inputs["blocks"])}


def choice_of_teachers(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """Choose the teachers that are best together on the dev task."""
    dev, file = inputs["dev"], layers_file(inputs["dev"].layers)
    embeddings = [np.load(path / file)[dev.rows] for path in inputs["embeddings"]]
    found = Ensemble(dev.evaluation, settings["combination"], embeddings, steps).choose(list(dev.evaluation.tasks))
    (out / CHOICE).write_text(json.dumps(found, indent=1))
    return found


def worth_of_teachers(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """Score the teachers alone and together on the evaluation's tasks."""
    embeddings = [np.load(path / layers_file(settings["layers"])) for path in inputs["embeddings"]]
    choice = json.loads((inputs["choice"] / CHOICE).read_text()) if inputs["choice"] else {}
    ensemble = Ensemble(inputs["sentences"].evaluation, settings["combination"], embeddings, steps)
    found = ensemble.gain(list(settings["tasks"]), choice)
    (out / "worth.json").write_text(json.dumps(found, indent=1))
    return found


def combined_targets(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """Write a table of id, input_ids and the teachers' combined embedding, and the combination next to it.

    `shared` in the manifest says whether targets are in a single teacher's space. Teachers that the dev task has not
    chosen contribute nothing.
    """
    table, sed = TeacherVectors(inputs, settings["widths"]), settings["sed"]
    encoder, _ = load_start(inputs["encoder"], inputs["start"])
    how, is_ordered = settings["combination"], bool(sed.widths)
    combination = _fitted(table, how, None if sed.head else encoder.width, is_ordered)
    is_shared_space = settings["widths"] == [encoder.width]
    if sed.head:
        products_DH, own_HH, squares_D = _products(table, combination, encoder, work)
        start_HD = turn(products_DH.T)
        np.save(out / START, start_HD.astype(np.float32))
        if sed.head == "drop":
            off_D = squares_D + (start_HD * (own_HH @ start_HD - 2 * products_DH.T)).sum(0)
            off_D /= min(len(table.corpus), _TURN_SENTENCES)
            np.save(out / VARIANCE, np.maximum(off_D, _LEAST_VARIANCE * off_D.mean()).astype(np.float32))
    elif how.turn if how.turn is not None else not (is_shared_space or is_ordered):
        combination = combination.turned(_products(table, combination, encoder, work)[0])
    combination.save(out / COMBINATION)
    writer = TargetWriter(out)
    for start, parts in table.parts(len(table.corpus)):
        targets_BD = combination.target(parts)
        block = table.corpus.rows(start, start + len(targets_BD), ("id", "input_ids"))
        writer.add(with_targets(block, targets_BD, sed.target_precision))
    writer.close(len(table.corpus))
    about = {"rows": len(table.corpus), "teachers": len(table.widths), "width": combination.width}
    is_shared = len(table.widths) == 1 and combination.is_identity
    return {**about, "kept": combination.kept, "shared": is_shared}


class TeacherVectors:
    """The teachers' embeddings of the corpus, block by block.

    An external teacher is a list of blocks; an ensemble of this run is a target table in corpus order. `kept` are the
    numbers of the teachers that are distilled.
    """

    def __init__(self, inputs: Named, widths: Sequence[int]):
        self.widths = widths
        self.corpus, self.kept = SentenceTable(inputs["corpus"]), list(range(len(widths)))
        if "choice" in inputs:
            self.kept = json.loads((inputs["choice"] / CHOICE).read_text())["chosen"]
        self._teachers = [inputs[f"teacher {index}"] for index in range(len(widths))]
        self._teachers = [SentenceTable(of) if isinstance(of, Path) else of for of in self._teachers]

    def parts(self, rows: int) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Yield the first row and the teachers' embeddings of each block, up to `rows`."""
        for start in range(0, rows, ROWS_PER_GROUP):
            stop = min(start + ROWS_PER_GROUP, len(self.corpus))
            tables = [
                teacher.rows(start, stop, ("target",))
                if isinstance(teacher, SentenceTable)
                else open_table(teacher[start // ROWS_PER_GROUP][0]()).read()
                for teacher in self._teachers
            ]
            yield start, [matrix(table.column("target"))[: rows - start] for table in tables]


def _fitted(table: TeacherVectors, how: CombinationConfig, width: int | None, is_ordered: bool) -> Combination:
    products_EE, sums_E = np.zeros((sum(table.widths), sum(table.widths))), np.zeros(sum(table.widths))
    for _, parts in table.parts(len(table.corpus)):
        rows_BE = side_by_side(parts, how.how != "mean")
        products_EE += rows_BE.T @ rows_BE
        sums_E += rows_BE.sum(0)
    count = len(table.widths)
    weights = [weight if k in table.kept else 0.0 for k, weight in enumerate(how.weights or [1.0] * count)]
    centred_on = (sums_E, len(table.corpus)) if how.balance == "centred" else None
    return fit_combination(how.how, weights, table.widths, products_EE, width, is_ordered, centred_on)


def _products(
    table: TeacherVectors, combination: Combination, encoder: Encoder, work: Work
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compare targets with the untrained learner's embeddings of some sentences.

    Returns sums over these sentences: targets times the learner's unit vectors [D, H], these times themselves [H, H],
    and the squared targets [D].
    """
    corpus, size = table.corpus, encoder.width
    products_DH, own_HH = np.zeros((combination.width, size)), np.zeros((size, size))
    squares_D = np.zeros(combination.width)
    for start, parts in table.parts(min(len(corpus), _TURN_SENTENCES)):
        targets_BD = combination.target(parts).astype(np.float64)
        tokens = TokenTable.from_arrow(corpus.rows(start, start + len(targets_BD), ("id", "input_ids")))
        (own_BH,) = encode(encoder, tokens, (1,), work.token_budget)
        unit_BH = side_by_side([own_BH], is_unit=True)
        products_DH += targets_BD.T @ unit_BH
        own_HH += unit_BH.T @ unit_BH
        squares_D += np.square(targets_BD).sum(0)
    return products_DH, own_HH, squares_D


def combined_embeddings(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """Write the combined teachers' embeddings of the evaluation's sentences."""
    file = layers_file(settings["layers"])
    combination = Combination.load(inputs["targets"] / COMBINATION)
    np.save(out / file, combination.target([np.load(path / file) for path in inputs["embeddings"]]))
    return {"kept": combination.kept}
