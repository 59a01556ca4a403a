"""The trained model as a directory that `SentenceTransformer(path)` loads, with a model card.

Pooling over several layers and affine calibrations become modules that sentence-transformers has itself, so
nothing but a flow needs code of its own. That code is the file of the flow's network, copied as it is: plain
torch, and raysed need not be installed where the model is used.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import yaml
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch.nn.functional import embedding_bag
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase

from raysed.config import Format, Layers
from raysed.data.tokens import LengthReport, tokenize
from raysed.errors import UserError
from raysed.model.affine import CalibrationMap
from raysed.model.encoder import Encoder, blocks_of, save_encoder
from raysed.model.encoding import encode
from raysed.model.flow import Flow
from raysed.model.formats import FILES
from raysed.model.glow import FlowHead
from raysed.model.static import STATIC
from raysed.recipe import TEACHERS, Recipe, parse_recipe
from raysed.store.text import Table, render, sentence, size

_BUILT_IN = "sentence_transformers.models."
"""Where modules.json looks for a class: the name of releases up to 5, which later ones still resolve."""
_IDENTITY = "torch.nn.modules.linear.Identity"
_POOLING_MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
_LAYER_NAMES = {1: "last layer", "first_last": "first and the last layer"}
_PARITY_ROWS = 32
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
        scores: a Markdown table of the rows that matter, see `raysed.report.document.rows_that_matter`.
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
class _Module:
    """One module after the transformer: the class that loads it, and what writes its directory."""

    kind: str
    write: Callable[[Path], None]


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
    head = [_dense(encoder.head_weight())] if encoder.head else []
    tail = [*head, *_calibration(calibration)]
    path.mkdir(parents=True, exist_ok=True)
    if encoder.is_static:
        modules, entries = [_static(encoder, tokenizer, max_length), *tail], []
    else:
        modules = [*_layer_pooling(encoder, layers), _pooling(encoder.hidden_size), *tail]
        entries = [_write_transformer(encoder, tokenizer, path, layers, max_length)]
    for index, module in enumerate(modules, start=len(entries)):
        entries.append((f"{index}_{module.kind.rpartition('.')[2]}", module.kind))
        module.write(path / entries[-1][0])
    listed = [{"idx": i, "name": str(i), "path": place, "type": kind} for i, (place, kind) in enumerate(entries)]
    _write_json(path / "modules.json", listed)
    _write_versions(path)
    _write_json(path / "raysed.json", card.record)
    code = _Code(encoder=_has_own_code(path), flow=isinstance(calibration, Flow))
    text = _card_text(card, encoder, layers, max_length, code, _weights_bytes(path))
    (path / "README.md").write_text(text, encoding="utf-8")


def _write_transformer(
    encoder: Encoder, tokenizer: PreTrainedTokenizerBase, path: Path, layers: Layers, max_length: int
) -> tuple[str, str]:
    """Writes it to the model's own directory; returns that place and its class."""
    save_encoder(encoder, tokenizer, path, max_length)
    config = _read_json(path / "config.json")
    _write_json(path / "config.json", {**config, "output_hidden_states": layers != 1})
    _rename_tokenizer(path / "tokenizer_config.json")
    _write_json(path / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    return "", f"{_BUILT_IN}Transformer"


def _static(encoder: Encoder, tokenizer: PreTrainedTokenizerBase, max_length: int) -> _Module:
    """The table of vectors; its tokenizer cuts by itself, because `StaticEmbedding` has no setting for it."""
    rows_VD = encoder.transformer.get_input_embeddings().weight.detach().cpu().clone()

    def write(directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        save_file({"embedding.weight": rows_VD}, directory / "model.safetensors")
        backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        backend.no_padding()
        backend.enable_truncation(max_length)
        backend.save(str(directory / "tokenizer.json"))

    return _Module(f"{_BUILT_IN}{STATIC}", write)


def _layer_pooling(encoder: Encoder, layers: Layers) -> list[_Module]:
    """The mean over layers; taken before the mean over tokens it is the same as after it."""
    count = encoder.transformer.config.num_hidden_layers
    if layers == 1:
        return []
    if layers != "first_last" and not 1 <= layers <= count:
        raise UserError(f"{layers} layers cannot be pooled: the encoder has {count}")
    blocks = torch.tensor(blocks_of(layers, count))
    start = int(blocks.min())
    config = {"word_embedding_dimension": encoder.hidden_size, "layer_start": start, "num_hidden_layers": count}
    tensors = {"layer_weights": (blocks - start).bincount().float()}
    return [_built_in("WeightedLayerPooling", config, tensors)]


def _pooling(width: int) -> _Module:
    """The mean over tokens, in the keys that every release reads."""
    modes = {f"pooling_mode_{mode}": mode == "mean_tokens" for mode in _POOLING_MODES}
    return _built_in("Pooling", {"word_embedding_dimension": width, **modes}, {})


def _calibration(calibration: CalibrationMap | None) -> list[_Module]:
    if calibration is None:
        return []
    if isinstance(calibration, Flow):
        return [_Module("glow.FlowHead", FlowHead(calibration).save)]
    return [_dense(calibration.weight_DD, calibration.bias_D)]


def _dense(weight_DE: np.ndarray, bias_E: np.ndarray | None = None) -> _Module:
    rows, columns = weight_DE.shape
    has_bias = bias_E is not None
    config = {"in_features": rows, "out_features": columns, "bias": has_bias, "activation_function": _IDENTITY}
    arrays = {"linear.weight": weight_DE.T, **({"linear.bias": bias_E} if has_bias else {})}
    tensors = {name: torch.tensor(array, dtype=torch.float32).contiguous() for name, array in arrays.items()}
    return _built_in("Dense", config, tensors)


def _built_in(name: str, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> _Module:
    return _Module(_BUILT_IN + name, partial(_write_module, config=config, tensors=tensors))


def _write_module(directory: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    directory.mkdir(exist_ok=True)
    _write_json(directory / "config.json", config)
    if tensors:
        save_file(dict(tensors), directory / "model.safetensors")


def _rename_tokenizer(path: Path) -> None:
    """Names a plain tokenizer as transformers 4 and 5 both know it; releases with an ONNX backend need 4."""
    config = _read_json(path)
    if config["tokenizer_class"] == "TokenizersBackend":
        _write_json(path, {**config, "tokenizer_class": "PreTrainedTokenizerFast"})


def _write_versions(path: Path) -> None:
    """Writes the settings of the model as a whole."""
    versions = {"transformers": transformers.__version__, "pytorch": torch.__version__}
    settings = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    _write_json(path / "config_sentence_transformers.json", {"__version__": versions, **settings})


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

    The files are followed module by module, on padded batches, as sentence-transformers does it.

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
    return largest_difference(_exported_vectors(path, sentences), expected_ND)


def _exported_vectors(path: Path, sentences: Sequence[str]) -> np.ndarray:
    modules = [(entry["type"].rpartition(".")[2], path / entry["path"]) for entry in _read_json(path / "modules.json")]
    (first, directory), *modules = modules
    if first != STATIC:
        return ExportedModel(path).embed(sentences)
    values = _static_vectors(directory, sentences)
    for name, place in modules:
        values = _apply(name, place, values)
    return values.numpy()


def _static_vectors(directory: Path, sentences: Sequence[str]) -> torch.Tensor:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    lists = [encoding.ids for encoding in tokenizer.encode_batch(list(sentences), add_special_tokens=False)]
    rows_VD = load_file(directory / "model.safetensors")["embedding.weight"]
    offsets = torch.tensor([0, *map(len, lists[:-1])]).cumsum(0)
    return embedding_bag(torch.tensor([token for tokens in lists for token in tokens]), rows_VD, offsets, mode="mean")


def largest_difference(found_ND: np.ndarray, expected_ND: np.ndarray) -> float:
    """Returns that of any coordinate, as a share of the largest coordinate."""
    return float(np.abs(found_ND - expected_ND).max() / np.abs(expected_ND).max())


class ExportedModel:
    """An exported directory, followed module by module on padded batches, as sentence-transformers does it.

    Args:
        path: what `export_model` wrote.
        transformer: runs in place of the directory's own, called like it; None: that one.
    """

    def __init__(self, path: Path, transformer: Callable[..., Any] | None = None):
        trusted = _has_own_code(path)  # which has run in this process already
        self._transformer = (
            transformer or AutoModel.from_pretrained(path, use_safetensors=True, trust_remote_code=trusted).eval()
        )
        self._tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trusted)
        self._length = _read_json(path / "sentence_bert_config.json")["max_seq_length"]
        self._modules = [(entry["type"], path / entry["path"]) for entry in _read_json(path / "modules.json")[1:]]

    @torch.inference_mode()
    def embed(self, sentences: Sequence[str]) -> np.ndarray:
        """Returns vectors, float32 [N, D]."""
        options = {"padding": True, "truncation": True, "return_tensors": "pt", "max_length": self._length}
        batches = []
        for start in range(0, len(sentences), _PARITY_ROWS):
            batch = self._tokenizer(list(sentences[start : start + _PARITY_ROWS]), **options)
            output = self._transformer(**batch)
            values, mask_BL = output.last_hidden_state, batch["attention_mask"]
            for kind, directory in self._modules:
                values = _apply(kind.rpartition(".")[2], directory, values, output.hidden_states, mask_BL)
            batches.append(values)
        return torch.cat(batches).numpy()


def _apply(
    name: str, directory: Path, values: torch.Tensor, states: Any = None, mask_BL: torch.Tensor | None = None
) -> torch.Tensor:
    """Carries token states [B, L, D] or emb_BD through one module."""
    if name == "FlowHead":
        return FlowHead.load(directory)({"sentence_embedding": values})["sentence_embedding"]
    if name == "Pooling":
        return (values * mask_BL[:, :, None]).sum(1) / mask_BL.sum(1, keepdim=True)
    tensors = load_file(directory / "model.safetensors")
    if name == "Dense":
        return values @ tensors["linear.weight"].T + tensors.get("linear.bias", 0)
    weights = tensors["layer_weights"]
    chosen = torch.stack(states[_read_json(directory / "config.json")["layer_start"] :])
    return torch.tensordot(weights / weights.sum(), chosen, dims=1)
