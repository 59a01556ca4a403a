"""Work on frozen encoders in the driver's own process."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raysed.cluster.resources import Share
from raysed.config import ResourcesConfig, TeacherConfig, make_config
from raysed.data.tokens import tokenize
from raysed.errors import UserError
from raysed.model.encoder import Encoder, load_encoder, save_encoder
from raysed.plan.artefacts import Embedding
from raysed.stages import frozen, teachers
from raysed.stages.frozen import embed_all
from raysed.stages.teachers import AskedTeacher, _held, _loaded, embed_sentences
from raysed.store.storage import Storage


@pytest.fixture
def run(tiny_encoder_dir, tmp_path):
    config = make_config({"encoder": {"path": str(tiny_encoder_dir), "max_length": 20}})
    return config, Storage(str(tmp_path), "run")


def test_the_driver_holds_one_member_at_a_time(run, tiny_tokenizer, make_sentences, request):
    """Ten members of BERT-large would be 13 GB."""
    config, storage = run
    names = [f"ct/members/{index:02d}" for index in range(4)]
    for name in names:
        storage.commit(name, lambda path: save_encoder(*load_encoder(config.encoder), path), {})
    jobs = [Embedding(name.replace("members", "embeddings"), name, (1,), {"of": name}) for name in names]
    most_alive = request.getfixturevalue("most_alive")  # from here on
    embed_all(jobs, tokenize(tiny_tokenizer, make_sentences(30), 20), config, storage, share=None)
    assert most_alive() == 1
    assert all(np.load(storage.fetch(job.name) / "layers-1.npy").shape == (30, 16) for job in jobs)


def test_a_lack_of_memory_for_a_sentence_is_said(run, tiny_tokenizer, make_sentences, monkeypatch):
    config, storage = run

    def embed(self, tokens, poolings):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Encoder, "embed", embed)
    jobs = [Embedding("base/embeddings/00", None, (1,), {})]
    with pytest.raises(UserError, match=r"^there is not enough memory to embed a sentence of \d+ tokens; lower "):
        embed_all(jobs, tokenize(tiny_tokenizer, make_sentences(30), 20), config, storage, share=None)


def asked(path, length: int) -> AskedTeacher:
    return AskedTeacher(TeacherConfig(path=str(path), max_length=length), f"{length}", 16)


def test_the_driver_holds_one_teacher_at_a_time(run, tiny_encoder_dir, make_sentences, most_alive):
    _, storage = run
    for length in (8, 12, 16):
        name = f"teachers/embeddings/{length}"
        assert embed_sentences(name, {}, asked(tiny_encoder_dir, length), make_sentences(30), 1, storage)
    assert most_alive() == 1


def test_a_task_holds_one_teacher_at_a_time(tiny_encoder_dir, most_alive):
    """And keeps it for the next task."""
    made = []
    for length in (8, 8, 12, 12, 8):
        teacher = _loaded(asked(tiny_encoder_dir, length).config.model_dump_json(), ResourcesConfig(), "cpu")
        teacher.embed(["A sentence."])
        made.append(id(teacher))
    assert made[0] == made[1] and made[2] == made[3]
    assert most_alive() == 1
    _held.clear()


@pytest.fixture
def shares(monkeypatch):
    """Which share each kind of task asks for."""
    found = {}

    def watched_tasks(function, jobs, *arguments, work, share, seconds):
        found[function.__name__] = share
        return iter([[np.zeros((2, 3), np.float32)]])

    for module in (frozen, teachers):
        monkeypatch.setattr(module, "watched_tasks", watched_tasks)
    monkeypatch.setattr(frozen.ray, "put", lambda value: value)
    return found


def test_a_gpu_is_held_while_something_is_embedded_and_not_while_something_is_fitted(run, shares):
    config, storage = run
    share = Share(2, 3, 0.5, threads=3)
    for function in (frozen._embed, frozen._calibrate):
        list(frozen._outcomes("work", function, [1], (None, config, storage, share)))
    embedding = Embedding("ct/embeddings/00", "ct/members/00", (1,), {})
    (x_ND,) = frozen._Text(embedding, config, storage, share)._encode(None)
    assert x_ND.flags.writeable
    teachers.combine(SimpleNamespace(config=config), None, share)
    on_cpus = Share(2, 3, 0.0, threads=3)
    assert shares == {"_embed": share, "_calibrate": on_cpus, "_encoded": share, "_combine": on_cpus}
