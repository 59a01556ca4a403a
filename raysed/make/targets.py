"""Target tables: the mean of an ensemble's members, the embeddings of external teachers, and their combination.

A stream of actors makes them in blocks of the corpus (see `raysed.cluster.streaming`). Memory in flight is O(D) per
sentence and ensemble for any number of teachers, and a stopped run continues with the missing blocks.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from raysed.config import Precision, Role, TeacherConfig
from raysed.context import Context
from raysed.data.parquet import ROLE, ROWS_PER_GROUP, TEXTS, BlockFiles, SentenceTable, Source, roles_in
from raysed.data.targets import MEAN, matrix, with_column, with_targets
from raysed.data.tokens import TokenTable
from raysed.errors import UserError
from raysed.make.inputs import Named, layers_file
from raysed.model.combination import Combination, fit_combination, side_by_side, turn
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.model.head import START
from raysed.model.precision import uses_bf16
from raysed.model.pretrained import load_checkpoint, load_start
from raysed.model.prompts import embed_by_role
from raysed.model.teacher import Teacher, load_teacher
from raysed.resources import device_here
from raysed.score.ensemble import Ensemble
from raysed.score.metrics import unit
from raysed.score.tasks import mean_embeddings

COMBINATION, PRODUCTS = "combination.npz", "products.npy"
CHOICE = "choice.json"  # the best set of teachers on the dev task
_SENTENCES_AT_ONCE = {"cpu": 1024, "cuda": 4096}
"""Sentences to embed at once: enough of equal length to fill a pass, and few enough to need little memory."""
_VERIFIED_ROWS = 32
_MAX_DIFFERENCE = {"fp32": 2e-2, "bf16": 5e-2, "auto": 5e-2}
"""Largest difference of a target from its fp32 re-encoding, by precision, relative to the largest target or 1."""
_TURN_SENTENCES = 4 * ROWS_PER_GROUP  # sentences to fit the rotation on: many more than dimensions


# -- the mean of members ---------------------------------------------------------------------------------------------


class MeanBlocks:
    """Add members' embeddings to the running float32 sums of a block; the last actor of a chain divides.

    A chain of these holds more members than one actor can. Any chain gives the same mean.

    `inputs["part"]` has the table number and directory of each member. `inputs["counts"]` has the number of members
    per table for the last actor of a chain, and is empty for the others.
    """

    columns, kept = ("id", "input_ids", TEXTS.name), ("id", "input_ids", TEXTS.name, "target")

    def __init__(self, inputs: Named, settings: Named, context: Context):
        paths: dict[int, list[Path]] = {}
        for index, path in inputs["part"]:
            paths.setdefault(index, []).append(path)
        about = context.device, inputs["encoder"].trust_remote_code, context.precision
        self._sums = {index: teacher_sum(of_table, *about) for index, of_table in paths.items()}
        self._counts, self._target_precision = dict(enumerate(inputs["counts"])), settings["target_precision"]
        self._rows_at_once = _SENTENCES_AT_ONCE[context.device]

    def __call__(self, table: pa.Table) -> pa.Table:
        for index in sorted({*self._sums, *self._counts}):
            table = self._with_sum(table, index)
        return table

    def _with_sum(self, batch: pa.Table, index: int) -> pa.Table:
        """Return a batch with the sum or mean of a table as fixed-size lists of float32 [D] in a column."""
        column, sums_BD = f"target-{index}", np.zeros((len(batch), 1), np.float32)
        if column in batch.column_names:
            sums_BD = matrix(batch.column(column))
        if index in self._sums:
            tokens, add = TokenTable.from_arrow(batch), self._sums[index]
            cuts = np.split(np.arange(len(tokens)), range(self._rows_at_once, len(tokens), self._rows_at_once))
            sums_BD = np.concatenate([add(tokens.take(rows), sums_BD[rows]) for rows in cuts])
        if index not in self._counts:
            return with_column(batch, column, sums_BD)
        return with_targets(batch, sums_BD / np.float32(self._counts[index]), self._target_precision, column)


def mean_targets(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Write the mean of all blocks' targets, and re-encode some rows to check their order."""
    shape, trusted = _write_mean(out, inputs["blocks"]), inputs["encoder"].trust_remote_code
    verified = verify_targets(inputs["blocks"], inputs["teachers"], trusted, settings["precision"])
    return {**shape, "teachers": len(inputs["teachers"]), "verified": verified}


def _write_mean(out: Path, blocks: BlockFiles) -> dict[str, int]:
    """Write the mean of a table's targets; return its shape."""
    facts = blocks.facts()
    if (rows := sum(of_block["rows"] for of_block in facts)) != blocks.rows:
        raise RuntimeError(f"{blocks.rows} sentences were embedded, but the blocks have {rows}")
    np.save(out / MEAN, sum(np.array(of_block["sum"]) for of_block in facts) / blocks.rows)
    return blocks.shape


def teacher_sum(
    paths: Sequence[Path],
    device: str = "cpu",
    trust_remote_code: bool = False,
    precision: Precision = "fp32",
    token_budget: int | None = None,
) -> Callable[..., np.ndarray]:
    """Load teachers; return a function of B sentences and the sum so far that adds the teachers' embeddings [B, D].

    Embeddings are not normalised (SED section 4) and pool the last layer (section 5.1).
    """

    def load(path: Path) -> Encoder:
        encoder = load_checkpoint(path, trust_remote_code).to(device).eval()
        if uses_bf16(precision, encoder):
            encoder.round_weights()
        return encoder

    encoders = [load(path) for path in paths]

    def add(table: TokenTable, sums_BD: Any = 0) -> np.ndarray:
        return sum((encode(encoder, table, token_budget=token_budget)[0] for encoder in encoders), sums_BD)

    return add


def verify_targets(
    targets: Source, teachers: Sequence[Path], trust_remote_code: bool = False, precision: Precision = "fp32"
) -> float:
    """Re-encode 32 random rows in fp32, one teacher in memory at a time; return the largest difference.

    Raises:
        RuntimeError: a target does not belong to its sentence; targets in bf16 may differ more.
    """
    table = SentenceTable(targets)
    rows = np.random.default_rng(len(table)).choice(len(table), min(_VERIFIED_ROWS, len(table)), replace=False)
    # Sorted rows read no row group twice.
    picked = [table.rows(int(row), int(row) + 1, ("id", "input_ids", "target")) for row in np.sort(rows)]
    sample = pa.concat_tables(picked)
    tokens = TokenTable.from_arrow(sample)
    target_BD = matrix(sample.column("target"))
    sums_BD = np.zeros_like(target_BD)
    for path in teachers:
        embed = teacher_sum([path], token_budget=1, trust_remote_code=trust_remote_code)
        sums_BD += embed(tokens)
        del embed  # before the next teacher is loaded
    difference_BD = np.abs(sums_BD / len(teachers) - target_BD)
    scale = max(float(np.abs(target_BD).max()), 1.0)
    largest = float(difference_BD.max())
    if largest > _MAX_DIFFERENCE[precision] * scale:
        wrong = tokens.ids[difference_BD.max(1).argmax()]
        raise RuntimeError(f"the target of sentence {wrong} is not the mean of its teachers (off by {largest:.3g})")
    return largest


def mean_of_members(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Write the members' mean embeddings of the evaluation's sentences, as those of one teacher."""
    file = layers_file(settings["layers"])
    mean_UD = mean_embeddings([np.load(path / file) for path in inputs["embeddings"]])
    np.save(out / file, mean_UD)
    return {"width": mean_UD.shape[1], "parameters": None}


# -- external teachers -----------------------------------------------------------------------------------------------


class Embedder:
    """Add embeddings of a column of sentences, as a stage of Ray Data's `map_batches`.

        dataset.map_batches(
            Embedder, fn_constructor_args=("models/mine",), compute=ray.data.ActorPoolStrategy(size=2), num_cpus=1
        )

    With GPUs Ray needs a batch size, too: `num_gpus=1, batch_size=1024`. Any size gives the same embeddings.

    Args:
        model: as in `teachers`: a directory, hub id, or file of embeddings.
        output: the new column, float32 [N, D].
        device: None: a GPU if the actor has one.
        precision: `auto`: bf16 if that is faster on the device.
        role: `query` or `document` adds the model's prompt for it before each sentence.
    """

    def __init__(
        self,
        model: str | PathLike | Teacher,
        column: str = "sentence",
        output: str = "embedding",
        device: str | None = None,
        precision: Precision = "fp32",
        role: Role = "",
    ):
        for name, value, known in (("role", role, get_args(Role)), ("precision", precision, get_args(Precision))):
            if value not in known:
                raise UserError(f"{name} is {value!r}; use one of {', '.join(map(repr, known))}")
        if not isinstance(model, Teacher):
            device = device or device_here()
            model = load_teacher(TeacherConfig(path=str(model)), device=device, precision=precision)
        self._teacher, self._column, self._output, self._role = model, column, output, role

    def __call__(self, batch: Any) -> Any:
        """Return the batch (a table, data frame, or NumPy arrays by column) with the new column.

        Raises:
            UserError: a sentence is null or no text, the column is missing, or an embedding is not finite.
        """
        return _with_output(batch, self._output, self.embed(batch))

    def embed(self, batch: Any) -> np.ndarray:
        """Return the embeddings of a batch's sentences, float32 [B, D]."""
        names = batch.column_names if hasattr(batch, "column_names") else list(batch)
        if self._column not in names:
            raise UserError(f"the batch has no column {self._column!r}; it has {', '.join(map(str, names))}")
        column = batch[self._column]
        sentences = column.to_pylist() if hasattr(column, "to_pylist") else np.asarray(column, object).tolist()
        for row, sentence in enumerate(sentences):
            if not isinstance(sentence, str):
                found = f"row {row} of the batch: {self._column} is {str(sentence)[:60]!r}"
                raise UserError(f"{found}, of type {type(sentence).__name__}; a sentence must be text")
        if not sentences:
            return np.zeros((0, self.width), np.float32)
        x_BD = embed_by_role(self._teacher.embed, sentences, self._roles(batch, len(sentences)))
        broken = np.flatnonzero(~np.isfinite(x_BD).all(1))
        if len(broken):
            first, path = sentences[broken[0]][:60], self._teacher.config.path
            raise UserError(f"teachers: {path!r}: its embedding of {first!r} is not finite")
        return x_BD

    @property
    def width(self) -> int:
        """D, by embedding a sentence."""
        return self._teacher.width

    def _roles(self, batch: Any, count: int) -> Sequence[Role]:
        return [self._role] * count


def _with_output(batch: Any, name: str, x_BD: np.ndarray) -> Any:
    if hasattr(batch, "column_names"):
        return with_column(batch, name, x_BD)
    return {**batch, name: x_BD} if isinstance(batch, dict) else batch.assign(**{name: list(x_BD)})


class MeanOfTeachers:
    """Add the mean of several models' unit vectors of a sentence, as a stage of Ray Data's `map_batches`.

        dataset.map_batches(
            MeanOfTeachers, fn_constructor_args=(["models/a", "models/b"],), num_cpus=1,
            compute=ray.data.ActorPoolStrategy(size=2),
        )

    The column is what `Embedder` would add for a model whose vectors are these means. What `write_parquet` writes is a
    teacher: `raysed.distill(["vectors/"], corpus="vectors/")`.

    With GPUs Ray needs a batch size, too: `num_gpus=1, batch_size=1024`. Any size gives the same means.

    Args:
        models: as `model` of `Embedder`, each with its own tokenizer, prompts and pooling; of equal widths.
        output: the new column, float32 [N, D].
        device: None: a GPU if the actor has one.
        precision: `auto`: bf16 if that is faster on the device.

    Raises:
        UserError: there are no models, one cannot be loaded, or two have different widths.
    """

    def __init__(
        self,
        models: Sequence[str | PathLike | Teacher],
        column: str = "sentence",
        output: str = "embedding",
        device: str | None = None,
        precision: Precision = "fp32",
    ):
        if isinstance(models, str | PathLike | Teacher) or not isinstance(models, Sequence) or not models:
            raise UserError("models must be a list of at least one model")
        self._embedders = [Embedder(model, column, output, device, precision) for model in models]
        self._output, first = output, self._embedders[0]
        for model, embedder in zip(models, self._embedders):
            if embedder.width != first.width:
                widths = f"{str(models[0])!r} embeds in {first.width} numbers, but {str(model)!r} in {embedder.width}"
                raise UserError(f"{widths}; a mean needs equal widths")

    def __call__(self, batch: Any) -> Any:
        """Return the batch with the new column, as `Embedder` does, and with its errors."""
        sum_BD = sum(unit(embedder.embed(batch)) for embedder in self._embedders)
        return _with_output(batch, self._output, sum_BD / np.float32(len(self._embedders)))


class TeacherBlocks(Embedder):
    """Embed blocks of sentences with one external teacher."""

    columns, kept = ("id", "sentence", ROLE.name), ("id", "target")

    def __init__(self, inputs: Named, settings: Named, context: Context):
        super().__init__(load_teacher(inputs["teacher"], context.device, context.precision), output="target")

    def _roles(self, batch: pa.Table, count: int) -> Sequence[Role]:
        return roles_in(batch)


def teacher_rows(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Record that all blocks of a teacher's embeddings exist."""
    shape = inputs["blocks"].shape
    (out / "blocks").write_text(f"{shape['blocks']}\n")
    return shape


def choice_of_teachers(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Choose the best set of teachers on the dev task."""
    dev, file = inputs["dev"], layers_file(inputs["dev"].layers)
    embeddings = [np.load(path / file)[dev.rows] for path in inputs["embeddings"]]
    found = Ensemble(dev.evaluation, settings["combination"], embeddings).choose(list(dev.evaluation.tasks))
    (out / CHOICE).write_text(json.dumps(found, indent=1))
    return found


def worth_of_teachers(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Score the teachers alone and together on the evaluation's tasks."""
    embeddings = [np.load(path / layers_file(settings["layers"])) for path in inputs["embeddings"]]
    choice = json.loads((inputs["choice"] / CHOICE).read_text()) if inputs["choice"] else {}
    ensemble = Ensemble(inputs["sentences"].evaluation, settings["combination"], embeddings)
    found = ensemble.gain(list(settings["tasks"]), choice)
    (out / "worth.json").write_text(json.dumps(found, indent=1))
    return found


class TeacherVectors:
    """The teachers' embeddings of the corpus, by rows."""

    def __init__(self, inputs: Named, widths: Sequence[int]):
        self.widths = widths
        self._teachers = [SentenceTable(inputs[f"teacher {index}"]) for index in range(len(widths))]

    def __len__(self) -> int:
        return len(self._teachers[0])

    def rows(self, start: int, stop: int) -> list[np.ndarray]:
        """Return each teacher's embeddings of some sentences, [B, D_k]."""
        return [matrix(teacher.rows(start, stop, ("target",)).column("target")) for teacher in self._teachers]

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Yield the first row and the embeddings of every `ROWS_PER_GROUP` sentences, whatever the blocks' size."""
        for first in range(start, stop, ROWS_PER_GROUP):
            yield first, self.rows(first, min(first + ROWS_PER_GROUP, stop))


def teacher_products(out: Path, inputs: Named, settings: Named, context: Context) -> None:
    """Write X'X of the rows X of `side_by_side`, summed over some sentences of the corpus in their order."""
    table, how = TeacherVectors(inputs, settings["widths"]), settings["combination"]
    products_EE = np.zeros((sum(table.widths), sum(table.widths)))
    for _, parts in table.parts(settings["start"], min(settings["stop"], len(table))):
        rows_BE = side_by_side(parts, how.how != "mean")
        products_EE += rows_BE.T @ rows_BE
    np.save(out / PRODUCTS, products_EE)


def combination(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Fit the map from the teachers' embeddings to targets; a learner's head starts at the best fit to these.

    Targets turn to the vectors `old` of another model, if given, else to the untrained learner's. The fact `shared`
    tells whether they are in a single teacher's space.
    """
    table, sed, how = TeacherVectors(inputs, settings["widths"]), settings["sed"], settings["combination"]
    encoder, _ = load_start(inputs["encoder"], inputs["start"])
    products_EE = sum((np.load(path / PRODUCTS) for path in inputs["products"]), np.zeros(()))
    weights, width = how.weights or [1.0] * len(table.widths), None if sed.head else encoder.width
    found = fit_combination(how.how, weights, table.widths, products_EE, width, bool(sed.widths))
    is_shared_space = settings["widths"] == [encoder.width]
    if sed.head or (how.turn if how.turn is not None else not (is_shared_space or sed.widths)):
        products_DH, corpus = np.zeros((found.width, encoder.width)), SentenceTable(inputs["corpus"])
        old = TeacherVectors({"teacher 0": inputs["old"]}, [encoder.width]) if "old" in inputs else None
        for start, parts in table.parts(0, min(len(table), _TURN_SENTENCES)):
            targets_BD = found.target(parts).astype(np.float64)
            tokens = TokenTable.from_arrow(corpus.rows(start, start + len(targets_BD), ("id", "input_ids")))
            (goals_BH,) = old.rows(start, start + len(tokens)) if old else encode(encoder, tokens, (1,))
            products_DH += targets_BD.T @ side_by_side([goals_BH], is_unit=True)
        if sed.head:
            np.save(out / START, turn(products_DH.T).astype(np.float32))
        else:
            found = found.turned(products_DH)
    found.save(out / COMBINATION)
    shared = len(table.widths) == 1 and found.is_identity
    return {"teachers": len(table.widths), "width": found.width, "kept": found.kept, "shared": shared}


class CombinedBlocks:
    """Add the teachers' combined embeddings to a block of the corpus."""

    columns, kept = ("id", "input_ids", TEXTS.name), ("id", "input_ids", TEXTS.name, "target")

    def __init__(self, inputs: Named, settings: Named, context: Context):
        self._table = TeacherVectors(inputs, settings["widths"])
        self._combination = Combination.load(inputs["combination"] / COMBINATION)
        self._precision, self._group, self._targets_BD = settings["target_precision"], -1, np.zeros((0, 0))

    def __call__(self, table: pa.Table) -> pa.Table:
        group, first = divmod(table.column("id")[0].as_py(), ROWS_PER_GROUP)
        if group != self._group:  # as a whole: products of other numbers of rows may round differently
            start, self._group = group * ROWS_PER_GROUP, group
            stop = min(start + ROWS_PER_GROUP, len(self._table))
            self._targets_BD = self._combination.target(self._table.rows(start, stop))
        return with_targets(table, self._targets_BD[first : first + len(table)], self._precision)


def combined_targets(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Write the mean of all blocks' targets; where heads learn, copy what theirs start from."""
    if (start := inputs["combination"] / START).exists():
        shutil.copy(start, out)
    return _write_mean(out, inputs["blocks"])


def combined_embeddings(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Write the combined teachers' embeddings of the evaluation's sentences."""
    file = layers_file(settings["layers"])
    found = Combination.load(inputs["combination"] / COMBINATION)
    np.save(out / file, found.target([np.load(path / file) for path in inputs["embeddings"]]))
    return {"kept": found.kept}
