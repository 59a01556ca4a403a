"""Sentences with their translations: read as whole rows, and learnt with one target."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from learners import tiny_learner

from raysed.config import CorpusConfig, EncoderConfig
from raysed.context import Context
from raysed.data.corpus import CorpusReport, check_corpus, column_chunks
from raysed.data.targets import TARGET_FILE, TargetBatches, held_out_batches, with_targets
from raysed.errors import UserError
from raysed.make.text import sentence_table
from raysed.model.pretrained import text_tokenizer
from raysed.train.stages.sed import Distillation

ROWS = [(f"cat number {i}", f"Katze  Nummer {i}", f"chat {i}" if i % 7 else "") for i in range(60)]


def write(file: Path, rows=ROWS) -> str:
    table = [dict(zip(("sentence", "de", "fr"), row)) for row in rows]
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(table), file)
    elif file.suffix == ".jsonl":
        file.write_text("\n".join(map(json.dumps, table)))
    else:
        file.write_text("\n".join([*["\t".join(row) for row in [("sentence", "de", "fr"), *rows]], ""]))
    return str(file)


def read(source: str, **settings) -> tuple[list[tuple[str, ...]], CorpusReport]:
    report, config = CorpusReport(), CorpusConfig(source=source, translations=["fr", "de"], **settings)
    return [row for columns in column_chunks(config, 0, report) for row in zip(*columns)], report


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl", "a.parquet"])
def test_rows_are_read_and_drawn_whole_and_one_stays_of_those_with_the_same_sentence(tmp_path, name):
    expected = [(sentence, fr, de.replace("  ", " ")) for sentence, de, fr in ROWS]
    source = write(tmp_path / name, [*ROWS, ("cat number 1", "Kater", "matou")])
    rows, report = read(source)
    assert rows == expected and report.duplicates == 1
    assert report.summary().endswith("60 kept, 9 translations missing or unusable")
    drawn, report = read(source, sentences=20)
    assert set(drawn) < set(expected) and report.untranslated == sum(not fr for _, fr, _ in drawn)


@pytest.mark.parametrize("name", ["a.tsv", "a.txt", "a.jsonl", "a.parquet"])
def test_a_column_that_is_missing_is_named_with_those_that_exist(tmp_path, name):
    config = CorpusConfig(source=write(tmp_path / name), translations=["de", "es"])
    with pytest.raises(UserError, match=rf"{name}.*: columns sentence or text, de, es are needed, found sentence, de"):
        check_corpus(config)


def test_only_translations_that_are_named_change_what_is_made():
    assert CorpusConfig(translations=[]).identity().keys() == CorpusConfig().identity().keys() - {"translations"}
    assert CorpusConfig(translations=["de"]).identity()["translations"] == ["de"]


def test_a_text_without_columns_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("It rains.\nIt snows.\n")
    with pytest.raises(UserError, match=r"a\.txt, line 1: columns sentence or text, de are needed, found It rains"):
        check_corpus(CorpusConfig(source=str(tmp_path / "a.txt"), translations=["de"]))


def test_the_loss_is_that_of_all_texts_of_each_row_with_its_target(tmp_path, tiny_encoder_dir):
    """A missing translation is the sentence again; rows are shared by workers and held out as a whole."""
    table, out = tmp_path / "corpus", tmp_path / "targets"
    table.mkdir(), out.mkdir()
    encoder = EncoderConfig(path=str(tiny_encoder_dir), max_length=16)
    settings = {"corpus": CorpusConfig(source=write(tmp_path / "a.tsv"), translations=["de", "fr"]), "seed": 0}
    sentence_table(table, {"encoder": encoder, "start": None}, settings, Context())
    rows, target_ND = pq.read_table(table), np.random.default_rng(0).normal(size=(60, 16)).astype(np.float32)
    pq.write_table(with_targets(rows, target_ND, "fp32"), out / TARGET_FILE, row_group_size=16)
    tokenizer, learner = text_tokenizer(encoder), tiny_learner().eval()
    learner.transformer.resize_token_embeddings(len(tokenizer.pretrained))
    texts = [[text or sentence for text in (sentence, *others)] for sentence, *others in ROWS]
    parts = [[TargetBatches(out, 8, 1, rank, world, held_out=True) for rank in range(world)] for world in (1, 3)]
    (held_out,) = held_out_batches(out, 8)
    batches = [held_out, *(part(step) for of_world in parts for part in of_world for step in range(7))]
    assert set(held_out.ids.tolist()).isdisjoint(i for batch in batches[1:] for i in batch.ids.tolist())
    for batch in batches:
        ids = batch.ids[::3].tolist()
        expected = tokenizer([text for i in ids for text in texts[i]])
        for place, tokens in enumerate(np.split(expected.input_ids, expected.offsets[1:-1])):
            assert batch.tokens.input_ids[batch.tokens.segments == place].tolist() == tokens.tolist()
        x_BD = learner(batch.tokens).detach().numpy()
        plain = np.mean([(x_BD[place] - target_ND[ids[place // 3]]) ** 2 for place in range(len(x_BD))])
        assert Distillation(learner)(batch).item() == pytest.approx(batch.weight * plain, rel=1e-4)
    for step in range(7):
        whole, several = parts[0][0](step), [part(step) for part in parts[1]]
        assert torch.equal(whole.targets, torch.cat([part.targets for part in several]))
