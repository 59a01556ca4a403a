"""Cut a vocabulary to the tokens that a text needs: fewer token embeddings, and the same vectors for that text.

All three kinds of tokenizer split the text as before. WordPiece takes the longest piece and Unigram the best split,
both still there. BPE makes the same merges in the same order, because it keeps their parts.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE, Unigram, WordPiece
from torch import nn
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from raysed.data.parquet import ROLE, TEXTS, SentenceTable, roles_in
from raysed.data.tokens import Tokenizer
from raysed.errors import UserError
from raysed.model.encoder import Encoder

_OPTIONS = ("model_input_names", "padding_side", "split_special_tokens")


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, path: str) -> None:
    """Raise UserError for a tokenizer that `cut` cannot cut."""
    if not (tokenizer.is_fast and isinstance(tokenizer.backend_tokenizer.model, BPE | Unigram | WordPiece)):
        problem = f"it needs a fast tokenizer (BPE, Unigram or WordPiece), but {path!r} has none; leave it out"
        raise UserError(problem, setting="encoder.vocabulary")


def used_tokens(table: SentenceTable, tokenizer: Tokenizer) -> set[int]:
    """Return all tokens of a table, with what `tokenizer` cut off, as it decides how a word is split."""
    used, unlimited = set[int](), replace(tokenizer, max_length=sys.maxsize)
    for group in range(len(table.sizes)):
        tokens = table.row_group(group, ("input_ids", TEXTS.name))
        for column in tokens.columns:
            used.update(pc.unique(pc.list_flatten(column, recursive=True)).to_pylist())
        is_cut = pc.greater_equal(pc.list_value_length(tokens["input_ids"]), tokenizer.max_length)
        rows = table.row_group(group, ("sentence", ROLE.name)).filter(is_cut)
        used.update(unlimited(rows["sentence"].to_pylist(), roles_in(rows)).input_ids.tolist())
    return used


def missing_share(whole: Tokenizer, smaller: PreTrainedTokenizerBase, texts: Sequence[str]) -> float:
    """Return the share of the texts' tokens that a smaller tokenizer lacks."""
    tokens, known = whole.pretrained.convert_ids_to_tokens(whole(texts).input_ids), smaller.get_vocab()
    return sum(token not in known for token in tokens) / max(len(tokens), 1)


def cut(encoder: Encoder, tokenizer: PreTrainedTokenizerBase, used: set[int]) -> PreTrainedTokenizerFast:
    """Drop an encoder's token embeddings, in place; return a tokenizer of the others.

    These stay: the ids of `used`, the parts of BPE's merges, and all special tokens, single characters and bytes.
    """
    parsed = json.loads(tokenizer.backend_tokenizer.to_str())
    model, ids, config = parsed["model"], tokenizer.get_vocab(), encoder.transformer.config
    named = {name: i for name, i in config.to_dict().items() if name.endswith("_token_id") and isinstance(i, int)}
    # Some architectures count positions from the padding id, which must not change.
    used = used | {*named.values(), *range(encoder.position_offset or 0)}
    prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
    kept = {model.get("unk_token"), *(token["content"] for token in parsed["added_tokens"])} & ids.keys()
    for token, i in ids.items():
        if i in used or token.startswith("<0x") or len(token.removeprefix(prefix).removesuffix(suffix)) <= 1:
            kept.add(token)
    for left, right in sorted(model.get("merges", ()), key=lambda pair: -len("".join(pair).replace(prefix, ""))):
        if left + right.removeprefix(prefix) in kept:  # the longest first, so parts of parts follow
            kept |= {left, right}
    vocabulary, is_unigram = model["vocab"], model["type"] == "Unigram"
    if is_unigram:  # the lowest score decides what an unknown character costs
        kept |= {min(vocabulary, key=lambda entry: entry[1])[0], vocabulary[model["unk_id"] or 0][0]}
    new = {ids[token]: place for place, token in enumerate(sorted(kept, key=ids.get))}
    if is_unigram:
        model |= {"vocab": [entry for entry in vocabulary if entry[0] in kept], "unk_id": new.get(model["unk_id"])}
    else:
        model["vocab"] = {token: new[i] for token, i in vocabulary.items() if token in kept}
    if "merges" in model:
        model["merges"] = [[a, b] for a, b in model["merges"] if {a, b, a + b.removeprefix(prefix)} <= kept]
    for token in parsed["added_tokens"]:
        token["id"] = new[token["id"]]

    def renumber(part: dict[str, Any]) -> dict[str, Any]:
        part |= {name: [part[name][0], new[part[name][1]]] for name in part.keys() & {"sep", "cls"}}
        return part | ({"ids": [new[i] for i in part["ids"]]} if "ids" in part else {})

    parsed["post_processor"] = json.loads(json.dumps(parsed["post_processor"]), object_hook=renumber)
    embedding = encoder.transformer.get_input_embeddings()
    rows = [i for i in new if i < len(embedding.weight)]  # special tokens may have none
    embedding.weight = nn.Parameter(embedding.weight.detach()[rows])
    embedding.num_embeddings, embedding.padding_idx = len(rows), new.get(embedding.padding_idx)
    config.update({"vocab_size": len(rows), **{name: new.get(i) for name, i in named.items()}})
    options = {name: getattr(tokenizer, name) for name in _OPTIONS} | tokenizer.special_tokens_map
    return PreTrainedTokenizerFast(tokenizer_object=Backend.from_str(json.dumps(parsed)), **options)
