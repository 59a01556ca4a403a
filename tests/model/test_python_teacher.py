"""Functions and loaded models as teachers, which are known by what they say."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raysed.config import TeacherConfig, stable_hash
from raysed.errors import UserError
from raysed.model.teacher import default_learner, load_teacher
from raysed.model.teachers.python import settings_of


def by_letters(sentences, letters="aeiou"):
    assert isinstance(sentences, list)
    return np.array([[text.count(letter) for letter in letters] for text in sentences])


def loaded(given, **block):
    teacher = load_teacher(TeacherConfig(**settings_of({"path": given, **block})))
    teacher.check()
    return teacher


@pytest.mark.parametrize(
    "given",
    [
        by_letters,
        lambda texts: by_letters(texts).tolist(),
        lambda texts: torch.tensor(by_letters(texts), dtype=torch.bfloat16, requires_grad=True),
        lambda texts: list(map(torch.tensor, by_letters(texts))),
        SimpleNamespace(encode=by_letters),
    ],
)
def test_what_it_returns_are_the_vectors(given):
    teacher = loaded(given)
    x_ND = teacher.embed(("a cat", "a bee"))
    assert x_ND.tolist() == [[2, 0, 0, 0, 0], [1, 2, 0, 0, 0]] and x_ND.dtype == np.float32
    assert teacher.width == 5 and teacher.identity == loaded(by_letters).identity, "they say the same"
    assert loaded(given, prompt="e: ").embed(["a cat"]).tolist() == [[2, 1, 0, 0, 0]]


def test_it_is_known_by_what_it_says():
    """Other vectors, another width, another prompt, and a cut that only long text shows; not by its name."""

    def cut(sentences):
        return by_letters([text[:300] for text in sentences])

    others = [partial(by_letters, letters=letters) for letters in ("aeiuo", "a")]
    teachers = [*map(loaded, [by_letters, *others, cut]), loaded(by_letters, prompt="e: ")]
    assert len({teacher.identity for teacher in teachers}) == 5
    named = loaded(by_letters, name="vowels")
    assert named.identity == teachers[0].identity and (named.title, teachers[0].title) == ("vowels", "by_letters")


def test_models_that_are_loaded_give_what_they_give_by_path(tiny_encoder_dir, sentences):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(tiny_encoder_dir), device="cpu")
    expected_ND = load_teacher(TeacherConfig(path=str(tiny_encoder_dir), max_length=20)).embed(sentences[:9])
    np.testing.assert_allclose(loaded(model).embed(sentences[:9]), expected_ND, atol=1e-5)
    assert loaded(model).title == "SentenceTransformer"
    assert default_learner([settings_of(model)["path"], "A"]) == {"path": "A", "keep_layers": "half"}


def test_paths_and_blocks_stay_as_they_are():
    assert settings_of("A") == {"path": "A"} == settings_of(Path("A"))
    assert settings_of({"path": "A", "prompt": "q: "}) == {"path": "A", "prompt": "q: "}
    assert settings_of({"name": "no path"}) == {"name": "no path"}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (7, r"7 is neither a path nor an object that embeds"),
        (
            lambda texts: by_letters(texts)[1:],
            r"lambda must give a vector .* of 33 sentences, but gave .* \[32, 5\]",
        ),
        (lambda texts: [1.0] * len(texts), r"but gave a list of shape \[33\]"),
        (lambda texts: [[1.0] * (1 + len(text) % 2) for text in texts], r"of equal width .* but gave a list"),
        (lambda texts: None, r"but gave a NoneType"),
        (lambda texts: "text", r"but gave a str"),
        (lambda texts: by_letters(texts) / 0.0, r"lambda gives a vector of '.*' that is not finite"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*encountered in divide")
def test_what_is_no_teacher_is_refused(given, problem):
    with pytest.raises(UserError, match=r"^teachers: .*" + problem):
        loaded(given)


def test_what_goes_wrong_later_is_said():
    def changing(sentences):
        return by_letters(sentences)[:, : 2 if sentences[0] == "short" else 5]

    def failing(sentences):
        return np.where(np.array([["bad" in text] for text in sentences]), np.nan, by_letters(sentences))

    with pytest.raises(UserError, match=r"changing gave vectors of width 5 before, and now of width 2; the width must"):
        loaded(changing).embed(["short"])
    with pytest.raises(UserError, match=r"failing gives a vector of 'a bad one' that is not finite"):
        loaded(failing).embed(["a good one", "a bad one"])
    with pytest.raises(UserError, match=r"x is an object of a Python process that has ended.*; give it to ray"):
        load_teacher(TeacherConfig(path=f"python:{stable_hash('another')}-5", name="x")).check()
