"""Masked views against a plain reference, on tiny random models."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from texts import ODD, draws_by_seed_and_id, generated, refused, write_model
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedTokenizerFast

from bundled_encoder import train_tokenizer
from papers import masked
from papers.masked import Maker, load_filler, masked_views
from raysed.config import EncoderConfig, derive_seed


def make(model: str | Path = "bundled:raw", seed: int = 0, rate: float = 0.2) -> Maker:
    return masked_views(EncoderConfig(path=str(model)), "--model", rate, 75, seed)


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
    tokenizer = train(generated(300) + ODD)
    tokenizer.save_pretrained(path)
    sizes = dict(intermediate_size=16, num_hidden_layers=1, hidden_size=16, num_attention_heads=2)
    rows = len(tokenizer) + 3  # as many published models have, a few rows more than tokens
    config = getattr(transformers, f"{name}Config")(
        **sizes, vocab_size=rows, pad_token_id=tokenizer.pad_token_id, max_position_embeddings=50, initializer_range=0.3
    )
    write_model(getattr(transformers, f"{name}ForMaskedLM"), config, path)
    return path


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
    sentences = [*ODD, *generated(40), *(sentence.title() for sentence in generated(10))]
    ids = 3 + 5 * np.arange(len(sentences))
    reference = Reference(filler, seed=0, rate=0.25)
    made = make(filler, rate=0.25)(sentences, ids)
    assert made.pairs == [(sentence, reference(sentence, key)) for sentence, key in zip(sentences, ids.tolist())]
    assert (made.chosen, made.total) == (reference.chosen, reference.total)
    assert made.chosen / made.total == pytest.approx(0.25, abs=0.03) and reference.changed > 30
    monkeypatch.setattr(masked, "_CELLS", 60)
    assert make(filler, rate=0.25)(sentences, ids) == made


def test_filled_tokens_depend_on_seed_and_id_alone(filler):
    draws_by_seed_and_id(lambda seed: make(filler, seed), generated(25))


def test_what_cannot_fill_is_refused(tiny_encoder_dir, monkeypatch):
    def refuse(message: str, model: str | Path) -> None:
        refused(f"^--model: {message}", load_filler, EncoderConfig(path=str(model)), "--model")

    right = ".*--model, such as bundled:raw or FacebookAI/roberta-base"
    refuse(rf"'.*' lacks \d+ weights, such as cls\.predictions.*{right}", tiny_encoder_dir)
    refuse("'no/such/model' cannot be loaded", "no/such/model")
    load = AutoTokenizer.from_pretrained

    def without_mask(*arguments, **options):
        tokenizer = load(*arguments, **options)
        tokenizer.mask_token = None
        return tokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", without_mask)
    refuse(rf"'bundled:raw' has a tokenizer without a mask token{right}", "bundled:raw")


def test_the_bundled_encoder_has_a_head_that_knows_its_text():
    """Many of the tokens that it fills are those that were there; chance has it right once in thousands."""
    sentences, ids = generated(100), np.arange(100)
    made = make()(sentences, ids)
    assert sum(first == second for first, second in made.pairs) > 10
