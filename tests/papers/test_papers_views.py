"""Synonyms on a WordNet in miniature, back-translations by tiny random models against plain references."""

import json
import re
import shutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from texts import ODD, draws_by_seed_and_id, generated, refused, write_model
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import papers.views
from bundled_encoder import train_tokenizer
from papers import back_translation, masked
from papers.back_translation import back_translations
from papers.synonyms import synonym_views
from raysed import bundled
from raysed.cli import main_of
from raysed.config import EncoderConfig, ViewsConfig, derive_seed
from raysed.data.pairs import load_views
from raysed.errors import UserError

# -- synonyms --------------------------------------------------------------------------------------------------------


SENSES = (
    ("n", ["dog", "hound", "Canis_familiaris"], [40, 0, 0]),
    ("n", ["walk", "stroll"], [3, 1]),
    ("v", ["walk", "go_on_foot"], [9, 1]),
    ("n", ["cat"], [9]),
    ("n", ["cat", "gossip"], [1, 0]),
    ("v", ["run", "sprint"], [5, 1]),
    ("a", ["happy", "glad"], [5, 1]),
    ("r", ["quickly", "rapidly"], [5, 1]),
    ("n", ["have", "rich_person"], [0, 0]),
    ("n", ["london", "capital_of_the_UK"], [1, 0]),
    ("n", ["x", "ten"], [1, 1]),
    ("n", ["ice-cream", "frozen_dessert"], [1, 1]),
)
EXPECTED = {
    "dog": {"hound", "Canis familiaris"},
    "dogs": {"hound", "Canis familiaris"},
    "walk": {"go on foot"},  # as a verb it is more frequent than as a noun
    "walked": {"go on foot"},
    "cat": {"gossip"},  # the more frequent sense has no other word
    "ran": {"sprint"},  # an exception of the verbs
    "happy": {"glad"},
    "quickly": {"rapidly"},
    "ice-cream": {"frozen dessert"},
}
NONE = ("the", "have", "x", "table", "don't", "4dogs", "dog's")
WORD = re.compile(r"[\w'-]+")


@pytest.fixture
def wordnet(tmp_path, monkeypatch):
    """Points nltk at a WordNet of these senses and exceptions."""
    nltk = pytest.importorskip("nltk", reason="the extra wordnet is not installed")
    from nltk.corpus import wordnet

    write_wordnet(tmp_path / "corpora" / "wordnet", {"verb": "ran run\n"})
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    wordnet._unload()
    yield tmp_path
    wordnet._unload()


def write_wordnet(path: Path, exceptions: dict[str, str]) -> None:
    """Writes the senses in nltk's layout; ranks are by order."""
    path.mkdir(parents=True)
    (path / "lexnames").write_text("00\tall\t0\n")
    keys: list[tuple[str, int, int, int]] = []
    for number, (part, name) in enumerate({"n": "noun", "v": "verb", "a": "adj", "r": "adv"}.items(), start=1):
        data, places = "  1 a WordNet in miniature\n", {}
        for _, words, counts in (sense for sense in SENSES if sense[0] == part):
            offset = len(data)
            pieces = " ".join(f"{word} {lex}" for lex, word in enumerate(words))
            data += f"{offset:08d} 00 {part} {len(words):02x} {pieces} 000 | a sense\n"
            for lex, (word, count) in enumerate(zip(words, counts)):
                ranks = places.setdefault(word.lower(), [])
                ranks.append(f"{offset:08d}")
                keys.append((f"{word.lower()}%{number}:00:{lex:02d}::", offset, len(ranks), count))
        (path / f"data.{name}").write_text(data)
        lines = (f"{word} {part} {len(o)} 0 {len(o)} 0 {' '.join(o)}  \n" for word, o in sorted(places.items()))
        (path / f"index.{name}").write_text("".join(lines))
        (path / f"{name}.exc").write_text(exceptions.get(name, ""))
    keys.sort()
    (path / "index.sense").write_text("".join(f"{key} {offset:08d} {rank} {n}\n" for key, offset, rank, n in keys))
    (path / "cntlist.rev").write_text("".join(f"{key} {rank} {n}\n" for key, _, rank, n in keys if n))


def random_sentences(count: int, words: Sequence[str]) -> list[str]:
    rng = np.random.default_rng(0)
    ends = [" ", ", ", "  ", " (", ") ", ' "', "; "]
    drawn = (zip(rng.choice(words, n), rng.choice(ends, n)) for n in rng.integers(12, 30, count))
    return ["".join(word + end for word, end in one) + "." for one in drawn]


def test_only_words_with_synonyms_are_replaced_and_by_these(wordnet):
    """Word by word over random sentences; punctuation and blanks stay, and counts are of the words."""
    sentences, seen, replaced = random_sentences(200, [*EXPECTED, *NONE]), set(), 0
    made = synonym_views(0.25, 0)(sentences, np.arange(200))
    for sentence, (first, second) in zip(sentences, made.pairs):
        assert first == sentence
        position = 0
        for match in WORD.finditer(sentence):
            gap, old = sentence[position : match.start()], match[0]
            options = [old, *sorted(EXPECTED.get(old, ()))]
            new = max((o for o in options if second[len(gap) :].startswith(o)), key=len)
            assert second.startswith(gap)
            seen.add((old, new))
            replaced += new != old
            second, position = second[len(gap) + len(new) :], match.end()
        assert second == sentence[position:]
    assert {pair for pair in seen if len(set(pair)) > 1} == {(old, new) for old in EXPECTED for new in EXPECTED[old]}
    words = [word for sentence in sentences for word in WORD.findall(sentence) if word != "4dogs"]
    assert (made.chosen, made.total) == (replaced, len(words))
    assert made.chosen / made.total == pytest.approx(0.25, abs=0.02)


def test_capitals_are_kept_and_names_left_alone(wordnet):
    """A capital says nothing at the beginning, in a title and in a line of capitals."""
    changed = [
        ("Cat", "Gossip"),
        ('"Cat, a Dog', '"Gossip, a Dog'),
        ("THE CAT", "THE Gossip"),
        ("The Cat", "The Gossip"),
    ]
    kept = [(sentence, sentence) for sentence in ("a Cat", "Londoners", "The have x.", "")]
    assert synonym_views(0.3, 0)([first for first, _ in changed + kept], np.arange(8)).pairs == changed + kept


def test_synonyms_depend_on_seed_and_id_alone(wordnet):
    draws_by_seed_and_id(lambda seed: synonym_views(0.3, seed), random_sentences(30, list(EXPECTED)))


def test_a_missing_wordnet_is_one_sentence(wordnet):
    shutil.rmtree(wordnet / "corpora")
    with pytest.raises(UserError, match=r"nltk's WordNet data, .* pip install nltk.*nltk.downloader wordnet"):
        synonym_views(0.3, 0)


# -- back-translation ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def translators(tmp_path_factory) -> list[str]:
    """Directories of four tiny random models that turn sentences into others of their vocabulary."""
    path = tmp_path_factory.mktemp("translators")
    tokenizer = train_tokenizer(generated(300), 300)
    options = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("ffn_dim", "attention_heads")}
    options |= dict(encoder_layers=1, decoder_layers=1, d_model=16, init_std=0.3, max_position_embeddings=18)
    options |= dict(pad_token_id=0, bos_token_id=2, eos_token_id=3, decoder_start_token_id=0, forced_eos_token_id=None)
    config = transformers.MarianConfig(**options, vocab_size=len(tokenizer), tie_word_embeddings=False)
    for seed, name in ((0, "a"), (3, "b"), (1, "c"), (6, "d")):
        tokenizer.save_pretrained(path / name)
        write_model(marian, config, path / name, seed)
    return [str(path / name) for name in ("a", "b", "c", "d")]


def marian(config: transformers.MarianConfig) -> transformers.MarianMTModel:
    model = transformers.MarianMTModel(config)
    model.final_logits_bias[0, 3] = 2.0  # so that some translations end early
    return model


@lru_cache
def loaded(path: str) -> tuple:
    return AutoModelForSeq2SeqLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)


def translated(path: str, sentence: str) -> str:
    """Greedy search, one sentence at a time and all of it again for each new token."""
    model, tokenizer = loaded(path)
    source = tokenizer(sentence, truncation=True, max_length=16, return_tensors="pt")["input_ids"]
    target = [0]
    while len(target) <= 16 and target[-1] != 3:
        with torch.no_grad():
            logits = model(input_ids=source, decoder_input_ids=torch.tensor([target])).logits[0, -1]
        logits[0] = -torch.inf  # the padding, as the generation configuration has it
        target.append(int(logits.argmax()))
    return tokenizer.decode(target, skip_special_tokens=True).strip()


def test_pivots_give_back_translations(translators, monkeypatch):
    """Two of them both views; one the second view, beside the sentence."""
    monkeypatch.setattr(masked, "_CELLS", 120)
    a, b, c, d = translators
    sentences = [*generated(8), *ODD]
    one, two = ([translated(back, translated(there, s)) for s in sentences] for there, back in ((a, b), (c, d)))
    made = back_translations([(a, b), (c, d)], 75)(sentences, np.arange(len(sentences)))
    assert made == (list(zip(one, two)), len(sentences), len(sentences)) and len(set(one)) > 4
    maker = back_translations([(a, b)], 75)
    assert maker(sentences, np.arange(len(sentences))).pairs == list(zip(sentences, one))
    assert maker([], np.empty(0, np.int64)) == ([], 0, 0)


def test_other_translators_and_missing_packages_are_refused(tmp_path, monkeypatch):
    """A published Marian model has SentencePiece files, and no tokenizer that works without the packages."""
    pivots = [(str(tmp_path), str(tmp_path))]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    message = rf"^--pivot: '{tmp_path}' is a t5 model, .*marian and fsmt.*such as Helsinki-NLP/opus-mt-en-de"
    refused(message, back_translations, pivots, 75)
    transformers.MarianConfig(vocab_size=5).save_pretrained(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"</s>": 0, "<unk>": 1, "<pad>": 2}))
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(b"")
    monkeypatch.setattr(back_translation.importlib.util, "find_spec", lambda package: None)
    message = "needs sentencepiece and sacremoses: run pip install sentencepiece sacremoses"
    refused(message, back_translations, pivots, 75)


def test_weights_are_read_from_safetensors_only(translators, tmp_path):
    only = r"'.*' has no model\.safetensors, and weights are read from safetensors only; .*save_pretrained"
    for setting, source, make in (
        ("--pivot", translators[0], lambda path: back_translations([(path, path)], 75)),
        ("--model", bundled.ENCODER, lambda path: masked.load_filler(EncoderConfig(path=path), "--model")),
    ):
        path = shutil.copytree(source, tmp_path / setting)
        (path / "model.safetensors").rename(path / "pytorch_model.bin")
        refused(f"^{setting}: {only}", make, str(path))


# -- the command -----------------------------------------------------------------------------------------------------


def run(*words: str) -> int:
    return main_of(papers.views.job, papers.views.parser(), arguments=words)


def test_the_command_writes_what_a_run_reads(translators, undone, tmp_path, capsys):
    output, (a, b, _, _) = tmp_path / "views.parquet", translators
    words = ["--set", "corpus.sentences=20", "--set", "encoder.max_length=16", "--output", str(output)]
    assert run("back_translation", "--pivot", a, b, *words) == 0
    table = pq.read_table(output).to_pydict()
    assert len(table["view1"]) == 20 and set(table["view1"]) < set(bundled.corpus())
    assert table["view2"] == [translated(b, translated(a, sentence)) for sentence in table["view1"]]
    assert "20 pairs; 20 of 20 sentences rewritten" in capsys.readouterr().out
    pairs = load_views(ViewsConfig(files=[{"source": str(output)}]))
    assert set(zip(pairs.first, pairs.second)) <= set(zip(*table.values()))
    assert list(tmp_path.iterdir()) == [output]


def test_masked_views_are_those_of_the_model_and_the_seed(tmp_path, capsys):
    output = tmp_path / "views.parquet"
    words = ["--set", "corpus.sentences=20", "--set", "seed=3", "--set", "encoder.max_length=16"]
    assert run("mlm", "--rate", "0.3", "--model", "bundled:raw", *words, "--output", str(output)) == 0
    assert "tokens rewritten" in capsys.readouterr().out
    table, seed = pq.read_table(output).to_pydict(), derive_seed(3, "views", "mlm")
    make = masked.masked_views(EncoderConfig(path="bundled:raw"), "--model", 0.3, 16, seed)
    assert make(table["view1"], np.arange(20)).pairs == list(zip(table["view1"], table["view2"]))
    assert run("mlm", "--rate", "1", "--output", str(output)) == 2
