"""Exported models, compared with what sentence-transformers makes of them in a process that has no raysed."""

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

import raysed.model.glow
from raysed.config import EncoderConfig, FlowConfig
from raysed.data.tokens import tokenize
from raysed.errors import UserError
from raysed.make.targets import teacher_sums
from raysed.model.affine import Affine
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.model.export import export_model, has_own_code, parity
from raysed.model.flow import Flow
from raysed.model.load import NativeModel, load_model
from raysed.model.pretrained import load_encoder, load_start, save_encoder
from raysed.store.storage import Storage
from raysed.train.calibrations.whiten import CALIBRATION as WHITEN
from raysed.train.flow_fit import fit_flow

WIDTH, BLOCKS, MAX_LENGTH = 16, 4, 12
WORDS = "the a cat dog sat ran on under old red big small house car tree river and of it ##s ##ing".split()


def make_tokenizer(pad: int) -> PreTrainedTokenizerFast:
    specials = ["[CLS]", "[SEP]", "[UNK]"]
    specials.insert(pad, "[PAD]")
    vocabulary = {word: index for index, word in enumerate(specials + WORDS)}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def make_encoder(architecture: str, blocks: int = BLOCKS) -> tuple[Encoder, PreTrainedTokenizerFast]:
    torch.manual_seed(0)
    pad = 1 if architecture in ("roberta", "mpnet") else 0
    common = {"vocab_size": len(WORDS) + 4, "pad_token_id": pad, "initializer_range": 0.3}
    common |= {"max_position_embeddings": MAX_LENGTH + pad + 1}
    size = {"hidden_size": WIDTH, "num_hidden_layers": blocks, "num_attention_heads": 2, "intermediate_size": 32}
    if architecture == "distilbert":
        config = DistilBertConfig(dim=WIDTH, n_layers=blocks, n_heads=2, hidden_dim=32, **common)
        return Encoder(DistilBertModel(config)), make_tokenizer(pad)
    kind = {
        "bert": (BertModel, BertConfig),
        "roberta": (RobertaModel, RobertaConfig),
        "mpnet": (MPNetModel, MPNetConfig),
    }
    model, config = kind[architecture]
    return Encoder(model(config(**size, **common))), make_tokenizer(pad)


def make_sentences(count: int, longest: int = 25) -> list[str]:
    """Of all lengths, the empty one and some beyond the maximum included."""
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(WORDS[:-2], size)) for size in np.arange(count) % longest]


SENTENCES = make_sentences(40)


def vectors(encoder, tokenizer, layers, calibration=None) -> np.ndarray:
    emb_ND = encode(encoder, tokenize(tokenizer, SENTENCES, MAX_LENGTH), (layers,))[0]
    return emb_ND if calibration is None else calibration.transform(emb_ND)


@dataclass
class Case:
    """An exported model, what was exported, and its vectors by raysed and by sentence-transformers."""

    path: Path
    encoder: Encoder
    tokenizer: PreTrainedTokenizerFast
    layers: int | str
    calibration: Affine | Flow | None
    expected: np.ndarray
    found: np.ndarray | None = None
    facts: dict | None = None

    def options(self) -> dict:
        return {"layers": self.layers, "max_length": MAX_LENGTH, "calibration": self.calibration}

    def export(self, path: Path) -> None:
        export_model(self.encoder, self.tokenizer, path, **self.options())


POOLINGS = [1, 2, 3, "first_last"]
ARCHITECTURES = ["bert", "roberta", "distilbert", "mpnet"]
CALIBRATED = ["affine", "whiten", "flow-paper", "flow-released"]
HEADS = {"wide-head": 24, "narrow-head": 8, "narrow-head-whiten": 8}
NAMES = [f"{name}-{layers}" for name in ARCHITECTURES for layers in POOLINGS] + [*HEADS, *CALIBRATED]

LOADER = r"""
import json, pathlib, socket, sys, warnings
sys.modules["raysed"] = None  # any import of it fails

def refuse(*arguments, **options):
    raise OSError("no network in this test")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import numpy as np
from sentence_transformers import SentenceTransformer

root, names, sentences = json.loads(sys.stdin.read())
root = pathlib.Path(root)
warnings.simplefilter("error")
found, facts = {}, {}
for name in names:
    options = {"trust_remote_code": True} if name.startswith("flow") else {}
    model = SentenceTransformer(str(root / name), device="cpu", **options)
    found[name] = model.encode(sentences, batch_size=16)
    facts[name] = {
        "modules": [type(module).__name__ for module in model],
        "max_seq_length": model.max_seq_length,
        "similarity": model.similarity_fn_name,
        "width": model.get_embedding_dimension(),
    }
model.save(str(root / "saved-again"))
again = SentenceTransformer(str(root / "saved-again"), device="cpu", trust_remote_code=True)
facts["saved again"] = bool((again.encode(sentences, batch_size=16) == found[names[-1]]).all())
try:
    SentenceTransformer(str(root / names[-1]), device="cpu")
except ValueError as error:
    facts["without trust"] = str(error)
warnings.simplefilter("default")
np.savez(root / "found.npz", **found)
(root / "facts.json").write_text(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def made(root) -> dict[str, Case]:
    """Every case, exported."""
    cases = {}
    for name in ARCHITECTURES:
        encoder, tokenizer = make_encoder(name)
        for layers in POOLINGS:
            expected = vectors(encoder, tokenizer, layers)
            cases[f"{name}-{layers}"] = Case(root / f"{name}-{layers}", encoder, tokenizer, layers, None, expected)
    plain = cases["bert-2"]
    generator = np.random.default_rng(1)
    calibrations = {
        "affine": Affine(generator.normal(size=(WIDTH, WIDTH)), generator.normal(size=WIDTH)),
        "whiten": WHITEN.fit(plain.expected),
        "flow-paper": fit_flow(plain.expected, FlowConfig(batch_size=4, epochs=5), seed=0),
        "flow-released": fit_flow(plain.expected, FlowConfig(variant="released", batch_size=4), seed=0),
    }
    for name, width in HEADS.items():
        encoder, tokenizer = make_encoder("bert")
        weight_HD = generator.normal(size=(WIDTH, width)).astype(np.float32)
        encoder.set_head(weight_HD)
        expected = plain.expected @ weight_HD
        calibration = WHITEN.fit(expected) if name.endswith("whiten") else None
        expected = calibration.transform(expected) if calibration else expected
        cases[name] = Case(root / name, encoder, tokenizer, 2, calibration, expected)
    for name, calibration in calibrations.items():
        expected = calibration.transform(plain.expected)
        cases[name] = replace(plain, path=root / name, calibration=calibration, expected=expected)
    for case in cases.values():
        case.export(case.path)
    return cases


@pytest.fixture(scope="module")
def loaded(root, made) -> tuple[dict[str, Case], dict, str]:
    """The cases with sentence-transformers' vectors, what else it found, and all that it printed."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(root / "cache"), "OMP_NUM_THREADS": "1"}
    environment["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    environment["DS_ACCELERATOR"] = "cpu"  # where accelerate is installed, DeepSpeed would look for one and say so
    done = subprocess.run(
        [sys.executable, "-c", LOADER],
        input=json.dumps([str(root), NAMES, SENTENCES]),
        env=environment,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads((root / "facts.json").read_text())
    with np.load(root / "found.npz") as found:
        cases = {name: replace(case, found=found[name], facts=facts[name]) for name, case in made.items()}
    return cases, facts, done.stdout + done.stderr


class TestSentenceTransformers:
    @pytest.mark.parametrize("name", NAMES)
    def test_vectors_are_the_same(self, loaded, name):
        """Calibrations enlarge rounding errors as much as they enlarge coordinates."""
        case = loaded[0][name]
        scale = 1.0 if case.calibration is None else np.abs(case.expected).max()
        np.testing.assert_allclose(case.found, case.expected, rtol=0, atol=1e-5 * scale)

    @pytest.mark.parametrize("name", ARCHITECTURES)
    def test_poolings_differ(self, loaded, name):
        """sentence-transformers takes the last layer, silently, where it does not get the others."""
        found = [loaded[0][f"{name}-{layers}"].found for layers in POOLINGS]
        for i, one in enumerate(found):
            assert all(np.abs(one - other).max() > 0.05 for other in found[i + 1 :])

    def test_calibrations_change_the_vectors(self, loaded):
        plain = loaded[0]["bert-2"].found
        assert all(np.abs(loaded[0][name].found - plain).max() > 0.05 for name in CALIBRATED)

    @pytest.mark.parametrize("name", NAMES)
    def test_settings_are_taken_over(self, loaded, name):
        facts = loaded[0][name].facts
        width = HEADS.get(name, WIDTH)
        assert (facts["max_seq_length"], facts["similarity"], facts["width"]) == (MAX_LENGTH, "cosine", width)

    def test_modules_are_built_in_but_for_the_flow(self, loaded):
        listed = {name: case.facts["modules"] for name, case in loaded[0].items()}
        assert listed["bert-1"] == ["Transformer", "Pooling"]
        assert listed["bert-first_last"] == ["Transformer", "WeightedLayerPooling", "Pooling"]
        assert listed["wide-head"] == ["Transformer", "WeightedLayerPooling", "Pooling", "Dense"]
        assert listed["narrow-head-whiten"][-2:] == ["Dense", "Dense"]
        assert listed["whiten"][-1] == "Dense" and listed["flow-paper"][-1] == "FlowHead"

    def test_nothing_is_printed(self, loaded):
        assert loaded[2] == ""

    def test_flow_needs_trust_and_says_so(self, loaded):
        assert "trust_remote_code=True" in loaded[1]["without trust"]

    def test_flow_survives_saving_by_sentence_transformers(self, loaded):
        assert loaded[1]["saved again"] is True


@pytest.mark.parametrize("name", NAMES)
def test_an_export_is_read_back_by_evaluate(made, name):
    """Its own pooling and length count, not those that are asked for."""
    model, expected = load_model(str(made[name].path), (1, 3), 5), made[name].expected
    assert isinstance(model, NativeModel)
    np.testing.assert_allclose(model.embed(SENTENCES)[0], expected, rtol=0, atol=1e-4 * max(1, np.abs(expected).max()))


class TestFiles:
    @pytest.mark.parametrize("name", ["mpnet-2", "whiten", "flow-paper"])
    def test_two_exports_are_the_same_bytes(self, made, tmp_path, name):
        """Though the tokenizer keeps the truncation and padding of its last call."""
        case = made[name]
        case.tokenizer(SENTENCES, padding="max_length", truncation=True, max_length=7)
        case.export(tmp_path / "one")
        case.tokenizer(SENTENCES)
        case.export(tmp_path / "two")
        one, two = ({p.relative_to(d): p for p in d.rglob("*") if p.is_file()} for d in tmp_path.iterdir())
        assert set(one) == set(two) and len(one) >= 7
        assert all(one[place].read_bytes() == two[place].read_bytes() for place in one)

    def test_listing(self, made):
        found = {
            str(p.relative_to(made["flow-paper"].path)) for p in made["flow-paper"].path.rglob("*.*") if p.is_file()
        }
        own = {"modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "glow.py"}
        modules = {f"1_WeightedLayerPooling/{name}" for name in ("config.json", "model.safetensors")}
        modules |= {f"3_FlowHead/{name}" for name in ("config.json", "model.safetensors")} | {"2_Pooling/config.json"}
        assert found == own | modules | {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}

    def test_arguments_stay_as_they_are(self, tmp_path):
        encoder, tokenizer = make_encoder("bert")
        limit, before = tokenizer.model_max_length, {k: v.clone() for k, v in encoder.state_dict().items()}
        export_model(encoder, tokenizer, tmp_path, layers=2, max_length=5, calibration=None)
        assert tokenizer.model_max_length == limit and not encoder.transformer.config.output_hidden_states
        assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())

    def test_code_is_the_packages_own_and_stands_alone(self, made):
        code = (made["flow-paper"].path / "glow.py").read_text()
        assert code == Path(raysed.model.glow.__file__).read_text()
        tree = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {getattr(node, "module", None) or node.names[0].name for node in tree}
        allowed = sys.stdlib_module_names | {"torch", "safetensors"}
        assert not {name.split(".")[0] for name in names} - allowed
        assert not any((made["bert-2"].path).glob("*.py"))

    def test_initialised_flow_stays_so(self, made):
        tensors = load_file(made["flow-paper"].path / "3_FlowHead" / "model.safetensors")
        assert tensors["initialized"].item() is True

    def test_flow_computes_in_its_own_precision(self):
        head = raysed.model.glow.FlowHead(Flow(8))
        features = head({"sentence_embedding": torch.ones(2, 8, dtype=torch.float16)})
        assert features["sentence_embedding"].dtype == torch.float32


class TestParity:
    @pytest.mark.parametrize("name", ["bert-2", "narrow-head-whiten", "flow-paper"])
    def test_is_small(self, made, name):
        case = made[name]
        assert parity(case.path, case.encoder, case.tokenizer, SENTENCES, **case.options()) < 1e-5

    @pytest.mark.parametrize(
        ("name", "place"),
        [
            ("bert-1", "model.safetensors"),
            ("bert-2", "1_WeightedLayerPooling/model.safetensors"),
            ("affine", "3_Dense/model.safetensors"),
            ("flow-paper", "3_FlowHead/model.safetensors"),
        ],
    )
    def test_sees_a_changed_weight(self, made, tmp_path, name, place):
        case = made[name]
        case.export(tmp_path)
        tensors = load_file(tmp_path / place)
        changed = next(key for key, value in tensors.items() if value.is_floating_point() and "pooler" not in key)
        tensors[changed].view(-1)[0] += 0.5
        save_file(tensors, tmp_path / place, metadata={"format": "pt"})
        assert parity(tmp_path, case.encoder, case.tokenizer, SENTENCES, **case.options()) > 1e-3

    def test_sees_another_length(self, made):
        case = made["bert-1"]
        options = case.options() | {"max_length": 5}
        assert parity(case.path, case.encoder, case.tokenizer, SENTENCES, **options) > 1e-3


OWN_CODE = """
from transformers import BertConfig, BertModel
class OwnConfig(BertConfig):
    model_type = "own"
class OwnModel(BertModel):
    config_class = OwnConfig
"""


class TestOwnCode:
    """An encoder that came with code of its own keeps it as an artefact of a run and as an exported model."""

    @pytest.fixture
    def stored(self, tmp_path, monkeypatch) -> Storage:
        monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
        monkeypatch.syspath_prepend(str(tmp_path / "modules"))
        encoder, tokenizer = make_encoder("bert")
        base, storage = tmp_path / "base", Storage(str(tmp_path / "runs"), "run")
        save_encoder(encoder, tokenizer, base, MAX_LENGTH)
        described = json.loads((base / "config.json").read_text()) | {
            "model_type": "own",
            "architectures": ["OwnModel"],
        }
        described["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
        (base / "config.json").write_text(json.dumps(described))
        (base / "own.py").write_text(OWN_CODE)
        loaded, own = load_encoder(EncoderConfig(path=str(base), max_length=MAX_LENGTH, trust_remote_code=True))
        storage.commit("member", lambda path: save_encoder(loaded, own, path), {})
        return storage

    def test_it_runs_where_it_is_trusted(self, stored, tmp_path):
        encoder, tokenizer = load_start(EncoderConfig(trust_remote_code=True), stored.fetch("member"))
        assert type(encoder.transformer).__name__ == "OwnModel"
        options = {"layers": 1, "max_length": MAX_LENGTH, "calibration": None}
        export_model(encoder, tokenizer, tmp_path / "model", **options)
        assert (tmp_path / "model" / "own.py").exists()
        assert parity(tmp_path / "model", encoder, tokenizer, SENTENCES, **options) < 1e-5
        assert has_own_code(tmp_path / "model")
        tokens = tokenize(tokenizer, SENTENCES, MAX_LENGTH)
        teachers = [stored.fetch("member")] * 2
        (sums_BD,) = teacher_sums([teachers], None, trust_remote_code=True)(tokens)
        np.testing.assert_allclose(sums_BD, 2 * vectors(encoder, tokenizer, 1), atol=1e-5)

    def test_it_does_not_run_elsewhere(self, stored, monkeypatch):
        monkeypatch.setattr("builtins.input", lambda *_: "n")
        with pytest.raises(ValueError, match="trust_remote_code"):
            load_start(EncoderConfig(), stored.fetch("member"))


class TestMistakes:
    def test_layers_beyond_the_encoder(self, tmp_path):
        encoder, tokenizer = make_encoder("bert")
        with pytest.raises(UserError, match="5 layers cannot be pooled: the encoder has 4"):
            export_model(encoder, tokenizer, tmp_path, layers=5, max_length=9, calibration=None)

    def test_calibration_of_another_width(self, tmp_path):
        encoder, tokenizer = make_encoder("bert")
        with pytest.raises(UserError, match="width 8 does not fit embeddings of width 16"):
            export_model(encoder, tokenizer, tmp_path, layers=1, max_length=9, calibration=Flow(8))
