"""The encoder against transformers' own padded forward, and what loading refuses."""

import copy
import json
import shutil
from functools import partial

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    BertModel,
    ConvBertConfig,
    ConvBertModel,
    ModernBertConfig,
    ModernBertModel,
    T5Config,
    T5EncoderModel,
)

from raysed.config import EncoderConfig
from raysed.data.tokens import PackedTokens, TokenTable, pack, tokenize
from raysed.errors import UserError
from raysed.model.encoder import Encoder, UnsupportedEncoder, _sums
from raysed.model.encoding import encode
from raysed.model.load import load_model
from raysed.model.pretrained import check_encoder, load_checkpoint, load_encoder, write_checkpoint
from raysed.model.shape import shape_of
from raysed.model.static_start import token_embeddings
from raysed.model.teacher import limit_of

POOLINGS = [1, 2, 3, "first_last"]
BLOCKS = {1: [-1], 2: [-2, -1], 3: [-3, -2, -1], "first_last": [1, -1]}
LENGTHS = [1, 40, 3, 17, 2, 25, 25, 9, 1, 31, 40, 12]
"""Up to the longest that the tiny models take."""

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def make_batch(pad: int = 0, row_tokens: int = 64) -> PackedTokens:
    """Two sentences of one token and two of the greatest length, over several rows."""
    rng = np.random.default_rng(1)
    return pack(TokenTable.from_lists([rng.integers(pad + 1, 50, length) for length in LENGTHS]), row_tokens)


def padded(transformer, batch: PackedTokens, layers) -> torch.Tensor:
    """All sentences padded to the longest, the masked mean of each block, the mean of the blocks."""
    count, longest = len(batch), int(batch.lengths.max())
    input_ids = torch.full((count, longest), transformer.config.pad_token_id or 0)
    mask = torch.zeros(count, longest, dtype=torch.long)
    for number in range(count):
        tokens = batch.input_ids[batch.segments == number]
        input_ids[number, : len(tokens)], mask[number, : len(tokens)] = tokens, 1
    states = transformer(input_ids=input_ids, attention_mask=mask, output_hidden_states=True).hidden_states
    weights = mask[:, :, None].to(states[0].dtype)
    return torch.stack([(states[b] * weights).sum(1) / weights.sum(1) for b in BLOCKS[layers]]).mean(0)


def gradients(module: torch.nn.Module, emb_BD: torch.Tensor) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    module.zero_grad()
    (emb_BD * torch.randn(emb_BD.shape, generator=generator)).sum().backward()
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_first_tokens_are_pooled_with_all_gradients(make_encoder, architecture):
    """Wherever their sentences lie, against each sentence alone."""
    encoder = make_encoder(architecture).eval()
    encoder.pooling, batch = "cls", make_batch(encoder.transformer.config.pad_token_id)
    sentences = [batch.input_ids[batch.segments == number] for number in range(len(batch))]
    alone = torch.cat([encoder.transformer(input_ids=ids[None]).last_hidden_state[:, 0] for ids in sentences])
    found = encoder(batch)
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(gradients(encoder, found), gradients(encoder, alone), rtol=0, atol=1e-4)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "mpnet"])
def test_packed_equals_padded_with_all_gradients(make_encoder, architecture):
    """Each pooling alone, all of them in one pass, and the states of tokens."""
    encoder, passes = make_encoder(architecture).eval(), []
    reference = copy.deepcopy(encoder.transformer).requires_grad_(True)
    batch = make_batch(reference.config.pad_token_id)
    assert encoder.position_offset is not None and len(batch.segments) > 2
    for layers in POOLINGS:
        expected, found = padded(reference, batch, layers), encoder(batch, layers)
        assert found.dtype == torch.float32 and found.shape == (len(LENGTHS), 16)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        wanted, got = gradients(reference, expected), gradients(encoder.transformer, found)
        assert set(wanted) == set(got) and len(wanted) > 30
        for name, gradient in wanted.items():
            most = 1e-5 * max(1.0, gradient.abs().max())
            torch.testing.assert_close(got[name], gradient, rtol=1e-5, atol=most, msg=name)
    encoder.transformer.register_forward_hook(lambda *_: passes.append(1))
    for layers, found in zip(POOLINGS, encoder.embed(batch, POOLINGS), strict=True):
        torch.testing.assert_close(found, padded(reference, batch, layers), rtol=0, atol=1e-5)
    assert len(passes) == 1
    states = encoder.token_states(batch)
    assert states.shape == (*batch.segments.shape, encoder.width)
    means = torch.stack([states[batch.segments == number].mean(0) for number in range(len(batch))])
    torch.testing.assert_close(means, encoder(batch), rtol=0, atol=1e-5)


@pytest.mark.parametrize("layers", [4, -1])
def test_layers_beyond_the_encoder_are_refused(make_encoder, layers):
    """A negative index would silently be another layer."""
    with pytest.raises(ValueError, match=f"{layers} layers cannot be pooled: the encoder has 3"):
        make_encoder("bert").embed(make_batch(), [1, layers])


def test_on_a_gpu_tokens_are_added_in_their_order(monkeypatch):
    """By an operation whose sums and gradients are those of the CPU's own, which on a GPU has no fixed order."""
    segments, generator = make_batch().segments.flatten(), torch.Generator().manual_seed(1)
    states = torch.randn(len(segments), 16, generator=generator)
    weight = torch.randn(len(LENGTHS) + 1, 16, generator=generator)
    found = []
    for device in ("cpu", "cuda"):
        own = states.clone().requires_grad_()
        sums = _sums(own, segments, len(LENGTHS) + 1, device)
        (sums * weight).sum().backward()
        found.append((sums, own.grad))
        monkeypatch.setattr(torch.Tensor, "index_add", None)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_sentence_without_tokens_is_a_zero_vector(make_encoder, pooling, is_packed):
    """Rather than 0 / 0, which would spoil a whole batch, or the next sentence's vector; alone, too."""
    encoder = make_encoder("bert").eval()
    encoder.pooling, encoder.position_offset = pooling, encoder.position_offset if is_packed else None
    found = encoder(pack(TokenTable.from_lists([[5, 6], [], [7]])))
    assert torch.isfinite(found).all() and not found[1].any() and found[0].any()
    torch.testing.assert_close(found[2:], encoder(pack(TokenTable.from_lists([[7]]))), rtol=0, atol=1e-5)
    assert not encoder(pack(TokenTable.from_lists([[], []]))).any()


# -- architectures that do not take packed rows ----------------------------------------------------------------------


class Refusing(BertModel):
    """Takes two-dimensional masks only, and says so."""

    def forward(self, input_ids=None, attention_mask=None, output_hidden_states=False, **others):
        if attention_mask.dim() != 2 or others:
            raise AssertionError("padded batches only")
        return super().forward(input_ids, attention_mask, output_hidden_states=output_hidden_states)


class Ignoring(BertModel):
    """Takes everything and leaves position ids out: wrong numbers, no error."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, output_hidden_states=False):
        return super().forward(input_ids, attention_mask, output_hidden_states=output_hidden_states)


@pytest.mark.parametrize("kind", [Refusing, Ignoring])
def test_other_architectures_are_fed_padded(make_transformer, caplog, kind):
    """With one warning when the encoder is made, and the same numbers and gradients."""
    plain, batch = make_transformer("bert").eval(), make_batch()
    transformer = kind(plain.config).eval()
    transformer.load_state_dict(plain.state_dict())
    encoder = Encoder(transformer)
    assert encoder.position_offset is None
    for layers in (1, "first_last"):
        expected, found = padded(plain, batch, layers), encoder(batch, layers)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        wanted, got = gradients(plain, expected), gradients(transformer, found)
        for name in wanted:
            torch.testing.assert_close(got[name], wanted[name], rtol=1e-5, atol=1e-4, msg=name)
    (warning,) = caplog.records
    assert f"{kind.__name__} does not support packed rows, so it gets padded batches" in warning.getMessage()


def test_an_architecture_whose_sentences_see_their_padding_is_refused():
    sizes = {"vocab_size": 60, "embedding_size": 16, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}
    transformer = ConvBertModel(ConvBertConfig(**sizes, num_attention_heads=4, initializer_range=0.3))
    with pytest.raises(UnsupportedEncoder, match=r"^ConvBertModel embeds a sentence differently if "):
        Encoder(transformer)


def modern_bert() -> ModernBertModel:
    """Tokens of every other layer see only their neighbours."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    special = {f"{name}_token_id": i for i, name in enumerate(("pad", "bos", "eos", "cls", "sep"))}
    options = {"intermediate_size": 32, "local_attention": 16, "initializer_range": 0.3}
    return ModernBertModel(ModernBertConfig(**sizes, **special, **options, global_attn_every_n_layers=2))


def test_windowed_attention_is_kept():
    """A packed mask would widen its windows, unseen in short texts."""
    encoder = Encoder(modern_bert()).eval()
    with torch.no_grad():
        found, expected = encoder(make_batch()), padded(encoder.transformer, make_batch(), 1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_dropout_works_while_training(make_encoder):
    """Neither packed rows nor the making of an encoder switch it off; the pooler has no part in anything."""
    encoder, batch = make_encoder("bert"), make_batch()  # a fresh transformer trains
    assert not torch.equal(encoder(batch), encoder(batch))
    frozen = [name for name, p in encoder.named_parameters() if not p.requires_grad]
    assert frozen == ["transformer.pooler.dense.weight", "transformer.pooler.dense.bias"]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_parts_are_computed_again_with_the_same_dropout(make_encoder, monkeypatch, device):
    """The second pass draws as the first: `checkpoint` keeps the random numbers of those devices whose tensors it gets,
    and does not look into dataclasses."""
    encoder, batch, given = make_encoder("bert").to(device), make_batch().to(device), []
    found = gradients_in_parts(encoder, batch)

    def once(function, *others, use_reentrant):
        given.extend(others)
        return function(*others)

    monkeypatch.setattr("raysed.model.encoder.checkpoint", once)
    expected = gradients_in_parts(encoder, batch)
    assert len(found) > 40 and len(given) == 9 and all(isinstance(one, torch.Tensor) for one in given)
    for name, gradient in expected.items():
        atol = 1e-4 if device == "cuda" else 0
        torch.testing.assert_close(found[name], gradient, atol=atol, rtol=0, msg=name)


def gradients_in_parts(encoder: Encoder, batch: PackedTokens) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    encoder.parts = 3
    return {name: gradient.clone() for name, gradient in gradients(encoder, encoder(batch)).items()}


# -- loading and saving ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [{"num_hidden_layers": 10**7}, {"hidden_size": 10**8}, {"vocab_size": 10**9}])
def test_sizes_that_no_encoder_has_are_refused_before_anything_is_built(tiny_encoder_dir, exports, tmp_path, size):
    """By whatever opens a model: as the encoder, to plan memory, to evaluate it, with modules of the library."""
    for name, source in (("plain", tiny_encoder_dir), ("of-modules", exports["1"])):
        shutil.copytree(source, tmp_path / name)
        described = json.loads((source / "config.json").read_text())
        (tmp_path / name / "config.json").write_text(json.dumps({**described, **size}))
    config = EncoderConfig(path=str(tmp_path / "plain"), max_length=20)
    opened = [partial(each, config) for each in (load_encoder, check_encoder, shape_of)]
    opened += [partial(load_model, str(tmp_path / name)) for name in ("plain", "of-modules")]
    for open_ in opened:
        with pytest.raises(UserError, match=r"has (\w+) [\d,]+ in its configuration, but at most .*; check its config"):
            open_()


def as_encoder_of_t5(path) -> None:
    sizes = {"vocab_size": 100, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    T5EncoderModel(T5Config(**sizes)).save_pretrained(path)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (as_encoder_of_t5, "has a decoder; use a model that is an encoder alone"),
        (lambda path: (path / "model.safetensors").rename(path / "pytorch_model.bin"), "no file named model.safetens"),
        (lambda path: (path / "model.safetensors").write_bytes(b"12345678"), "cannot be loaded: "),
        (lambda path: [file.unlink() for file in path.glob("tokenizer*")], "has no tokenizer; add its files"),
        (lambda path: (path / "config.json").write_text("{}"), "cannot be loaded: Unrecognized model"),
    ],
)
def test_a_damaged_directory_is_refused_in_a_sentence(tiny_encoder_dir, tmp_path, damage, said):
    path = shutil.copytree(tiny_encoder_dir, tmp_path / "model")
    damage(path)
    with pytest.raises(UserError) as caught:
        load_encoder(EncoderConfig(path=str(path), max_length=20))
    message = str(caught.value)
    assert message.startswith("encoder.path: ") and str(path) in message and said in message
    assert "\n" not in message


def test_a_special_token_without_a_row_is_text(tiny_encoder_dir, tmp_path):
    """As Gemma's for images is, which its encoders of text know nothing of."""
    path = shutil.copytree(tiny_encoder_dir, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.save_pretrained(path)
    encoder, tokenizer = load_encoder(EncoderConfig(path=str(path), max_length=20))
    assert len(tokenizer) > encoder.transformer.config.vocab_size
    for each in (tokenizer, copied(tokenizer, tmp_path)):
        table = tokenize(each, ["the cat <image>"], 20)
        assert table.input_ids.max() < encoder.transformer.config.vocab_size and len(table.input_ids) > 5
    assert len(token_embeddings(encoder, tokenizer)) == encoder.transformer.config.vocab_size


def copied(tokenizer, path):
    tokenizer.save_pretrained(path / "saved")
    return AutoTokenizer.from_pretrained(path / "saved")


ROBERTAS = ("Camembert", "Data2VecText", "Esm", "Longformer", "MPNet", "Roberta", "XLMRoberta")


@pytest.mark.parametrize("name", ["Bert", "Deberta", "XLNet", *ROBERTAS])
def test_as_many_tokens_as_an_architecture_takes_are_allowed_and_no_more(tiny_tokenizer, tmp_path, name):
    """RoBERTa and its relatives leave the first two positions of 42 out; XLNet has no limit."""
    sizes = {"vocab_size": len(tiny_tokenizer), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    options = {"intermediate_size": 32, "attention_window": [8, 8], "d_head": 8, "position_embedding_type": "absolute"}
    if name != "XLNet":
        options["max_position_embeddings"] = 42 if name in ROBERTAS else 40
    if name in ROBERTAS:
        options |= {"pad_token_id": 1, "mask_token_id": 4}
    config = getattr(transformers, f"{name}Config")(**sizes, **options)
    getattr(transformers, f"{name}Model")(config).save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    settings = EncoderConfig(path=str(tmp_path), max_length=40)
    assert check_encoder(settings) == 2
    encoder, tokenizer = load_encoder(settings)
    assert np.isfinite(encode(encoder, tokenize(tokenizer, ["cat " * 99], 40))[0]).all()
    for longest in limit_of([], settings), limit_of([str(tmp_path)]):
        assert longest == (512 if name == "XLNet" else 40)
    if name != "XLNet":
        for function in (check_encoder, load_encoder):
            with pytest.raises(UserError, match=r"^encoder\.max_length is 41, but .* takes at most 40 tokens$"):
                function(settings.model_copy(update={"max_length": 41}))


def test_a_saved_encoder_comes_back(make_encoder, tiny_tokenizer, make_table, tmp_path):
    encoder, table = make_encoder("bert"), make_table(12)
    description, history = {"member": "ct/members/00", "seed": 3}, [{"step": 1, "loss": 0.1}, {"step": 2, "loss": 0.05}]
    write_checkpoint(encoder, tiny_tokenizer, tmp_path, description, history)
    back, (loaded, tokenizer) = load_checkpoint(tmp_path), load_encoder(EncoderConfig(path=str(tmp_path), max_length=9))
    for other in (back, loaded):
        assert all(torch.equal(a, b) for a, b in zip(encoder.parameters(), other.parameters(), strict=True))
        np.testing.assert_array_equal(encode(other, table)[0], encode(encoder, table)[0])
    assert tokenizer.get_vocab() == tiny_tokenizer.get_vocab()
    assert json.loads((tmp_path / "raysed.json").read_text()) == description
    assert [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()] == history
    assert {p.suffix for p in tmp_path.iterdir()} == {".json", ".jsonl", ".safetensors"}


def test_a_head_is_a_matrix_after_any_pooling_in_full_precision(make_encoder, make_table, tiny_tokenizer, tmp_path):
    """Also of a learner that is loaded again, by a run and as a plain transformer."""
    encoder, table, rng = make_encoder("bert"), make_table(12), np.random.default_rng(0)
    plain = encode(encoder, table, (1, 2))
    weight_HD = rng.normal(size=(encoder.width, 50)).astype(np.float32)
    encoder.set_head(weight_HD)
    write_checkpoint(encoder, tiny_tokenizer, tmp_path, {}, [])
    for other in (encoder, load_checkpoint(tmp_path), load_model(str(tmp_path), 1, max_length=20).encoder):
        assert (other.width, other.transformer.config.hidden_size) == (50, plain[0].shape[1])
        for found_ND, plain_ND in zip(encode(other, table, (1, 2)), plain):
            np.testing.assert_allclose(found_ND, plain_ND @ weight_HD, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert encoder(make_batch(), 1).dtype == torch.float32


def test_a_pooler_that_the_files_lack_is_zero(tiny_encoder_dir, tmp_path):
    """It is never used; random numbers would make checkpoints differ from run to run."""
    path = shutil.copytree(tiny_encoder_dir, tmp_path / "model")
    tensors = load_file(path / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "pooler" not in name}
    save_file(kept, path / "model.safetensors", {"format": "pt"})
    encoder, _ = load_encoder(EncoderConfig(path=str(path), max_length=20))
    assert not encoder.transformer.pooler.dense.weight.any()


@pytest.mark.parametrize("kind", ["bert", "distilbert", "modernbert"])
def test_kept_layers_are_those_of_the_whole_encoder_and_are_saved_as_a_model(
    make_transformer, tiny_tokenizer, tmp_path, kind
):
    """Layers of several kinds keep theirs. Weights are always float32 in memory, also of a file in half precision."""
    model = modern_bert() if kind == "modernbert" else make_transformer(kind)
    model.half().save_pretrained(tmp_path / "whole")
    tiny_tokenizer.save_pretrained(tmp_path / "whole")
    tokens = tokenize(tiny_tokenizer, ["the cat sat on a big tree", "she ran"], 16)

    def load(**settings):
        config = EncoderConfig(path=str(tmp_path / "whole"), max_length=16, pool_layers=1, **settings)
        encoder, tokenizer = load_encoder(config)
        assert check_encoder(config) == shape_of(config).layers == encoder.transformer.config.num_hidden_layers
        assert {p.dtype for p in encoder.parameters()} == {torch.float32}
        return encoder, tokenizer, encode(encoder, tokens)[0]

    first_ND, ends_ND = load(keep_layers=[0, 1])[2], load(keep_layers=2)[2]
    np.testing.assert_array_equal(first_ND, load(model_kwargs={"num_hidden_layers": 2})[2])
    encoder, tokenizer, found_ND = load(keep_layers=[0, 2])
    np.testing.assert_array_equal(found_ND, ends_ND)
    assert not np.allclose(found_ND, first_ND)
    write_checkpoint(encoder, tokenizer, tmp_path / "ends", {}, [])
    loaded = load_checkpoint(tmp_path / "ends")
    np.testing.assert_array_equal(encode(loaded, tokens, (1, 2))[1], encode(encoder, tokens, (1, 2))[1])
    assert load(keep_layers="half")[0].transformer.config.num_hidden_layers == 1
    if kind == "modernbert":
        assert loaded.transformer.config.layer_types == ["full_attention"] * 2
