"""Prompts by role: where they come from, and that sentence-transformers gives the same vectors."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from raysed.config import CorpusConfig, EncoderConfig, TeacherConfig
from raysed.errors import UserError
from raysed.model.load import LibraryModel, NativeModel, load_model
from raysed.model.prompts import learner_prompts
from raysed.model.teacher import Teacher, load_teacher

FILE = "config_sentence_transformers.json"
BOTH = {"query": "the cat ", "document": "the big "}


@pytest.fixture
def model(exports, tmp_path):
    """Copies a model, with these settings in a file of it."""

    def copy(file: str = FILE, name: str = "model", **settings: object) -> Path:
        path = shutil.copytree(exports["1"], tmp_path / name, dirs_exist_ok=True)
        (path / file).write_text(json.dumps({**json.loads((path / file).read_text()), **settings}))
        return path

    return copy


def teacher_of(path: Path, **settings: object) -> Teacher:
    return load_teacher(TeacherConfig(path=str(path), **settings))


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"prompts": BOTH}, NativeModel),
        ({"prompts": {"query": "the cat "}}, NativeModel),
        ({"prompts": {"query": "the cat "}, "default_prompt_name": "query"}, LibraryModel),
        ({"prompts": {**BOTH, "other": "a bird "}, "default_prompt_name": "other"}, LibraryModel),
    ],
)
def test_each_role_has_the_prompt_of_the_files(model, sentences, settings, kind):
    path = model(**settings)
    library, loaded, teacher = SentenceTransformer(str(path), device="cpu"), load_model(str(path)), teacher_of(path)
    assert isinstance(loaded, kind)
    ways = {"": library.encode, "query": library.encode_query, "document": library.encode_document}
    for role, embed in ways.items():
        expected_ND = embed(sentences)
        for found_ND in (loaded.embed(sentences, role=role), teacher.embed(sentences, role)):
            np.testing.assert_allclose(found_ND, expected_ND, atol=1e-5, err_msg=role)
    assert not np.allclose(library.encode_query(sentences), library.encode_document(sentences), atol=1e-3)


def test_a_passage_is_a_document_where_document_is_empty(model, sentences):
    """As in models that were saved again: `encode_document` of release 6.2 then adds nothing."""
    path = model(prompts={"query": "", "document": "", "passage": "the big "})
    expected_ND = SentenceTransformer(str(path), device="cpu").encode(sentences, prompt_name="passage")
    np.testing.assert_allclose(load_model(str(path)).embed(sentences, role="document"), expected_ND, atol=1e-5)


def test_prompts_that_pooling_leaves_out_are_left_out(model, sentences):
    model(prompts=BOTH)
    path = model("1_Pooling/config.json", include_prompt=False)
    shutil.copy(model(prompts=BOTH, name="other") / FILE, path / FILE)
    expected_ND = SentenceTransformer(str(path), device="cpu").encode_query(sentences)
    np.testing.assert_allclose(teacher_of(path).embed(sentences, "query"), expected_ND, atol=1e-5)


def test_settings_come_before_files_and_prompt_is_for_the_rest(model):
    plain, asked = model(name="plain"), model(prompts=BOTH)
    for path, settings, expected in (
        (asked, {"query_prompt": "a bird "}, {"query": "a bird ", "document": "the big ", "": ""}),
        (asked, {"query_prompt": "", "prompt": "we "}, {"query": "", "document": "the big ", "": "we "}),
        (plain, {"query_prompt": "a bird ", "prompt": "we "}, {"query": "a bird ", "document": "we ", "": "we "}),
    ):
        teacher = teacher_of(path, **settings)
        for role, prompt in {**expected, "prompted query": ""}.items():
            expected_ND = load_model(str(plain)).embed([f"{prompt}dog sat"])
            np.testing.assert_allclose(teacher.embed(["dog sat"], role), expected_ND, atol=1e-5, err_msg=role)


@pytest.mark.parametrize("text", ["{", "[]", '{"prompts": null}', '{"prompts": ["a"]}', '{"prompts": {"query": 1}}'])
def test_prompts_that_cannot_be_read_are_one_sentence(model, text):
    path = model()
    (path / FILE).write_text(text)
    for load in (lambda: load_model(str(path)), lambda: teacher_of(path).identity):
        with pytest.raises(UserError, match=rf"^[^\n]*{FILE}: (prompts must be a mapping|it cannot be read)[^\n]*$"):
            load()


def test_a_learner_has_prompts_if_its_corpus_has_queries(model):
    path = model(prompts=BOTH)
    inner = path / "0_Transformer"
    inner.mkdir()
    for start, settings, expected in (
        (path, {}, BOTH),
        (inner, {}, BOTH),
        (path, {"query_prompt": "a "}, {**BOTH, "query": "a "}),
        (path, {"query_prompt": "", "document_prompt": ""}, {}),
        (model(name="plain"), {"document_prompt": "a "}, {"query": "", "document": "a "}),
    ):
        encoder = EncoderConfig(path=str(start), **settings)
        assert learner_prompts(CorpusConfig(queries="queries.txt"), encoder) == expected, settings
        assert learner_prompts(CorpusConfig(), encoder) == {}
