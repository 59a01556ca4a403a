"""Two views of a sentence that mean the same (BSL sections 3.2 and 4.4): by synonyms, masked language model or pivot.

An augmenter is built once per worker and called with some sentences and their ids. What it draws for a sentence depends
on the seed and the sentence's id alone, so it does not matter how sentences are spread over calls and workers; only the
last bits of what a model computes may depend on the batch.
"""

import importlib.util
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from huggingface_hub import is_offline_mode, try_to_load_from_cache
from tokenizers import decoders
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import SAFE_WEIGHTS_NAME, WEIGHTS_NAME

from raysed.config import EncoderConfig, ViewsConfig, derive_seed, stable_hash
from raysed.errors import UserError, first_line
from raysed.model.encoder import LOAD_ERRORS, encoder_path
from raysed.model.precision import has_bf16

Pairs = list[tuple[str, str]]
"""The two views of each sentence."""

_CELLS = 4096
"""Tokens and padding per forward pass."""
_CACHED_WORDS = 1 << 18
_WORD = re.compile(r"(?<!\w)[^\W\d_]+(?:['’-][^\W\d_]+)*")
_RESERVED = re.compile(r"\[.+\]|<.+>")
"""Entries of a vocabulary that stand for no text: `[unused7]`, `<0x0A>`, `<extra_id_3>`."""
_CONTINUES, _BYTES_START, _STARTS = "##", "Ġ", "▁"
"""How vocabularies tell tokens that begin a word: WordPiece marks the others; byte-level BPE and SentencePiece them."""
_TRANSLATORS = {"marian": ("sentencepiece", "sacremoses"), "fsmt": ("sacremoses",)}
"""Types of models of one direction, and the packages of their tokenizers; other types must be told the languages."""
_UNKNOWN_WEIGHTS = 300_000_000
"""Bytes of a model that has not been fetched yet; a Marian model of the paper has about as many."""
_UNUSED_POSITIONS = 2
"""RoBERTa never uses the first two; other models lose two tokens of their very longest sentences."""


class Tally(NamedTuple):
    """What an augmenter did in all its calls; those of several workers are added field by field.

    Attributes:
        chosen: words replaced, tokens masked, or sentences translated.
        changed: those of them that are other than before: a model may fill in what was there.
        total: all of them: words, ordinary tokens, or sentences.
    """

    chosen: int = 0
    changed: int = 0
    total: int = 0


class Augmenter(ABC):
    """Rewrites sentences.

    Attributes:
        unit: what the tally counts.
        tally: what was done since it was built.
    """

    unit: ClassVar[str]

    def __init__(self) -> None:
        self.tally = Tally()

    @abstractmethod
    def __call__(self, sentences: Sequence[str], ids: np.ndarray) -> Pairs:
        """Returns the two views of each of B sentences; `ids`, int64 [B], are their ids in the corpus."""

    def _count(self, chosen: int, changed: int, total: int) -> None:
        self.tally = Tally(*map(sum, zip(self.tally, (chosen, changed, total))))


def make_augmenter(kind: str, views: ViewsConfig, encoder: EncoderConfig, seed: int, device: str = "cpu") -> Augmenter:
    """Builds what makes the views of one kind.

    Args:
        kind: `synonym`, `mlm` or `back_translation`.
        encoder: the run's encoder, whose `max_length` is how far a sentence is read; fills tokens unless
            `views.mlm_model` does.
        device: of models; synonyms need none.

    Raises:
        UserError: a package, its data or a model is not there, or a model cannot do it.
    """
    if kind == "synonym":
        return SynonymAugmenter(views, seed)
    if kind == "mlm":
        return MaskedAugmenter(views, encoder, seed, device)
    return BackTranslationAugmenter(views, encoder, device)


def check_augmenter(kind: str, views: ViewsConfig, encoder: EncoderConfig) -> None:
    """Finds before a run starts what `make_augmenter` would refuse, without making anything.

    Looks for WordNet's files, loads the masked language model once (whether it has its head is seen in no other way),
    and loads configurations and tokenizers of translation models, not their weights, which are only looked for.

    Args:
        kind: `synonym`, `mlm` or `back_translation`.
        views: the settings of `views`.
        encoder: the settings of `encoder`.

    Raises:
        UserError: as `make_augmenter`.
    """
    if kind == "synonym":
        _find_wordnet()
    elif kind == "mlm":
        _load_filler(views, encoder)
    else:
        for name in dict.fromkeys(name for pair in views.pivots for name in pair):
            _load_translation_tokenizer(name)


def weights_bytes(kind: str, views: ViewsConfig, encoder: EncoderConfig) -> int:
    """Bounds the memory that the weights of one augmenter take, from the sizes of their files and without loading any.

    Args:
        kind: as for `make_augmenter`, and so are the others.
        views: which models it loads; one that is named several times counts once.

    Returns:
        Bytes in fp32: weights stored in half precision count double; a model whose files are not here counts 300 MB.

    Raises:
        UserError: a model's name or configuration cannot be right.
    """
    models = [("views.pivots", EncoderConfig(path=name)) for pair in views.pivots for name in pair]
    if kind != "back_translation":
        models = [_filler(views, encoder)] if kind == "mlm" else []
    sizes = {}
    for setting, config in models:
        with _loading(setting, config.path):
            path = encoder_path(config)
            sizes[path] = _bytes_of(path)
    return sum(sizes.values())


def _bytes_of(path: str) -> int:
    folder = _folder(path)
    files = sorted(folder.glob("*.safetensors")) if folder else []
    if not files:
        return _UNKNOWN_WEIGHTS
    whole = folder / SAFE_WEIGHTS_NAME
    size = sum(file.stat().st_size for file in ([whole] if whole in files else files))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    is_half = (config.get("dtype") or config.get("torch_dtype")) in ("float16", "bfloat16")
    return 2 * size if is_half else size


def _folder(path: str) -> Path | None:
    """The model's directory, or its folder in the hub's cache."""
    if Path(path).is_dir():
        return Path(path)
    found = try_to_load_from_cache(path, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def wordnet_identity() -> str:
    """Returns 16 hex digits for the WordNet that synonyms are taken from, which change with its files.

    Only their names and sizes are looked at, so it is cheap; whether they are packed in a zip makes no difference.

    Raises:
        UserError: as `make_augmenter`.
    """
    root = _find_wordnet()
    if hasattr(root, "zipfile"):
        inside = (entry for entry in root.zipfile.infolist() if entry.filename.startswith(root.entry))
        sizes = {entry.filename.removeprefix(root.entry): entry.file_size for entry in inside if not entry.is_dir()}
    else:
        sizes = {file.name: file.stat().st_size for file in Path(root).iterdir() if file.is_file()}
    return stable_hash(sizes)


class SynonymAugmenter(Augmenter):
    """The sentence, and the sentence with a share of its words replaced by WordNet synonyms (BSL section 4.4).

    The paper gives the share only. Here the words are drawn from those that have a synonym; function words and names
    (words with a capital within a sentence) have none. The synonym is drawn from the most frequent sense, over all
    parts of speech, in which WordNet has another word, and is not inflected as the replaced word was.

    Args:
        views: `synonym_share` is used.
    """

    unit = "words"

    def __init__(self, views: ViewsConfig, seed: int):
        super().__init__()
        self._share, self._seed = views.synonym_share, derive_seed(seed, "synonym")
        self._synonyms = lru_cache(_CACHED_WORDS)(partial(_synonyms, _load_wordnet()))

    def __call__(self, sentences: Sequence[str], ids: np.ndarray) -> Pairs:
        """See `Augmenter`."""
        return [(sentence, self._rewritten(sentence, key)) for sentence, key in zip(sentences, ids.tolist())]

    def _rewritten(self, sentence: str, key: int) -> str:
        words = list(_WORD.finditer(sentence))
        common = _without_names(words, sentence)
        options = [(match, synonyms) for match in common if (synonyms := self._synonyms(match[0].lower()))]
        rng = np.random.default_rng([self._seed, key])
        chosen = _draw(len(options), self._share * len(words), rng).tolist()
        replacements = []
        for place, draw in zip(chosen, rng.random(len(chosen)).tolist()):
            match, synonyms = options[place]
            synonym = synonyms[int(draw * len(synonyms))]
            replacements.append((*match.span(), _capital_as(match[0], synonym)))
        self._count(len(chosen), len(chosen), len(words))
        return _replace(sentence, replacements)


def _without_names(words: list[re.Match], sentence: str) -> list[re.Match]:
    """Leaves out capitalised words but the first, unless all are: a title or a line of capitals."""
    if sentence.isupper() or sentence.istitle():
        return words
    return words[:1] + [match for match in words[1:] if not match[0][0].isupper()]


def _draw(count: int, expected: float, rng: np.random.Generator) -> np.ndarray:
    """Ascending places out of `count`, `expected` of them on average, at least one."""
    wanted = max(1, int(expected + rng.random()))
    return np.sort(rng.permutation(count)[:wanted])


def _capital_as(old: str, new: str) -> str:
    return new[:1].upper() + new[1:] if old[:1].isupper() else new


def _replace(text: str, replacements: Sequence[tuple[int, int, str]]) -> str:
    """Puts the third of each triple in the place of text[first:second]; places ascend and do not overlap."""
    pieces, end = [], 0
    for start, stop, new in replacements:
        pieces += text[end:start], new
        end = stop
    return "".join((*pieces, text[end:]))


_FUNCTION_WORDS = frozenset(
    """
    a an the this that these those such some any no none every each either neither both all another other
    i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it its itself
    we us our ours ourselves they them their theirs themselves who whom whose which what one
    am is are was were be been being have has had having do does did done doing
    will would shall should can could may might must ought
    and or but nor so yet if because as until while although though unless since whether than then
    of at by for with about against between among into through during before after above below to from up down in out
    on off over under upon within without toward towards onto across along around behind beside besides near per via
    not never ever too very just only also there here when where why how again once more most much many few less least
    now even still yes
    """.split()
)


def _synonyms(wordnet: Any, word: str) -> tuple[str, ...]:
    """The other words of the most frequent sense that has any."""
    senses = []
    parts = (wordnet.NOUN, wordnet.VERB, wordnet.ADJ, wordnet.ADV)
    for part in () if len(word) == 1 or word in _FUNCTION_WORDS else parts:
        base = wordnet.morphy(word, part)
        for rank, synset in enumerate(wordnet.synsets(base, part) if base else ()):
            others = [name.replace("_", " ") for name in synset.lemma_names() if name.lower() not in (word, base)]
            if others:
                count = sum(_occurrences(lemma) for lemma in synset.lemmas() if lemma.name().lower() == base)
                senses.append((-count, rank, others))
    return tuple(min(senses, key=lambda sense: sense[:2])[2]) if senses else ()


def _occurrences(lemma: Any) -> int:
    """How often a word was seen in a sense; the order of senses is by it, but within one part of speech only."""
    try:
        return lemma.count()
    except OSError:  # a copy of WordNet without the counts
        return 0


def _load_wordnet() -> Any:
    _find_wordnet()
    from nltk.corpus import wordnet

    wordnet.ensure_loaded()
    return wordnet


def _find_wordnet() -> Any:
    """Where nltk's own loader looks: in a directory, or in the zip that its downloader leaves."""
    try:
        import nltk

        try:
            return nltk.data.find("corpora/wordnet")
        except LookupError:
            return nltk.data.find("corpora/wordnet.zip/wordnet/")
    except (ImportError, LookupError, BadZipFile) as error:
        what = "the package nltk" if isinstance(error, ImportError) else "nltk's WordNet data"
        raise UserError(
            f"views of the kind synonym need {what}, which is not installed: run pip install nltk and "
            "python -m nltk.downloader wordnet, or use the kind mlm or back_translation, which do not need it"
        ) from None


class MaskedAugmenter(Augmenter):
    """The sentence, and the sentence with a share of its tokens filled by a masked language model (BSL section 4.4).

    The paper gives the share and the model. Here the tokens are drawn from all that stand for text, punctuation
    included; they are masked together, and each becomes the likeliest token of its own kind: one that begins a word
    where one did, punctuation for punctuation. The rest of the sentence stays as it is written, and so do the tokens
    beyond `encoder.max_length`, which are not counted.

    Args:
        views: `mlm_rate` and `mlm_model` are used.
        encoder: fills where `mlm_model` is None.
        device: of the model; on a GPU that has bf16 it runs in that.
    """

    unit = "tokens"

    def __init__(self, views: ViewsConfig, encoder: EncoderConfig, seed: int, device: str = "cpu"):
        super().__init__()
        self._rate, self._seed = views.mlm_rate, derive_seed(seed, "mlm")
        model, self._tokenizer = _load_filler(views, encoder)
        self._model = model.to(device, _dtype(device)).eval()
        self._limit = _limit(encoder.max_length, model)
        self._texts, kinds = _texts_and_kinds(self._tokenizer)
        self._kinds_V = np.pad(kinds, (0, model.config.vocab_size - len(kinds)), constant_values=-1)
        self._device_kinds_V = torch.from_numpy(self._kinds_V).to(device)
        self._lower_case = self._tokenizer.tokenize("A") == self._tokenizer.tokenize("a")

    def __call__(self, sentences: Sequence[str], ids: np.ndarray) -> Pairs:
        """See `Augmenter`."""
        if not len(sentences):
            return []
        options = dict(truncation=True, max_length=self._limit, return_offsets_mapping=True, verbose=False)
        coded = self._tokenizer(list(sentences), **options)
        tokens = [np.array(row, np.int64) for row in coded["input_ids"]]
        spans = [np.array(row, np.int64).reshape(-1, 2) for row in coded["offset_mapping"]]
        chosen = [self._choose(*one) for one in zip(tokens, spans, ids.tolist())]
        filled = self._fill(tokens, chosen)
        return [(one[0], self._rewritten(*one)) for one in zip(sentences, tokens, spans, chosen, filled)]

    def _choose(self, tokens_L: np.ndarray, spans_L2: np.ndarray, key: int) -> np.ndarray:
        """Places of the tokens to mask, ascending."""
        starts, stops = spans_L2.T
        real = np.flatnonzero(starts < stops)
        shared = starts[real[1:]] < stops[real[:-1]]  # a character that became several tokens
        alone = ~(np.append(False, shared) | np.append(shared, False))[: len(real)]
        places = real[alone & (self._kinds_V[tokens_L[real]] >= 0)]
        rng = np.random.default_rng([self._seed, key])
        chosen = places[_draw(len(places), self._rate * len(places), rng)]
        self._count(len(chosen), 0, len(places))
        return chosen

    @torch.no_grad()
    def _fill(self, tokens: list[np.ndarray], chosen: list[np.ndarray]) -> list[np.ndarray]:
        """The likeliest tokens of the chosen places of each sentence."""
        filled = [np.empty(0, np.int64)] * len(tokens)
        for rows in _padded_batches([len(row) for row in tokens]):
            input_ids_BL, real_BL = _pad([tokens[row] for row in rows], self._tokenizer)
            chosen_BL = torch.zeros_like(real_BL, dtype=torch.bool)
            counts = [len(chosen[row]) for row in rows]
            chosen_BL[np.repeat(np.arange(len(rows)), counts), np.concatenate([chosen[row] for row in rows])] = True
            input_ids_BL, real_BL, chosen_BL = (x.to(self._model.device) for x in (input_ids_BL, real_BL, chosen_BL))
            logits_PV = self._logits(input_ids_BL, real_BL, chosen_BL)
            kinds_P = self._device_kinds_V[input_ids_BL[chosen_BL]]
            logits_PV.masked_fill_(self._device_kinds_V != kinds_P[:, None], -torch.inf)
            best_P = logits_PV.argmax(-1).cpu().numpy()
            for row, part in zip(rows, np.split(best_P, np.cumsum(counts)[:-1])):
                filled[row] = part
        return filled

    def _logits(self, input_ids: torch.Tensor, real: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Logits of the P chosen places, [P, V]."""

        def keep_chosen(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
            return (inputs[0][chosen],) if inputs[0].shape[:2] == chosen.shape else None

        # The output matrix is the dearest part of a small model, and most places do not need it.
        output_matrix = self._model.get_output_embeddings()
        hook = output_matrix.register_forward_pre_hook(keep_chosen) if output_matrix is not None else None
        try:
            masked = input_ids.masked_fill(chosen, self._tokenizer.mask_token_id)
            logits = self._model(input_ids=masked, attention_mask=real).logits
        finally:
            if hook:
                hook.remove()
        return logits[chosen] if logits.ndim == 3 else logits

    def _rewritten(
        self, sentence: str, tokens: np.ndarray, spans: np.ndarray, chosen: np.ndarray, filled: np.ndarray
    ) -> str:
        replacements = []
        for place, token in zip(chosen.tolist(), filled.tolist()):
            if token == tokens[place]:  # its spelling, such as capitals or accents, may not be in the vocabulary
                continue
            start, stop = spans[place].tolist()
            old = sentence[start:stop].lstrip()  # some tokenizers take the blank before a word as a part of it
            new = _capital_as(old, self._texts[token]) if self._lower_case else self._texts[token]
            replacements.append((stop - len(old), stop, new))
        self._count(0, len(replacements), 0)
        return _replace(sentence, replacements)


def _texts_and_kinds(tokenizer: PreTrainedTokenizerBase) -> tuple[list[str], np.ndarray]:
    """What each token of the vocabulary stands for, and its kind, int64 [V].

    Kinds: 2 for a token that begins a word, plus 1 for one with a letter or digit; -1 for one that stands for no
    text of its own, such as special tokens and parts of a character.
    """
    tokens = [token or "" for token in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]
    mark = max((_CONTINUES, _BYTES_START, _STARTS), key=lambda mark: sum(token.startswith(mark) for token in tokens))
    texts = [token.removeprefix(mark) for token in tokens]
    begins = np.array([token.startswith(mark) for token in tokens]) != (mark == _CONTINUES)
    if mark == _BYTES_START:
        texts = [decoders.ByteLevel().decode([text]) for text in texts]
    has_letter = np.array([any(map(str.isalnum, text)) for text in texts])
    kinds = 2 * begins + has_letter
    kinds[[not _is_text(text) for text in texts]] = -1
    kinds[tokenizer.all_special_ids] = -1
    return texts, kinds


def _is_text(text: str) -> bool:
    """Whether it can stand alone in a sentence; bytes that are no character have become the replacement character."""
    is_whole = text.isprintable() and "\ufffd" not in text and _STARTS not in text
    return is_whole and text == text.strip() != "" and not _RESERVED.fullmatch(text)


def _load_filler(views: ViewsConfig, encoder: EncoderConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads the masked language model, in fp32, and its tokenizer."""
    setting, config = _filler(views, encoder)
    with _loading(setting, config.path):
        path, options = encoder_path(config), {"trust_remote_code": config.trust_remote_code}
        model, info = AutoModelForMaskedLM.from_pretrained(
            path, output_loading_info=True, use_safetensors=True, dtype=torch.float32, **options, **config.model_kwargs
        )
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
    _check_filler(f"{setting}: {config.path!r}", model, tokenizer, info["missing_keys"])
    return model, tokenizer


def _filler(views: ViewsConfig, encoder: EncoderConfig) -> tuple[str, EncoderConfig]:
    """The setting that names the masked language model, and how to load it."""
    if views.mlm_model is not None:
        return "views.mlm_model", EncoderConfig(path=views.mlm_model)
    return "encoder.path", encoder


def _check_filler(who: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, missing: set[str]) -> None:
    missing = sorted(key for key in missing if "pooler" not in key)
    problem = None
    if missing:
        problem = f"lacks {len(missing)} weights of a masked language model, such as {missing[0]}"
    elif tokenizer.mask_token_id is None:
        problem = "has a tokenizer without a mask token"
    elif not tokenizer.is_fast:
        problem = "has a slow tokenizer, which does not report the positions of its tokens"
    elif len(tokenizer) > model.config.vocab_size:
        problem = f"has a tokenizer of {len(tokenizer)} tokens, but a model of only {model.config.vocab_size}"
    if problem:
        raise UserError(
            f"{who} {problem}, so it cannot fill the views of the kind mlm; set views.mlm_model to a model that was "
            "published with its masked-language-model head, such as bundled:encoder or roberta-base"
        )


class BackTranslationAugmenter(Augmenter):
    """Translations of the sentence into other languages and back (BSL section 3.2).

    With two pairs of models the views are the two back-translations, as in the paper; with one, they are the sentence
    and its back-translation. A model that several pairs name is loaded once.

    Args:
        views: `pivots` and `beams` are used.
        encoder: its `max_length` is how many tokens of a sentence are read; a translation may have twice as many.
        device: of the models; on a GPU that has bf16 they run in that.
    """

    unit = "sentences"

    def __init__(self, views: ViewsConfig, encoder: EncoderConfig, device: str = "cpu"):
        super().__init__()
        names = dict.fromkeys(name for pair in views.pivots for name in pair)
        models = {name: _Translator(name, views.beams, encoder.max_length, device) for name in names}
        self._pivots = [(models[there], models[back]) for there, back in views.pivots]

    def __call__(self, sentences: Sequence[str], ids: np.ndarray) -> Pairs:
        """See `Augmenter`; nothing is drawn, so the ids do not matter."""
        versions = [back(there(sentences)) for there, back in self._pivots]
        pairs = list(zip(*versions) if len(versions) == 2 else zip(sentences, versions[0]))
        self._count(len(pairs), sum(first != second for first, second in pairs), len(pairs))
        return pairs


class _Translator:
    """A translation model of one direction; greedy or beam search, nothing drawn."""

    def __init__(self, name: str, beams: int, max_length: int, device: str):
        self._tokenizer = _load_translation_tokenizer(name)
        with _loading("views.pivots", name):
            model = AutoModelForSeq2SeqLM.from_pretrained(
                _translation_path(name), use_safetensors=True, dtype=_dtype(device)
            )
        self._model, self._beams = model.to(device).eval(), beams
        self._limit, self._new_tokens = _limit(max_length, model), _limit(2 * max_length, model)
        model.generation_config.max_length = None  # it would be said for each batch that max_new_tokens goes before it

    def __call__(self, sentences: Sequence[str]) -> list[str]:
        if not len(sentences):
            return []
        coded = self._tokenizer(list(sentences), truncation=True, max_length=self._limit, verbose=False)["input_ids"]
        translations = [""] * len(sentences)
        for rows in _padded_batches([len(tokens) for tokens in coded]):
            for row, translation in zip(rows, self._translate([np.array(coded[row]) for row in rows])):
                translations[row] = translation.strip()
        return translations

    @torch.no_grad()
    def _translate(self, tokens: list[np.ndarray]) -> list[str]:
        input_ids, real = (x.to(self._model.device) for x in _pad(tokens, self._tokenizer))
        options = dict(num_beams=self._beams, do_sample=False, max_new_tokens=self._new_tokens)
        output = self._model.generate(input_ids=input_ids, attention_mask=real, **options)
        return self._tokenizer.batch_decode(output, skip_special_tokens=True)


def _load_translation_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Loads configuration and tokenizer of a translation model, and looks for its weights."""
    path = _translation_path(name)
    with _loading("views.pivots", name):
        kind = AutoConfig.from_pretrained(path).model_type
        if kind not in _TRANSLATORS:
            raise UserError(
                f"views.pivots: {name!r} is a {kind} model, but only models of the types {' and '.join(_TRANSLATORS)} "
                "translate between one fixed pair of languages; name one such as Helsinki-NLP/opus-mt-en-de"
            )
        needed = [package for package in _TRANSLATORS[kind] if importlib.util.find_spec(package) is None]
        try:
            tokenizer = AutoTokenizer.from_pretrained(path)
        except LOAD_ERRORS:
            if not needed:
                raise
            tokenizer = None
    if needed and (tokenizer is None or type(tokenizer).__name__ == "MarianTokenizer"):
        raise UserError(
            f"views.pivots: the tokenizer of {name!r} needs {' and '.join(needed)}: run pip install {' '.join(needed)}"
        )
    if _lacks_safetensors(path):
        raise _no_safetensors("views.pivots", name)
    return tokenizer


def _lacks_safetensors(path: str) -> bool:
    """Whether that is certain: a hub that can be reached may convert a model's weights when they are asked for."""
    if not Path(path).is_dir() and not is_offline_mode():
        return False
    folder = _folder(path)
    return folder is not None and not any(folder.glob("*.safetensors"))


def _translation_path(name: str) -> str:
    with _loading("views.pivots", name):
        return encoder_path(EncoderConfig(path=name))


@contextmanager
def _loading(setting: str, name: str) -> Iterator[None]:
    """Says which setting named what could not be loaded."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace("encoder.path:", f"{setting}:", 1)) from None
    except LOAD_ERRORS as error:
        # What transformers says of a model without safetensors speaks of an argument that is no setting here.
        if any(word in str(error) for word in (SAFE_WEIGHTS_NAME, WEIGHTS_NAME, "use_safetensors")):
            raise _no_safetensors(setting, name) from None
        raise UserError(f"{setting}: {name!r} cannot be loaded: {first_line(error)}") from None


def _no_safetensors(setting: str, name: str) -> UserError:
    return UserError(
        f"{setting}: {name!r} has no {SAFE_WEIGHTS_NAME}, and weights are read from safetensors only; load the model "
        "with transformers, save it with save_pretrained and name that directory, or name another model"
    )


def _dtype(device: str) -> torch.dtype:
    is_cpu = torch.device(device).type == "cpu"  # views are the same on every kind of CPU
    return torch.bfloat16 if has_bf16(device) and not is_cpu else torch.float32


def _limit(max_length: int, model: PreTrainedModel) -> int:
    """So many tokens at most, or as many as the model has positions for."""
    positions = getattr(model.config, "max_position_embeddings", None)
    return min(max_length, positions - _UNUSED_POSITIONS) if positions else max_length


def _padded_batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows that are not empty by falling length, in batches of at most `_CELLS` cells when padded to their longest."""
    order = np.argsort(-np.asarray(lengths), kind="stable")[: np.count_nonzero(lengths)].tolist()
    start = 0
    while start < len(order):
        stop = start + max(1, _CELLS // lengths[order[start]])
        yield order[start:stop]
        start = stop


def _pad(tokens: list[np.ndarray], tokenizer: PreTrainedTokenizerBase) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and the attention mask of B sentences, [B, L] each."""
    lengths = np.array([len(row) for row in tokens])
    real = np.arange(lengths.max()) < lengths[:, None]
    input_ids = np.full(real.shape, tokenizer.pad_token_id or 0)
    input_ids[real] = np.concatenate(tokens)
    return torch.from_numpy(input_ids), torch.from_numpy(real.astype(np.int64))
