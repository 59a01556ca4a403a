"""Augmenters against plain references that take one sentence at a time; a tiny WordNet and tiny random models."""

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerFast

from bundled_encoder import train_tokenizer
from raysed import bundled
from raysed.config import EncoderConfig, ViewsConfig, derive_seed
from raysed.errors import UserError
from raysed.model import augment
from raysed.model.augment import Tally, check_augmenter, make_augmenter, weights_bytes, wordnet_identity

ENCODER = EncoderConfig()
ODD = [
    "",
    "   ",
    "!",
    "[SEP] [MASK] <mask>",
    "Two  blanks,\ta tab and a dash \u2014 “quoted”.",
    "Café naïve, ½ of it; 🎸🎸 and \u0101\u0304 or 日本語.",
    "THE CAT'S 3 DOGS",
    "a very long sentence " * 40,
]


def everyday(count: int) -> list[str]:
    return bundled.corpus()[:count]


def in_any_grouping(make: Callable[[], augment.Augmenter], sentences: list[str], ids: np.ndarray) -> None:
    """Alone, backwards and in two parts, sentences become the same."""
    whole = make()(sentences, ids)
    backwards = make()(sentences[::-1], ids[::-1])[::-1]
    augmenter = make()
    parts = augmenter(sentences[:7], ids[:7]) + augmenter(sentences[7:], ids[7:])
    alone = [make_one for one, key in zip(sentences[:5], ids[:5]) for make_one in augmenter([one], np.array([key]))]
    assert whole == backwards == parts and whole[:5] == alone


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


class TestSynonyms:
    @pytest.fixture
    def wordnet(self, tmp_path, monkeypatch):
        """Points nltk at a WordNet of these senses and exceptions."""
        nltk = pytest.importorskip("nltk", reason="the extra wordnet is not installed")
        from nltk.corpus import wordnet

        write_wordnet(tmp_path / "corpora" / "wordnet", SENSES, {"verb": "ran run"})
        monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
        wordnet._unload()
        yield tmp_path
        wordnet._unload()

    def make(self, seed: int = 0, share: float = 0.3) -> augment.Augmenter:
        return make_augmenter("synonym", ViewsConfig(synonym_share=share), ENCODER, seed)

    def sentences(self, count: int, words: list[str], shortest: int = 7, seed: int = 0) -> list[str]:
        rng = np.random.default_rng(seed)
        ends = [" ", ", ", "  ", " (", ") ", ' "', "; "]
        drawn = (zip(rng.choice(words, n), rng.choice(ends, n)) for n in rng.integers(shortest, 30, count))
        return ["".join(word + end for word, end in one) + "." for one in drawn]

    def test_only_words_with_synonyms_are_replaced_and_by_these(self, wordnet):
        """Word by word over random sentences; punctuation and blanks stay."""
        sentences = self.sentences(200, [*EXPECTED, *NONE])
        augmenter, seen, replaced = self.make(), set(), 0
        for sentence, (first, second) in zip(sentences, augmenter(sentences, np.arange(200))):
            assert first == sentence
            position = 0
            for match in WORD.finditer(sentence):
                gap, old = sentence[position : match.start()], match[0]
                assert second.startswith(gap)
                options = [old, *sorted(EXPECTED.get(old, ()))]
                new = max((o for o in options if second[len(gap) :].startswith(o)), key=len)
                seen.add((old, new))
                replaced += new != old
                second, position = second[len(gap) + len(new) :], match.end()
            assert second == sentence[position:]
        assert {(old, new) for old, new in seen if old != new} == {
            (old, new) for old, news in EXPECTED.items() for new in news
        }
        assert augmenter.tally.chosen == augmenter.tally.changed == replaced

    @pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
    def test_the_share_of_words_is_met(self, wordnet, share):
        """Within two points, half of the words having a synonym at the larger shares."""
        words = [*EXPECTED] if share == 0.6 else [*EXPECTED, *NONE[:2] * 4]
        augmenter = self.make(share=share)
        sentences = self.sentences(600, words, shortest=12)
        augmenter(sentences, np.arange(600))
        assert augmenter.tally.total == sum(len(WORD.findall(sentence)) for sentence in sentences)
        assert augmenter.tally.chosen / augmenter.tally.total == pytest.approx(share, abs=0.02)

    def test_one_word_at_least_and_none_where_none_has_a_synonym(self, wordnet):
        ids = np.arange(4)
        pairs = self.make()(["a cat", "The have x.", "", "dog"], ids)
        assert pairs[0][1] == "a gossip" and pairs[1][1] == "The have x." and pairs[2][1] == ""
        assert pairs[3][1] in EXPECTED["dog"]

    @pytest.mark.parametrize(
        "sentence, expected",
        [
            ("Cat", "Gossip"),
            ('"Cat, a Dog', '"Gossip, a Dog'),
            ("a Cat", "a Cat"),
            ("THE CAT", "THE Gossip"),
            ("The Cat", "The Gossip"),
            ("Londoners", "Londoners"),
        ],
    )
    def test_capitals_are_kept_and_names_left_alone(self, wordnet, sentence, expected):
        """A capital says nothing at the beginning, in a title and in a line of capitals."""
        assert self.make()([sentence], np.array([0])) == [(sentence, expected)]

    def test_the_draw_depends_on_seed_and_id_alone(self, wordnet):
        sentences = self.sentences(30, list(EXPECTED))
        ids = np.random.default_rng(0).permutation(1000)[:30]
        in_any_grouping(self.make, sentences, ids)
        same = [sentences[0]] * 30
        assert len({second for _, second in self.make()(same, ids)}) > 10
        assert self.make(seed=1)(sentences, ids) != self.make()(sentences, ids)

    def test_counts_may_be_missing(self, wordnet):
        """Then the first sense counts, of nouns first."""
        (wordnet / "corpora" / "wordnet" / "cntlist.rev").unlink()
        assert self.make()(["walk"], np.array([0])) == [("walk", "stroll")]

    @pytest.mark.parametrize("use", [lambda views: check_augmenter("synonym", views, ENCODER), None])
    def test_missing_package_or_data_is_one_sentence(self, use, monkeypatch, tmp_path):
        use = use or (lambda views: make_augmenter("synonym", views, ENCODER, 0))
        how = r"pip install nltk.*nltk.downloader wordnet.*mlm or back_translation"
        monkeypatch.setitem(sys.modules, "nltk", None)
        with pytest.raises(UserError, match=f"need the package nltk.*{how}"):
            use(ViewsConfig())
        monkeypatch.setitem(sys.modules, "nltk", SimpleNamespace(data=SimpleNamespace(find=self.nothing)))
        with pytest.raises(UserError, match=f"need nltk's WordNet data.*{how}"):
            use(ViewsConfig())

    def nothing(self, name: str) -> None:
        raise LookupError(name)

    def test_the_check_passes_where_wordnet_is(self, wordnet):
        check_augmenter("synonym", ViewsConfig(), ENCODER)

    @staticmethod
    def pack(root: Path) -> None:
        """As nltk's downloader leaves it: a zip with one directory."""
        shutil.make_archive(str(root / "corpora" / "wordnet"), "zip", root / "corpora", "wordnet")
        shutil.rmtree(root / "corpora" / "wordnet")

    def test_a_zip_that_was_not_unpacked_will_do(self, wordnet):
        """The same synonyms come out of it, exceptions and counts included."""
        sentences, ids = self.sentences(40, [*EXPECTED, *NONE]), np.arange(40)
        unpacked = self.make()(sentences, ids)
        self.pack(wordnet)
        sys.modules["nltk"].corpus.wordnet._unload()
        check_augmenter("synonym", ViewsConfig(), ENCODER)
        assert self.make()(sentences, ids) == unpacked
        assert any(first != second for first, second in unpacked)

    def test_a_broken_zip_is_no_wordnet(self, wordnet):
        self.pack(wordnet)
        (wordnet / "corpora" / "wordnet.zip").write_bytes(b"PK")
        with pytest.raises(UserError, match=r"nltk's WordNet data.*nltk\.downloader wordnet"):
            check_augmenter("synonym", ViewsConfig(), ENCODER)

    def test_the_identity_changes_with_the_files_alone(self, wordnet):
        """Not with the place, the packing or the times of the files."""
        identity = wordnet_identity()
        assert re.fullmatch("[0-9a-f]{16}", identity)
        (wordnet / "corpora" / "wordnet" / "noun.exc").touch()
        assert wordnet_identity() == identity
        with (wordnet / "corpora" / "wordnet" / "noun.exc").open("a") as file:
            file.write("oxen ox\n")
        changed = wordnet_identity()
        self.pack(wordnet)
        assert identity != changed == wordnet_identity()

    def test_no_wordnet_has_no_identity(self, wordnet):
        shutil.rmtree(wordnet / "corpora")
        with pytest.raises(UserError, match="nltk's WordNet data"):
            wordnet_identity()


def write_wordnet(path: Path, senses: tuple, exceptions: dict[str, str]) -> None:
    """Writes senses (part of speech, words, how often each was seen) in nltk's layout; ranks are by order."""
    path.mkdir(parents=True)
    names, numbers = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}, {"n": 1, "v": 2, "a": 3, "r": 4}
    (path / "lexnames").write_text("00\tall\t0\n")
    keys: list[tuple[str, int, int, int]] = []
    for part, name in names.items():
        data, places = "  1 a WordNet in miniature\n", {}
        for _, words, counts in (sense for sense in senses if sense[0] == part):
            offset = len(data)
            pieces = " ".join(f"{word} {lex}" for lex, word in enumerate(words))
            data += f"{offset:08d} 00 {part} {len(words):02x} {pieces} 000 | a sense\n"
            for lex, (word, count) in enumerate(zip(words, counts)):
                lemma = word.lower()
                places.setdefault(lemma, []).append(offset)
                keys.append((f"{lemma}%{numbers[part]}:00:{lex:02d}::", offset, len(places[lemma]), count))
        (path / f"data.{name}").write_text(data)
        lines = (
            f"{w} {part} {len(o)} 0 {len(o)} 0 {' '.join(f'{i:08d}' for i in o)}" for w, o in sorted(places.items())
        )
        (path / f"index.{name}").write_text("".join(f"{line}  \n" for line in lines))
        (path / f"{name}.exc").write_text(f"{exceptions[name]}\n" if name in exceptions else "")
    keys.sort()
    (path / "index.sense").write_text("".join(f"{key} {offset:08d} {rank} {n}\n" for key, offset, rank, n in keys))
    (path / "cntlist.rev").write_text("".join(f"{key} {rank} {n}\n" for key, _, rank, n in keys if n))


def byte_level_tokenizer(texts: list[str], trim: bool = True) -> PreTrainedTokenizerFast:
    """As RoBERTa's: no token is unknown, and the blank before a word belongs to it."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=420, special_tokens=specials, initial_alphabet=alphabet, show_progress=False),
    )
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=trim)
    return fast(backend, specials)


def unigram_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """As SentencePiece makes it."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    backend.train_from_iterator(
        texts, trainers.UnigramTrainer(vocab_size=300, special_tokens=specials, unk_token="<unk>", show_progress=False)
    )
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return fast(backend, specials)


def fast(backend: Tokenizer, specials: list[str]) -> PreTrainedTokenizerFast:
    names = dict(zip(("bos", "pad", "eos", "unk", "mask"), specials))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, **{f"{name}_token": token for name, token in names.items()}
    )


def word_piece_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    return train_tokenizer(texts, 300)


TOKENIZERS = {
    "bert": word_piece_tokenizer,
    "roberta": byte_level_tokenizer,
    "roberta-untrimmed": lambda texts: byte_level_tokenizer(texts, trim=False),
    "xlm-roberta": unigram_tokenizer,
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def filler(request, tmp_path_factory) -> Path:
    """A directory with a tiny random masked language model and a tokenizer trained on a few sentences."""
    path = tmp_path_factory.mktemp(request.param)
    tokenizer = TOKENIZERS[request.param](everyday(300) + ODD)
    tokenizer.save_pretrained(path)
    config, model = {
        "bert": (transformers.BertConfig, transformers.BertForMaskedLM),
        "roberta": (transformers.RobertaConfig, transformers.RobertaForMaskedLM),
        "xlm-roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaForMaskedLM),
    }[request.param.removesuffix("-untrimmed")]
    write_model(model, config(**sizes(tokenizer), intermediate_size=16, num_hidden_layers=1, hidden_size=16), path)
    return path


def sizes(tokenizer: PreTrainedTokenizerFast) -> dict:
    return {
        "vocab_size": len(tokenizer) + 3,  # as many published models have, a few rows more than tokens
        "pad_token_id": tokenizer.pad_token_id,
        "num_attention_heads": 2,
        "max_position_embeddings": 50,
        "initializer_range": 0.3,
        "tie_word_embeddings": True,
    }


def write_model(kind: type, config: transformers.PreTrainedConfig, path: Path, seed: int = 0) -> None:
    """Random weights, also where a fresh model has zeros and ones."""
    torch.manual_seed(seed)
    model = kind(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_((2.0 if "encoder_attn" in name else 0.2) * torch.randn_like(parameter))
    model.save_pretrained(path)


class TestMasked:
    def make(self, path: Path | str, seed: int = 0, rate: float = 0.2) -> augment.Augmenter:
        return make_augmenter("mlm", ViewsConfig(mlm_model=str(path), mlm_rate=rate), ENCODER, seed)

    def test_sentences_become_what_a_plain_reference_makes_of_them(self, filler):
        sentences = [*ODD, *everyday(40), *(sentence.title() for sentence in everyday(10))]
        ids = 3 + 5 * np.arange(len(sentences))
        reference = Reference(filler, seed=0, rate=0.2)
        augmenter = self.make(filler)
        pairs = augmenter(sentences, ids)
        assert pairs == [(sentence, reference(sentence, key)) for sentence, key in zip(sentences, ids.tolist())]
        assert augmenter.tally == Tally(reference.chosen, reference.changed, reference.total)
        assert sum(first != second for first, second in pairs) > 30

    def test_the_share_of_tokens_is_met(self, filler):
        augmenter = self.make(filler, seed=3)
        augmenter(everyday(400), np.arange(400))
        assert augmenter.tally.chosen / augmenter.tally.total == pytest.approx(0.2, abs=0.02)

    def test_the_draw_depends_on_seed_and_id_alone(self, filler):
        sentences, ids = everyday(25), np.random.default_rng(0).permutation(99)[:25]
        in_any_grouping(lambda: self.make(filler), sentences, ids)
        assert len({second for _, second in self.make(filler)([sentences[0]] * 25, ids)}) > 8
        assert self.make(filler, seed=1)(sentences, ids) != self.make(filler)(sentences, ids)

    def test_batches_are_bounded_and_make_no_difference(self, filler, monkeypatch):
        sentences, ids = everyday(25) + ODD, np.arange(33)
        expected = self.make(filler)(sentences, ids)
        monkeypatch.setattr(augment, "_CELLS", 60)
        augmenter, cells = self.make(filler), []
        model = augmenter._model
        forward = model.forward
        model.forward = lambda **inputs: cells.append(inputs["input_ids"].shape) or forward(**inputs)
        assert augmenter(sentences, ids) == expected
        assert len(cells) > 5 and all(rows * length <= 60 or rows == 1 for rows, length in cells)

    def test_bf16_fills_nearly_the_same(self, filler, monkeypatch):
        """As on a GPU; near ties may go the other way."""
        sentences, ids = everyday(60), np.arange(60)
        expected = self.make(filler)(sentences, ids)
        monkeypatch.setattr(augment, "_dtype", lambda device: torch.bfloat16)
        augmenter = self.make(filler)
        assert augmenter._model.dtype == torch.bfloat16
        assert sum(one == two for one, two in zip(augmenter(sentences, ids), expected)) > 45

    def test_no_sentences_make_no_pairs(self, filler):
        assert self.make(filler)([], np.empty(0, np.int64)) == []

    def test_the_runs_encoder_fills_where_no_model_is_named(self):
        sentences, ids = everyday(5), np.arange(5)
        own = make_augmenter("mlm", ViewsConfig(), ENCODER, 0)
        assert own(sentences, ids) == self.make("bundled:encoder")(sentences, ids)

    def test_a_head_that_gives_all_places_is_asked_for_the_chosen(self, filler, monkeypatch):
        """Architectures whose output matrix is not a module of its own."""
        sentences, ids = everyday(9), np.arange(9)
        expected = self.make(filler)(sentences, ids)
        augmenter = self.make(filler)
        monkeypatch.setattr(augmenter._model, "get_output_embeddings", lambda: None)
        assert augmenter(sentences, ids) == expected

    def test_no_token_means_that_nothing_is_filled(self, filler, tmp_path):
        """With a tokenizer that adds no special tokens, an empty sentence has none."""
        for file in filler.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        tokenizer = json.loads((filler / "tokenizer.json").read_text()) | {"post_processor": None}
        (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
        (_, empty), (old, new) = self.make(tmp_path, rate=0.9)(["", "The man started a fire."], np.arange(2))
        assert empty == "" and new != old

    def test_reserved_and_special_entries_are_no_text(self):
        words = ["PAD", "mask it", "[unused7]", "<0x0A>", "<", "[]", "a", "##b", "##-", "##", "\u200b"]
        backend = Tokenizer(models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="PAD"))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="PAD", mask_token="mask it")
        texts, kinds = augment._texts_and_kinds(tokenizer)
        assert kinds.tolist() == [-1, -1, -1, -1, 2, 2, 3, 1, 0, -1, -1]
        assert texts[4:9] == ["<", "[]", "a", "b", "-"]


class Reference:
    """Fills one sentence after the other, without padding, looking at one token of the vocabulary after the other."""

    def __init__(self, path: Path, seed: int, rate: float):
        self.model, self.tokenizer = AutoModelForMaskedLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
        self.style = path.name.rstrip("0123456789")
        self.seed, self.rate = seed, rate
        self.chosen = self.changed = self.total = 0
        ids = range(len(self.tokenizer))
        self.kinds = [self.kind(index) for index in ids]

    def kind(self, index: int) -> tuple[str, bool, bool] | None:
        """Text, whether it begins a word, whether it has a letter or digit; None for one that is no text."""
        token = self.tokenizer.convert_ids_to_tokens(index)
        if self.style.startswith("bert"):
            text, begins = token.removeprefix("##"), not token.startswith("##")
        elif self.style.startswith("roberta"):
            text, begins = decoders.ByteLevel().decode([token]), token.startswith("Ġ")
            text = text[1:] if begins else text
        else:
            text, begins = token.removeprefix("▁"), token.startswith("▁")
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
            best = self.best(logits[place].tolist(), self.kinds[tokens[place]][1:])
            if best != tokens[place]:
                sentence = self.spliced(sentence, spans[place], self.kinds[best][0])
                self.changed += 1
        return sentence

    def is_alone(self, place: int, spans: list[tuple[int, int]]) -> bool:
        own = set(range(*spans[place]))
        return bool(own) and not any(own & set(range(*span)) for i, span in enumerate(spans) if i != place)

    def best(self, logits: list[float], kind: tuple[bool, bool]) -> int:
        allowed = [index for index, one in enumerate(self.kinds) if one and one[1:] == kind]
        return max(allowed, key=lambda index: logits[index])

    def spliced(self, sentence: str, span: tuple[int, int], text: str) -> str:
        start, stop = span
        while sentence[start].isspace():
            start += 1
        if self.style.startswith("bert") and sentence[start].isupper():
            text = text[0].upper() + text[1:]
        return sentence[:start] + text + sentence[stop:]


class TestRefusedFillers:
    RIGHT = r"views\.mlm_model.*bundled:encoder or roberta-base"

    def refused(self, views: ViewsConfig, encoder: EncoderConfig, message: str) -> None:
        for use in (check_augmenter, lambda *arguments: make_augmenter(*arguments, seed=0)):
            with pytest.raises(UserError, match=message):
                use("mlm", views, encoder)

    def test_without_a_head(self, tiny_encoder_dir):
        """Named by `views.mlm_model`, or as the run's encoder."""
        lacks = r"lacks \d+ weights of a masked language model, such as cls\.predictions.*" + self.RIGHT
        self.refused(ViewsConfig(mlm_model=str(tiny_encoder_dir)), ENCODER, r"views\.mlm_model: '.*' " + lacks)
        self.refused(ViewsConfig(), EncoderConfig(path=str(tiny_encoder_dir)), r"encoder\.path: '.*' " + lacks)

    @pytest.mark.parametrize(
        "change, message",
        [
            ({"mask_token_id": None}, "without a mask token"),
            ({"is_fast": False}, "does not report the positions of its tokens"),
            ({"size": 9999}, "9999 tokens, but a model of only 8000"),
        ],
    )
    def test_with_a_tokenizer_that_cannot(self, monkeypatch, change, message):
        stub = type(
            "Stub", (), {"mask_token_id": 4, "is_fast": True, "size": 8000, "__len__": lambda self: self.size}
        )()
        vars(stub).update(change)
        monkeypatch.setattr(augment.AutoTokenizer, "from_pretrained", lambda *a, **k: stub)
        self.refused(ViewsConfig(), ENCODER, f"encoder.path: 'bundled:encoder' .*{message}.*{self.RIGHT}")

    @pytest.mark.parametrize("name", ["bundled:decoder", "package:no_such_package/model", "no/such/directory"])
    def test_that_are_not_there(self, name):
        self.refused(ViewsConfig(mlm_model=name), ENCODER, rf"^views\.mlm_model: '{name}'")


class TestBundledEncoder:
    def test_the_encoder_is_the_one_that_was_pre_trained(self):
        """Its tensors, without the head's, bit for bit: results of earlier runs stay comparable."""
        own = AutoModel.from_pretrained(bundled.ENCODER).state_dict()
        assert all(tensor.dtype == torch.float16 for tensor in own.values())
        digest = hashlib.sha256(b"".join(own[name].numpy().tobytes() for name in sorted(own)))
        assert digest.hexdigest()[:16] == "5ade57bf2a2b631d"

    def test_it_has_a_head_that_knows_its_text(self):
        """Its loss is 2.2 here, that of knowing only how frequent each token of this text is 5.7."""
        options = dict(dtype=torch.float32, output_loading_info=True)
        model, info = AutoModelForMaskedLM.from_pretrained(bundled.ENCODER, **options)
        assert not info["missing_keys"]
        assert torch.equal(model.cls.predictions.decoder.weight, model.bert.embeddings.word_embeddings.weight)
        coded = AutoTokenizer.from_pretrained(bundled.ENCODER)(everyday(64), padding=True, return_tensors="pt")
        labels = coded["input_ids"].clone()
        chosen = (torch.arange(labels.shape[1]) % 6 == 3) & (labels > 4)
        coded["input_ids"][chosen] = 4
        with torch.no_grad():
            loss = model.eval()(**coded, labels=labels.masked_fill(~chosen, -100)).loss
        assert loss < 3.0


@pytest.fixture(scope="module")
def translators(tmp_path_factory) -> list[str]:
    """Directories of four tiny random models that turn sentences into others of their vocabulary."""
    path = tmp_path_factory.mktemp("translators")
    tokenizer = word_piece_tokenizer(everyday(300))
    for seed, name in ((0, "a"), (3, "b"), (1, "c"), (6, "d")):
        tokenizer.save_pretrained(path / name)
        options = {
            "encoder_layers": 1,
            "decoder_layers": 1,
            "d_model": 16,
            "init_std": 0.3,
            "forced_eos_token_id": None,
        }
        options |= {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("ffn_dim", "attention_heads")}
        options |= {"vocab_size": len(tokenizer), "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
        config = transformers.MarianConfig(
            **options, decoder_start_token_id=0, max_position_embeddings=18, tie_word_embeddings=False
        )
        write_model(marian, config, path / name, seed)
    return [str(path / name) for name in ("a", "b", "c", "d")]


@lru_cache
def loaded(path: str) -> tuple:
    return AutoModelForSeq2SeqLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)


def marian(config: transformers.MarianConfig) -> transformers.MarianMTModel:
    model = transformers.MarianMTModel(config)
    model.final_logits_bias[0, 3] = 2.0  # so that some translations end early
    return model


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


class TestBackTranslation:
    def make(self, pivots: list[tuple[str, str]], beams: int = 1) -> augment.Augmenter:
        return make_augmenter("back_translation", ViewsConfig(pivots=pivots, beams=beams), ENCODER, 0)

    def test_two_pivots_give_two_views(self, translators, monkeypatch):
        monkeypatch.setattr(augment, "_CELLS", 120)
        a, b, c, d = translators
        sentences, ids = [*everyday(8), *ODD], np.arange(8 + len(ODD))
        augmenter = self.make([(a, b), (c, d)])
        expected = [(translated(b, translated(a, s)), translated(d, translated(c, s))) for s in sentences]
        assert augmenter(sentences, ids) == expected
        different = sum(first != second for first, second in expected)
        assert augmenter.tally == Tally(len(sentences), different, len(sentences)) and different > 4
        lengths = {len(AutoTokenizer.from_pretrained(a)(translated(a, s))["input_ids"]) for s in sentences}
        assert len({first for first, _ in expected}) > 4 and len(lengths) > 2

    def test_one_pivot_gives_the_sentence_and_its_back_translation(self, translators):
        a, b, *_ = translators
        sentences = everyday(5)
        assert self.make([(a, b)])(sentences, np.arange(5)) == [(s, translated(b, translated(a, s))) for s in sentences]

    def test_beams_are_searched_whatever_the_batch(self, translators):
        a, b, *_ = translators
        sentences, ids = everyday(12), np.arange(12)
        in_any_grouping(lambda: self.make([(a, b)], beams=3), sentences, ids)
        assert self.make([(a, b)], beams=3)(sentences, ids) != self.make([(a, b)])(sentences, ids)

    def test_a_shared_model_is_loaded_once(self, translators, monkeypatch):
        a, b, c, _ = translators
        paths, load = [], augment.AutoModelForSeq2SeqLM.from_pretrained
        spy = lambda path, **options: paths.append(path) or load(path, **options)  # noqa: E731
        monkeypatch.setattr(augment.AutoModelForSeq2SeqLM, "from_pretrained", spy)
        self.make([(a, b), (c, b)])
        assert sorted(paths) == [a, b, c]

    def test_no_sentences_make_no_pairs(self, translators):
        assert self.make([tuple(translators[:2])])([], np.empty(0, np.int64)) == []

    def test_the_check_needs_no_weights(self, translators, tmp_path):
        copy_model(Path(translators[0]), tmp_path)
        (tmp_path / "model.safetensors").write_bytes(b"")
        check_augmenter("back_translation", ViewsConfig(pivots=[(translators[0], str(tmp_path))]), ENCODER)
        with pytest.raises(UserError, match=rf"^views\.pivots: '{tmp_path}' cannot be loaded"):
            self.make([(translators[0], str(tmp_path))])

    def refused(self, name: str, message: str) -> None:
        views = ViewsConfig(pivots=[(name, name)])
        for use in (check_augmenter, lambda *arguments: make_augmenter(*arguments, seed=0)):
            with pytest.raises(UserError, match=message):
                use("back_translation", views, ENCODER)

    RIGHT = r"marian and fsmt.*such as Helsinki-NLP/opus-mt-en-de"

    def test_what_is_no_translation_model_is_refused(self):
        self.refused("bundled:encoder", rf"^views\.pivots: 'bundled:encoder' is a bert model, .*{self.RIGHT}")
        self.refused("no/such/directory", r"^views\.pivots: 'no/such/directory' cannot be loaded")

    @pytest.mark.parametrize("kind", ["t5", "m2m_100", "mbart"])
    def test_models_that_must_be_told_the_languages_are_refused(self, kind, tmp_path):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        self.refused(str(tmp_path), rf"^views\.pivots: '{tmp_path}' is a {kind} model, .*{self.RIGHT}")

    def test_fsmt_models_translate(self, tmp_path):
        tokenizer = word_piece_tokenizer(everyday(300))
        tokenizer.save_pretrained(tmp_path)
        options = {f"{side}_{what}": 1 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
        options |= {"encoder_ffn_dim": 4, "decoder_ffn_dim": 4, "d_model": 8, "max_position_embeddings": 18}
        options |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3}
        vocabulary = dict.fromkeys(("src_vocab_size", "tgt_vocab_size"), len(tokenizer))
        config = transformers.FSMTConfig(langs=["en", "de"], **vocabulary, **options)
        write_model(transformers.FSMTForConditionalGeneration, config, tmp_path)
        pivots = [(str(tmp_path), str(tmp_path))]
        check_augmenter("back_translation", ViewsConfig(pivots=pivots), ENCODER)
        sentences = everyday(3)
        assert [first for first, _ in self.make(pivots)(sentences, np.arange(3))] == sentences

    def test_missing_packages_are_named(self, tmp_path, monkeypatch):
        """A published Marian model has SentencePiece files, and no tokenizer that works without the packages."""
        transformers.MarianConfig(vocab_size=5).save_pretrained(tmp_path)
        (tmp_path / "vocab.json").write_text(json.dumps({"</s>": 0, "<unk>": 1, "<pad>": 2}))
        for name in ("source.spm", "target.spm"):
            (tmp_path / name).write_bytes(b"")
        monkeypatch.setattr(augment.importlib.util, "find_spec", lambda package: None)
        self.refused(str(tmp_path), "needs sentencepiece and sacremoses: run pip install sentencepiece sacremoses")


def copy_model(source: Path, target: Path) -> None:
    """All but the weights."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, target)


def cached_model(source: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A model without weights in a hub cache of its own: its id and folder."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(root))
    model = root / "models--some--model"
    copy_model(source, model / "snapshots" / ("0" * 40))
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("0" * 40)
    return "some/model", model / "snapshots" / ("0" * 40)


class TestSafetensorsOnly:
    """Models whose weights are pickled are refused with one sentence, before anything is made of a corpus."""

    MESSAGE = r"^{}: '{}' has no model\.safetensors, and weights are read from safetensors only; .*save_pretrained.*"

    def refused(self, kind: str, name: str, use: Callable = check_augmenter) -> None:
        views = ViewsConfig(mlm_model=name, pivots=[(name, name)])
        setting = "views.mlm_model" if kind == "mlm" else "views.pivots"
        with pytest.raises(UserError, match=self.MESSAGE.format(re.escape(setting), name)) as caught:
            use(kind, views, ENCODER)
        assert "use_safetensors" not in str(caught.value) and "\n" not in str(caught.value)

    @pytest.mark.parametrize("kind", ["mlm", "back_translation"])
    def test_in_a_directory(self, kind, translators, tmp_path):
        copy_model(bundled.ENCODER if kind == "mlm" else Path(translators[0]), tmp_path)
        (tmp_path / "pytorch_model.bin").write_bytes(b"")
        self.refused(kind, str(tmp_path))
        self.refused(kind, str(tmp_path), lambda *arguments: make_augmenter(*arguments, seed=0))

    @pytest.mark.parametrize("kind", ["mlm", "back_translation"])
    def test_in_the_cache_of_a_hub_that_cannot_be_asked(self, kind, translators, tmp_path, monkeypatch):
        source = bundled.ENCODER if kind == "mlm" else Path(translators[0])
        name, folder = cached_model(source, tmp_path, monkeypatch)
        (folder / "pytorch_model.bin").write_bytes(b"")
        self.refused(kind, name)
        shutil.copy(source / "model.safetensors", folder)
        check_augmenter(kind, ViewsConfig(mlm_model=name, pivots=[(name, name)]), ENCODER)

    def test_weights_in_several_files_will_do(self, translators, tmp_path):
        copy_model(Path(translators[0]), tmp_path)
        model, _ = loaded(translators[0])
        model.save_pretrained(tmp_path, max_shard_size="4KB")
        assert not (tmp_path / "model.safetensors").exists()
        views = ViewsConfig(pivots=[(str(tmp_path), str(tmp_path))])
        check_augmenter("back_translation", views, ENCODER)
        assert make_augmenter("back_translation", views, ENCODER, 0)(["a"], np.zeros(1, int))

    def test_the_load_decides_where_the_hub_may_convert(self, translators, tmp_path, monkeypatch):
        """The check then says nothing; what transformers raises if that fails is put in our words."""
        name, _ = cached_model(Path(translators[0]), tmp_path, monkeypatch)
        monkeypatch.setattr(augment, "is_offline_mode", lambda: False)
        check_augmenter("back_translation", ViewsConfig(pivots=[(name, name)]), ENCODER)
        self.refused("back_translation", name, lambda *arguments: make_augmenter(*arguments, seed=0))

    @pytest.mark.parametrize(
        "message, ours",
        [
            ("Could not create a PR. If you load a variant, use `use_safetensors=False` to load the original.", True),
            ("Can't load the model for 'x'; make sure that it is a directory with a file pytorch_model.bin.", True),
            ("[Errno 28] No space left on device", False),
        ],
    )
    def test_other_failures_keep_their_words(self, message, ours, translators, monkeypatch):
        def fail(*arguments, **options):
            raise OSError(message)

        monkeypatch.setattr(augment.AutoModelForSeq2SeqLM, "from_pretrained", fail)
        expected = "read from safetensors only" if ours else f"cannot be loaded: {re.escape(message)}$"
        with pytest.raises(UserError, match=expected) as caught:
            make_augmenter("back_translation", ViewsConfig(pivots=[tuple(translators[:2])]), ENCODER, 0)
        assert "use_safetensors" not in str(caught.value)


class TestWeightsBytes:
    SIZE = staticmethod(lambda path: (Path(path) / "model.safetensors").stat().st_size)

    def test_synonyms_need_none(self):
        assert weights_bytes("synonym", ViewsConfig(), ENCODER) == 0

    def test_half_precision_counts_double(self, filler):
        """The bundled encoder is in half precision, the tiny models are not."""
        assert weights_bytes("mlm", ViewsConfig(), ENCODER) == 2 * self.SIZE(bundled.ENCODER)
        assert weights_bytes("mlm", ViewsConfig(mlm_model=str(filler)), ENCODER) == self.SIZE(filler)

    def test_each_model_counts_once(self, translators):
        a, b, c, _ = translators
        expected = sum(map(self.SIZE, (a, b, c)))
        assert weights_bytes("back_translation", ViewsConfig(pivots=[(a, b), (c, b)]), ENCODER) == expected

    def test_shards_add_up(self, translators, tmp_path):
        loaded(translators[0])[0].save_pretrained(tmp_path, max_shard_size="4KB")
        shards = [file.stat().st_size for file in tmp_path.glob("model-*.safetensors")]
        assert len(shards) > 1
        views = ViewsConfig(pivots=[(str(tmp_path), str(tmp_path))])
        assert weights_bytes("back_translation", views, ENCODER) == sum(shards)

    def test_models_of_the_hub(self, translators, tmp_path, monkeypatch):
        """Their sizes in the cache; a usual size before they are there."""
        name, folder = cached_model(Path(translators[0]), tmp_path, monkeypatch)
        views = ViewsConfig(pivots=[(name, translators[1])])
        assert weights_bytes("back_translation", views, ENCODER) == 300_000_000 + self.SIZE(translators[1])
        shutil.copy(Path(translators[0]) / "model.safetensors", folder)
        assert weights_bytes("back_translation", views, ENCODER) == self.SIZE(folder) + self.SIZE(translators[1])
        absent = ViewsConfig(mlm_model="absent/model")
        assert weights_bytes("mlm", absent, ENCODER) == 300_000_000

    @pytest.mark.parametrize("kind, setting", [("mlm", "views.mlm_model"), ("back_translation", "views.pivots")])
    def test_a_name_that_cannot_be_is_refused(self, kind, setting):
        views = ViewsConfig(mlm_model="package:none/a", pivots=[("package:none/a", "no/such/directory")])
        with pytest.raises(UserError, match=rf"^{setting}: 'package:none/a'"):
            weights_bytes(kind, views, ENCODER)
        views = ViewsConfig(mlm_model="no/such/directory", pivots=[("no/such/directory",) * 2])
        with pytest.raises(UserError, match=rf"^{setting}: 'no/such/directory'"):
            weights_bytes(kind, views, ENCODER)
