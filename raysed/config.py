"""Typed, frozen settings: one block per stage, read from YAML with dotted overrides.

Unknown keys are refused, every default is the papers' value where a paper gives one, and a block has a
stable hash so that a changed setting invalidates exactly what depends on it.
"""

import difflib
import hashlib
import importlib.util
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from raysed.errors import UserError, public

Layers = int | Literal["first_last"]
Precision = Literal["auto", "fp32", "bf16"]
"""`auto`: bf16 on GPUs that have it, fp32 elsewhere. Weights and optimizers are in fp32 in any case."""
Rate = Annotated[float, Field(gt=0)]
PACKAGE = "package:"
CONFIGS = Path(__file__).parent / "configs"
"""Settings by name, in the package, so that an installed one can run."""


class Block(BaseModel):
    """A frozen group of settings that refuses unknown keys, infinite numbers, and yes or no for a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        kinds = cls.model_fields[info.field_name].annotation
        values = value if isinstance(value, list) else [value]
        if any(isinstance(item, bool) for item in values) and bool not in (kinds, *get_args(kinds)):
            raise ValueError("yes, no, true and false have no meaning here")
        return value


class ScratchConfig(Block):
    """An encoder without weights: tokenizer and weights are trained on the corpus, with the settings of `mlm`."""

    vocabulary: int = Field(8000, ge=100)
    layers: int = Field(3, ge=1)
    width: int = Field(192, ge=8)
    heads: int = Field(6, ge=1)

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> "ScratchConfig":
        if self.width % self.heads:
            raise ValueError(
                f"encoder.scratch.width is {self.width}, which {self.heads} heads (encoder.scratch.heads) cannot "
                "share; make it a multiple"
            )
        return self


class EncoderConfig(Block):
    """The pre-trained transformer that members and learners start from."""

    path: str = "bundled:encoder"
    """Local directory, hub id, `bundled:encoder`, or `package:NAME/DIR`, a folder of an installed Python package."""
    model_kwargs: dict[str, Any] = {}
    """Passed to `AutoModel.from_pretrained`, e.g. `num_hidden_layers: 3`."""
    trust_remote_code: bool = False
    max_length: int = Field(75, ge=3)
    """Tokens per sentence, special tokens included; the rest is cut and counted (CT: 75)."""
    layers: Layers = 2
    """Layers pooled at evaluation: the last k, or `first_last` (SED section 5.1: train on 1, evaluate on 2)."""
    scratch: ScratchConfig | None = None
    """Makes the encoder on the corpus first, instead of loading `path`."""

    @model_validator(mode="after")
    def _scratch_has_the_layers(self) -> "EncoderConfig":
        if self.scratch and isinstance(self.layers, int) and not 1 <= self.layers <= self.scratch.layers:
            raise ValueError(f"encoder.layers is {self.layers}, but encoder.scratch.layers is {self.scratch.layers}")
        return self


class CorpusConfig(Block):
    """Unlabelled sentences."""

    source: str | list[str] = "bundled:everyday"
    """Files, directories, globs, URIs (.txt, .jsonl, .csv, .tsv, .parquet), a hub dataset id, or `bundled:everyday`."""
    column: str | None = None
    """Column or field that holds the sentence; `sentence` or `text` where it is not given."""
    split: str = "train"
    name: str | None = None
    """Configuration name of a hub dataset."""
    sentences: int | None = Field(None, ge=1)
    """Draw exactly this many, at random; None keeps all."""
    min_characters: int = Field(2, ge=1)
    max_characters: int = Field(2000, ge=1)
    """Longer lines are left out and counted: they are not sentences."""

    @model_validator(mode="after")
    def _lengths_leave_something(self) -> "CorpusConfig":
        if self.min_characters > self.max_characters:
            raise ValueError(
                f"corpus.min_characters is {self.min_characters}, more than corpus.max_characters"
                f" ({self.max_characters}); no sentence can be kept"
            )
        return self


class PairColumns(Block):
    """Names of the columns of graded pairs where they are not well-known ones; None: these."""

    score: str | None = None
    sentence1: str | None = None
    sentence2: str | None = None
    subset: str | None = None
    """None: `subset` where there is such a column; all pairs are one subset where there is none."""


class TaskConfig(Block):
    """One file or directory of sentence pairs with gold scores."""

    source: str
    """CSV, TSV, JSONL or Parquet file, SentEval directory, hub dataset id, or `bundled:dev`."""
    columns: PairColumns = PairColumns()
    split: str | None = None
    """Split of a hub dataset, None: test, and train for `sts.train`; of a file with a column `split`, the rows to take,
    None: all."""
    name: str | None = None
    score_range: tuple[float, float] = (0.0, 5.0)
    aggregation: Literal["all", "mean", "wmean"] | None = None
    """For this task instead of `evaluation.aggregation`; STS-B, whose subsets are genres, is scored as `all`."""

    @field_validator("score_range")
    @classmethod
    def _range_rises(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] >= value[1]:
            raise ValueError("write the lowest score and then the highest")
        return value


class NliSource(Block):
    """One source of sentence pairs with a class label."""

    source: str
    """TSV, CSV, JSONL or Parquet file, or hub dataset id."""
    split: str | None = None
    """Split of a hub dataset, None: train; of a file with a column `split`, the rows to take, None: all."""
    name: str | None = None
    """Configuration name of a hub dataset, e.g. `mnli` of `nyu-mll/glue`."""


class TransferConfig(Block):
    """Classification tasks on frozen embeddings (SentEval; SED table 7, BSL table 2)."""

    source: str | None = None
    """SentEval's `data/downstream` directory; None: no transfer tasks."""
    tasks: list[str] | None = None
    """Names such as MR or SICKEntailment; None: those that the directory holds."""
    layers: Layers | None = None
    """Pooled layers of the features; None: as `encoder.layers`."""
    seed: int = Field(1111, ge=0)
    """Of folds and probes (SentEval's default)."""


class AnalysisConfig(Block):
    """What the report says about the embedding space beside scores."""

    qnli: str | None = None
    """GLUE's QNLI dev file, or hub id (`nyu-mll/glue`): unsupervised AUC (BERT-flow table 4); None: left out."""
    frequency: bool = True
    """Whether the word-frequency table (BERT-flow table 1) is made, from the corpus' own counts."""


class EvaluationConfig(Block):
    """What is scored, and how subsets are put together."""

    tasks: dict[str, TaskConfig] = {
        "everyday-dev": TaskConfig(source="bundled:dev"),
        "everyday-test": TaskConfig(source="bundled:test"),
    }
    dev: str | None = "everyday-dev"
    """The task that choices are made on (its labels are used); None: no choice uses labels."""
    report: list[str] | None = None
    """The tasks whose mean is the headline number; None: every task but `dev` (or `dev`, if it is the only one)."""
    aggregation: Literal["all", "mean", "wmean"] = "mean"
    """How a task with several subsets becomes one number; all three are recorded (SED takes `mean`)."""
    layers: list[Layers] = [1, 2, 3]
    """Pooled layers at which every model is scored, beside `encoder.layers` (SED table 8)."""
    transfer: TransferConfig = TransferConfig()
    analysis: AnalysisConfig = AnalysisConfig()

    @model_validator(mode="before")
    @classmethod
    def _paths_are_tasks(cls, data: Any) -> Any:
        tasks = data.get("tasks") if isinstance(data, Mapping) else None
        if isinstance(tasks, Mapping):
            data = {**data, "tasks": {k: {"source": v} if isinstance(v, str) else v for k, v in tasks.items()}}
        return data


class MembersConfig(Block):
    """The ensemble."""

    count: int = Field(10, ge=1)
    min_members: int | None = Field(None, ge=1)
    """Go on with so many when others keep failing; None: all are needed."""
    max_retries: int = Field(2, ge=0)
    """Restarts of a failed member, each from its last checkpoint."""
    evaluate_every: int = Field(500, ge=1)
    """Updates between two evaluations on the dev task."""
    checkpoint_every: int = Field(500, ge=1)
    """Updates between two checkpoints."""
    precision: Precision = "auto"


class TuningConfig(Block):
    """What all stages but `ct` have in common: epochs of shuffled batches with AdamW."""

    epochs: float = Field(1.0, gt=0)
    batch_size: int = Field(16, ge=1)
    learning_rate: float = Field(2e-5, gt=0)
    warmup: float = Field(0.1, ge=0, le=1)
    """Share of the updates over which the rate rises linearly."""
    decay: Literal["constant", "linear"] = "linear"
    """After the warm-up: as it is, or a linear fall to zero."""
    weight_decay: float = Field(0.01, ge=0)
    """Not on biases and layer norms."""
    clip: float | None = Field(1.0, gt=0)
    """Largest global gradient norm; None: no clipping."""
    dropout: bool = True
    """Whether the encoder's dropout is on while it trains."""


class MlmConfig(TuningConfig):
    """Masked language modelling on the corpus (BERT): domain adaptation, or a first training from scratch."""

    batch_size: int = Field(32, ge=1)
    learning_rate: float = Field(5e-5, gt=0)
    rate: float = Field(0.15, gt=0, lt=1)
    """Share of the tokens that is predicted: 80 % of these masked, 10 % replaced, 10 % left."""


class NliConfig(TuningConfig):
    """Siamese softmax classification of sentence pairs (SBERT; SED appendix B.1, BERT-flow appendix B)."""

    train: list[NliSource] = []
    """Sources, put together; a path or an id alone will do."""
    bias: bool = True
    """Of the classifier: sentence-transformers has one, BERT-flow's code has none."""
    keep: Literal["last", "best_on_dev"] = "last"
    """`last`: as trained to the end; `best_on_dev`: at its best evaluation (sentence-transformers; uses dev labels)."""

    @field_validator("train", mode="before")
    @classmethod
    def _paths_are_sources(cls, value: Any) -> Any:
        return _as_blocks(value)


class StsConfig(TuningConfig):
    """Regression of the cosine on graded pairs, and the grid of lower bounds (SED section 5.5)."""

    epochs: float = Field(4.0, gt=0)
    train: list[TaskConfig] = []
    """Graded pairs, put together; a path or an id alone will do."""
    lower_bounds: list[Annotated[float, Field(ge=0, lt=1)]] = [round(0.05 * i, 2) for i in range(20)]
    """A pair's target is b + (1 - b) * score / highest score for each lower bound b; the best bound's models are
    the ensemble."""
    models: int = Field(10, ge=1)
    """Per lower bound."""
    criterion: Literal["spearman", "pearson"] = "spearman"
    """On the dev task."""
    statistic: Literal["mean", "max"] = "mean"
    """Of a bound's models."""
    evaluate_every: int | None = Field(None, ge=1)
    """Updates between two evaluations of a grid model; None: as `members.evaluate_every`."""
    scheduler: Literal["none", "asha"] = "none"
    """`asha`: bounds that look hopeless after a part of their updates are not trained further."""
    asha_reduction: int = Field(3, ge=2)
    """Of the bounds at one rung, one in so many goes on to the next."""
    asha_rungs: int = Field(3, ge=2)
    """The last rung is the whole training; each one before has `asha_reduction` times fewer updates."""

    @field_validator("train", mode="before")
    @classmethod
    def _paths_are_sources(cls, value: Any) -> Any:
        return _as_blocks(value)

    @model_validator(mode="after")
    def _bounds_differ(self) -> "StsConfig":
        repeated = [bound for bound, count in Counter(self.lower_bounds).items() if count > 1]
        if not self.lower_bounds or repeated:
            problem = f"has {repeated[0]:g} more than once" if repeated else "is empty"
            raise ValueError(f"sts.lower_bounds {problem}; list different values of at least 0 and below 1")
        return self


def _as_blocks(value: Any) -> Any:
    """A path, or a list of paths and blocks, as a list of blocks."""
    values = value if isinstance(value, list) else [value]
    return [{"source": item} if isinstance(item, str) else item for item in values]


class CtConfig(Block):
    """Contrastive Tension (SED appendix B.2; the numbers absent there are those of the released code)."""

    variant: Literal["pairs", "in_batch"] = "pairs"
    """`pairs`: the paper's, dot products of drawn positive and negative pairs; `in_batch`: cosines of every sentence
    with every other of its batch, times a learnt scale, with symmetric cross entropy (sentence-transformers)."""
    batch_size: int = Field(16, ge=2)
    """Sentences per batch of `in_batch`."""
    scale: float = Field(20.0, gt=0)
    """Where the learnt scale of `in_batch` starts."""
    dropout: bool | None = None
    """None: off for `pairs` as in the released code, on for `in_batch`, which is too easy without it."""
    steps: int = Field(50_000, ge=1)
    negatives: int = Field(7, ge=1)
    """Negative pairs per positive pair."""
    groups: int = Field(2, ge=1)
    """Positive pairs per batch: the batch has groups * (1 + negatives) pairs."""
    schedule: Literal["paper", "scaled"] = "paper"
    """`paper`: boundaries in raw updates whatever `steps` is; `scaled`: the same rates over fifths of the run."""
    boundaries: list[Annotated[int, Field(ge=0)]] = [500, 1000, 1500, 2000]
    learning_rates: list[Rate] = [1e-5, 8e-6, 6e-6, 4e-6, 2e-6]
    keep: Literal["second", "best_on_dev"] = "second"
    """Which of the two trained models becomes the member: the second, as trained to the end, or the better one at its
    best evaluation on the dev task (the released code; it uses dev labels)."""

    @model_validator(mode="after")
    def _one_rate_more_than_boundaries(self) -> "CtConfig":
        if len(self.learning_rates) != len(self.boundaries) + 1 or sorted(set(self.boundaries)) != self.boundaries:
            raise ValueError("ct.boundaries must increase, and ct.learning_rates have one value more than there are")
        return self


ViewKind = Literal["same", "files", "entailment", "synonym", "mlm", "back_translation"]
Part = Annotated[float, Field(gt=0, lt=1)]


class ViewSource(Block):
    """One source of pairs of sentences that mean the same."""

    source: str
    """TSV or TXT file of two columns, CSV, JSONL or Parquet file, or hub dataset id."""
    columns: tuple[str, str] | None = None
    """Names of the two columns; None: the first pair of known names, or of a TSV without names its two columns."""
    split: str | None = None
    """Split of a hub dataset, None: train; of a file with a column `split`, the rows to take, None: all."""
    name: str | None = None
    """Configuration name of a hub dataset."""


class ViewsConfig(Block):
    """Two views of the same meaning, which `bsl` and `contrastive` learn from (BSL sections 3.2 and 4.4)."""

    files: list[ViewSource] = []
    """Sources of the kind `files`, put together: back-translations, translations, paraphrases; a path alone will do."""
    synonym_share: Part = 0.3
    """Share of a sentence's words that the kind `synonym` replaces by others of the same WordNet sense."""
    mlm_rate: Part = 0.2
    """Share of a sentence's tokens that the kind `mlm` masks and fills."""
    mlm_model: str | None = None
    """Masked language model that fills, as `encoder.path`; None: the run's encoder (the paper: roberta-base)."""
    pivots: list[tuple[str, str]] = [
        ("Helsinki-NLP/opus-mt-en-de", "Helsinki-NLP/opus-mt-de-en"),
        ("Helsinki-NLP/opus-mt-en-fr", "Helsinki-NLP/opus-mt-fr-en"),
    ]
    """Translation models there and back of the kind `back_translation`: two pairs give the two views (the paper), one
    gives the sentence and its back-translation."""
    beams: int = Field(1, ge=1)
    """Of the translation's search; 1 is greedy."""
    max_unusable: float = Field(0.5, ge=0, lt=1)
    """Largest share of pairs with an empty view or two identical ones, which are left out; beyond it the run ends."""

    @field_validator("files", mode="before")
    @classmethod
    def _paths_are_sources(cls, value: Any) -> Any:
        return _as_blocks(value)

    @model_validator(mode="after")
    def _one_or_two_pivots(self) -> "ViewsConfig":
        if not 1 <= len(self.pivots) <= 2:
            raise ValueError(f"views.pivots has {len(self.pivots)} pairs of models; list one or two")
        return self


class TwoViewsConfig(TuningConfig):
    """What `bsl` and `contrastive` have in common."""

    views: list[ViewKind] = ["mlm"]
    """Kinds of views, put together; the block `views` has their settings. `same`: each sentence of the corpus twice."""
    keep: Literal["last", "best_on_dev"] = "last"
    """`last`: as trained to the end; `best_on_dev`: at its best evaluation (the released code; uses dev labels)."""
    steps: int | None = Field(None, ge=1)
    """Updates, instead of `epochs`."""

    @model_validator(mode="after")
    def _kinds_differ(self) -> "TwoViewsConfig":
        if not self.views or len(set(self.views)) < len(self.views):
            raise ValueError(f"{self.stage}.views is {self.views}; list at least one kind, and each kind once")
        return self


class BslConfig(TwoViewsConfig):
    """Bootstrapped sentence representations (BSL section 3; warm-up, decay and clipping are the released code's)."""

    stage: ClassVar[str] = "bsl"

    batch_size: int = 64
    learning_rate: float = Field(5e-4, gt=0)
    momentum: float = 0.999
    """Of the target's moving average: 0 copies the online network, 1 leaves the target as it was."""
    predictor: Literal["paper", "released", "none"] = "paper"
    """`paper`: one MLP with two hidden layers, batch normalisation after both; `released`: three such MLPs in a row,
    normalisation after the first layer of each, and four times the loss; `none`: an ablation that collapses."""
    expansion: int | None = Field(None, ge=1)
    """Width of the hidden layers as a multiple of the encoder's; None: 8 for `paper`, 10 for `released`."""

    @model_validator(mode="after")
    def _values_make_sense(self) -> "BslConfig":
        if not 0 <= self.momentum <= 1:
            raise ValueError(f"bsl.momentum is {self.momentum:g}; it is a share of 0 to 1, the paper's is 0.999")
        if self.batch_size < 2:
            raise ValueError(
                f"bsl.batch_size is {self.batch_size}; the predictor's batch normalisation needs at least 2 pairs"
            )
        return self


class ContrastiveConfig(TwoViewsConfig):
    """In-batch contrastive learning over two views (BSL table 7); with `views: [same]` it is SimCSE."""

    stage: ClassVar[str] = "contrastive"

    views: list[ViewKind] = ["same"]
    batch_size: int = 64
    learning_rate: float = Field(3e-5, gt=0)
    temperature: float = Field(0.05, gt=0)
    negatives: Literal["other_view", "both_views"] = "other_view"
    """`other_view`: the batch's other second views (SimCSE); `both_views`: all others of both views (SimCLR, BSL)."""

    @model_validator(mode="after")
    def _something_to_tell_apart(self) -> "ContrastiveConfig":
        if self.batch_size < 2:
            raise ValueError(
                f"contrastive.batch_size is {self.batch_size}; the negatives are the batch's other pairs, so at least "
                "2 are needed"
            )
        if "same" in self.views and not self.dropout:
            raise ValueError("contrastive.views has same, whose two views are equal without contrastive.dropout")
        return self


class SedConfig(Block):
    """Ensemble distillation (SED sections 4 and 5.1)."""

    target: Literal["mean", "centred_mean"] = "mean"
    """`mean`: the teachers' raw mean (the paper); `centred_mean`: less its average over the corpus, which takes out
    the common offset that CT gives to its members."""
    learners: int = Field(1, ge=1)
    start: Literal["encoder", "mlm"] = "encoder"
    """What learners start from: the pre-trained encoder (the paper), or the first member after `mlm`, for recipes that
    begin with it."""
    keep: Literal["last", "best_on_dev"] = "last"
    """`best_on_dev`: the learner at its best evaluation, with early stopping; recipes with `sts` always do so, because
    they use labels anyway (SED section 5.5)."""
    patience: int = Field(5, ge=1)
    """Evaluations without a better dev score after which early stopping ends the training."""
    epochs: float = Field(1.0, gt=0)
    batch_size: int = Field(32, ge=1)
    """Sentences per update over all workers."""
    learning_rate: float = Field(2e-5, gt=0)
    warmup: float = Field(0.1, ge=0, le=1)
    """Share of the updates over which the rate rises linearly."""
    decay: Literal["constant", "linear"] = "constant"
    weight_decay: float = Field(0.0, ge=0)
    dropout: bool = False
    """Whether the learner's dropout is on while it trains: the paper does not say, CT's released code has it off."""
    clip: float | None = Field(None, gt=0)
    """Largest global gradient norm; None: no clipping."""
    workers: int | None = Field(None, ge=1)
    """Training workers; None: one per GPU, one on a machine without."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    precision: Precision = "auto"
    checkpoint_every: int = Field(500, ge=1)
    evaluate_every: int = Field(500, ge=1)
    max_retries: int = Field(2, ge=0)

    @model_validator(mode="after")
    def _workers_have_work(self) -> "SedConfig":
        if (self.workers or 1) > self.batch_size:
            raise ValueError(
                f"sed.workers is {self.workers}, more than the sentences of a batch (sed.batch_size is "
                f"{self.batch_size}); ask for at most as many"
            )
        return self


class FlowConfig(Block):
    """BERT-flow (paper table 7 and section 4; optimizer numbers from the released code)."""

    variant: Literal["paper", "released"] = "paper"
    """`paper`: 2 levels and data-dependent initialisation; `released`: 3 levels without it, as the code really ran."""
    depth: int = Field(3, ge=1)
    hidden: int = Field(32, ge=1)
    learning_rate: float = Field(1e-3, gt=0)
    epochs: float = Field(1.0, gt=0)
    batch_size: int = Field(32, ge=2)
    """Pairs per update; sentences that are no pairs are taken two at a time."""
    fit_on: str = "corpus"
    """`corpus`; `tasks`: the tasks' own sentences, no gold score (SED appendix B.3); `nli`: the pairs of `nli.train`;
    or a corpus source. A model meets other text than that of its tasks, so what is fitted on them scores too well."""
    fit_sentences: int | None = Field(10_000, ge=2)
    """Of the corpus or the corpus source, drawn at random; None: all. Tasks and NLI pairs are taken whole."""
    fit_tasks: list[str] | None = None
    """Tasks whose sentences `tasks` means, e.g. STS12 to 16; None: all."""
    per_task: bool = False
    """One fit for each task on its own sentences (BERT-flow), instead of one on all together (SED)."""
    fits: int = Field(1, ge=1)
    """Flows of a model that is alone in its row, such as the base, each with its own seed, which moves scores by a
    point. Several members or learners have one flow each, and its seed is another for each of them anyway."""


class CalibrationConfig(Block):
    """The affine calibrations `sn`, `natsv` and `whiten`; fitted on the same sentences as the flow."""

    natsv_k: Annotated[int, Field(ge=1)] | Literal["dev"] = 10
    """Singular directions that `natsv` removes (BERT-flow table 5: 10 alone, 6 after `sn`); `dev`: the best of 1 to 20
    on the dev task."""


class ExportConfig(Block):
    """The model that ends up in `model/`."""

    recipe: str | None = None
    """None: the last recipe of the list."""


class ResourcesConfig(Block):
    """Planned from what the cluster has where a value is None."""

    cpus_per_member: float | None = Field(None, gt=0)
    gpus_per_member: float | None = Field(None, gt=0)
    """A fraction where several share one, or a whole number."""
    concurrent_members: int | None = Field(None, ge=1)
    gpu: bool | None = None
    """None: use GPUs where the cluster has them; true: they must be there; false: leave them alone."""
    encode_token_budget: int | None = Field(None, ge=64)
    """Tokens per forward pass when encoding; None: 2,048 on CPUs, 8,192 on GPUs."""
    wait_minutes: float = Field(10.0, ge=0)
    """How long to wait for an autoscaling cluster to bring what the members can use."""
    silence_seconds: float = Field(300.0, gt=0)
    """A worker that was not heard for so long stands still: it is ended, and started again elsewhere."""

    @model_validator(mode="after")
    def _gpus_can_be_given(self) -> "ResourcesConfig":
        gpus = self.gpus_per_member or 0
        if gpus > 1 and gpus % 1:
            raise ValueError(f"resources.gpus_per_member is {gpus:g}; above 1 it must be a whole number")
        if gpus and self.gpu is False:
            raise ValueError("resources.gpus_per_member is set but resources.gpu is false; leave one of them out")
        return self


class TrackingConfig(Block):
    """Experiment trackers beside the run's own logs; their keys come from the environment."""

    wandb: str | None = None
    """A project on Weights & Biases."""
    mlflow: str | None = None
    """The URI of an MLflow tracking server."""

    @field_validator("mlflow")
    @classmethod
    def _holds_no_password(cls, uri: str | None) -> str | None:
        if uri is not None and urlsplit(uri).password is not None:  # settings are written into the run directory
            raise ValueError("the URI holds a password; leave it out and set MLFLOW_TRACKING_PASSWORD")
        return uri


class Config(Block):
    """All settings of a run."""

    run: str = Field("quickstart", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    storage: str = "runs"
    """Directory or URI (s3://, gs://, …) under which the run directory lies."""
    seed: int = Field(0, ge=0)
    recipes: list[str] = ["ct-sed-flow"]
    encoder: EncoderConfig = EncoderConfig()
    corpus: CorpusConfig = CorpusConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    members: MembersConfig = MembersConfig()
    mlm: MlmConfig = MlmConfig()
    nli: NliConfig = NliConfig()
    ct: CtConfig = CtConfig()
    views: ViewsConfig = ViewsConfig()
    bsl: BslConfig = BslConfig()
    contrastive: ContrastiveConfig = ContrastiveConfig()
    sts: StsConfig = StsConfig()
    sed: SedConfig = SedConfig()
    flow: FlowConfig = FlowConfig()
    calibration: CalibrationConfig = CalibrationConfig()
    export: ExportConfig = ExportConfig()
    resources: ResourcesConfig = ResourcesConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _references_resolve(self) -> "Config":
        tasks = self.evaluation.tasks
        if not tasks:
            raise ValueError("evaluation.tasks is empty; name at least one file of graded sentence pairs")
        for key, names in _named_tasks(self):
            for name in names:
                if name is not None and name not in tasks:
                    instead = ", or null for none" if key == "evaluation.dev" else ""
                    raise ValueError(
                        f"{key} names {name!r}, which is not in evaluation.tasks; there are {', '.join(tasks)}{instead}"
                    )
        for name, other in (("ct", "second"), *((name, "last") for name in ("nli", "bsl", "contrastive", "sed"))):
            if getattr(self, name).keep == "best_on_dev" and self.evaluation.dev is None:
                raise ValueError(f"{name}.keep: best_on_dev needs evaluation.dev; set it, or use {name}.keep: {other}")
        if self.calibration.natsv_k == "dev" and self.evaluation.dev is None:
            raise ValueError("calibration.natsv_k: dev needs evaluation.dev; set it, or give a number")
        if (self.members.min_members or 1) > self.members.count:
            raise ValueError(
                f"members.min_members is {self.members.min_members}, more than members.count ({self.members.count})"
            )
        return self

    def evaluate_every(self, stage: str) -> int:
        """Returns the updates between two evaluations of a member in a stage."""
        own = self.sts.evaluate_every if stage == "sts" else None
        return own or self.members.evaluate_every

    def report_tasks(self) -> list[str]:
        """Returns the names of the tasks whose mean is the headline number."""
        chosen = self.evaluation.report or [t for t in self.evaluation.tasks if t != self.evaluation.dev]
        return chosen or list(self.evaluation.tasks)


def _named_tasks(config: Config) -> tuple[tuple[str, list], ...]:
    """The settings that name tasks."""
    return (
        ("evaluation.dev", [config.evaluation.dev]),
        ("evaluation.report", config.evaluation.report or []),
        ("flow.fit_tasks", config.flow.fit_tasks or []),
    )


def load_config(path: Path | None, overrides: Iterable[str] = ()) -> Config:
    """Reads a YAML file and applies overrides.

    Args:
        path: YAML file; None for the defaults.
        overrides: items `block.key=value`, the value in YAML syntax.

    Returns:
        The validated configuration.

    Raises:
        UserError: unreadable file, malformed override, unknown key or wrong value.
    """
    data = _read_yaml(path) if path else {}
    for item in overrides:
        _apply_override(data, item)
    return make_config(data)


def make_config(data: Mapping[str, Any]) -> Config:
    """Validates a nested mapping.

    >>> make_config({"ct": {"steps": 5}}).ct.steps
    5
    >>> make_config({"ct": {"step": 5}})
    Traceback (most recent call last):
        ...
    raysed.errors.UserError: unknown setting ct.step: did you mean ct.steps?
    """
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise UserError(_sentence(error, data)) from None


def dump_config(config: Config) -> str:
    """Returns the resolved configuration as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def stable_hash(value: Any) -> str:
    """Returns 16 hex digits that depend on content only: not on key order, process or platform.

    >>> stable_hash({"a": 1, "b": 2}) == stable_hash({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def derive_seed(*parts: Any) -> int:
    """Returns a seed that depends on all parts and on nothing else.

    >>> derive_seed(0, "ct", 1) == derive_seed(0, "ct", 1) != derive_seed(0, "ct", 2)
    True
    """
    return int(stable_hash(list(parts)), 16) % 2**62


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"config file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"config file {path} is not UTF-8 text") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"config file {path}{where} is not valid YAML: {problem}") from None
    if not isinstance(data, dict | None):
        raise UserError(f"config file {path} must hold settings as 'key: value', not a {type(data).__name__}")
    return data or {}


def _apply_override(data: dict[str, Any], item: str) -> None:
    key, equals, text = item.partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"--set {item!r}: write it as block.key=value, for example --set ct.steps=1000")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"--set {item!r}: the value is not valid YAML") from None
    *parents, leaf = key.split(".")
    for depth, parent in enumerate(parents):
        data[parent] = {} if data.get(parent) is None else data[parent]  # a block of which all lines are comments
        if parents[:depth] == ["evaluation", "tasks"] and isinstance(data[parent], str):
            data[parent] = {"source": data[parent]}  # a path alone will do for a task
        data = data[parent]
        if not isinstance(data, dict):
            raise UserError(f"--set {item!r}: {parent} is a value, not a block of settings")
    data[leaf] = value


def _sentence(error: ValidationError, data: Mapping[str, Any]) -> str:
    """Turns the validation problems into one sentence about the first setting; a misspelt one goes first."""
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    keys = _keys(problems[0], data)
    where, kind, value = ".".join(map(str, keys)), problems[0]["type"], problems[0]["input"]
    messages = [problem["msg"] for problem in problems if _keys(problem, data) == keys]
    if kind == "extra_forbidden":
        return f"unknown setting {where}{_suggestion(keys)}"
    if kind == "model_type":
        return (
            f"{where} is a block of settings: {', '.join(f'{where}.{name}' for name in _block_at(keys).model_fields)}"
        )
    if kind == "value_error":
        messages = [str(problems[0]["ctx"]["error"])]
        if isinstance(value, Block | Mapping):  # about several settings, which it names itself
            return messages[0]
    if kind == "string_pattern_mismatch":
        messages = ["it may hold letters, digits, '.', '_' and '-', and starts with a letter or a digit"]
    text = ", or ".join(dict.fromkeys(message[0].lower() + message[1:] for message in messages))
    return f"setting {where}: {text}{'' if kind == 'missing' else f' (got {_short(value)})'}"


def _keys(problem: Any, data: Any) -> list[Any]:
    """The way to the setting, without what pydantic adds to it, such as the branch of a union that it tried."""
    keys = []
    for part in problem["loc"]:
        if isinstance(data, Mapping) and part in data:
            data = data[part]
        elif isinstance(data, list | tuple) and part in range(len(data)):
            data = data[part]
        elif problem["type"] != "missing":
            break
        keys.append(part)
    return keys


def _short(value: Any) -> str:
    text = public(repr(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


def _block_at(keys: list[Any]) -> Any:
    """The type behind dotted keys: a block, or anything else where there is none."""
    block: Any = Config
    for key in keys:
        if key in getattr(block, "model_fields", {}):
            block = block.model_fields[key].annotation
        else:  # the blocks of a list or of a mapping are its last argument
            block = get_args(block)[-1] if get_origin(block) in (dict, list) else None
    return block


def _suggestion(keys: list[Any]) -> str:
    known = list(getattr(_block_at(keys[:-1]), "model_fields", {}))
    prefix = "".join(f"{key}." for key in keys[:-1])
    close = difflib.get_close_matches(str(keys[-1]), known, n=1)
    if close:
        return f": did you mean {prefix}{close[0]}?"
    return f": known here are {', '.join(prefix + name for name in known)}"


def find_config(name: str, directory: Path = CONFIGS) -> Path:
    """Returns the file behind `--config`: a path, or the name of a config that comes with the package.

    Raises:
        UserError: there is neither; lists the names.
    """
    for path in (Path(name), directory / f"{name}.yaml"):
        if path.is_file():
            return path
    known = ", ".join(sorted(path.stem for path in directory.glob("*.yaml")))
    raise UserError(f"--config {name}: no such file, and no config of that name; there are {known}")


def package_folder(path: str) -> str:
    """Returns the directory behind `package:NAME/DIR`, a folder of an installed Python package; nothing is imported.

    Raises:
        UserError: there is no such package.
    """
    package, _, folder = path.removeprefix(PACKAGE).partition("/")
    if not package.isidentifier():
        raise UserError(f"encoder.path: {path!r} names no Python package; write it as {PACKAGE}NAME/DIR")
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise UserError(
            f"encoder.path: {path!r} needs the Python package {package!r}; "
            f"install it with pip install {package.replace('_', '-')}"
        )
    return str(Path(found.submodule_search_locations[0]) / folder)
