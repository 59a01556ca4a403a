"""An encoder from nothing: a tokenizer trained on the corpus, and a BERT with random weights for it.

The weights are then trained by masked language modelling, like any member whose recipe begins with `mlm`.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from raysed.config import Config, EncoderConfig
from raysed.data.corpus import CorpusReport, sentence_chunks
from raysed.model.encoder import Encoder, save_encoder

_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def write_scratch(config: Config, path: Path) -> None:
    """Writes a tokenizer and random weights in Hugging Face layout.

    Args:
        config: `encoder.scratch`, `encoder.max_length`, `corpus` and `seed` are used.
    """
    chunks = sentence_chunks(config.corpus, config.seed, CorpusReport())
    tokenizer = train_tokenizer((sentence for _, chunk in chunks for sentence in chunk), config.encoder)
    save_encoder(random_encoder(tokenizer, config.encoder, config.seed), tokenizer, path)


def train_tokenizer(sentences: Iterable[str], config: EncoderConfig) -> PreTrainedTokenizerFast:
    """Trains a lower-case WordPiece vocabulary of at most `scratch.vocabulary` pieces, with BERT's special tokens.

    The same sentences give the same vocabulary.

    Args:
        config: the settings of `encoder`.
    """
    tokenizer = _word_piece({})
    words = Counter(word for sentence in sentences for word in sentence.split())
    special = list(_SPECIAL.values())
    # Pieces that are equally frequent are ordered by the numbers of their parts. The trainer numbers the characters
    # within words as it meets them, in the order of a hash table that is another in every run, unless it is given them.
    inner = [f"##{character}" for character in sorted(_inner_characters(tokenizer, words))]
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.scratch.vocabulary, special_tokens=special + inner, show_progress=False
    )
    tokenizer.train_from_iterator(words.elements(), trainer)
    tokenizer = _word_piece(tokenizer.get_vocab())  # in which only the special tokens will be special
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (_SPECIAL["cls"], _SPECIAL["sep"])],
    )
    names = {f"{name}_token": token for name, token in _SPECIAL.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def _word_piece(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=_SPECIAL["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _inner_characters(tokenizer: Tokenizer, words: Iterable[str]) -> set[str]:
    """Returns all characters that stand behind the first of a word, after the tokenizer's normalization."""
    normalize, split = tokenizer.normalizer.normalize_str, tokenizer.pre_tokenizer.pre_tokenize_str
    return {character for word in words for part, _ in split(normalize(word)) for character in part[1:]}


def random_encoder(tokenizer: PreTrainedTokenizerFast, config: EncoderConfig, seed: int) -> Encoder:
    """Returns a BERT of the size of `config.scratch`; its weights depend on the seed alone.

    Args:
        config: the settings of `encoder`.
    """
    torch.manual_seed(seed)
    bert = bert_config(config, len(tokenizer))
    bert.pad_token_id = tokenizer.pad_token_id
    return Encoder(BertModel(bert))


def bert_config(config: EncoderConfig, vocabulary: int) -> BertConfig:
    """Returns the sizes of the BERT that `config.scratch` describes.

    Args:
        config: the settings of `encoder`.
        vocabulary: rows of its table of tokens.
    """
    scratch = config.scratch
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=scratch.width,
        num_hidden_layers=scratch.layers,
        num_attention_heads=scratch.heads,
        intermediate_size=4 * scratch.width,
        max_position_embeddings=2 * config.max_length,
    )
