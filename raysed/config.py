"""Typed, frozen settings: one block per stage, read from YAML with dotted overrides.

Every default is the papers' value where a paper gives one, and a block's identity changes exactly what depends on it.
The docstrings of the settings are the tables of docs/configuration.md, which `make docs` writes. They call None `null`,
as YAML does, and name pages as `docs/PAGE.md#HEADING`.
"""

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args
from urllib.parse import quote

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from raysed.config_text import SECRET, apply_override, explain, read_settings
from raysed.errors import UserError
from raysed.registry import stages, stages_of_pairs
from raysed.uris import names_secret, secret_in

Layers = int | Literal["first_last"]
Precision = Literal["auto", "fp32", "bf16"]
"""Weights and optimizers are in fp32 in any case."""
TargetPrecision = Literal["fp32", "fp16"]
Rate = Annotated[float, Field(gt=0)]
PACKAGE = "package:"
MEMBERS = "members"
"""What stands for the run's own members among the teachers."""
PYTHON = "python:"
"""What stands for objects of this process among the teachers, which `raysed.distill` may be given."""
CONFIGS = Path(__file__).parent / "configs"
"""Settings by name, in the package, so that an installed one can run."""

_LONGEST_NAME, _LARGEST = 200, 1e18
MOST = 1000
"""Models that are trained alike: each is listed, so that a number with too many digits would take all memory."""
NO_EFFECT = "no effect on results"
"""Marks a setting that changes how many results are made, where, when or how fast, but none of them."""
CHOICE = "chooses among results"
"""Marks a setting that decides which of several trained models is used, but not how each is trained."""


def source_mark(words: Callable[[], Iterable[str]] = tuple) -> AfterValidator:
    """Mark a setting that names files, a model or a data set; `words`, alone or before a colon, name no source."""

    def replaced(source: str, info: ValidationInfo) -> str:
        is_source = info.context and source and source.partition(":")[0] not in words()
        return info.context(info.field_name, source) if is_source else source

    return AfterValidator(replaced)


Source = Annotated[str, source_mark()]


class Block(BaseModel):
    """A frozen group of settings that refuses unknown keys, infinite numbers, yes or no for a number, and secrets.

    Marks say what the rest of the package has to know of a setting: `Source`, `NO_EFFECT` and `CHOICE`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        kinds = cls.model_fields[info.field_name].annotation
        values = value if isinstance(value, list) else [value]
        if any(isinstance(item, bool) for item in values) and bool not in (kinds, *get_args(kinds)):
            raise ValueError("yes, no, true and false are not allowed here")
        return value

    @field_validator("*")
    @classmethod
    def _can_be_used(cls, value: Any) -> Any:
        if isinstance(value, int | float) and abs(value) > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST:g}")
        if problem := secret_in(value):
            raise PydanticCustomError(SECRET, problem)
        return value

    def identity(self) -> dict[str, Any]:
        """Return what a result that is made with these settings depends on, as JSON."""
        return self.model_dump(mode="json", exclude={*self._marked(NO_EFFECT), *self._marked(CHOICE)})

    def choices(self) -> dict[str, Any]:
        """Return the settings that are marked as `CHOICE`, as JSON."""
        return self.model_dump(mode="json", include=self._marked(CHOICE))

    @classmethod
    def _marked(cls, mark: str) -> set[str]:
        return {name for name, field in cls.model_fields.items() if mark in field.metadata}


_AnyBlock = TypeVar("_AnyBlock", bound=Block)


def replace_sources(block: _AnyBlock, replace: Callable[[str, str], str]) -> _AnyBlock:
    """Return a block in which every source, also of blocks inside, is replaced by `replace(setting, source)`.

    >>> replace_sources(CorpusConfig(source="a.txt"), lambda name, source: f"/data/{source}").source
    '/data/a.txt'
    """
    return type(block).model_validate(block.model_dump(), context=replace)


def with_absolute_paths(block: _AnyBlock) -> _AnyBlock:
    """Return a block whose local files are named by absolute paths: workers have other working directories."""
    return replace_sources(block, lambda name, source: _absolute(source))


def _absolute(path: str) -> str:
    """Return a path or pattern below a directory that is there as an absolute one, and all else as it is."""
    local = os.path.abspath(os.path.expanduser(path))
    fixed, *wild = re.split(r"[*?[]", local, maxsplit=1)
    return local if os.path.exists(local) or (wild and os.path.isdir(os.path.dirname(fixed))) else path


class StaticConfig(Block):
    """A learner that is no transformer: one vector per token, and their mean over a sentence."""

    width: int | None = Field(None, ge=1)
    """Width of the vectors, at most that of the encoder at `encoder.path`. `null`: the same."""


def ascending(values: Any) -> Any:
    """Refuse a list that is not in order."""
    if isinstance(values, list) and sorted(set(values)) != values:
        raise ValueError("name each once and in ascending order")
    return values


def distinct(values: Any) -> Any:
    """Refuse an empty list, and one that has something twice."""
    if isinstance(values, list) and (not values or len(set(values)) < len(values)):
        raise ValueError("list at least one, and each once")
    return values


class EncoderConfig(Block):
    """The pre-trained transformer that members and learners start from."""

    path: Source = "bundled:encoder"
    """A local directory in Hugging Face layout with safetensors, a hub id, `package:NAME/DIR`, a folder of an installed
    Python package, `bundled:encoder`, which has learnt from published models, or `bundled:raw`, which is pre-trained
    only."""
    model_kwargs: dict[str, Any] = {}
    """Passed on to `AutoModel.from_pretrained`. For example, `{num_hidden_layers: 3}` keeps the first three layers."""
    keep_layers: Annotated[
        Annotated[int, Field(ge=1)] | Literal["half"] | list[Annotated[int, Field(ge=0)]] | None,
        AfterValidator(ascending),
    ] = None
    """Which layers are kept: a list, counted from 0, such as `[0, 2, 5]`; or how many, or `half` of them, evenly spread
    from the first to the last, which is best for a teacher's own layers (docs/distill.md). `null`: all."""
    trust_remote_code: bool = False
    """Whether code that comes with the model may run. See docs/security.md."""
    max_length: int = Field(75, ge=3)
    """Tokens per sentence, special tokens included (CT: 75). The rest is cut off; job and report say how much."""
    layers: Layers = 2
    """Layers pooled in the headline numbers, the dev score and the exported model: the last so many, or `first_last`
    (docs/methods.md#pooling). Training always pools the last layer (SED section 5.1: train on 1, evaluate on 2)."""
    static: StaticConfig | None = None
    """Makes the learner of teachers a table of one vector per token, which starts from what the encoder says of each
    token: a block of the settings below, or `{}`. See docs/distill.md#the-smallest-learner."""

    @field_validator("model_kwargs")
    @classmethod
    def _no_secret_among_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        names = re.findall(r'"([^"]*)": ', json.dumps(options, default=str))  # at any depth
        if secret := next(filter(names_secret, names), None):
            problem = f"{secret} may hold a secret; remove it, because settings are written into the run directory"
            raise PydanticCustomError(SECRET, f"{problem}; the hub's own tools find credentials in the environment")
        return options

    @model_validator(mode="after")
    def _layers_are_there(self) -> "EncoderConfig":
        if self.keep_layers == []:
            raise ValueError("encoder.keep_layers is empty; name at least one layer")
        if self.static and self.layers != 1:
            problem = "but encoder.static has no layers to choose from; set it to 1"
            raise ValueError(f"encoder.layers is {self.layers}, {problem}")
        return self


class CorpusConfig(Block):
    """Unlabelled sentences."""

    source: Source | list[Source] = "bundled:everyday"
    """A file, a directory, a pattern (`data/**/*.txt`), a URI, a hub dataset id or `bundled:everyday`, or a list of
    these. A `.txt` file has one sentence per line; see [file formats](#file-formats) for the others."""
    column: str | None = None
    """Column or field that holds the sentence. `null`: `sentence` or `text`."""
    split: str = "train"
    """Split of a hub dataset."""
    name: str | None = None
    """Configuration of a hub dataset."""
    sentences: int | None = Field(None, ge=1)
    """Draw exactly this many at random, whatever their order. `null`: keep all."""
    min_characters: int = Field(2, ge=1)
    """Shorter lines are left out and counted."""
    max_characters: int = Field(2000, ge=1)
    """Longer lines are left out and counted, too."""

    @model_validator(mode="after")
    def _lengths_leave_something(self) -> "CorpusConfig":
        least, most = self.min_characters, self.max_characters
        if least > most:
            raise ValueError(
                f"corpus.min_characters is {least}, which is more than corpus.max_characters ({most}); lower it"
            )
        return self


class TaskColumns(Block):
    """Names of the columns of a task where they are not well-known ones."""

    score: str | None = None
    """Name of the column that holds the score. `null`: the first of `score`, `similarity_score`, `relatedness_score`,
    `similarity`, `relatedness` and `label` that is there."""
    sentence1: str | None = None
    """Name of the column that holds the first sentence. `null`: `premise` and `hypothesis`, `sentence1` and
    `sentence2`, `text1` and `text2`, or these two words with `_a` and `_b` or `_1` and `_2`."""
    sentence2: str | None = None
    """The same for the second sentence."""
    subset: str | None = None
    """Name of a column that divides the pairs into subsets. `null`: `subset`, if there is one."""
    text: str | None = None
    """Name of the column with the texts of a classification or clustering. `null`: `text`, `sentence`, `utterance` or
    `title`."""
    label: str | None = None
    """Name of the column with their labels. `null`: `label`, `class`, `category`, `intent` or `topic`."""


class TaskConfig(Block):
    """One task that models are scored on: graded pairs, retrieval, or labelled texts."""

    source: Source
    """Graded pairs: a file with a pair per row and names for its columns, in one of the [file formats](#file-formats);
    a hub dataset; a `.txt` file of sentence, sentence and score, tab-separated (STS 2017 extended); a SentEval
    directory with `STS.input.<subset>.txt` and `STS.gs.<subset>.txt`, or one `STS.input.*.txt` with its scores beside
    it; `bundled:train`, `bundled:dev` or `bundled:test`. Retrieval: a directory in BEIR's layout (`corpus.jsonl`,
    `queries.jsonl`, `qrels/SPLIT.tsv`), or the file of its documents. Classification or clustering: a file with a text
    and its label per row."""
    kind: str | None = None
    """`pairs`, `retrieval`, `classification`, `clustering` or `neighbours` (the five nearest of labelled texts).
    `null`: `retrieval` for a directory in BEIR's layout and where `queries` are named, `classification` for a file of
    texts and labels, and else `pairs`."""
    queries: Source | None = None
    """File of a retrieval task's queries (`_id`, `text`), where they do not lie beside the documents."""
    qrels: Source | None = None
    """File that says which documents answer which query (`query-id`, `corpus-id`, `score`), likewise."""
    query_prompt: str = ""
    """Put before every query that a model embeds, e.g. `"query: "`."""
    document_prompt: str = ""
    """Put before every document that a model embeds."""
    columns: TaskColumns = TaskColumns()
    split: str | None = None
    """Split of a hub dataset (`null`: test; for `sts.train`: train). Of a file with a column `split`, the rows to take
    (`null`: all; a classification predicts those of `test` and learns from the others). Of a directory in BEIR's
    layout, the file in `qrels` (`null`: test, or the only one)."""
    name: str | None = None
    """Configuration of a hub dataset."""
    score_range: tuple[float, float] | None = (0.0, 5.0)
    """Lowest and highest gold score. Refused are scores outside of it, and twenty scores or more that fill less than a
    third of it: scores of 0 to 1 need `[0, 1]`. `null` takes any score; only for tasks that models are scored on."""
    aggregation: Literal["all", "mean", "wmean"] | None = None
    """Replaces `evaluation.aggregation` for this task. STS-B, whose subsets are genres, is scored as `all`."""

    @field_validator("score_range")
    @classmethod
    def _range_rises(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value and value[0] >= value[1]:
            raise ValueError("write the lowest score first, then the highest")
        return value


def _as_blocks(values: Any, key: str = "source") -> Any:
    """Return paths in a list or mapping as blocks."""
    if isinstance(values, Mapping):
        return {name: {key: value} if isinstance(value, str) else value for name, value in values.items()}
    return (
        [{key: value} if isinstance(value, str) else value for value in values] if isinstance(values, list) else values
    )


def as_blocks(value: Any) -> Any:
    """Return a path, or a list of paths and blocks, as a list of blocks."""
    return _as_blocks(value if isinstance(value, list) else [value])


class EvaluationConfig(Block):
    """What is scored, and how subsets are put together."""

    tasks: Annotated[dict[str, TaskConfig], BeforeValidator(_as_blocks)] = {
        "everyday-dev": TaskConfig(source="bundled:dev"),
        "everyday-test": TaskConfig(source="bundled:test"),
    }
    """Name to source, or name to a block with the settings of the next table."""
    dev: str | None = "everyday-dev"
    """The task that choices are made on, with its labels: the weights of `keep: best_on_dev`, the lower bound of `sts`,
    and the model to export. `null`: no choice uses labels."""
    report: list[str] | None = None
    """The tasks whose mean is the headline number. `null`: all but `evaluation.dev`, if there are others."""
    aggregation: Literal["all", "mean", "wmean"] = "mean"
    """How a task with several subsets becomes one number: `all`, `mean` (SED) or `wmean` (docs/methods.md#evaluation).
    All are recorded anyway."""
    drop_seen: bool = True
    """Leave pairs and labelled texts out of scores that a recipe learns from with labels, or that are in the dev task,
    too: what is left is told of text that nobody has trained on. `false`: they are scored and counted, as in published
    tables."""
    layers: list[Layers] = [1, 2, 3]
    """Depths of pooling at which every model is scored beside `encoder.layers` (SED table 8)."""

    @model_validator(mode="after")
    def _names_are_tasks(self) -> "EvaluationConfig":
        if not self.tasks:
            raise ValueError("evaluation.tasks is empty; name at least one file of graded sentence pairs")
        for name in self.tasks:  # a directory may be called so
            if name in ("", ".", "..") or not name.isprintable() or len(quote(name)) > _LONGEST_NAME:
                raise ValueError(f"evaluation.tasks has the name {name[:99]!r}; use a short one that can be printed")
        there = f"which is not in evaluation.tasks; name one of {', '.join(self.tasks)}"
        if self.dev is not None and self.dev not in self.tasks:
            raise ValueError(f"evaluation.dev names {self.dev!r}, {there}, or use null for none")
        for name in self.report or []:
            if name not in self.tasks:
                raise ValueError(f"evaluation.report names {name!r}, {there}")
        return self

    def report_tasks(self) -> list[str]:
        """Return the names of the tasks whose mean is the headline number."""
        return self.report or [name for name in self.tasks if name != self.dev] or list(self.tasks)


class MembersConfig(Block):
    """The ensemble."""

    count: int = Field(10, ge=1, le=MOST)
    """Number of members."""
    share: float = Field(1.0, gt=0, le=1)
    """Share of the corpus that each member reads, drawn for itself, so that members differ in what they have read. Of
    pairs, and of views that are made before, all members read all."""
    min_members: int | None = Field(None, ge=1)
    """Go on with this many when others keep failing; the report names those left out. `null`: all are needed."""
    max_retries: Annotated[int, NO_EFFECT] = Field(2, ge=0)
    """Restarts of a failed member without a new checkpoint in between, each from its newest one."""
    evaluate_every: int = Field(500, ge=1)
    """Updates between two evaluations on the dev task."""
    checkpoint_every: Annotated[int, NO_EFFECT] = Field(500, ge=1)
    """Updates between two checkpoints. A crash costs at most this many."""
    precision: Precision = "auto"
    """`bf16` (autocast; weights stay in fp32), `fp32`, or `auto`: `bf16` on GPUs whose hardware has it (A100, L4 and
    later) and on CPUs with AMX, `fp32` elsewhere. See docs/speed.md."""

    @model_validator(mode="after")
    def _enough_for_the_minimum(self) -> "MembersConfig":
        if (self.min_members or 1) > self.count:
            raise ValueError(
                f"members.min_members is {self.min_members}, which is more than members.count ({self.count}); lower it"
            )
        return self


ViewKind = Literal["same", "files", "entailment", "synonym", "mlm", "back_translation"]
Part = Annotated[float, Field(gt=0, lt=1)]


class PairSource(Block):
    """One source of pairs of sentences."""

    source: Source
    """A file in one of the [file formats](#file-formats), or a hub dataset."""
    split: str | None = None
    """Split of a hub dataset (`null`: train). Of a file with a column `split`, the rows to take (`null`: all)."""
    name: str | None = None
    """Configuration of a hub dataset."""


class ViewSource(PairSource):
    """One source of pairs of sentences that mean the same."""

    source: Source
    """A file in one of the [file formats](#file-formats), or a hub dataset. A `.tsv` or `.txt` file of two
    tab-separated columns needs no names. Known names are `view1` and `view2`, `sentence1` and `sentence2`, `english`
    and `non_english`, `anchor` and `positive`, `source` and `target`, and those of `nli.train`."""
    columns: tuple[str, str] | None = None
    """Names of the two columns, where they are others: `[en, de]`. `null`: the first pair of known names."""


class ViewsConfig(Block):
    """Two views of the same meaning, which `bsl` and `contrastive` learn from (BSL sections 3.2 and 4.4)."""

    files: Annotated[list[ViewSource], BeforeValidator(as_blocks)] = []
    """Sources of the kind `files`, put together: a path, a hub id, or a block of the settings below."""
    synonym_share: Part = 0.3
    """Share of a sentence's words that `synonym` replaces by others of the same WordNet sense."""
    mlm_rate: Part = 0.2
    """Share of a sentence's tokens that `mlm` masks and fills."""
    mlm_model: Source | None = None
    """Masked language model that fills: a path, a hub id or `bundled:raw` (the paper: `roberta-base`). `null`: the
    run's encoder, which must have its head."""
    pivots: Annotated[list[tuple[Source, Source]], Field(min_length=1, max_length=2)] = [
        ("Helsinki-NLP/opus-mt-en-de", "Helsinki-NLP/opus-mt-de-en"),
        ("Helsinki-NLP/opus-mt-en-fr", "Helsinki-NLP/opus-mt-fr-en"),
    ]
    """Translation models there and back of `back_translation`. Two pairs give the two views (the paper); one pair gives
    the sentence and its back-translation."""
    max_unusable: float = Field(0.5, ge=0, lt=1)
    """Largest share of pairs with an empty view or two identical ones, which are left out. Beyond it the run ends."""


class TeacherConfig(Block):
    """A model from outside whose embeddings are a learner's target."""

    path: Annotated[str, source_mark(lambda: [MEMBERS])]
    """A sentence-transformers model or a plain transformer, by directory, hub id, `package:NAME/DIR` or
    `bundled:encoder`; an `.onnx` file, or a directory that has one; a `.parquet` file with the columns `sentence` and
    `embedding`; or `members`, the mean of the members that another recipe of the run trains (`members:ct` where there
    are several)."""
    name: str | None = None
    """What reports call it. `null`: the last part of its path."""
    prompt: str = ""
    """Put before every sentence, e.g. `"query: "`."""
    layers: Layers = 1
    """Pooled layers of a plain transformer. A sentence-transformers model brings its own pooling."""
    max_length: int = Field(75, ge=3)
    """Tokens per sentence of a plain transformer, special tokens included; likewise."""

    @property
    def title(self) -> str:
        """Return what reports call it: of a path that ends in `model` or the like the part before."""
        parts = [part for part in re.split(r"[/:]", self.path) if part]
        names = [part for part in parts if part not in ("model", "encoder")] or parts
        return self.name or (self.path if self.is_members else names[-1].removesuffix(".parquet"))

    @property
    def is_members(self) -> bool:
        """Return whether it is an ensemble of the run itself."""
        return self.path.split(":")[0] == MEMBERS


class CombinationConfig(Block):
    """How the vectors of several `teachers` become one target."""

    how: Literal["concatenated", "mean"] = "concatenated"
    """`concatenated`: unit vectors side by side, so that the target's cosines are the mean of the teachers'; for any
    widths. `mean`: the plain mean (SED), for copies of one encoder. Targets wider than the learner are reduced to its
    width by their principal directions. See docs/distill.md#combining."""
    weights: list[Annotated[float, Field(gt=0)]] | None = None
    """One weight per teacher. `null`: equal ones."""
    balance: Literal["none", "centred"] = "none"
    """`centred`: before they are put side by side, each teacher's unit vectors are centred on their mean over the
    corpus and scaled by one number, so that all teachers have the same total variance (PHI-S). For teachers whose
    cosines are all high, see docs/distill.md#balance."""
    leave_out: bool = False
    """Distil only the teachers that are best on the dev task: the smallest subset that no larger one beats by 0.1 or
    more. All subsets of up to 6 teachers are tried; of more, teachers are added one by one."""
    turn: bool | None = None
    """Whether targets are turned as a whole towards what the learner says before it learns: no cosine changes, and the
    learner has less to relearn. `null`: yes, except for a single teacher of the learner's width. With `sed.widths`
    targets are turned to their principal directions instead, and with `sed.head` not at all."""

    def identity(self) -> dict[str, Any]:
        """Return what targets depend on; a balance that is not asked for is none of it, as before there was one."""
        return {key: value for key, value in super().identity().items() if (key, value) != ("balance", "none")}


def fitted_on() -> tuple[str, ...]:
    """Return what `flow.fit_on` may name instead of a source; a stage stands for its labelled pairs."""
    return ("corpus", "tasks", *stages_of_pairs())


class FlowConfig(Block):
    """BERT-flow (paper table 7 and section 4; optimizer numbers from the released code)."""

    variant: Literal["paper", "released"] = "paper"
    """`paper`: 2 levels that start from the data's own means and deviations. `released`: 3 levels that start from small
    random values, as the code really ran (docs/methods.md#flow)."""
    depth: int = Field(3, ge=1)
    """Steps per level."""
    hidden: int = Field(32, ge=1)
    """Width of the coupling networks."""
    learning_rate: float = Field(1e-3, gt=0)
    """Constant learning rate."""
    epochs: float = Field(1.0, gt=0)
    """Passes over the pairs."""
    batch_size: int = Field(32, ge=2)
    """Pairs per update. Sentences that are not pairs are taken two at a time."""
    fit_on: Annotated[str, source_mark(fitted_on)] = "corpus"
    """What the flow and the affine calibrations are fitted on: `corpus`; `tasks`, the sentences of all tasks (never
    their scores), as in the papers, which scores too well (SED appendix B.3); `nli` or `sts`, the pairs of `nli.train`
    or `sts.train`; or another source as in `corpus.source`."""
    fit_sentences: int | None = Field(10_000, ge=2)
    """Sentences of the corpus or the source, drawn at random. `null`: all. Tasks and labelled pairs are taken whole."""
    fit_tasks: list[str] | None = None
    """Which tasks `tasks` means, e.g. STS12 to 16. `null`: all."""
    per_task: bool = False
    """`true`: one fit for each task on its own sentences (BERT-flow), also of the affine calibrations, instead of one
    on all together (SED). It cannot be exported, and needs `flow.fit_on: tasks`."""
    fits: Annotated[int, NO_EFFECT] = Field(1, ge=1, le=MOST)
    """Flows fitted to a model that is alone in its row, such as the base, to show what a seed does."""


class CalibrationConfig(Block):
    """The affine calibrations `sn`, `natsv` and `whiten`; fitted on the same sentences as the flow."""

    natsv_k: Annotated[int, Field(ge=1)] | Literal["dev"] = 10
    """Singular directions that `natsv` removes (BERT-flow table 5: 10 alone, 6 after `sn`). `dev`: 1 to 20, whichever
    scores best on the dev task."""


Format = Literal["onnx", "int8", "int8_avx2"]


class ExportConfig(Block):
    """The model that ends up in `model/`."""

    recipe: str | None = None
    """The recipe whose model becomes `model/`; of several alike, the best on the dev task. `null`: the best there of
    all models, the untouched encoder and its calibrated versions among them; a trained one has to beat the untouched
    encoder under the same calibration. Without a dev task it is the last recipe of the list."""
    allow_worse: bool = False
    """`true`: write `model/` also where the chosen model is worse on the dev task, by 0.1 or more, than the untouched
    encoder or TF-IDF. `false`: only if `export.recipe` names it. Without a model the run is complete all the same; its
    report and last line say why, and the exit code is 3."""
    formats: list[Format] = []
    """Further formats of the exported transformer, for sentence-transformers' `backend="onnx"`: `onnx`; `int8`, for
    AVX-512 VNNI or ARM64; `int8_avx2`, for older processors (see [formats](distill.md#onnx-and-int8)). They need `pip
    install 'raysed[onnx]'`, and `encoder.layers: 1`."""


class ResourcesConfig(Block):
    """Planned from what the cluster has where nothing is set."""

    engine: Annotated[Literal["auto", "ray", "local"], NO_EFFECT] = "auto"
    """What runs the work: `ray`, on the cluster of `RAY_ADDRESS` or a Ray of this machine; `local`, this process alone,
    one thing after the other; `auto`: Ray where `RAY_ADDRESS` is set or Python has started Ray, and where several
    trainings (members, several learners) or GPUs can be used at the same time. The results are the same, and a run goes
    on with either."""
    cpus_per_member: Annotated[float | None, NO_EFFECT] = Field(None, gt=0)
    """CPUs of each member. `null`: one, or more where there are fewer members than cores."""
    gpus_per_member: Annotated[float | None, NO_EFFECT] = Field(None, gt=0)
    """GPUs of each member: a fraction where several share one, or a whole number. `null`: as many on each GPU as fit in
    85 % of its memory, see docs/size.md."""
    concurrent_members: Annotated[int | None, NO_EFFECT] = Field(None, ge=1)
    """The most members that train at the same time. `null`: as many as fit."""
    gpu: Annotated[bool | None, NO_EFFECT] = None
    """`null`: use GPUs where the cluster has some. `true`: there must be some, and a cluster that grows is asked for
    them. `false`: leave them alone."""
    encode_token_budget: Annotated[int | None, NO_EFFECT] = Field(None, ge=64)
    """Tokens per forward pass when sentences are only embedded. `null`: 2,048 on CPUs, 65,536 on GPUs, and 8,192 in dev
    scores of a training. What memory does not suffice for is halved."""
    encode_precision: Precision = "auto"
    """The precision in which teachers embed the corpus, as in `members.precision`, and in which `raysed teachers` asks
    them. Means are taken in fp32, and scores of a run are always of embeddings in fp32. See docs/speed.md."""
    wait_minutes: Annotated[float, NO_EFFECT] = Field(10.0, ge=0)
    """How long to wait for an autoscaling cluster to bring what the members can use; at most two minutes after the last
    node that came."""
    silence_seconds: Annotated[float, NO_EFFECT] = Field(300.0, gt=0)
    """A worker that is stopped for this long, as by SIGSTOP, is ended and started again, as if it had died."""
    stall_seconds: Annotated[float, NO_EFFECT] = Field(1800.0, gt=0)
    """A worker that lives but makes no update for this long is ended and started again, too. Evaluations between
    updates count, so it has to be longer than the longest of them."""

    @model_validator(mode="after")
    def _gpus_can_be_given(self) -> "ResourcesConfig":
        gpus = self.gpus_per_member or 0
        if gpus > 1 and gpus % 1:
            raise ValueError(f"resources.gpus_per_member is {gpus:g}; above 1 it must be a whole number")
        if gpus and self.gpu is False:
            raise ValueError("resources.gpus_per_member is set but resources.gpu is false; leave one of them out")
        return self


class _Common(Block):
    """All settings of a run. Whether those of several blocks go together, `raysed.plan.consistency` says."""

    run: Annotated[str, NO_EFFECT] = Field("quickstart", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the run and of its directory: letters, digits, `.`, `_` and `-`."""
    storage: Annotated[str, NO_EFFECT] = "runs"
    """Directory or URI (`s3://…`, `gs://…`) under which run directories lie, which all machines reach. Credentials come
    from the environment; in any setting, a URI with a password, a key or a token is refused."""
    seed: int = Field(0, ge=0)
    """Seeds of the draw from the corpus and of every member, learner and flow are derived from it. On one machine it
    gives the same files, on GPUs up to rounding (docs/faults.md)."""
    recipes: list[str] = ["ct-sed-flow"]
    """What to make. Stages that recipes share are done once."""
    teachers: Annotated[list[TeacherConfig], BeforeValidator(partial(_as_blocks, key="path"))] = []
    """The models of recipes that begin with `teachers`: each a path, or a block of settings, see
    docs/configuration.md#teachers-and-combination-models-that-a-learner-learns-from."""
    encoder: EncoderConfig = EncoderConfig()
    corpus: CorpusConfig = CorpusConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    members: MembersConfig = MembersConfig()
    views: ViewsConfig = ViewsConfig()
    combination: CombinationConfig = CombinationConfig()
    flow: FlowConfig = FlowConfig()
    calibration: CalibrationConfig = CalibrationConfig()
    export: ExportConfig = ExportConfig()
    resources: ResourcesConfig = ResourcesConfig()


@cache
def _config() -> type[_Common]:
    """Return the settings of a run: what all runs have, and a block for each stage, which its file brings."""
    blocks = {name: (stage.Settings, stage.Settings()) for name, stage in stages().items()}
    return create_model("Config", __base__=_Common, __module__=__name__, __doc__=_Common.__doc__, **blocks)


def __getattr__(name: str) -> Any:
    """Make `Config` when it is first asked for: stages use the blocks above, so they cannot be imported before."""
    if name == "Config":
        return _config()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if TYPE_CHECKING:
    Config = _Common


def find_config(name: str, directory: Path = CONFIGS) -> Path:
    """Return the file behind `--config`: a path, or the name of a config that comes with the package."""
    for path in (Path(name), directory / f"{name}.yaml"):
        if os.path.isfile(path):
            return path
    known = ", ".join(sorted(path.stem for path in directory.glob("*.yaml")))
    raise UserError(
        f"--config {name}: there is no such file, and no config of that name; the named configs are {known}"
    )


def load_config(path: Path | None, overrides: Iterable[str] = ()) -> "Config":
    """Read a YAML file, and the one that it is based on, and apply overrides `block.key=value`."""
    data = read_settings(path, _config(), CONFIGS) if path else {}
    for item in overrides:
        apply_override(data, item)
    return make_config(data)


def make_config(data: Mapping[str, Any]) -> "Config":
    """Validate a nested mapping.

    >>> make_config({"ct": {"steps": 5}}).ct.steps
    5
    >>> make_config({"ct": {"step": 5}})
    Traceback (most recent call last):
        ...
    raysed.errors.UserError: unknown setting ct.step: did you mean ct.steps?
    """
    try:
        return _config().model_validate(data)
    except ValidationError as error:
        raise UserError(explain(error, data, _config())) from None


def dump_config(config: "Config") -> str:
    """Return the resolved configuration as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def stable_hash(value: Any) -> str:
    """Return 16 hex digits that depend on content only: not on key order, process or platform.

    >>> stable_hash({"a": 1, "b": 2}) == stable_hash({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def derive_seed(*parts: Any) -> int:
    """Return a seed that depends on all parts and on nothing else.

    >>> derive_seed(0, "ct", 1) == derive_seed(0, "ct", 1) != derive_seed(0, "ct", 2)
    True
    """
    return int(stable_hash(list(parts)), 16) % 2**62


def package_folder(path: str) -> str:
    """Return the directory behind `package:NAME/DIR`, a folder of an installed package; nothing is imported."""
    package, _, folder = path.removeprefix(PACKAGE).partition("/")
    if not package.isidentifier():
        problem = f"{path!r} does not name a Python package; write it as {PACKAGE}NAME/DIR"
        raise UserError(problem, setting="encoder.path")
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise UserError(
            f"{path!r} needs the Python package {package!r}; install it with pip install {package.replace('_', '-')}",
            setting="encoder.path",
        )
    return str(Path(found.submodule_search_locations[0]) / folder)
