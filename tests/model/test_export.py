"""Exported models, compared with what sentence-transformers makes of them in a process that has no raysed."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import raysed.model.glow
from raysed.config import FlowConfig
from raysed.data.tokens import tokenize
from raysed.errors import UserError
from raysed.model.calibration import Flow
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.model.library import export_model, parity
from raysed.model.load import NativeModel, load_model
from raysed.train.calibrations.whiten import CALIBRATION as WHITEN
from raysed.train.flow_fit import fit_flow

WIDTH, MAX_LENGTH = 16, 12
PLAIN = {f"bert-{layers}": ("bert", layers) for layers in (1, 2, "first_last")}
PLAIN |= {kind: (kind, 2) for kind in ("roberta", "distilbert", "mpnet")} | {"head": ("bert", 2)}
CALIBRATED = {"head-whiten": "head", "whiten": "bert-2", "flow-paper": "bert-2", "flow": "bert-2"}
NAMES = [*PLAIN, *CALIBRATED]

ALONE = """
import json, sys, warnings
sys.modules["raysed"] = None  # any import of it fails
import numpy as np
from sentence_transformers import SentenceTransformer
warnings.simplefilter("error")
sentences, found = json.load(sys.stdin), []
for path in ("flow", "saved-again"):
    model = SentenceTransformer(path, device="cpu", trust_remote_code=True)
    found.append(model.encode(sentences))
    model.save("saved-again")
np.save("found.npy", found)
"""


class Case(NamedTuple):
    """What `export_model` gets, and the vectors that raysed computes for it."""

    encoder: Encoder
    tokenizer: PreTrainedTokenizerBase
    options: dict
    expected: np.ndarray

    def export(self, path: Path) -> None:
        export_model(self.encoder, self.tokenizer, path, **self.options)


@pytest.fixture(scope="module")
def make(make_encoder, tiny_encoder_dir) -> Callable[..., tuple[Encoder, PreTrainedTokenizerBase]]:
    return lambda kind="bert": (make_encoder(kind, 4), AutoTokenizer.from_pretrained(tiny_encoder_dir))


@pytest.fixture(scope="module")
def cases(make, sentences) -> dict[str, Case]:
    found = {}
    for name, (kind, layers) in PLAIN.items():
        encoder, tokenizer = make(kind)
        if name == "head":
            encoder.set_head(np.random.default_rng(1).normal(size=(WIDTH, 24)).astype(np.float32))
        x_ND = encode(encoder, tokenize(tokenizer, sentences, MAX_LENGTH), (layers,))[0]
        options = {"layers": layers, "max_length": MAX_LENGTH, "calibration": None}
        found[name] = Case(encoder, tokenizer, options, x_ND)
    for name, plain in CALIBRATED.items():
        x_ND, variant = found[plain].expected, "paper" if name == "flow-paper" else "released"
        config = FlowConfig(variant=variant, batch_size=4, epochs=5)
        calibration = fit_flow(x_ND, config, seed=0) if name.startswith("flow") else WHITEN.fit(x_ND)
        options = found[plain].options | {"calibration": calibration}
        found[name] = found[plain]._replace(options=options, expected=calibration.transform(x_ND))
    return found


@pytest.fixture(scope="module")
def root(cases, tmp_path_factory) -> Path:
    """A directory with the exports of all cases."""
    path = tmp_path_factory.mktemp("export")
    for name, case in cases.items():
        case.export(path / name)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_vectors_and_settings_are_the_same(cases, root, sentences, name):
    """In the library, and read back by `evaluate`, where its own pooling and length count; only the flow has code.

    Calibrations enlarge rounding errors as much as they enlarge coordinates.
    """
    expected, has_code = cases[name].expected, name.startswith("flow")
    library = SentenceTransformer(str(root / name), device="cpu", trust_remote_code=has_code)
    scale = 3 * np.abs(expected).max() if name in CALIBRATED else 1.0
    np.testing.assert_allclose(library.encode(sentences), expected, rtol=0, atol=1e-5 * scale)
    settings = library.max_seq_length, library.similarity_fn_name, library.get_embedding_dimension()
    assert settings == (MAX_LENGTH, "cosine", expected.shape[1])
    assert all("sentence_transformers" in type(module).__module__ for module in library) != has_code
    model = load_model(str(root / name), (1, 3), 5)
    assert isinstance(model, NativeModel)
    np.testing.assert_allclose(model.embed(sentences), expected, rtol=0, atol=1e-4 * max(1, np.abs(expected).max()))


def test_a_flow_runs_where_raysed_is_not_and_is_saved_again(cases, root, sentences):
    environment = os.environ | {"HF_HOME": str(root / "cache")}
    environment["DS_ACCELERATOR"] = "cpu"  # where accelerate is installed, DeepSpeed would look for one and say so
    options = {"env": environment, "cwd": root, "capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run([sys.executable, "-c", ALONE], input=json.dumps(sentences), **options)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    found, again = np.load(root / "found.npy")
    np.testing.assert_allclose(found, cases["flow"].expected, rtol=0, atol=1e-3)
    assert (found == again).all()
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        SentenceTransformer(str(root / "flow"), device="cpu")


def test_two_exports_are_the_same_bytes(cases, tiny_encoder_dir, tmp_path, sentences):
    """Wherever the tokenizer was loaded from, and whatever truncation and padding its last call asked for."""
    shutil.copytree(tiny_encoder_dir, tmp_path / "copy")
    copy = AutoTokenizer.from_pretrained(tmp_path / "copy")
    copy(sentences, padding="max_length", truncation=True, max_length=7)
    cases["flow"].export(tmp_path / "one")
    cases["flow"]._replace(tokenizer=copy).export(tmp_path / "two")
    one, two = (
        {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
        for place in (tmp_path / "one", tmp_path / "two")
    )
    assert one == two
    tokenizer = json.loads(one["tokenizer_config.json"])
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast", "releases with an ONNX backend know no other"
    assert tokenizer["model_max_length"] == MAX_LENGTH


def test_arguments_stay_as_they_are(make, tmp_path):
    encoder, tokenizer = make()
    limit, before = tokenizer.model_max_length, {k: v.clone() for k, v in encoder.state_dict().items()}
    export_model(encoder, tokenizer, tmp_path, layers=2, max_length=5, calibration=None)
    assert tokenizer.model_max_length == limit and not encoder.transformer.config.output_hidden_states
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_prompts_are_those_of_queries_and_documents(cases, tmp_path, sentences):
    """And of nothing else: `encode` adds none, so an export with prompts is compared as one without."""
    case, prompts = cases["bert-2"], {"query": "the big ", "document": "on "}
    case._replace(options={**case.options, "prompts": prompts}).export(tmp_path)
    model = SentenceTransformer(str(tmp_path), device="cpu")
    for role, embed in (("query", model.encode_query), ("document", model.encode_document)):
        texts = [prompts[role] + sentence for sentence in sentences]
        expected_ND = encode(case.encoder, tokenize(case.tokenizer, texts, MAX_LENGTH), (2,))[0]
        np.testing.assert_allclose(embed(sentences), expected_ND, atol=1e-5)
    assert parity(tmp_path, sentences, case.expected) < 1e-4


def test_code_is_the_packages_own(root):
    assert (root / "flow" / "glow.py").read_text() == Path(raysed.model.glow.__file__).read_text()
    assert not any((root / "whiten").glob("*.py"))


def test_a_flow_stays_initialised_and_computes_in_its_own_precision(root):
    assert load_file(root / "flow" / "3_FlowHead" / "model.safetensors")["initialized"].item()
    features = raysed.model.glow.FlowHead(Flow(8))({"sentence_embedding": torch.ones(2, 8, dtype=torch.float16)})
    assert features["sentence_embedding"].dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "place"),
    [("bert-2", "1_WeightedLayerPooling/model.safetensors"), ("flow", "3_FlowHead/model.safetensors")],
)
def test_parity_is_small_and_sees_a_changed_weight(cases, tmp_path, sentences, name, place):
    cases[name].export(tmp_path)
    assert parity(tmp_path, sentences, cases[name].expected) < 1e-5
    tensors = load_file(tmp_path / place)
    changed = next(key for key, value in tensors.items() if value.is_floating_point())
    tensors[changed].view(-1)[0] += 0.5
    save_file(tensors, tmp_path / place, metadata={"format": "pt"})
    assert parity(tmp_path, sentences, cases[name].expected) > 1e-3


def test_a_calibration_of_another_width_is_refused(make, tmp_path):
    with pytest.raises(UserError, match="width 8 does not fit embeddings of width 16"):
        export_model(*make(), tmp_path, layers=1, max_length=9, calibration=Flow(8))
