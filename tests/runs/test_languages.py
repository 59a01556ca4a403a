"""A run with translations and a learner that is multilingual: teachers read sentences only, and each once."""

from pathlib import Path

import numpy as np
import pytest
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

import raysed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("blank_pictures")]

NUMBERS = [[*f"{i:03d}"] for i in range(0, 800, 2)]
ROWS = [{name: " ".join(f"{name}{digit}" for digit in of_row) for name in ("en", "de")} for of_row in NUMBERS]


def multilingual(path: Path) -> str:
    """A tiny XLM-R with random weights."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    texts = [text for row in ROWS for text in row.values()]
    specials = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    options = {"unk_token": "<unk>", "special_tokens": [*specials.values()], "show_progress": False}
    backend.train_from_iterator(texts, trainers.UnigramTrainer(vocab_size=60, **options))
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **specials)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.XLMRobertaConfig(
        vocab_size=len(tokenizer), pad_token_id=1, max_position_embeddings=40, **sizes
    )
    transformers.XLMRobertaModel(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def test_a_learner_learns_two_languages_from_a_teacher_that_reads_one(tmp_path):
    """From a table in memory; its report has the accuracy of finding translations."""
    asked, weights = [], np.random.default_rng(0).normal(size=(10, 16))

    def teacher(sentences):
        asked.extend(sentences)
        return np.array([[text.count(digit) for digit in "0123456789"] for text in sentences]) @ weights

    task = tmp_path / "scored.tsv"
    task.write_text("\n".join(["en\tde", *(f"{row['en']}\t{row['de']}" for row in ROWS[300:])]))
    result = raysed.distill(
        teacher,
        [dict(row) for row in ROWS[:300]],
        multilingual(tmp_path / "learner"),
        tasks={"pairs": str(task)},
        storage=tmp_path / "runs",
        settings={
            "corpus": {"column": "en", "translations": ["de"]},
            "sed": {"epochs": 40, "learning_rate": 1e-2, "patience": 100},
            "export": {"allow_worse": True},
        },
    )
    english, german = ([row[name] for row in ROWS] for name in ("en", "de"))
    assert sorted(text for text in asked if text in english[:300]) == sorted(english[:300])
    assert not {*asked} & {*german[:300]}
    x_ND, t_ND = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (result.model.encode(german), teacher(english)))
    assert (x_ND * t_ND).sum(1).mean() > 0.9
    scores = result.scores
    assert scores["teachers-sed/learner"]["pairs"] > scores["base/start"]["pairs"] + 10
    (row,) = [row for row in result.report["rows"] if row["kind"] == "learner"]
    assert set(row["metrics"]["pairs"]["directions"]) == {"en to de", "de to en"}
