"""Makers of views against plain references, on a WordNet in miniature and on tiny random models."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerFast

from bundled_encoder import train_tokenizer
from raysed import bundled
from raysed.config import EncoderConfig, ViewsConfig, derive_seed
from raysed.errors import UserError
from raysed.model.views import KINDS, back_translation, common, weights_bytes

ENCODER = EncoderConfig(path="bundled:raw")
ODD = [
    *("", "   ", "!", "[SEP] [MASK] <mask>"),
    "Two  blanks,\ta tab and a dash \u2014 “quoted”.",
    "Café naïve, ½ of it; 🎸🎸 and \u0101\u0304 or 日本語.",
    "THE CAT'S 3 DOGS",
    "a very long sentence " * 40,
]


def everyday(count: int) -> list[str]:
    return bundled.corpus()[:count]


def make(kind: str, seed: int = 0, **views) -> common.Maker:
    return KINDS[kind].maker(ViewsConfig(**views), ENCODER, seed)


def refused(kind: str, message: str, encoder: EncoderConfig = ENCODER, **views) -> None:
    """By the check, and by the maker."""
    for use in (KINDS[kind].check, lambda *settings: KINDS[kind].maker(*settings, seed=0)):
        with pytest.raises(UserError, match=message) as caught:
            use(ViewsConfig(**views), encoder)
        assert "\n" not in str(caught.value) and "use_safetensors" not in str(caught.value)


def draws_by_seed_and_id(making: Callable[[int], common.Maker], sentences: Sequence[str]) -> None:
    """Alone, backwards and in two parts, sentences become the same; another seed makes others of them."""
    maker, ids = making(0), np.random.default_rng(0).permutation(1000)[: len(sentences)]
    whole = maker(sentences, ids).pairs
    backwards = maker(sentences[::-1], ids[::-1]).pairs[::-1]
    parts = maker(sentences[:7], ids[:7]).pairs + maker(sentences[7:], ids[7:]).pairs
    assert whole == backwards == parts and whole[:1] == maker(sentences[:1], ids[:1]).pairs
    assert making(1)(sentences, ids).pairs != whole
    assert len({second for _, second in maker([sentences[0]] * len(ids), ids).pairs}) > 8
    assert maker([], np.empty(0, np.int64)) == ([], 0, 0)


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


def random_sentences(count: int, words: list[str]) -> list[str]:
    rng = np.random.default_rng(0)
    ends = [" ", ", ", "  ", " (", ") ", ' "', "; "]
    drawn = (zip(rng.choice(words, n), rng.choice(ends, n)) for n in rng.integers(12, 30, count))
    return ["".join(word + end for word, end in one) + "." for one in drawn]


def test_only_words_with_synonyms_are_replaced_and_by_these(wordnet):
    """Word by word over random sentences; punctuation and blanks stay, and counts are of the words."""
    sentences, seen, replaced = random_sentences(200, [*EXPECTED, *NONE]), set(), 0
    made = make("synonym", synonym_share=0.25)(sentences, np.arange(200))
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
    assert make("synonym")([first for first, _ in changed + kept], np.arange(8)).pairs == changed + kept


def test_synonyms_depend_on_seed_and_id_alone(wordnet):
    draws_by_seed_and_id(lambda seed: make("synonym", seed), random_sentences(30, list(EXPECTED)))


def test_a_missing_wordnet_is_one_sentence(wordnet):
    shutil.rmtree(wordnet / "corpora")
    refused("synonym", r"nltk's WordNet data, .* pip install nltk.*nltk.downloader wordnet.*mlm or back_translation")


# -- tokens that a masked language model fills -----------------------------------------------------------------------


SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def byte_level(texts: list[str]) -> Tokenizer:
    """As RoBERTa's: no token is unknown, and the blank before a word belongs to it, also in its span."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    options = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "special_tokens": SPECIALS}
    backend.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=420, show_progress=False, **options))
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=False)
    return backend


def unigram(texts: list[str]) -> Tokenizer:
    """As SentencePiece makes it."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    options = {"unk_token": "<unk>", "special_tokens": SPECIALS}
    backend.train_from_iterator(texts, trainers.UnigramTrainer(vocab_size=300, show_progress=False, **options))
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return backend


def fast(backend: Tokenizer) -> PreTrainedTokenizerFast:
    names = {f"{name}_token": token for name, token in zip(("bos", "pad", "eos", "unk", "mask"), SPECIALS)}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


FILLERS = {
    "bert": (lambda texts: train_tokenizer(texts, 300), "Bert"),
    "roberta": (lambda texts: fast(byte_level(texts)), "Roberta"),
    "xlm-roberta": (lambda texts: fast(unigram(texts)), "XLMRoberta"),
}


@pytest.fixture(scope="module", params=FILLERS)
def filler(request, tmp_path_factory) -> Path:
    """A directory with a tiny random masked language model and a tokenizer trained on a few sentences."""
    path = tmp_path_factory.mktemp(request.param)
    train, name = FILLERS[request.param]
    tokenizer = train(everyday(300) + ODD)
    tokenizer.save_pretrained(path)
    sizes = dict(intermediate_size=16, num_hidden_layers=1, hidden_size=16, num_attention_heads=2)
    rows = len(tokenizer) + 3  # as many published models have, a few rows more than tokens
    config = getattr(transformers, f"{name}Config")(
        **sizes, vocab_size=rows, pad_token_id=tokenizer.pad_token_id, max_position_embeddings=50, initializer_range=0.3
    )
    write_model(getattr(transformers, f"{name}ForMaskedLM"), config, path)
    return path


def write_model(kind: type, config: transformers.PreTrainedConfig, path: Path, seed: int = 0) -> None:
    """Random weights, also where a fresh model has zeros and ones."""
    torch.manual_seed(seed)
    model = kind(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_((2.0 if "encoder_attn" in name else 0.2) * torch.randn_like(parameter))
    model.save_pretrained(path)


class Reference:
    """Fills one sentence after the other, without padding, looking at one token of the vocabulary after the other."""

    def __init__(self, path: Path, seed: int, rate: float):
        self.model, self.tokenizer = AutoModelForMaskedLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
        self.style, self.seed, self.rate = path.name, seed, rate
        self.chosen = self.changed = self.total = 0
        self.kinds = [self.kind(index) for index in range(len(self.tokenizer))]

    def kind(self, index: int) -> tuple[str, bool, bool] | None:
        """Text, whether it begins a word, whether it has a letter or digit; None for one that is no text."""
        token = self.tokenizer.convert_ids_to_tokens(index)
        text, begins = token.lstrip("Ġ▁"), token[:1] in "Ġ▁"
        if self.style.startswith("bert"):
            text, begins = token.removeprefix("##"), not token.startswith("##")
        elif self.style.startswith("roberta"):
            text = decoders.ByteLevel().decode([text])
        if index in self.tokenizer.all_special_ids or not text or set(text) & set("\ufffd▁ \t\n"):
            return None
        return (text, begins, any(c.isalnum() for c in text)) if text.isprintable() else None

    def __call__(self, sentence: str, key: int) -> str:
        coded = self.tokenizer(sentence, return_offsets_mapping=True, truncation=True, max_length=48)
        tokens, spans = coded["input_ids"], coded["offset_mapping"]
        maskable = [i for i, token in enumerate(tokens) if self.kinds[token] and self.is_alone(i, spans)]
        rng = np.random.default_rng([derive_seed(self.seed, "mlm"), key])
        wanted = max(1, int(self.rate * len(maskable) + rng.random()))
        chosen = sorted(np.array(maskable, int)[rng.permutation(len(maskable))[:wanted]].tolist())
        self.chosen, self.total = self.chosen + len(chosen), self.total + len(maskable)
        masked = [self.tokenizer.mask_token_id if i in chosen else token for i, token in enumerate(tokens)]
        with torch.no_grad():
            logits = self.model(torch.tensor([masked])).logits[0]
        for place in reversed(chosen):  # from the end, so that the spans before stay right
            kind = self.kinds[tokens[place]][1:]
            allowed = [index for index, one in enumerate(self.kinds) if one and one[1:] == kind]
            best = max(allowed, key=lambda index: logits[place, index].item())
            if best == tokens[place]:
                continue
            (start, stop), text = spans[place], self.kinds[best][0]
            while sentence[start].isspace():
                start += 1
            if self.style.startswith("bert") and sentence[start].isupper():
                text = text[0].upper() + text[1:]
            sentence, self.changed = sentence[:start] + text + sentence[stop:], self.changed + 1
        return sentence

    def is_alone(self, place: int, spans: list[tuple[int, int]]) -> bool:
        own = set(range(*spans[place]))
        return bool(own) and not any(own & set(range(*span)) for i, span in enumerate(spans) if i != place)


def test_sentences_become_what_a_plain_reference_makes_of_them(filler, monkeypatch):
    """Also in small batches."""
    sentences = [*ODD, *everyday(40), *(sentence.title() for sentence in everyday(10))]
    ids = 3 + 5 * np.arange(len(sentences))
    reference, views = Reference(filler, seed=0, rate=0.25), {"mlm_model": str(filler), "mlm_rate": 0.25}
    made = make("mlm", **views)(sentences, ids)
    assert made.pairs == [(sentence, reference(sentence, key)) for sentence, key in zip(sentences, ids.tolist())]
    assert (made.chosen, made.total) == (reference.chosen, reference.total)
    assert made.chosen / made.total == pytest.approx(0.25, abs=0.03) and reference.changed > 30
    monkeypatch.setattr(common, "_CELLS", 60)
    assert make("mlm", **views)(sentences, ids) == made


def test_filled_tokens_depend_on_seed_and_id_alone(filler):
    draws_by_seed_and_id(lambda seed: make("mlm", seed, mlm_model=str(filler)), everyday(25))


def test_no_token_means_that_nothing_is_filled(filler, tmp_path):
    """With a tokenizer that adds no special tokens, an empty sentence has none."""
    path = shutil.copytree(filler, tmp_path / "model")
    tokenizer = json.loads((filler / "tokenizer.json").read_text()) | {"post_processor": None}
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    made = make("mlm", mlm_model=str(path), mlm_rate=0.9)(["", "The man started a fire."], np.arange(2))
    (_, empty), (old, new) = made.pairs
    assert empty == "" and new != old


def test_reserved_and_special_entries_are_no_text():
    words = ["PAD", "mask it", "[unused7]", "<0x0A>", "<", "[]", "a", "##b", "##-", "##", "\u200b"]
    backend = Tokenizer(models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="PAD"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="PAD", mask_token="mask it")
    _, kinds = KINDS["mlm"]._texts_and_kinds(tokenizer)
    assert kinds.tolist() == [-1, -1, -1, -1, 2, 2, 3, 1, 0, -1, -1]


def test_what_cannot_fill_is_refused(tiny_encoder_dir, monkeypatch):
    right = r".*views\.mlm_model.*bundled:raw or roberta-base"
    lacks = rf": '.*' lacks \d+ weights of a masked language model, such as cls\.predictions.*{right}"
    refused("mlm", rf"^views\.mlm_model{lacks}", mlm_model=str(tiny_encoder_dir))
    refused("mlm", rf"^encoder\.path{lacks}", EncoderConfig(path=str(tiny_encoder_dir)))
    refused("mlm", r"^views\.mlm_model: 'no/such/model' cannot be loaded", mlm_model="no/such/model")
    load = AutoTokenizer.from_pretrained

    def without_mask(*arguments, **options):
        tokenizer = load(*arguments, **options)
        tokenizer.mask_token = None
        return tokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", without_mask)
    refused("mlm", rf"^encoder\.path: 'bundled:raw' has a tokenizer without a mask token{right}")


def test_the_bundled_encoder_has_a_head_that_knows_its_text():
    """Many of the tokens that it fills are those that were there; chance has it right once in thousands.

    Without a model of their own, views are filled by the run's encoder, which is this one.
    """
    sentences, ids = everyday(100), np.arange(100)
    made = make("mlm")(sentences, ids)
    assert sum(first == second for first, second in made.pairs) > 10
    assert make("mlm", mlm_model="bundled:raw")(sentences, ids) == made


# -- back-translation ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def translators(tmp_path_factory) -> list[str]:
    """Directories of four tiny random models that turn sentences into others of their vocabulary."""
    path = tmp_path_factory.mktemp("translators")
    tokenizer = train_tokenizer(everyday(300), 300)
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
    monkeypatch.setattr(common, "_CELLS", 120)
    a, b, c, d = translators
    sentences = [*everyday(8), *ODD]
    one, two = ([translated(back, translated(there, s)) for s in sentences] for there, back in ((a, b), (c, d)))
    made = make("back_translation", pivots=[(a, b), (c, d)])(sentences, np.arange(len(sentences)))
    assert made == (list(zip(one, two)), len(sentences), len(sentences)) and len(set(one)) > 4
    maker = make("back_translation", pivots=[(a, b)])
    assert maker(sentences, np.arange(len(sentences))).pairs == list(zip(sentences, one))
    assert maker([], np.empty(0, np.int64)) == ([], 0, 0)


def test_a_shared_model_is_counted_once(translators):
    a, b, c, _ = translators
    expected = 3 * 4 * loaded(a)[0].model.num_parameters()
    assert weights_bytes("back_translation", ViewsConfig(pivots=[(a, b), (c, b)]), ENCODER) == expected
    assert weights_bytes("synonym", ViewsConfig(), ENCODER) == 0


def test_the_check_needs_no_weights(translators, tmp_path):
    path = shutil.copytree(translators[0], tmp_path / "model")
    (path / "model.safetensors").write_bytes(b"")
    back_translation.check(ViewsConfig(pivots=[(str(path), str(path))]), ENCODER)
    with pytest.raises(UserError, match=rf"^views\.pivots: '{path}' cannot be loaded"):
        make("back_translation", pivots=[(str(path), str(path))])


def test_other_translators_and_missing_packages_are_refused(tmp_path, monkeypatch):
    """A published Marian model has SentencePiece files, and no tokenizer that works without the packages."""
    pivots = [(str(tmp_path), str(tmp_path))]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    message = rf"^views\.pivots: '{tmp_path}' is a t5 model, .*marian and fsmt.*such as Helsinki-NLP/opus-mt-en-de"
    refused("back_translation", message, pivots=pivots)
    transformers.MarianConfig(vocab_size=5).save_pretrained(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"</s>": 0, "<unk>": 1, "<pad>": 2}))
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(b"")
    monkeypatch.setattr(back_translation.importlib.util, "find_spec", lambda package: None)
    message = "needs sentencepiece and sacremoses: run pip install sentencepiece sacremoses"
    refused("back_translation", message, pivots=pivots)


@pytest.mark.parametrize(("kind", "setting"), [("mlm", "mlm_model"), ("back_translation", "pivots")])
def test_weights_are_read_from_safetensors_only(kind, setting, translators, tmp_path):
    path = shutil.copytree(bundled.ENCODER if kind == "mlm" else translators[0], tmp_path / "model")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    only = r"'.*' has no model\.safetensors, and weights are read from safetensors only; .*save_pretrained"
    refused(kind, rf"^views\.{setting}: {only}", mlm_model=str(path), pivots=[(str(path), str(path))])
