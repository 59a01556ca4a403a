"""Any model loaded: what is computed here is what sentence-transformers gives; mistakes are one sentence each."""

import json
import pickle
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import models
from transformers import AutoModel, AutoTokenizer

from raysed.config import EncoderConfig
from raysed.data.sources import readable
from raysed.data.tokens import tokenize
from raysed.errors import UserError
from raysed.model import library
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.model.load import LibraryModel, NativeModel, load_model
from raysed.model.pretrained import load_encoder
from raysed.store import hub

MAX_LENGTH = 12


def by_library(path: Path, sentences: list[str]) -> np.ndarray:
    return SentenceTransformer(str(path), device="cpu", trust_remote_code=True).encode(sentences)


def test_code_beside_a_flow_is_not_run(exports, sentences, tmp_path):
    path = shutil.copytree(exports["flow"], tmp_path / "flow")
    assert (path / "glow.py").exists()
    (path / "glow.py").write_text("raise SystemExit('run')")
    found = load_model(str(path)).embed(sentences)[0]
    assert (found == load_model(str(exports["flow"])).embed(sentences)[0]).all()
    assert np.abs(library.load(path).encode(sentences) - found).max() < 1e-4


def test_a_model_saved_by_sentence_transformers_is_computed_here(exports, sentences, tmp_path):
    """Its own classes' names and keys, with a scaling at the end, and without a maximum length of its own."""
    saved = SentenceTransformer(str(exports["2"]), device="cpu")
    saved.append(Normalize())
    saved.save(str(tmp_path))
    model = load_model(str(tmp_path))
    assert isinstance(model, NativeModel) and model.poolings == (2,) and model.description.endswith("12 tokens")
    found = model.embed(sentences)[0]
    assert np.abs(found - saved.encode(sentences)).max() < 1e-5
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-5)


def test_a_plain_transformer_takes_the_poolings_that_are_asked_for(tiny_encoder_dir, make_transformer, sentences):
    model = load_model(str(tiny_encoder_dir), (2, 1, 2), MAX_LENGTH)
    assert model.poolings == (2, 1)
    tokens = tokenize(AutoTokenizer.from_pretrained(tiny_encoder_dir), sentences, MAX_LENGTH)
    expected = encode(Encoder(make_transformer("bert")), tokens, (2, 1))
    for one, other in zip(model.embed(sentences), expected):
        assert np.abs(one - other).max() < 1e-5


def change(file: Path, **settings: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


POOLING, NO_MEAN = "2_Pooling/config.json", {"pooling_mode_mean_tokens": False}
TANH = {"activation_function": "torch.nn.modules.activation.Tanh"}
PROMPT = {"prompts": {"query": "the cat "}, "default_prompt_name": "query"}


@pytest.mark.parametrize(
    ("file", "settings", "said"),
    [
        (POOLING, {**NO_MEAN, "pooling_mode_cls_token": True}, "first token, layers 2, Dense; 12 tokens"),
        ("3_Dense/config.json", TANH, "mean over tokens, layers 2, Dense; 12 tokens"),
        (POOLING, {**NO_MEAN, "pooling_mode_max_tokens": True}, "by sentence-transformers (its pooling is max)"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "(its transformer has do_lower_case: true)"),
        ("config_sentence_transformers.json", PROMPT, "(it prepends a prompt to sentences)"),
        (None, {}, "(its layers are weighted unequally)"),
        ("config.json", {"output_hidden_states": False}, "(its transformer does not pass on the layers that it pools)"),
    ],
)
def test_other_modules_are_computed_as_the_library_does(exports, sentences, tmp_path, file, settings, said):
    path = shutil.copytree(exports["whiten"], tmp_path / "other")
    if file:
        change(path / file, **settings)
    else:
        save_file({"layer_weights": torch.tensor([0.3, 0.7])}, path / "1_WeightedLayerPooling/model.safetensors")
    model, told = load_model(str(path), (3,)), []
    assert model.description.endswith(said) and isinstance(model, LibraryModel) == ("(" in said)
    (found,), expected = model.embed(sentences, told.append), by_library(path, sentences)
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max() and told == [len(sentences)]
    (plain,) = load_model(str(exports["whiten"])).embed(sentences)
    assert np.abs(found - plain).max() > 1e-3 or "do_lower_case" in settings, "the change is of no effect"


def test_texts_that_a_task_has_given_a_prompt_get_no_other(exports, sentences, tmp_path):
    path = shutil.copytree(exports["whiten"], tmp_path / "other")
    change(path / "config_sentence_transformers.json", **PROMPT)
    (found,) = load_model(str(path)).embed(sentences, role="prompted")
    expected = by_library(exports["whiten"], sentences)
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


def test_the_library_computes_in_fp32_whatever_is_stored(exports, tmp_path):
    path = shutil.copytree(exports["whiten"], tmp_path / "other")
    change(path / POOLING, **NO_MEAN, pooling_mode_max_tokens=True)
    AutoModel.from_pretrained(path, dtype=torch.bfloat16).save_pretrained(path)
    model = load_model(str(path)).model
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


SMALL = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}


@pytest.mark.parametrize("name", ["T5", "MT5", "UMT5"])
def test_an_encoder_of_t5_saved_again_is_computed_by_the_library(tiny_tokenizer, sentences, tmp_path, name):
    """Transformers would add a decoder without weights."""
    config = getattr(transformers, f"{name}Config")(**SMALL, vocab_size=len(tiny_tokenizer))
    getattr(transformers, f"{name}EncoderModel")(config).save_pretrained(tmp_path / "plain")
    tiny_tokenizer.save_pretrained(tmp_path / "plain")
    modules = [Transformer(str(tmp_path / "plain")), Pooling(16)]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "saved"))
    model = load_model(str(tmp_path / "saved"))
    assert model.description == "by sentence-transformers (its transformer has a decoder, or sees its padding)"
    assert np.abs(model.embed(sentences)[0] - by_library(tmp_path / "saved", sentences)).max() < 1e-5


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_model_without_a_token_for_padding_pads_with_another(exports, sentences, tmp_path, pooling):
    """Padding is masked, so its token does not matter; texts are cut to the model's 40 positions."""
    path = changed_copy(exports["1"], tmp_path, pooling)
    expected = by_library(path, sentences)
    change(path / "tokenizer_config.json", pad_token=None, eos_token="[SEP]")
    change(path / "sentence_bert_config.json", max_seq_length=500)
    model = load_model(str(path))
    assert isinstance(model, LibraryModel) == (pooling == "max")
    short = [len(text.split()) < 9 for text in sentences]
    assert np.abs(model.embed(sentences)[0] - expected)[short].max() < 1e-5 and sum(short) > 20
    assert np.isfinite(model.embed(["the cat " * 99])[0]).all()


def changed_copy(source: Path, folder: Path, pooling: str) -> Path:
    path = shutil.copytree(source, folder / "other")
    change(path / "1_Pooling/config.json", **{**NO_MEAN, f"pooling_mode_{pooling}_tokens": True})
    return path


# -- mistakes --------------------------------------------------------------------------------------------------------


def refusal(name: object, poolings: tuple = (1,), max_length: int = MAX_LENGTH) -> str:
    with pytest.raises(UserError) as caught:
        load_model(str(name), poolings, max_length)
    message = str(caught.value)
    assert message.startswith(f"--model {name}: ") and "\n" not in message
    return message


MOST = "max_seq_length"


@pytest.mark.parametrize("pooling", ["mean", "max"])
@pytest.mark.parametrize(
    ("file", "settings", "problem"),
    [
        ("sentence_bert_config.json", {MOST: -5}, "its transformer has max_seq_length -5; write a number of tokens"),
        ("sentence_bert_config.json", {MOST: "x"}, "its transformer has max_seq_length 'x'; write a number of tokens"),
        ("tokenizer_config.json", {"pad_token": None, "sep_token": None, "unk_token": None}, "no token for padding"),
        ("config.json", {"vocab_size": 30}, "tokens, but its model has only 30; use both from the same model"),
    ],
)
def test_a_tokenizer_or_length_that_does_not_fit_is_refused(exports, tmp_path, pooling, file, settings, problem):
    path = changed_copy(exports["1"], tmp_path, pooling)
    if "vocab_size" in settings:
        model = AutoModel.from_pretrained(path)
        model.resize_token_embeddings(30)
        model.save_pretrained(path)
    change(path / file, **settings)
    assert problem in refusal(path)


def test_what_the_library_raises_names_the_text(exports, sentences, tmp_path):
    path = changed_copy(exports["1"], tmp_path, "max")
    model = load_model(str(path))
    model.model.tokenizer.backend_tokenizer.model = models.WordPiece({"cat": 7}, unk_token="[UNK]")
    with pytest.raises(UserError, match=r"^the model '.*' fails on the text 'dog': WordPiece error: Missing \[UNK\]"):
        model.embed([*["cat"] * 20, "dog", *["cat"] * 50])
    change(path / "config_sentence_transformers.json", truncate_dim="x")
    with pytest.raises(UserError, match=r"^the model '.*' fails on the text 'A sentence.': slice indices must be "):
        load_model(str(path)).embed(["A sentence."])


@pytest.mark.parametrize("weights", [b"", pickle.dumps(shutil.rmtree, 2)])
def test_a_pickle_is_not_loaded(exports, tmp_path, weights):
    path = shutil.copytree(exports["whiten"], tmp_path / "other")
    (path / "3_Dense/model.safetensors").unlink()
    (path / "3_Dense/pytorch_model.bin").write_bytes(weights)
    assert "3_Dense/pytorch_model.bin holds not just weights; save it as model.safetensors" in refusal(path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"type": "glow.Other"}, "its module glow.Other is custom code"),
        ({"type": "sentence_transformers_like.Head"}, "its module sentence_transformers_like.Head is custom code"),
        ({"path": "../b"}, "lies outside of the model's directory, in '../b'"),
    ],
)
def test_code_of_a_model_and_modules_outside_of_it_are_refused(exports, tmp_path, changes, problem):
    path = shutil.copytree(exports["1"], tmp_path / "own")
    first, second = json.loads((path / "modules.json").read_text())
    (path / "modules.json").write_text(json.dumps([first, second | changes]))
    for name in ("glow", "sentence_transformers_like"):
        (path / f"{name}.py").write_text("raise SystemExit('run')")
    assert problem in refusal(path)
    with pytest.raises(UserError, match=re.escape(problem)):
        library.load(path, trust_remote_code=True)


def test_directories_that_are_no_models_are_refused(tmp_path, exports, tiny_encoder_dir):
    assert "cannot be loaded" in refusal(tmp_path)
    assert "5 layers cannot be pooled: the encoder has 3" in refusal(tiny_encoder_dir, (5,))
    assert "at most 40 tokens" in refusal(tiny_encoder_dir, (1,), 99)
    path = shutil.copytree(exports["1"], tmp_path / "model")
    (path / "model.safetensors").unlink()
    assert "cannot be loaded" in refusal(path)
    for text in ("{", "{}", '[{"type": 5}]', "[]"):
        (path / "modules.json").write_text(text)
        refusal(path)


@pytest.mark.parametrize(
    "error", [RuntimeError("DefaultCPUAllocator: can't allocate memory"), OSError(12, "Cannot allocate memory")]
)
def test_no_setting_is_blamed_where_memory_runs_out(monkeypatch, tiny_encoder_dir, error):
    monkeypatch.setattr(AutoModel, "from_pretrained", Mock(side_effect=error))
    with pytest.raises(UserError, match=r"^there is not enough memory; free some, .* allocate memory"):
        load_encoder(EncoderConfig(path=str(tiny_encoder_dir), max_length=9))
    assert "not enough memory" in refusal(tiny_encoder_dir)
    with pytest.raises(UserError, match=r"^there is not enough memory; .*\(a.parquet cannot be read: "):
        with readable("a.parquet"):
            raise pa.ArrowMemoryError("malloc of size 8 failed")


def test_a_hub_model_is_fetched_without_code(monkeypatch, tiny_encoder_dir):
    asked = {}

    def fetch(name: str, **options: object) -> str:
        asked.update(name=name, **options)
        return str(tiny_encoder_dir)

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    load_model("somebody/model", (1,), MAX_LENGTH)
    assert asked["name"] == "somebody/model"
    assert not any(pattern.endswith((".py", ".bin", "*")) for pattern in asked["allow_patterns"])
