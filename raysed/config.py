"""Typed, frozen settings: one block per stage, read from YAML with dotted overrides.

Unknown keys are refused, every default is the papers' value where a paper gives one, and a block has a
stable hash so that a changed setting invalidates exactly what depends on it.
"""

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from raysed.errors import UserError

Layers = int | Literal["first_last"]


class Block(BaseModel):
    """A frozen group of settings that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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


class CorpusConfig(Block):
    """Unlabelled sentences."""

    source: str | list[str] = "bundled:everyday"
    """Files, directories, globs or URIs (.txt, .jsonl, .csv, .tsv, .parquet), a hub dataset id, or `bundled:everyday`."""
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


class TaskConfig(Block):
    """One file or directory of sentence pairs with gold scores."""

    source: str
    """TSV (columns subset, score, sentence1, sentence2), SentEval directory, hub dataset id, or `bundled:dev`."""
    split: str = "test"
    name: str | None = None
    score_range: tuple[float, float] = (0.0, 5.0)
    aggregation: Literal["all", "mean", "wmean"] | None = None
    """For this task instead of `evaluation.aggregation`; STS-B, whose subsets are genres, is scored as `all`."""


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
    learner_layers: list[Layers] = [1, 2, 3]
    """Pooled layers at which learners are scored (SED table 8)."""

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


class CtConfig(Block):
    """Contrastive Tension (SED appendix B.2; the numbers absent there are those of the released code)."""

    steps: int = Field(50_000, ge=1)
    negatives: int = Field(7, ge=1)
    """Negative pairs per positive pair."""
    groups: int = Field(2, ge=1)
    """Positive pairs per batch: the batch has groups * (1 + negatives) pairs."""
    schedule: Literal["paper", "scaled"] = "paper"
    """`paper`: boundaries in raw updates whatever `steps` is; `scaled`: the same rates over fifths of the run."""
    boundaries: list[int] = [500, 1000, 1500, 2000]
    learning_rates: list[float] = [1e-5, 8e-6, 6e-6, 4e-6, 2e-6]
    keep: Literal["second", "best_on_dev"] = "second"
    """Which of the two trained models becomes the member: the second, as trained to the end, or the better one at its
    best evaluation on the dev task (the released code; it uses dev labels)."""

    @model_validator(mode="after")
    def _one_rate_more_than_boundaries(self) -> "CtConfig":
        if len(self.learning_rates) != len(self.boundaries) + 1 or sorted(set(self.boundaries)) != self.boundaries:
            raise ValueError("boundaries must increase, and learning_rates must have one value more than boundaries")
        return self


class SedConfig(Block):
    """Ensemble distillation (SED sections 4 and 5.1)."""

    target: Literal["mean", "centred_mean"] = "mean"
    """`mean`: the teachers' raw mean (the paper); `centred_mean`: less its average over the corpus, which takes out
    the common offset that CT gives to its members."""
    learners: int = Field(1, ge=1)
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
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`auto`: bf16 on GPUs that have it, fp32 elsewhere."""
    checkpoint_every: int = Field(500, ge=1)
    evaluate_every: int = Field(500, ge=1)
    max_retries: int = Field(2, ge=0)


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
    fit_on: str = "tasks"
    """`tasks`: the union of all tasks' sentences, no gold score (SED appendix B.3); `corpus`; or a corpus source."""


class CalibrationConfig(Block):
    """The affine calibrations `sn`, `natsv` and `whiten`; fitted on the same sentences as the flow."""

    natsv_k: int = Field(5, ge=0)
    """Singular directions that `natsv` removes (BERT-flow table 5)."""


class ExportConfig(Block):
    """The model that ends up in `model/`."""

    recipe: str | None = None
    """None: the last recipe of the list."""


class ResourcesConfig(Block):
    """Planned from what the cluster has where a value is None."""

    cpus_per_member: float | None = Field(None, gt=0)
    gpus_per_member: float | None = Field(None, ge=0)
    concurrent_members: int | None = Field(None, ge=1)
    gpu: bool | None = None
    """None: use GPUs where the cluster has them; true: they must be there; false: leave them alone."""
    encode_token_budget: int = Field(8192, ge=64)
    """Tokens per forward pass when encoding."""
    wait_minutes: float = Field(10.0, ge=0)
    """How long to wait for an autoscaling cluster to bring what is asked for."""


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
    ct: CtConfig = CtConfig()
    sed: SedConfig = SedConfig()
    flow: FlowConfig = FlowConfig()
    calibration: CalibrationConfig = CalibrationConfig()
    export: ExportConfig = ExportConfig()
    resources: ResourcesConfig = ResourcesConfig()

    @model_validator(mode="after")
    def _references_resolve(self) -> "Config":
        tasks = self.evaluation.tasks
        for key, names in (("dev", [self.evaluation.dev]), ("report", self.evaluation.report or [])):
            for name in names:
                if name is not None and name not in tasks:
                    raise ValueError(
                        f"evaluation.{key} names {name!r}, which is not in evaluation.tasks ({', '.join(tasks)})"
                    )
        if self.ct.keep == "best_on_dev" and self.evaluation.dev is None:
            raise ValueError("ct.keep: best_on_dev needs evaluation.dev; set it, or use ct.keep: second")
        if (self.members.min_members or 1) > self.members.count:
            raise ValueError(
                f"members.min_members is {self.members.min_members}, more than members.count ({self.members.count})"
            )
        return self

    def report_tasks(self) -> list[str]:
        """Returns the names of the tasks whose mean is the headline number."""
        chosen = self.evaluation.report or [t for t in self.evaluation.tasks if t != self.evaluation.dev]
        return chosen or list(self.evaluation.tasks)


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
        raise UserError(_sentence(error)) from None


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
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"config file {path}{where} is not valid YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(data, dict | None):
        raise UserError(f"config file {path} must hold settings as 'key: value', not a {type(data).__name__}")
    return data or {}


def _apply_override(data: dict[str, Any], item: str) -> None:
    key, equals, text = item.partition("=")
    if not equals or not key:
        raise UserError(f"--set {item!r}: write it as block.key=value, for example --set ct.steps=1000")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"--set {item!r}: the value is not valid YAML") from None
    *parents, leaf = key.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise UserError(f"--set {item!r}: {parent} is a value, not a block of settings")
    data[leaf] = value


def _sentence(error: ValidationError) -> str:
    """Turns the first validation problem into one sentence that names the setting."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"unknown setting {where}{_suggestion([str(p) for p in problem['loc']])}"
    message = problem["msg"].removeprefix("Value error, ")
    if not where:
        return message
    return f"setting {where}: {message[0].lower() + message[1:]} (got {problem['input']!r})"


def _suggestion(keys: list[str]) -> str:
    block: Any = Config
    for key in keys[:-1]:
        field = getattr(block, "model_fields", {}).get(key)
        block = field.annotation if field else None
    known = list(getattr(block, "model_fields", {}))
    prefix = "".join(f"{key}." for key in keys[:-1])
    close = difflib.get_close_matches(keys[-1], known, n=1)
    if close:
        return f": did you mean {prefix}{close[0]}?"
    return f": known here are {', '.join(prefix + name for name in known)}" if known else ""
