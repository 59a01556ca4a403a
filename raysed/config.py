"""Typed, frozen settings: one block per stage, read from YAML with dotted overrides.

Defaults are the papers' values where a paper gives one. `Block.identity` decides which results a setting invalidates.
`make docs` copies the strings below the fields to docs/configuration.md; `docs/PAGE.md#HEADING` becomes a link.
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

from raysed.config_text import SECRET, apply_override, dump, explain, read_settings
from raysed.errors import UserError
from raysed.registry import stages, stages_of_pairs
from raysed.uris import secret_in

Layers = int | Literal["first_last"]
Precision = Literal["auto", "fp32", "bf16"]
"""Precision of forward passes; trained weights and optimizer states are always fp32."""
TargetPrecision = Literal["fp32", "fp16"]
Role = Literal["", "query", "document", "prompted query", "prompted document"]
"""A text's role in a search, which decides its prompt; empty: none; `prompted`: its task has added the prompt."""
Rate = Annotated[float, Field(gt=0)]
PROMPTS = ("query_prompt", "document_prompt")
"""Settings of a model's prompts, which decide tokens but not weights."""
PACKAGE = "package:"
MEMBERS = "members"
"""Stands for the run's own members in `teachers`."""
PYTHON = "python:"
"""Stands for an object of this process in `teachers`, as `raysed.distill` accepts it."""
CONFIGS = Path(__file__).parent / "configs"
"""Named configs, installed with the package."""

_LONGEST_NAME, _MAX_NUMBER = 200, 1e18
_MODEL_KWARGS = {"cache_dir", "num_hidden_layers", "revision"}
MAX_MODELS = 1000
"""Most models of a kind: each is listed, so a number with too many digits would exhaust memory."""
NO_EFFECT = "no effect on results"
"""Marks a setting that affects the number, place or time of results, but not their content."""
SELECTION_ONLY = "chooses among results"
"""Marks a setting that decides which trained model is used, not how it is trained."""


def source_mark(words: Callable[[], Iterable[str]] = tuple) -> AfterValidator:
    """Mark a setting that names files, a model or a data set; `words`, alone or before a colon, are no sources."""

    def replaced(source: str, info: ValidationInfo) -> str:
        not_empty(source)
        is_source = info.context and source.partition(":")[0] not in words()
        return info.context(info.field_name, source) if is_source else source

    return AfterValidator(replaced)


def not_empty(name: str) -> str:
    """Reject an empty name, which would silently stand for a default or the current directory."""
    if not name:
        raise PydanticCustomError("empty", "it is empty; leave it out, or name something")
    return name


Source = Annotated[str, source_mark()]


class Block(BaseModel):
    """A frozen group of settings; rejects unknown keys, infinite numbers, booleans for numbers, and secrets.

    The marks `Source`, `NO_EFFECT` and `SELECTION_ONLY` tell the rest of the package how to treat a setting.
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
        if isinstance(value, int | float) and abs(value) > _MAX_NUMBER:
            raise ValueError(f"it is larger than {_MAX_NUMBER:g}")
        if problem := secret_in(value):
            raise PydanticCustomError(SECRET, problem)
        return value

    def identity(self) -> dict[str, Any]:
        """Return the settings that results depend on, as JSON."""
        unused = {*self._marked(NO_EFFECT), *self._marked(SELECTION_ONLY)}
        return self.model_dump(mode="json", exclude=unused)

    def only(self, *names: str) -> "Block":
        """Return the block with these settings and defaults for the others."""
        return type(self)(**{name: getattr(self, name) for name in names})

    @classmethod
    def _marked(cls, mark: str) -> set[str]:
        return {name for name, field in cls.model_fields.items() if mark in field.metadata}


_AnyBlock = TypeVar("_AnyBlock", bound=Block)


def replace_sources(block: _AnyBlock, replace: Callable[[str, str], str]) -> _AnyBlock:
    """Return the block with all its sources, nested ones included, replaced by `replace(setting, source)`.

    >>> replace_sources(CorpusConfig(source="a.txt"), lambda name, source: f"/data/{source}").source
    '/data/a.txt'
    """
    return type(block).model_validate(block.model_dump(), context=replace)


def with_absolute_paths(block: _AnyBlock) -> _AnyBlock:
    """Return the block with absolute paths for local files: workers have other working directories."""
    return replace_sources(block, lambda name, source: _absolute(source))


def _absolute(path: str) -> str:
    """Make an existing path, or a pattern in an existing directory, absolute; return all else unchanged."""
    local = os.path.abspath(os.path.expanduser(path))
    fixed, *wild = re.split(r"[*?[]", local, maxsplit=1)
    return local if os.path.exists(local) or (wild and os.path.isdir(os.path.dirname(fixed))) else path


class StaticConfig(Block):
    """A static model: one vector per token, averaged over the sentence."""

    width: int | None = Field(None, ge=1)
    """Width of the vectors. `null`: the encoder's, which is the most."""


def ascending(values: Any) -> Any:
    """Reject a list that does not rise strictly."""
    if isinstance(values, list) and sorted(set(values)) != values:
        raise ValueError("name each once and in ascending order")
    return values


def distinct(values: Any) -> Any:
    """Reject an empty list, and one with duplicates."""
    if isinstance(values, list) and (not values or len(set(values)) < len(values)):
        raise ValueError("list at least one, and each once")
    return values


def each_once(values: Any) -> Any:
    """Reject a list with duplicates."""
    if len(set(values)) < len(values):
        raise ValueError("list each once")
    return values


class EncoderConfig(Block):
    """The pre-trained transformer that members and learners start from."""

    path: Source = "bundled:encoder"
    """Directory with safetensors, hub id, `package:NAME/DIR` (a folder of an installed package), `bundled:encoder`
    (distilled) or `bundled:raw` (pre-trained only)."""
    model_kwargs: dict[str, Any] = {}
    """Arguments of `AutoModel.from_pretrained`: `num_hidden_layers` (the first so many), `revision`,
    `cache_dir`."""
    keep_layers: Annotated[
        Annotated[int, Field(ge=1)] | Literal["half"] | list[Annotated[int, Field(ge=0)]] | None,
        AfterValidator(ascending),
    ] = None
    """Layers to keep: a list counted from 0, such as `[0, 2, 5]`; or a number or `half`, spread evenly. `null`:
    all."""
    trust_remote_code: bool = False
    """Run code that comes with the model. See SECURITY.md."""
    max_length: int = Field(75, ge=3)
    """Tokens per sentence, including special tokens (CT: 75). The report counts what is cut."""
    pool_layers: Layers = 2
    """Last layers to average in scores, choices and exports, or `first_last` (docs/methods.md#pooling). Training
    uses the last."""
    query_prompt: str | None = None
    """With `corpus.queries`: prefix for each query, also in the exported model. `null`: the one in the model's
    files."""
    document_prompt: str | None = None
    """The same for each document."""
    vocabulary: Literal["corpus"] | None = None
    """`corpus`: export only the tokens that the corpus needs (docs/serve.md#fewer-tokens). `null`: all."""
    static: StaticConfig | None = None
    """Train a static model, one vector per token: `{}`, or the settings below (docs/distill.md#static-models)."""

    @field_validator("model_kwargs")
    @classmethod
    def _only_known_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        if unknown := sorted(options.keys() - _MODEL_KWARGS):  # which may be a secret
            raise PydanticCustomError(SECRET, f"{unknown[0]} cannot be set; use {', '.join(sorted(_MODEL_KWARGS))}")
        return options

    @property
    def is_cut(self) -> bool:
        """Whether it has only some of the model's layers."""
        return self.keep_layers is not None or "num_hidden_layers" in self.model_kwargs

    @model_validator(mode="after")
    def _has_layers(self) -> "EncoderConfig":
        if self.keep_layers == []:
            raise ValueError("encoder.keep_layers is empty; name at least one layer")
        if type(layers := self.model_kwargs.get("num_hidden_layers", 1)) is not int or layers < 1:
            raise ValueError(f"encoder.model_kwargs.num_hidden_layers is {layers!r}; it must be 1 or more")
        if self.static and self.pool_layers != 1:
            problem = "but encoder.static has no layers to choose from; set it to 1"
            raise ValueError(f"encoder.pool_layers is {self.pool_layers}, {problem}")
        return self


class CorpusConfig(Block):
    """Unlabelled sentences."""

    source: Source | list[Source] = "bundled:generated-text"
    """File, directory, pattern (`data/**/*.txt`), URI, hub id, `bundled:generated-text`, or a list
    ([formats](#file-formats))."""
    column: str | None = None
    """Column or field of the sentence. `null`: `sentence` or `text`."""
    split: str = "train"
    """Split of a hub dataset."""
    config_name: str | None = None
    """Configuration of a hub dataset."""
    queries: Source | None = None
    """File of queries, one per line or in a column `query` or `text`. Sentences then count as documents
    (docs/distill.md#search)."""
    sentences: int | None = Field(None, ge=1)
    """Sentences to draw at random. `null`: all."""
    passage_characters: int | None = Field(None, ge=50)
    """Cut longer lines at sentence ends into passages of at most so many characters. `null`: skip lines of more
    than 2,000."""
    translations: Annotated[list[str], AfterValidator(each_once)] = []
    """Columns with translations of the sentence, such as `[de, fr]`. Learners also learn each sentence's target from
    these; teachers, members and calibrations read sentences only (docs/distill.md#other-languages)."""

    def identity(self) -> dict[str, Any]:
        """Return what sentences depend on besides the files."""
        unused = set() if self.translations else {"translations"}
        return self.model_dump(mode="json", exclude={"source", "queries", *unused})


class TaskColumns(Block):
    """Column names of a task, if they are not the default ones."""

    score: str | None = None
    """Column of the score. `null`: `score`, `similarity_score`, `relatedness_score`, `similarity`, `relatedness` or
    `label`."""
    sentence1: str | None = None
    """Column of the first sentence. `null`: `premise`, `sentence1`, `text1`, `sentence_a`, `sentence_1`, `text_a` or
    `text_1`."""
    sentence2: str | None = None
    """Column of the second sentence. `null`: `hypothesis`, `sentence2`, and so on."""
    subset: str | None = None
    """Column that divides pairs into subsets. `null`: `subset`, if present."""
    text: str | None = None
    """Column of the labelled text. `null`: `text`, `sentence`, `utterance` or `title`."""
    label: str | None = None
    """Column of its label. `null`: `label`, `class`, `category`, `intent` or `topic`."""


class TaskConfig(Block):
    """A task to score models on: graded pairs, retrieval, labelled texts, or translations."""

    source: Source
    """Pairs: a file ([formats](#file-formats)), hub dataset, SentEval directory or one of its `STS.input.*.txt`, or
    `bundled:generated-train`, `-dev` or `-test`. Retrieval: a BEIR directory, [hub
    dataset](evaluate.md#retrieval-tasks-of-the-hub) or the documents' file. Labelled texts: a file with labels.
    Translations: a file with a column per language, such as `en` and `de`."""
    kind: str | None = None
    """`pairs`, `retrieval`, `neighbours` (labelled texts) or `translations`. `null`: by the files."""
    queries: Source | None = None
    """Retrieval: file of queries (`_id`, `text`), unless beside the documents."""
    qrels: Source | None = None
    """Retrieval: file of relevant documents (`query-id`, `corpus-id`, `score`, or as TREC), unless beside them."""
    query_prompt: str = ""
    """Prefix for each query, e.g. `"query: "`."""
    document_prompt: str = ""
    """Prefix for each document."""
    columns: TaskColumns = TaskColumns()
    split: str | None = None
    """Split of a hub dataset, value of a column `split`, or file or split of `qrels`. `null`: test; in `sts.train`:
    train; of the dev task: dev or validation. Without these, all rows of a file count, and a hub's dev task is test."""
    config_name: str | None = None
    """Configuration of a hub dataset; for retrieval, the part before `-corpus`, such as `de`."""
    score_range: tuple[float, float] | None = (0.0, 5.0)
    """Lowest and highest possible score. raysed refuses scores outside it, and 20 or more that span less than a
    third of it. `null` (not in `sts.train`): any."""
    aggregation: Literal["all", "mean", "wmean"] | None = None
    """Overrides `evaluation.aggregation`: `all` for STS-B, whose subsets are genres."""

    @field_validator("score_range")
    @classmethod
    def _range_rises(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value and value[0] >= value[1]:
            raise ValueError("write the lowest score first, then the highest")
        return value

    @property
    def is_generated(self) -> bool:
        """Whether these are pairs of the package, which a program wrote and graded."""
        return self.source.startswith("bundled:")


def _as_blocks(values: Any, key: str = "source") -> Any:
    if isinstance(values, Mapping):
        return {name: {key: value} if isinstance(value, str) else value for name, value in values.items()}
    return (
        [{key: value} if isinstance(value, str) else value for value in values] if isinstance(values, list) else values
    )


def as_blocks(value: Any) -> Any:
    """Turn a path, or a list of paths and blocks, into a list of blocks."""
    return _as_blocks(value if isinstance(value, list) else [value])


_COLUMN_NAMES = ("mean", "max", "std", "n")
"""Columns of score tables besides the tasks'."""


def check_task_name(name: Any) -> None:
    """Raise `UserError` for a task name that cannot name a directory."""
    is_name = isinstance(name, str) and name not in ("", ".", "..") and name.isprintable()
    if not is_name or len(quote(name, safe="")) > _LONGEST_NAME:
        raise UserError(f"evaluation.tasks has the name {str(name)[:99]!r}; use a short, printable one")


class EvaluationConfig(Block):
    """What is scored, and how subsets are aggregated."""

    tasks: Annotated[dict[str, TaskConfig], BeforeValidator(_as_blocks)] = {
        "generated-test": TaskConfig(source="bundled:generated-test"),
    }
    """Tasks by name: a source, or the settings below. The default has generated pairs, whose scores say little
    about your text."""
    dev: str | None = None
    """Task whose labels [decide](papers.md#what-the-dev-task-decides) weights, the lower bound of `sts` and the
    exported model. `null`: no choice uses labels."""
    report: Annotated[list[str] | None, AfterValidator(lambda names: names and each_once(names))] = None
    """Tasks averaged in the headline number. `null`: all except `evaluation.dev`, unless it is the only one."""
    aggregation: Literal["all", "mean", "wmean"] = "mean"
    """How subsets become one score: `all`, `mean` (SED) or `wmean` (docs/methods.md#evaluation)."""
    drop_seen: bool = True
    """Leave out of scores what labelled training data or the dev task also contain."""
    pool_layers: list[Layers] = [1, 2, 3]
    """Further poolings to score (SED table 8)."""

    @model_validator(mode="after")
    def _names_are_tasks(self) -> "EvaluationConfig":
        if not self.tasks:
            raise ValueError("evaluation.tasks is empty; name at least one file of graded sentence pairs")
        for name in self.tasks:
            check_task_name(name)
            if name in _COLUMN_NAMES:
                raise ValueError(f"evaluation.tasks has the name {name!r}, a column of the tables; use another")
        problem = f"which is not in evaluation.tasks; name one of {', '.join(self.tasks)}"
        if self.dev is not None and self.dev not in self.tasks:
            raise ValueError(f"evaluation.dev names {self.dev!r}, {problem}, or use null for none")
        for name in self.report or []:
            if name not in self.tasks:
                raise ValueError(f"evaluation.report names {name!r}, {problem}")
        return self

    def report_tasks(self) -> list[str]:
        """Return the names of the tasks whose mean is the headline number."""
        return self.report or [name for name in self.tasks if name != self.dev] or list(self.tasks)


class MembersConfig(Block):
    """The ensemble."""

    count: int = Field(10, ge=1, le=MAX_MODELS)
    """Number of members."""
    share: float = Field(1.0, gt=0, le=1)
    """Share of the corpus drawn for each member, not of pairs and views."""
    min_members: int | None = Field(None, ge=1)
    """Continue with so many if others keep failing. `null`: all must succeed."""
    max_retries: Annotated[int, NO_EFFECT] = Field(2, ge=0)
    """Restarts of a failed member without a new checkpoint."""
    evaluate_every: int = Field(500, ge=1)
    """Steps between evaluations on the dev task."""
    checkpoint_every: Annotated[int, NO_EFFECT] = Field(500, ge=1)
    """Steps between checkpoints, at most two minutes apart. On a GPU, [more](performance.md#gpus) if writing takes
    long."""
    recorded: Annotated[bool, NO_EFFECT] = True
    """On a GPU, record steps as CUDA graphs and replay them (docs/performance.md#how-a-gpu-step-runs)."""
    precision: Precision = "auto"
    """`bf16` (autocast; weights stay fp32), `fp32`, or `auto`: `bf16` on GPUs from A100 and L4 on, and on [some
    CPUs](performance.md#bf16-on-cpus)."""

    @model_validator(mode="after")
    def _enough_for_the_minimum(self) -> "MembersConfig":
        if (self.min_members or 1) > self.count:
            raise ValueError(
                f"members.min_members is {self.min_members}, which is more than members.count ({self.count}); lower it"
            )
        return self


ViewKind = Literal["same", "files", "entailment"]


class PairSource(Block):
    """A source of sentence pairs."""

    source: Source
    """A file ([formats](#file-formats)) or hub dataset."""
    split: str | None = None
    """Split of a hub dataset, or value of a column `split`. `null`: train; all if no row has it."""
    config_name: str | None = None
    """Configuration of a hub dataset."""


class ViewSource(PairSource):
    """A source of sentence pairs with the same meaning."""

    source: Source
    """A file ([formats](#file-formats)) or hub dataset with `view1`/`view2`, `sentence1`/`sentence2`,
    `english`/`non_english`, `anchor`/`positive`, `source`/`target` or names of `nli.train`; in `.tsv` or `.txt`
    also two unnamed columns."""
    columns: tuple[str, str] | None = None
    """Names of the two columns, such as `[en, de]`. `null`: the first known pair."""


class ViewsConfig(Block):
    """Two views of the same meaning, for `bsl` and `contrastive` (BSL sections 3.2 and 4.4)."""

    files: Annotated[list[ViewSource], BeforeValidator(as_blocks)] = []
    """Pairs of the kind `files`: a path, hub id, the settings below, or a list."""


class TeacherConfig(Block):
    """An external teacher, or the run's own members, whose embeddings are a learner's target."""

    path: Annotated[str, source_mark(lambda: [MEMBERS])]
    """A model (directory, hub id, `package:NAME/DIR`, `bundled:encoder`), a `.parquet` file of embeddings or a
    directory of these, or `members` ([teachers](distill.md#teachers))."""
    name: str | None = None
    """Name in reports. `null`: the end of the path."""
    prompt: str = ""
    """Prefix for each sentence without a role, e.g. `"query: "`."""
    query_prompt: str | None = None
    """Prefix for each query. `null`: the one in the model's files, else `prompt`."""
    document_prompt: str | None = None
    """Prefix for each document. `null`: see `query_prompt`."""
    pool_layers: Layers = 1
    """As `encoder.pool_layers`, for plain transformers."""
    max_length: int = Field(75, ge=3)
    """As `encoder.max_length`, for plain transformers."""
    trust_remote_code: bool = False
    """As `encoder.trust_remote_code`. sentence-transformers then computes the model."""

    @property
    def title(self) -> str:
        """Return the name in reports, by default the path's last part other than `model` and `encoder`."""
        parts = [part for part in re.split(r"[/:]", self.path) if part]
        names = [part for part in parts if part not in ("model", "encoder")] or parts
        return self.name or (self.path if self.is_members else names[-1].removesuffix(".parquet"))

    @property
    def is_members(self) -> bool:
        return self.path.split(":")[0] == MEMBERS


def with_unique_titles(teachers: list[TeacherConfig]) -> list[TeacherConfig]:
    """Use the path as the name of each teacher that shares its title with another."""
    titles = [teacher.title for teacher in teachers]
    return [
        teacher.model_copy(update={"name": teacher.path}) if titles.count(teacher.title) > 1 else teacher
        for teacher in teachers
    ]


class CombinationConfig(Block):
    """How the embeddings of several `teachers` become one target."""

    how: Literal["concatenated", "mean"] = "concatenated"
    """`concatenated`: unit vectors side by side; the target's cosines are the teachers' mean. `mean`: the plain
    mean (SED), for copies of one encoder. See docs/methods.md#combining-teachers."""
    weights: list[Annotated[float, Field(gt=0)]] | None = None
    """One weight per teacher. `null`: equal. Other weights [gained in one domain
    only](results.md#tried-and-left-out)."""
    turn: bool | Source | None = None
    """Rotate targets towards the learner before training; cosines do not change. `null`: yes, except for a single
    teacher of the learner's width, with `sed.widths` or `sed.head`. A model, or a file of its embeddings: rotate them
    into its space (docs/distill.md#a-new-model-for-the-old-index)."""


def fitted_on() -> tuple[str, ...]:
    """Return what `flow.fit_on` accepts besides a source; a stage stands for its labelled pairs."""
    return ("corpus", "tasks", *stages_of_pairs())


class FlowConfig(Block):
    """BERT-flow (paper table 7 and section 4; optimizer numbers from the released code)."""

    variant: Literal["released", "paper"] = "released"
    """The flow of BERT-flow's `released` code, or of its `paper`, which takes twice as long
    (docs/methods.md#flow)."""
    levels: int = Field(2, ge=1, le=16)
    """Levels (released code: 3). The width must be a multiple of 2 to this power."""
    data_dependent_init: bool = True
    """Initialise scales and shifts from the data. `false`: small random values, as in the released code."""
    depth: int = Field(3, ge=1)
    """Steps per level."""
    hidden: int = Field(32, ge=1)
    """Width of the coupling networks."""
    learning_rate: float = Field(1e-3, gt=0)
    """Constant learning rate."""
    epochs: float = Field(1.0, gt=0)
    """Passes over the pairs."""
    batch_size: int = Field(32, ge=2)
    """Pairs per optimizer step. Unpaired sentences are taken two at a time."""
    fit_on: Annotated[str, source_mark(fitted_on)] = "corpus"
    """Text for the flow and affine calibrations: `corpus`; `tasks`, all tasks' sentences, as in the papers
    (inflates scores); `nli` or `sts`, their pairs; or a source like `corpus.source`."""
    fit_sentences: int | None = Field(10_000, ge=2)
    """Sentences drawn from the corpus or source, not from tasks and pairs. `null`: all."""
    fit_tasks: list[str] | None = None
    """Tasks for `flow.fit_on: tasks`, e.g. STS12 to 16. `null`: all."""
    per_task: bool = False
    """Fit on each task's sentences alone (BERT-flow). Needs `flow.fit_on: tasks`; cannot be exported."""
    dropout: bool = False
    """Embed the flow's sentences with the encoder's dropout, as the released code does."""
    fits: Annotated[int, NO_EFFECT] = Field(1, ge=1, le=MAX_MODELS)
    """Flows to fit per row of one model, such as the original encoder; they show the effect of the seed."""


class CalibrationConfig(Block):
    """The affine calibrations `sn`, `natsv` and `whiten`, fitted on the same sentences as the flow."""

    natsv_k: Annotated[int, Field(ge=1)] | Literal["dev"] = 10
    """Directions to remove (BERT-flow table 5: 10 alone, 6 after `sn`). `dev`: the best of 1 to 20 on dev."""


class ExportConfig(Block):
    """The exported model, in `model/`."""

    recipe: str | None = None
    """Recipe to export; of several models, the best on the dev task. `null`: the last of `recipes` whose model is
    not clearly worse than [the best one](report.md#the-verdict), or without a dev task the last."""
    allow_worse: bool = False
    """Export even a model [below the original encoder or TF-IDF](report.md#no-exported-model)."""
    license: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """License in the model card, as the hub writes it, such as `apache-2.0`. `null`: none."""
    language: str | list[str] | None = None
    """Language of the model in its card, or several, such as `[en, de]`. `null`: none."""


class ResourcesConfig(Block):
    """How work is spread over machines. What you do not set is planned from the cluster's resources."""

    engine: Annotated[Literal["auto", "ray", "local"], NO_EFFECT] = "auto"
    """`ray`, `local` (this process), or `auto`: Ray [where it is installed, named or
    started](ray.md#which-ray-it-uses). Results are the same."""
    gpus_per_member: Annotated[float | None, NO_EFFECT] = Field(None, gt=0)
    """GPUs per member, a fraction or whole number. `null`: as many members per GPU as fit in 85 % of its memory,
    with one CPU each."""
    gpu: Annotated[bool | None, NO_EFFECT] = None
    """`null`: use GPUs if present. `true`: require and request them. `false`: use none."""
    label_selector: Annotated[dict[str, str], NO_EFFECT] = {}
    """Ray's label selector for the nodes to use, such as `{market-type: "!spot"}` or
    `{ray.io/accelerator-type: A10G}`."""
    encode_precision: Precision = "auto"
    """As `members.precision`, for teachers' embeddings, with weights in bf16, too."""
    wait_minutes: Annotated[float, NO_EFFECT] = Field(10.0, ge=0)
    """Longest wait for an autoscaling cluster. If a smaller one can do the run, two minutes after its last new
    node."""
    stall_seconds: Annotated[float, NO_EFFECT] = Field(1800.0, gt=0)
    """On Ray, restart a training worker that makes no step for so long. Must exceed the longest evaluation."""

    @model_validator(mode="after")
    def _gpus_can_be_given(self) -> "ResourcesConfig":
        gpus = self.gpus_per_member or 0
        if gpus > 1 and gpus % 1:
            raise ValueError(f"resources.gpus_per_member is {gpus:g}; above 1 it must be a whole number")
        if gpus and self.gpu is False:
            raise ValueError("resources.gpus_per_member is set but resources.gpu is false; leave one of them out")
        return self


class _Common(Block):
    """All settings of a run. `raysed.plan.consistency` checks blocks against each other."""

    run: Annotated[str, NO_EFFECT] = Field("quickstart", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the run and its directory: letters, digits, `.`, `_` and `-`."""
    storage: Annotated[str, NO_EFFECT, AfterValidator(not_empty)] = "runs"
    """Directory or URI (`s3://…`, `gs://…`) that all machines reach. Credentials come from the environment, never
    from a URI."""
    seed: int = Field(0, ge=0)
    """Seed of all draws and trainings ([is the result the same?](failures.md#is-the-result-the-same))."""
    recipes: list[str] = ["ct-sed-flow"]
    """Recipes to run. Stages that they share run once."""
    teachers: Annotated[
        list[TeacherConfig], BeforeValidator(partial(_as_blocks, key="path")), AfterValidator(with_unique_titles)
    ] = []
    """Models for recipes that begin with `teachers`: paths, or
    [settings](#teachers-and-combination-models-that-a-learner-learns-from)."""
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

    @property
    def old(self) -> TeacherConfig | None:
        """The model that `combination.turn` names, with the settings of a teacher of the same path."""
        path, known = self.combination.turn, {teacher.path: teacher for teacher in self.teachers}
        if not isinstance(path, str):
            return None
        return known.get(path) or TeacherConfig(path=path, max_length=self.encoder.max_length)


@cache
def _config() -> type[_Common]:
    """Return the class of all settings: those above, and a block for each stage, defined in the stage's file."""
    blocks = {name: (stage.Settings, stage.Settings()) for name, stage in stages().items()}
    return create_model("Config", __base__=_Common, __module__=__name__, __doc__=_Common.__doc__, **blocks)


def __getattr__(name: str) -> Any:
    """Build `Config` on first use: stages use the blocks above, so they cannot be imported earlier."""
    if name == "Config":
        return _config()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if TYPE_CHECKING:
    Config = _Common


def find_config(name: str, directory: Path = CONFIGS) -> Path:
    """Return the file for `--config`: a path, or the name of a config of the package."""
    for path in (Path(name), directory / f"{name}.yaml"):
        if os.path.isfile(path):
            return path
    known = ", ".join(sorted(path.stem for path in directory.glob("*.yaml")))
    raise UserError(f"--config {name}: there is no file or config of that name; the configs are {known}")


def load_config(path: Path | None, overrides: Iterable[str] = ()) -> "Config":
    """Read a YAML file over the one it is based on; apply overrides `block.key=value`."""
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
    if not isinstance(data, Mapping):
        kinds = "a mapping of settings, the path of a YAML file, or the name of a config"
        raise UserError(f"a config is {kinds}, not of type {type(data).__name__}")
    try:
        return _config().model_validate(with_text_paths(data))
    except ValidationError as error:
        raise UserError(explain(error, data, _config())) from None


def with_text_paths(given: Any) -> Any:
    """Return what a user passed with every `os.PathLike` as text, also in lists, tuples and mappings."""
    if isinstance(given, Mapping):
        return {key: with_text_paths(value) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return [with_text_paths(value) for value in given]
    return os.fspath(given) if isinstance(given, os.PathLike) else given


def dump_config(config: "Config") -> str:
    """Return the resolved configuration as YAML."""
    return dump(config.model_dump(mode="json"))


def stable_hash(value: Any) -> str:
    """Return 16 hex digits that depend on content only: not on key order, process or platform.

    >>> stable_hash({"a": 1, "b": 2}) == stable_hash({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def derive_seed(*parts: Any) -> int:
    """Return a seed that depends on all parts and nothing else.

    >>> derive_seed(0, "ct", 1) == derive_seed(0, "ct", 1) != derive_seed(0, "ct", 2)
    True
    """
    return int(stable_hash(list(parts)), 16) % 2**62


def package_folder(path: str) -> str:
    """Return the directory of `package:NAME/DIR`, a folder of an installed package, without importing it."""
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
