"""Any model loaded: what is computed here is what sentence-transformers gives; mistakes are one sentence each."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from raysed.data.tokens import tokenize
from raysed.errors import UserError
from raysed.model import library
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.model.load import LibraryModel, NativeModel, load_model
from raysed.store import hub

MAX_LENGTH = 12


def by_library(path: Path, sentences: list[str]) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(path), device="cpu", trust_remote_code=True).encode(sentences)


def test_code_beside_a_flow_is_not_run(exports, sentences, tmp_path):
    shutil.copytree(exports["flow"], tmp_path / "flow")
    assert (tmp_path / "flow/glow.py").exists()
    (tmp_path / "flow/glow.py").write_text("raise SystemExit('run')")
    found = load_model(str(tmp_path / "flow")).embed(sentences)[0]
    assert (found == load_model(str(exports["flow"])).embed(sentences)[0]).all()
    assert np.abs(library.load(tmp_path / "flow").encode(sentences) - found).max() < 1e-4


def test_a_model_saved_by_sentence_transformers_is_computed_here(exports, sentences, tmp_path):
    """Its own classes' names and keys, with a scaling at the end, and without a maximum length of its own."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize

    library = SentenceTransformer(str(exports["2"]), device="cpu")
    library.append(Normalize())
    library.save(str(tmp_path / "saved"))
    model = load_model(str(tmp_path / "saved"))
    assert isinstance(model, NativeModel) and model.poolings == (2,) and model.description.endswith("12 tokens")
    found = model.embed(sentences)[0]
    assert np.abs(found - library.encode(sentences)).max() < 1e-5
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-5)


def test_a_plain_transformer_takes_the_poolings_that_are_asked_for(tiny_encoder_dir, make_transformer, sentences):
    model = load_model(str(tiny_encoder_dir), (2, 1, 2), MAX_LENGTH)
    assert model.poolings == (2, 1)
    from transformers import AutoTokenizer

    tokens = tokenize(AutoTokenizer.from_pretrained(tiny_encoder_dir), sentences, MAX_LENGTH)
    expected = encode(Encoder(make_transformer("bert")), tokens, (2, 1))
    for one, other in zip(model.embed(sentences), expected):
        assert np.abs(one - other).max() < 1e-5


def other_modules(exports: dict[str, Path], path: Path, which: str) -> Path:
    """An export with other modules or settings than those of an export."""
    shutil.copytree(exports["whiten"], path)
    pooling, dense = path / "2_Pooling/config.json", path / "3_Dense/config.json"
    if which in ("cls_token", "max_tokens"):
        settings = {"word_embedding_dimension": 16, f"pooling_mode_{which}": True}
        pooling.write_text(json.dumps(settings))
    if which == "tanh":
        settings = {**json.loads(dense.read_text()), "activation_function": "torch.nn.modules.activation.Tanh"}
        dense.write_text(json.dumps(settings))
    if which == "layers":
        weights = {"layer_weights": torch.tensor([0.3, 0.7])}
        save_file(weights, path / "1_WeightedLayerPooling/model.safetensors")
    if which == "lower":
        file = path / "sentence_bert_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "do_lower_case": True}))
    if which == "prompt":
        file = path / "config_sentence_transformers.json"
        prompts = {"prompts": {"query": "the cat "}, "default_prompt_name": "query"}
        file.write_text(json.dumps({**json.loads(file.read_text()), **prompts}))
    return path


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("cls_token", "first token, layers 2, Dense; 12 tokens"),
        ("tanh", "mean over tokens, layers 2, Dense; 12 tokens"),
        ("lower", "by sentence-transformers (its transformer has do_lower_case: true)"),
        ("prompt", "by sentence-transformers (it puts a prompt before sentences)"),
        ("max_tokens", "by sentence-transformers (its pooling is max)"),
        ("layers", "by sentence-transformers (its layers have weights of their own)"),
    ],
)
def test_other_modules_are_computed_as_the_library_does(exports, sentences, tmp_path, which, said):
    path = other_modules(exports, tmp_path / "other", which)
    model = load_model(str(path), (3,))
    assert model.description == said and isinstance(model, LibraryModel) == said.startswith("by")
    told: list[int] = []
    (found,) = model.embed(sentences, told.append)
    expected = by_library(path, sentences)
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max() and told == [len(sentences)]
    (plain,) = load_model(str(exports["whiten"])).embed(sentences)
    assert np.abs(found - plain).max() > 1e-3 or which == "lower", "the change is of no effect"


@pytest.mark.parametrize("kind", ["own_code.Head", "glow.Other", "sentence_transformers_like.Head"])
def test_code_of_a_model_is_refused(exports, tmp_path, kind):
    path = tmp_path / "own"
    shutil.copytree(exports["1"], path)
    listed = json.loads((path / "modules.json").read_text())
    listed.append({"idx": 2, "name": "2", "path": "", "type": kind})
    (path / "modules.json").write_text(json.dumps(listed))
    (path / f"{kind.partition('.')[0]}.py").write_text("raise SystemExit('run')")
    for load_it in (load_model, lambda place: library.load(Path(place), trust_remote_code=True)):
        with pytest.raises(UserError, match=rf"its module {re.escape(kind)} is custom code"):
            load_it(str(path))


def test_modules_outside_of_the_model_are_refused(exports, tmp_path):
    shutil.copytree(exports["1"], tmp_path / "a")
    listed = json.loads((tmp_path / "a/modules.json").read_text())
    listed[1]["path"] = "../b"
    (tmp_path / "a/modules.json").write_text(json.dumps(listed))
    with pytest.raises(UserError, match=r"lies outside of the model's directory, in '\.\./b'"):
        load_model(str(tmp_path / "a"))


# -- mistakes --------------------------------------------------------------------------------------------------------


def refusal(name: object, poolings: tuple = (1,), max_length: int = MAX_LENGTH) -> str:
    with pytest.raises(UserError) as caught:
        load_model(str(name), poolings, max_length)
    message = str(caught.value)
    assert message.startswith(f"--model {name}: ") and "\n" not in message
    return message


def test_directories_that_are_no_models_are_refused(tmp_path, exports, tiny_encoder_dir):
    assert "cannot be loaded" in refusal(tmp_path)
    assert "5 layers cannot be pooled: the encoder has 3" in refusal(tiny_encoder_dir, (5,))
    assert "at most 40 tokens" in refusal(tiny_encoder_dir, (1,), 99)
    for name, text in (("a", "{"), ("b", "{}"), ("c", '[{"type": 5}]'), ("d", "[]")):
        path = tmp_path / name
        shutil.copytree(exports["1"], path)
        (path / "modules.json").write_text(text)
        refusal(path)
    shutil.copytree(exports["1"], tmp_path / "e")
    (tmp_path / "e/model.safetensors").unlink()
    assert "cannot be loaded" in refusal(tmp_path / "e")


def test_a_hub_model_is_fetched_without_code(monkeypatch, tiny_encoder_dir):
    asked = {}

    def fetch(name: str, **options: object) -> str:
        asked.update(name=name, **options)
        return str(tiny_encoder_dir)

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    load_model("somebody/model", (1,), MAX_LENGTH)
    assert asked["name"] == "somebody/model"
    assert not any(pattern.endswith((".py", ".bin", "*")) for pattern in asked["allow_patterns"])
