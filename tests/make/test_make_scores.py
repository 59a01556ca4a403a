"""Embeddings by frozen encoders and external teachers: one at a time in memory, and a lack of it is said."""

from functools import partial

import numpy as np
import pytest
import torch

from raysed.config import EncoderConfig, TeacherConfig
from raysed.context import Context
from raysed.data.tokens import tokenize
from raysed.made import Made, Step
from raysed.make.inputs import Sentences
from raysed.make.scores import embeddings, teacher_embeddings
from raysed.model.load import load_model
from raysed.model.pretrained import load_encoder, save_encoder
from raysed.model.teacher import load_teacher
from raysed.model.teachers import model
from raysed.score.kinds.neighbours import Neighbours
from raysed.score.kinds.retrieval import Retrieval
from raysed.score.tasks import Evaluation
from raysed.store.storage import Storage


@pytest.fixture
def run(tiny_encoder_dir, tmp_path, tiny_tokenizer, make_sentences):
    encoder, texts = EncoderConfig(path=str(tiny_encoder_dir), max_length=20), make_sentences(30)
    evaluation = Evaluation([Neighbours("texts", texts, np.arange(30) % 2, ["a", "b"])])
    assert evaluation.sentences == texts
    return encoder, Storage(str(tmp_path), "run"), Sentences(evaluation, tokenize(tiny_tokenizer, texts, 20))


def embed(name: str, model: Made | None, encoder: EncoderConfig, sentences: Sentences) -> Step:
    inputs = {"model": model, "encoder": encoder, "sentences": sentences}
    return Step(name, "", embeddings, {"of": name}, {"layers": [1]}, inputs)


def test_this_process_holds_one_member_at_a_time(run, request):
    """Ten members of BERT-large would be 13 GB."""
    encoder, storage, sentences = run
    names = [f"ct/members/{index:02d}" for index in range(4)]
    for name in names:
        storage.commit(name, lambda path: save_encoder(*load_encoder(encoder), path), {})
    most_alive = request.getfixturevalue("most_alive")  # from here on
    for name in names:
        embed(name.replace("members", "embeddings"), Made(name), encoder, sentences).run(storage, Context())
    assert most_alive() == 1
    assert all(np.load(storage.fetch(f"ct/embeddings/0{i}") / "layers-1.npy").shape == (30, 16) for i in range(4))


def test_this_process_holds_one_teacher_at_a_time(run, tiny_encoder_dir, most_alive):
    _, storage, sentences = run
    teachers = [TeacherConfig(path=str(tiny_encoder_dir), max_length=length) for length in (8, 12, 16)]
    for index, teacher in enumerate(teachers):
        inputs, name = {"teacher": teacher, "sentences": sentences}, f"teachers/embeddings/{index:02d}"
        entry = Step(name, "", teacher_embeddings, {"of": index}, {"layers": 1}, inputs).run(storage, Context())
        assert entry.meta["width"] == 16 and entry.meta["parameters"] > 0
    assert most_alive() == 1


def test_a_teacher_is_loaded_on_the_device_of_its_place(run, tiny_encoder_dir, monkeypatch):
    _, storage, sentences = run
    teacher, placed = TeacherConfig(path=str(tiny_encoder_dir), max_length=20), []
    load = partial(load_model, str(tiny_encoder_dir), 1, 20)
    monkeypatch.setattr(model, "load_model", lambda *_, device, dtype, **__: placed.append((device, dtype)) or load())
    inputs, settings = {"teacher": teacher, "sentences": sentences}, {"layers": 1, "precision": "bf16"}
    Step("teachers/embeddings/00", "", teacher_embeddings, {}, settings, inputs).run(storage, Context("cuda"))
    assert placed == [("cuda", torch.bfloat16)]
    assert np.load(storage.fetch("teachers/embeddings/00") / "layers-1.npy").shape == (30, 16)


def test_texts_have_the_prompts_of_their_roles(run, tiny_encoder_dir):
    """A teacher's own, and those of the run's encoder, whose tokens are made late if the run makes it."""
    encoder, storage, _ = run
    evaluation = Evaluation([Retrieval("toy", ["a cat"], ["a cat", "a dog"], ["0", "1"], [{0: 1.0}])])
    sentences = Sentences(evaluation, None, {"query": "the big ", "document": "on "})
    embed("base/embeddings/00", None, encoder, sentences).run(storage, Context())
    of_teacher = TeacherConfig(path=str(tiny_encoder_dir), max_length=20, query_prompt="we ", prompt="is ")
    inputs = {"teacher": of_teacher, "sentences": sentences}
    Step("teachers/embeddings/00", "", teacher_embeddings, {}, {"layers": 1}, inputs).run(storage, Context())
    plain = load_teacher(TeacherConfig(path=str(tiny_encoder_dir), max_length=20))
    for name, texts in (
        ("base/embeddings/00", ["the big a cat", "on a cat", "on a dog"]),
        ("teachers/embeddings/00", ["we a cat", "is a cat", "is a dog"]),
    ):
        x_UD = np.load(storage.fetch(name) / "layers-1.npy")
        np.testing.assert_allclose(x_UD, plain.embed(texts), atol=1e-5, err_msg=name)
