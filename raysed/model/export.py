"""The trained model as a directory that `SentenceTransformer(path)` loads, with a model card.

Pooling over several layers and affine calibrations become modules that sentence-transformers has itself, so
nothing but a flow needs code of its own. That code is the file of the flow's network, copied as it is: plain
torch, and raysed need not be installed where the model is used.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from raysed.config import Format, Layers
from raysed.data.tokens import LengthReport, tokenize
from raysed.errors import UserError
from raysed.model.affine import CalibrationMap
from raysed.model.encoder import Encoder, save_encoder
from raysed.model.encoding import encode
from raysed.model.flow import Flow
from raysed.model.formats import FILES
from raysed.model.glow import FlowHead
from raysed.recipe import TEACHERS, Recipe, parse_recipe
from raysed.store.text import Table, render, sentence, size

_LAYER_NAMES = {1: "last layer", "first_last": "first and the last layer"}
_NAMED = ("raysed", "torch", "transformers")
"""Packages whose versions the card names."""

_STAGES = {
    "mlm": "masked language modelling (guessing hidden words of the corpus, without labels)",
    "nli": "natural language inference (whether one sentence follows from another, with labels)",
    "ct": "Contrastive Tension (telling a sentence from others, without labels)",
    "bsl": "bootstrapping (guessing what a slow copy of itself says of another wording of a sentence)",
    "contrastive": "contrastive learning (finding a sentence's other wording among those of other sentences)",
    "sts": "regression on graded sentence pairs (how alike two sentences are, with labels)",
}
_CALIBRATIONS = {
    "sn": "every coordinate was then shifted and scaled to mean 0 and deviation 1",
    "natsv": "the directions that all vectors share were then removed",
    "whiten": "the coordinates were then made uncorrelated and equally large (whitening)",
    "flow": "a normalizing flow (an invertible network fitted without labels) then makes the vectors Gaussian",
}
_FITTED_ON = {
    "tasks": "the sentences of the very tasks of the scores (without the gold scores): expect less on other text",
    "corpus": "the corpus",
    "nli": "the sentences of the labelled pairs",
}
_AGGREGATIONS = {
    "all": "the correlation over all its pairs together",
    "mean": "the plain mean over its subsets",
    "wmean": "the mean over its subsets, weighted by their numbers of pairs",
}


@dataclass(frozen=True)
class Card:
    """What the model card says and the model itself does not.

    Attributes:
        name: the heading.
        recipe: as in the run's list, e.g. `ct-sed-flow`.
        base: hub id of the pre-trained encoder, or what a reader of the card should call it.
        members: ensemble members whose embeddings were averaged.
        left_out: members that were trained and left out.
        corpus: what a reader should call the corpus; empty where the recipe has read none.
        lengths: what the maximum length cost on it.
        scores: a Markdown table of the rows that matter, see `raysed.report.card.rows_that_matter`.
        measure: what the scores are, and on which tasks.
        aggregation: how subsets are put together: `all`, `mean` or `wmean`.
        settings: of its stages, those that differ from the defaults, e.g. `{"ct.steps": 5000}`.
        versions: package to version; the card names some of them.
        pairs: labelled sentence pairs by stage, described in a line.
        views: kinds of other wordings by stage, with what they are made of, described in a line each.
        choice: which model this is and why it was chosen, in a line.
        worth: what it is worth against the best that needs no training, in a sentence.
        sanity: what it does with the sanity list, in a line.
        fitted_on: what its calibration was fitted on; None where it has none.
        teachers: names of the teachers from outside, where it has learnt from some.
        widths: at which its embeddings may be cut short.
        searches: the teacher whose documents its queries can search, because it shares its space.
        formats: those that it is exported in beside torch's.
        language: code of the corpus' language, e.g. `en`; None where it is not known.
        speed: how fast it is and where that was measured, in a line.
        record: what `raysed.json` holds: all that is too long for a card.
    """

    name: str
    recipe: str
    base: str
    members: int
    left_out: int
    corpus: str
    lengths: LengthReport
    scores: str
    measure: str
    aggregation: str
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    pairs: Mapping[str, str] = field(default_factory=dict)
    views: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    language: str | None = None
    choice: str = ""
    worth: str = ""
    sanity: str = ""
    fitted_on: str | None = None
    teachers: Sequence[str] = ()
    widths: Sequence[int] = ()
    searches: str | None = None
    formats: Sequence[Format] = ()
    speed: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Code:
    """Which parts of an exported model are not sentence-transformers' or transformers' own code."""

    encoder: bool
    flow: bool


def export_model(
    encoder: Encoder,
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    *,
    layers: Layers,
    max_length: int,
    calibration: CalibrationMap | None,
    card: Card,
) -> None:
    """Writes a model directory that `SentenceTransformer(path)` loads.

    Its modules are the transformer, the mean over layers (where more than the last is pooled) and the mean over tokens,
    or `StaticEmbedding` of a table of vectors; then the encoder's head (a linear layer), and the calibration. That is a
    linear layer, or for a flow `raysed.model.glow.FlowHead`, with which the model is loaded by
    `SentenceTransformer(path, trust_remote_code=True)`, and so is an encoder that came with code of its own.
    The same arguments give the same bytes.

    Args:
        encoder: the trained encoder; left as it is.
        tokenizer: its tokenizer; left as it is.
        max_length: tokens per sentence, special tokens included.
        calibration: applied to the embeddings; None: none.

    Raises:
        UserError: `layers` is beyond the encoder, or the calibration is of another width.
    """
    if calibration is not None and calibration.width != encoder.width:
        raise UserError(f"a calibration of width {calibration.width} does not fit embeddings of width {encoder.width}")
    from raysed.model import library  # takes seconds

    tail = [library.linear(encoder.head_weight())] if encoder.head else []
    if isinstance(calibration, Flow):
        tail.append(FlowHead(calibration))
    elif calibration is not None:
        tail.append(library.linear(calibration.weight_DD, calibration.bias_D))
    path.mkdir(parents=True, exist_ok=True)
    if encoder.is_static:
        rows_VD = encoder.transformer.get_input_embeddings().weight.detach().cpu().clone()
        backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        library.write(path, library.table(rows_VD, backend, max_length), tail)
    else:
        count = encoder.transformer.config.num_hidden_layers
        try:
            pooling = library.layer_pooling(encoder.hidden_size, layers, count)
        except ValueError as error:
            raise UserError(str(error)) from None
        _write_transformer(encoder, tokenizer, path, layers, max_length)
        library.write(path, None, [*pooling, library.mean_pooling(encoder.hidden_size), *tail], max_length)
    _write_json(path / "raysed.json", card.record)
    code = _Code(encoder=_has_own_code(path), flow=isinstance(calibration, Flow))
    text = _card_text(card, encoder, layers, max_length, code, _weights_bytes(path))
    (path / "README.md").write_text(text, encoding="utf-8")


def _write_transformer(
    encoder: Encoder, tokenizer: PreTrainedTokenizerBase, path: Path, layers: Layers, max_length: int
) -> None:
    save_encoder(encoder, tokenizer, path, max_length)
    config = _read_json(path / "config.json")
    _write_json(path / "config.json", {**config, "output_hidden_states": layers != 1})
    tokenizer_config = _read_json(path / "tokenizer_config.json")
    if tokenizer_config["tokenizer_class"] == "TokenizersBackend":  # the name of transformers 5 only; ONNX needs 4
        _write_json(path / "tokenizer_config.json", {**tokenizer_config, "tokenizer_class": "PreTrainedTokenizerFast"})


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _has_own_code(path: Path) -> bool:
    """Whether an encoder came with code of its own, of which its directory has a copy."""
    config = path / "config.json"
    return config.is_file() and "auto_map" in _read_json(config)


def _weights_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*.safetensors"))


def _card_text(
    card: Card, encoder: Encoder, layers: Layers, max_length: int, code: _Code, weights_bytes: int = 0
) -> str:
    recipe = parse_recipe(card.recipe)
    return render(
        "model_card.md",
        front_matter=_front_matter(card),
        name=card.name,
        width=encoder.width,
        widths=card.widths,
        searches=card.searches,
        recipe=card.recipe,
        story=_story(card, encoder.is_static),
        code=code,
        files=[FILES[name] for name in card.formats],
        scores=card.scores,
        choice=card.choice,
        worth=card.worth,
        measure=card.measure,
        sanity=sentence(card.sanity),
        aggregation=_AGGREGATIONS[card.aggregation],
        training=Table(["what", "value"], list(_training(card, recipe, _pooling_words(encoder, layers)).items())),
        size=Table(["what", "value"], list(_size(card, encoder, max_length, weights_bytes).items())),
        max_length=max_length,
        trained_on=(card.corpus or "the pairs named below") if recipe.members or recipe.distils else "",
        language=card.language,
        versions={package: card.versions[package] for package in _NAMED if package in card.versions},
    )


def _size(card: Card, encoder: Encoder, max_length: int, weights_bytes: int) -> dict[str, str]:
    rows = {
        "parameters": f"{sum(tensor.numel() for tensor in encoder.parameters()) / 1e6:,.1f} million",
        "weights": size(weights_bytes),
        "numbers per sentence": str(encoder.width),
        "longest text": f"{max_length} tokens",
    }
    return rows | ({"speed": card.speed} if card.speed else {})


def _front_matter(card: Card) -> str:
    """The metadata that model hubs read; a base that is no hub id is left out."""
    data: dict[str, Any] = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": ["sentence-transformers", "sentence-similarity", "feature-extraction", "raysed"],
    }
    if card.language:
        data["language"] = card.language
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", card.base) and not Path(card.base).exists():
        data["base_model"] = card.base
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True).strip()


def _story(card: Card, is_static: bool = False) -> str:
    """The recipe in one sentence, for someone who knows none of its names."""
    recipe = parse_recipe(card.recipe)
    learner = card.base
    parts = [f"The encoder is {card.base} as it is"]
    if is_static:
        learner = f"A table of one vector per token, which started from what {card.base} says of each token alone,"
        parts = [f"The model is a table of what {card.base} says of each token alone, weighted by frequency"]
    if recipe.members:
        stages = ", then with ".join(_STAGES[stage] for stage in recipe.members)
        copies = f"{card.members} copies of {card.base} were" if card.members > 1 else f"{card.base} was"
        parts = [f"{copies} trained with {stages}" + ", each with its own random numbers" * (card.members > 1)]
    if recipe.ensemble == TEACHERS:
        parts = [f"{learner} learned to give what {_listed(card.teachers)} {_say(card.teachers)} of a sentence"]
    elif recipe.distils:
        parts.append(f"one new copy of {card.base} learned to give the average of their embeddings")
    elif card.members > 1 and recipe.members:
        parts.append("this model is one of them")
    return "; ".join([*parts, *(_CALIBRATIONS[stage] for stage in recipe.calibration)]) + "."


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _say(teachers: Sequence[str]) -> str:
    return "says" if len(teachers) == 1 else "together say"


def _training(card: Card, recipe: Recipe, pooling: str) -> dict[str, str]:
    lengths = card.lengths
    cut = _percent(lengths.truncated_sentences, lengths.sentences)
    lost = _percent(lengths.lost_tokens, lengths.tokens + lengths.lost_tokens)
    rows = {"base encoder": card.base}
    if recipe.ensemble == TEACHERS:
        rows["teachers"] = _listed(card.teachers)
    elif recipe.distils:
        rows["members"] = f"{card.members} averaged, {card.left_out} left out"
    rows |= {f"{stage} pairs": card.pairs[stage] for stage in recipe.members if stage in card.pairs}
    views = {stage: card.views[stage] for stage in recipe.members if stage in card.views}
    rows |= {f"{stage} views: {kind}": what for stage, kinds in views.items() for kind, what in kinds.items()}
    if card.corpus:
        rows["corpus"] = f"{card.corpus}: {lengths.sentences:,} sentences, {lengths.tokens:,} tokens"
        rows[f"cut at {lengths.max_length} tokens"] = f"{cut} of the sentences, which lost {lost} of all tokens"
    if card.fitted_on:
        rows["calibration fitted on"] = _FITTED_ON.get(card.fitted_on, card.fitted_on)
    rows["pooling"] = pooling
    return rows | {f"`{key}`": f"`{value}`" for key, value in card.settings.items()}


def _pooling_words(encoder: Encoder, layers: Layers) -> str:
    if encoder.is_static:
        return "mean over the vectors of all tokens, without special ones"
    return f"mean over all tokens of the {_LAYER_NAMES.get(layers, f'last {layers} layers')}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.2f} %"


def parity(
    path: Path,
    encoder: Encoder,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    *,
    layers: Layers,
    max_length: int,
    calibration: CalibrationMap | None,
) -> float:
    """Reads an exported directory back and compares it with the model in memory.

    Args:
        path: what `export_model` wrote for the same encoder, tokenizer, layers, max_length and calibration.
        encoder: as given to `export_model`.

    Returns:
        The largest difference of any coordinate, as a share of the largest coordinate: rounding gives 1e-6, and up
        to 1e-5 under a whitening that enlarges weak directions. NaN where either side has one.
    """
    expected_ND = encode(encoder, tokenize(tokenizer, sentences, max_length), (layers,))[0]
    if calibration is not None:
        expected_ND = calibration.transform(expected_ND)
    from raysed.model import library

    model = library.load(path, trust_remote_code=_has_own_code(path))  # code that has run in this process already
    return largest_difference(library.embed(model, sentences), expected_ND)


def largest_difference(found_ND: np.ndarray, expected_ND: np.ndarray) -> float:
    """Return that of any coordinate, as a share of the largest coordinate."""
    return float(np.abs(found_ND - expected_ND).max() / np.abs(expected_ND).max())
