"""Teachers in 8 bits: which models can be, and how near they are to themselves in fp32."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from transformers import AutoTokenizer

from raysed.config import TeacherConfig
from raysed.model.int8 import COMPARED, int8_summary
from raysed.model.teacher import load_teacher

pytest.importorskip("openvino", reason="needs pip install 'raysed[openvino]'")
pytest.importorskip("nncf", reason="needs pip install 'raysed[openvino]'")


def test_a_model_in_8_bits_embeds_with_prompts_and_any_lengths(tiny_encoder_dir, make_sentences, tmp_path):
    config = TeacherConfig(path=str(tiny_encoder_dir), max_length=20, prompt="the big ")
    some = make_sentences(COMPARED + 60, 3)
    found = load_teacher(config).write_int8(some, tmp_path)
    exact, rounded = load_teacher(config), load_teacher(config, int8=tmp_path)
    texts = [*some[:COMPARED]]
    x_ND, y_ND = exact.embed(texts), rounded.embed(texts)
    cosines_N = (x_ND * y_ND).sum(1) / np.linalg.norm(x_ND, axis=1) / np.linalg.norm(y_ND, axis=1)
    assert (found["mean"], found["least"]) == pytest.approx((cosines_N.mean(), cosines_N.min()), abs=1e-4)
    assert 0.95 < found["least"] and found["mean"] < 1 - 1e-6
    order = np.random.default_rng(0).permutation(COMPARED)
    np.testing.assert_allclose(rounded.embed([texts[i] for i in order]), y_ND[order], atol=2e-2 * np.abs(y_ND).max())
    assert int8_summary("X", found).startswith("X embeds the corpus in 8 bits: its vectors' cosine with fp32 is ")


def test_what_cannot_be_quantized_says_why(tiny_encoder_dir, tmp_path):
    table = StaticEmbedding(AutoTokenizer.from_pretrained(tiny_encoder_dir), embedding_dim=8)
    torch.nn.init.normal_(table.embedding.weight)
    SentenceTransformer(modules=[table]).save_pretrained(str(tmp_path / "table"))
    found = load_teacher(TeacherConfig(path=str(tmp_path / "table"))).write_int8(["a cat"] * 200, tmp_path)
    assert found["reason"] and found["reason"] in int8_summary("X", found)
    layers = TeacherConfig(path=str(tiny_encoder_dir), max_length=20, pool_layers=2)
    assert "last layer" in load_teacher(layers).write_int8(["a cat"] * 200, tmp_path)["reason"]
    assert not list(tmp_path.glob("*.xml"))
