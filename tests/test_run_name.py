"""A distillation's run is named after its corpus, teachers and learner."""

import re

import pytest

from raysed.api import distillation

A, B = "org/small-model", "models/mine/encoder"


@pytest.mark.parametrize(
    ("name", "teachers", "arguments"),
    [
        ("tickets-small-model-half", A, {"corpus": "mail/tickets.v2.txt"}),
        ("given-small-model-half", A, {"corpus": ["It rains.", "A cat."]}),
        ("given-small-model-half", A, {"corpus": iter(["It rains."])}),
        ("generated-text-small-model-half", A, {}),
        ("tickets-mails-small-model-half", A, {"corpus": ["tickets.txt", "s3://bucket/mails/"]}),
        ("mails-small-model-half", A, {"corpus": "s3://b/mails.txt?endpoint_override=host:9000&scheme=http"}),
        ("data-small-model-mine-half", [A, B], {"corpus": "data/**/*.txt"}),
        ("x-mine-small-model-half", [B, A], {"corpus": "x.txt"}),
        ("x-small-model-static", A, {"corpus": "x.txt", "static": True}),
        (
            "x-small-model-static-64",
            A,
            {"corpus": "x.txt", "static": True, "settings": {"encoder": {"static": {"width": 64}}}},
        ),
        ("x-small-model-3-layers", A, {"corpus": "x.txt", "keep_layers": 3}),
        ("x-small-model-1-layer", A, {"corpus": "x.txt", "keep_layers": 1}),
        ("x-small-model-layers-0-2", A, {"corpus": "x.txt", "keep_layers": [0, 2]}),
        ("x-small-model-mine", A, {"corpus": "x.txt", "learner": B}),
        ("x-small-model-mine-first-2", A, {"corpus": "x.txt", "learner": B, "keep_layers": 2}),
        ("x-small-model-small-model", A, {"corpus": "x.txt", "learner": A}),
        ("mine", A, {"corpus": "x.txt", "run": "mine"}),
        ("mine", A, {"corpus": "x.txt", "settings": {"run": "mine"}}),
    ],
)
def test_names(name, teachers, arguments, tmp_path):
    assert distillation(teachers, storage=str(tmp_path), **arguments).run == name


def test_a_name_that_no_run_may_have_is_cut_and_ends_with_a_digest(tmp_path):
    sources = ["a" * 90 + ".txt", "a" * 90 + "b.txt", "тексты.txt", "слова.txt"]
    names = [distillation(A, source, storage=str(tmp_path)).run for source in sources]
    assert len(set(names)) == 4 and all(re.fullmatch(r"[a-z-]{10,51}-[0-9a-f]{8}", name) for name in names)
    assert max(map(len, names)) == 60
