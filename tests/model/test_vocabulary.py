"""A vocabulary that was cut to a text gives that text's vectors, for every kind of tokenizer."""

import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast, RobertaConfig, RobertaModel

from raysed import bundled
from raysed.data.parquet import TEXTS, SentenceTable
from raysed.data.tokens import LengthReport, Tokenizer, tokenize
from raysed.errors import UserError
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.model.library import export_model, load
from raysed.model.static import StaticVectors, without_special_tokens
from raysed.model.vocabulary import check_vocabulary, cut, missing_share, used_tokens

GENERATED = bundled.corpus()[:120]
LINES = [*GENERATED, "Unknown: 日本 ☂ zq9, naïve?", "[SEP] <s> <mask>", "", "ab" * 60]
KINDS = ("WordPiece", "Unigram", "Unigram of bytes", "BPE", "BPE of bytes")


def trained(kind: str) -> PreTrainedTokenizerFast:
    """Train a tokenizer whose special ids lie apart: some first, some last."""
    name, special, options = kind.split()[0], ["<s>", "[PAD]", "[UNK]"], {}
    if name == "Unigram":
        backend, splits = Backend(models.Unigram()), pre_tokenizers.Metaspace()
        options["unk_token"] = "[UNK]"
    else:
        backend, splits = Backend(getattr(models, name)(unk_token="[UNK]")), pre_tokenizers.Whitespace()
    if kind == "BPE of bytes":
        splits = pre_tokenizers.ByteLevel(add_prefix_space=False)
        options["initial_alphabet"] = splits.alphabet()
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)] * (kind == "Unigram of bytes")
    backend.pre_tokenizer = splits
    kinds = {"WordPiece": trainers.WordPieceTrainer, "Unigram": trainers.UnigramTrainer, "BPE": trainers.BpeTrainer}
    backend.train_from_iterator(GENERATED, kinds[name](vocab_size=700, special_tokens=special + bytes_, **options))
    if bytes_:
        parsed = json.loads(backend.to_str())
        parsed["model"]["byte_fallback"] = True
        parsed["added_tokens"] = parsed["added_tokens"][: len(special)]
        backend = Backend.from_str(json.dumps(parsed))
    backend.add_tokens(["[extra]"])
    backend.add_special_tokens(["[SEP]", "[image]"])
    ends = [(token, backend.token_to_id(token)) for token in ("[SEP]", "<s>")]
    template = processors.TemplateProcessing(single="<s> $A [SEP]", special_tokens=ends)
    backend.post_processor = template if name == "BPE" else processors.RobertaProcessing(*ends)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "<s>", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **names,
    )


TOKENIZERS = {kind: trained(kind) for kind in KINDS}


def encoder_of(tokenizer: PreTrainedTokenizerBase, kind: str = "transformer") -> Encoder:
    """Build random weights; the last token, which is special, has none."""
    if kind == "static":
        return Encoder(StaticVectors.from_rows(torch.randn(len(tokenizer) - 1, 8)))
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": len(tokenizer) - 2, "initializer_range": 0.3}
    return Encoder(RobertaModel(RobertaConfig(vocab_size=len(tokenizer) - 1, **sizes, **ids)))


def ids_in(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> set[int]:
    return set(tokenize(tokenizer, texts, sys.maxsize).input_ids.tolist())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(places=st.sets(st.integers(0, len(LINES) - 1), min_size=1, max_size=20))
def test_texts_keep_their_tokens_and_vectors(kind, places):
    tokenizer, texts = TOKENIZERS[kind], [LINES[place] for place in places]
    encoder = encoder_of(tokenizer)
    table = tokenize(tokenizer, texts, 60)
    before, (expected,) = len(tokenizer), encode(encoder, table)
    smaller = cut(encoder, tokenizer, ids_in(tokenizer, texts))
    assert len(smaller) < before == len(tokenizer)
    again = tokenize(smaller, texts, 60)
    tokens = [
        each.convert_ids_to_tokens(ids) for each, ids in ((tokenizer, table.input_ids), (smaller, again.input_ids))
    ]
    assert tokens[0] == tokens[1] and missing_share(Tokenizer(tokenizer, sys.maxsize), smaller, texts) == 0
    np.testing.assert_allclose(encode(encoder, again)[0], expected, atol=1e-6)


@pytest.mark.parametrize("model", ["transformer", "static"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_export_is_smaller_and_others_load_it(kind, model, tmp_path):
    texts, tokenizer = LINES[110:], TOKENIZERS[kind]
    tokenizer = without_special_tokens(tokenizer) if model == "static" else tokenizer
    encoder = encoder_of(tokenizer, model)
    (expected,) = encode(encoder, tokenize(tokenizer, texts, 60))
    smaller = cut(encoder, tokenizer, ids_in(tokenizer, texts))
    export_model(encoder, smaller, tmp_path, layers=1, max_length=60, calibration=None)
    np.testing.assert_allclose(load(tmp_path).encode(texts), expected, atol=1e-5)
    if model == "static":
        return
    loaded, config = AutoTokenizer.from_pretrained(tmp_path), RobertaConfig.from_pretrained(tmp_path)
    assert config.vocab_size == len(loaded) - 1 < len(tokenizer) - 1
    assert loaded.convert_ids_to_tokens([config.pad_token_id, config.eos_token_id]) == ["[PAD]", "[SEP]"]
    assert loaded.tokenize("[extra]") == ["[extra]"] and set(tokenizer.all_special_tokens) == set(
        loaded.all_special_tokens
    )
    one = {token for token in tokenizer.get_vocab() if len(token) == 1 or token.startswith("<0x")}
    assert one <= loaded.get_vocab().keys(), "single characters and bytes are kept"
    if kind.startswith("Unigram"):
        pieces = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["vocab"]
        assert min(pieces, key=lambda piece: piece[1])[0] in loaded.get_vocab(), "what unknown characters cost"


def test_positions_counted_from_the_padding_id_stay():
    encoder = encoder_of(tokenizer := TOKENIZERS["BPE of bytes"])
    encoder.position_offset = 400
    smaller = cut(encoder, tokenizer, set()).get_vocab()
    assert {token: i for token, i in smaller.items() if i < 400} == {
        token: i for token, i in tokenizer.get_vocab().items() if i < 400
    }


def test_missing_tokens_are_counted_and_others_refused():
    tokenizer = TOKENIZERS["WordPiece"]
    smaller = cut(encoder_of(tokenizer), tokenizer, ids_in(tokenizer, [GENERATED[0]]))
    assert (
        missing_share(Tokenizer(tokenizer, sys.maxsize), smaller, [GENERATED[0]])
        == 0
        < missing_share(Tokenizer(tokenizer, sys.maxsize), smaller, GENERATED[1:3])
        < 1
    )
    tokenize(smaller, ["日本 ☂"], 60, report=(report := LengthReport(60)))
    assert ", 2 unknown); " in str(report), "a learner that starts from it lacks tokens of new text"
    whole = PreTrainedTokenizerFast(tokenizer_object=Backend(models.WordLevel({"a": 0, "b": 1}, "a")))
    with pytest.raises(UserError, match=r"encoder.vocabulary: it needs a fast tokenizer .* but 'mine' has none"):
        check_vocabulary(whole, "mine")


def test_all_text_of_a_table_counts(tmp_path):
    """What the limit cuts off, the prompt of each row's role, and translations, of which the table has only tokens."""
    tokenizer, (first, second, third) = TOKENIZERS["WordPiece"], GENERATED[:3]
    tables = [tokenize(tokenizer, texts, 5) for texts in ([first, second], [third])]
    rows = [np.split(table.input_ids, table.offsets[1:-1]) for table in tables]
    columns = {"sentence": [first, second], "input_ids": rows[0], "role": ["document", "query"]}
    pq.write_table(pa.table({**columns, TEXTS.name: [rows[1], []]}), tmp_path / "part.parquet")
    own = Tokenizer(tokenizer, 5, {"query": f"{GENERATED[3]}: "})
    expected = ids_in(tokenizer, [first, f"{GENERATED[3]}: {second}"]) | set(tables[1].input_ids.tolist())
    assert used_tokens(SentenceTable(tmp_path), own) == expected
