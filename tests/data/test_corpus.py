"""Reading, cleaning, drawing and checking of the corpus."""

import csv
import glob
import gzip
import json
import os
import random
import time
import unicodedata

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysed.config import CorpusConfig
from raysed.data import rows
from raysed.data.corpus import CorpusReport, check_corpus, clean, corpus_fingerprint, passages, sentence_chunks
from raysed.errors import UserError

SENTENCES = ["A cat sat.", 'She said "no", twice.', "Zwölf Boxkämpfer jagen Viktor.", "東京は晴れです。"]


def read(source, seed=0, **settings):
    """Reads everything and checks what holds for every corpus; returns sentences and report."""
    report, ids, sentences = CorpusReport(), [], []
    for chunk_ids, chunk in sentence_chunks(config(source, **settings), seed, report):
        assert chunk_ids.dtype == np.int64 and len(chunk_ids) == len(chunk) > 0
        ids += chunk_ids.tolist()
        sentences += chunk
    left_out = report.empty + report.too_short + report.too_long + report.duplicates
    assert ids == list(range(report.kept)) and report.lines == left_out + report.usable
    assert len(set(sentences)) == len(sentences)
    return sentences, report


def config(source, **settings):
    sources = [str(item) for item in source] if isinstance(source, list) else str(source)
    return CorpusConfig(source=sources, **settings)


def write(path, data):
    """Writes text or bytes, making the directory; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def write_sentences(path, sentences):
    """Writes the sentences in the format that the ending names, `id` before `sentence`."""
    rows = list(enumerate(sentences))
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"id": range(len(rows)), "sentence": sentences}), path)
    elif path.suffix == ".csv":
        with open(path, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("id", "sentence"), *rows])
    else:
        lines = {
            ".txt": sentences,
            ".jsonl": [json.dumps({"id": i, "sentence": s}) for i, s in rows],
            ".tsv": ["id\tsentence", *(f"{i}\t{s}" for i, s in rows)],
        }
        write(path, "\n".join(lines[path.suffix]))
    return path


# Formats and places


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".csv", ".tsv", ".parquet"])
def test_every_format_gives_the_same_sentences_also_compressed(tmp_path, ending):
    path = write_sentences(tmp_path / f"a{ending}", SENTENCES)
    check_corpus(config(path))
    assert read(path)[0] == SENTENCES
    if ending != ".parquet":  # two gzip members in one file, as `cat a.gz b.gz` gives them
        data = path.read_bytes()
        packed = write(tmp_path / f"A{ending.upper()}.gz", gzip.compress(data[:40]) + gzip.compress(data[40:]))
        check_corpus(config(packed))
        assert read(packed)[0] == SENTENCES


def test_blocks_do_not_show(tmp_path, monkeypatch):
    """Whatever the block size, the lines come out as if the file had been split at once."""
    lines = [f"line {i} " + "ä" * (i % 7) for i in range(200)]
    path = write(tmp_path / "a.txt", "\n".join(lines))
    for size in (1, 2, 13, 1000, 10**6):
        monkeypatch.setattr(rows, "_BLOCK_BYTES", size)
        assert read(path)[0] == [clean(line) for line in lines]


def test_csv_quoting_and_line_ends(tmp_path):
    """Quoted commas, doubled quotes and line breaks within a field; CRLF; a byte order mark; a blank row."""
    data = '\ufefftext,n\r\n"one, two",1\r\n"he said ""hi""",2\r\n"first\nsecond",3\r\n\r\nlast,4\r\n'
    sentences, report = read(write(tmp_path / "a.csv", data))
    assert sentences == ["one, two", 'he said "hi"', "first second", "last"]
    assert (report.lines, report.empty) == (5, 1)


def test_parquet_string_types_nulls_and_row_groups(tmp_path):
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        texts = pa.array(["one", None, "two", "three"], kind)
        pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=3)
        sentences, report = read(tmp_path / "a.parquet")
        assert sentences == ["one", "two", "three"] and report.empty == 1


def test_directory_is_read_sorted_and_deep_and_a_list_in_its_order(tmp_path):
    """Known endings at any depth; hidden and macOS companion files are skipped, and no file is read twice."""
    for name in ("b.txt", "a/z.txt", "a/k/y.jsonl", "c.md", ".hidden/h.txt", "a/.x.txt", "a/._z.txt"):
        write(tmp_path / name, json.dumps({"text": name}) if name.endswith("jsonl") else name)
    assert read(tmp_path)[0] == read(f"{tmp_path}/")[0] == ["a/k/y.jsonl", "a/z.txt", "b.txt"]
    sentences, report = read([tmp_path / "b.txt", tmp_path])
    assert sentences == ["b.txt", "a/k/y.jsonl", "a/z.txt"] and report.lines == 3
    for name in (".claim.json", "given/sentences.txt"):  # of a run, whose own text is none
        write(tmp_path / "a/runs/tickets" / name, name)
    assert read(tmp_path)[0] == ["a/k/y.jsonl", "a/z.txt", "b.txt"]
    assert read(tmp_path / "a/runs/tickets")[0] == ["given/sentences.txt"]


def test_globs(tmp_path, monkeypatch):
    """The same as the standard library's glob, absolute and relative to the working directory."""
    for name in ("a1.txt", "b.txt", "d/c.txt", "d/e/c.txt", "notes.md"):
        write(tmp_path / name, name)
    monkeypatch.chdir(tmp_path)
    for pattern in ("*.txt", "?1.txt", "[!a]*.txt", "*/c.txt", "**/c.txt", "d/**", "**/*.txt"):
        expected = sorted(name for name in glob.glob(pattern, recursive=True) if name.endswith(".txt"))
        assert read(tmp_path / pattern)[0] == read(pattern)[0] == expected


def test_hub_dataset_is_streamed(hub):
    calls = hub(datasets.Dataset.from_dict({"id": [1, 2, 3], "text": ["one", None, "two"]}).to_iterable_dataset())
    sentences, report = read("org/wiki-2.0", config_name="en", split="validation")
    assert sentences == ["one", "two"] and report.empty == 1
    assert calls[-1] == (("org/wiki-2.0", "en"), {"split": "validation", "streaming": True})
    (source,) = corpus_fingerprint(config("org/wiki-2.0", config_name="en"))["sources"]
    assert source == {"hub": "org/wiki-2.0", "name": "en", "split": "train"}


# Cleaning


def plain_clean(text):
    """The rule, character by character."""
    blanks = {"Cc", "Zl", "Zp", "Zs"}
    composed = unicodedata.normalize("NFC", text)
    return "".join(" " if unicodedata.category(c) in blanks else c for c in composed).split(" ")


@given(st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("e\u0301 \t\r\x00\x85\xa0\u2028"))))
def test_clean_is_the_rule_and_settles(text):
    cleaned = clean(text)
    assert cleaned == " ".join(word for word in plain_clean(text) if word)
    assert clean(cleaned) == cleaned


@pytest.mark.parametrize("marks", ["\u0301\u0323", "\u0344"])
def test_a_line_is_measured_before_it_is_composed(tmp_path, marks):
    """NFC is quadratic in a run of marks: a million of them would take minutes in which nothing can stop the job."""
    path = write(tmp_path / "a.txt", f"one\na{marks * (10**6 // len(marks))}\n")
    started = time.process_time()
    assert read(path) == (["one"], CorpusReport(2, too_long=1, usable=1, kept=1))
    assert time.process_time() - started < 5


def test_counts_add_up(tmp_path, monkeypatch):
    """Lengths are those after cleaning, and both limits are themselves allowed."""
    lines = ["good one", "", " \t\u2028 ", "x", "xy", "y" * 21, "good  one ", "good\x00one"]
    lines += ["cafe\u0301", "caf\u00e9", " " + "z" * 20]
    monkeypatch.setattr("raysed.data.corpus.MOST_CHARACTERS", 20)
    sentences, report = read(write(tmp_path / "a.txt", "\n".join(lines)))
    assert sentences == ["good one", "xy", "café", "z" * 20]
    assert report == CorpusReport(11, empty=2, too_short=1, too_long=1, duplicates=3, usable=4, kept=4)
    assert report.summary() == "11 lines: 2 empty, 1 too short, 1 too long, 3 duplicates, 4 usable, 4 kept"


def test_lines_end_at_newline_only_and_the_last_may_lack_it(tmp_path):
    path = write(tmp_path / "a.txt", "\ufeffone\x0cstill one\r\ntwo\u2028still two\nlast")
    assert read(path) == (["one still one", "two still two", "last"], CorpusReport(3, usable=3, kept=3))


def test_text_in_utf_16_is_refused_also_without_a_mark(tmp_path):
    (tmp_path / "a.txt").write_bytes("Hello one\nTwo two\n".encode("utf-16-le"))
    with pytest.raises(UserError, match=r"a\.txt, line 1 has zero bytes, as in UTF-16; save the file as UTF-8"):
        read(tmp_path / "a.txt")


def test_duplicates_across_files_and_blocks(tmp_path, monkeypatch):
    """The first of equal sentences stays, as in a plain loop with a set of strings."""
    rng = random.Random(0)
    monkeypatch.setattr(rows, "_ROWS", 100)
    lines = [f"sentence {rng.randrange(700)}" for _ in range(2000)]
    for part in range(4):
        write(tmp_path / f"{part}.txt", "\n".join(lines[part * 500 : part * 500 + 500]))
    sentences, report = read(tmp_path)
    assert sentences == list(dict.fromkeys(lines))
    assert report.duplicates == 2000 - len(sentences)


# Drawing


def numbered(tmp_path, count, name="a.txt"):
    return write(tmp_path / name, "\n".join(f"sentence number {i}" for i in range(count)))


def test_draw_gives_exactly_that_many_and_a_smaller_one_is_the_start_of_a_larger_one(tmp_path):
    path, drawn = numbered(tmp_path, 12_000), []
    for count in (1, 300, 5000, 12_000):
        smaller, (drawn, report) = drawn, read(path, sentences=count)
        assert len(drawn) == count == report.kept and report.usable == 12_000
        assert drawn[: len(smaller)] == smaller
    assert set(drawn) == {f"sentence number {i}" for i in range(12_000)}


def test_draw_depends_on_the_seed_and_the_set_of_sentences_only(tmp_path):
    """Shuffled lines, other files, another format, repeated lines: the same sentences in the same order."""
    lines = [f"sentence number {i}" for i in range(9000)]
    expected, _ = read(numbered(tmp_path, 9000), seed=3, sentences=700)
    assert expected == read(tmp_path / "a.txt", seed=3, sentences=700)[0]
    random.Random(1).shuffle(lines)
    (tmp_path / "parts").mkdir()
    for part, ending in enumerate((".jsonl", ".csv", ".txt")):
        write_sentences(tmp_path / f"parts/{part}{ending}", lines[part::3] + lines[:500])
    assert read(tmp_path / "parts", seed=3, sentences=700)[0] == expected
    other, _ = read(tmp_path / "a.txt", seed=4, sentences=700)
    # Two independent draws of 700 from 9000 share 54 on average (standard deviation 7).
    assert 20 < len(set(other) & set(expected)) < 90


def test_draw_is_uniform(tmp_path):
    """Over 200 seeds each of 100 sentences is drawn, and is drawn first, as often as chance has it."""
    path = numbered(tmp_path, 100)
    drawn, first = np.zeros(100), np.zeros(100)
    for seed in range(200):
        numbers = [int(s.split()[-1]) for s in read(path, seed=seed, sentences=30)[0]]
        drawn[numbers] += 1
        first[numbers[0]] += 1
    # chi-square statistics with 99 degrees of freedom: beyond 160 by chance once in 10,000 times
    assert drawn.sum() == 6000 and ((drawn - 60) ** 2 / (60 * 0.7)).sum() * 0.99 < 160
    assert ((first - 2) ** 2 / 2).sum() < 160


# Errors


def refused(path) -> str:
    with pytest.raises(UserError) as caught:
        read(path)
    return str(caught.value)


def test_line_number_far_into_a_file(tmp_path):
    """Counted over blocks; the check reads the first block only and passes."""
    path = write(tmp_path / "a.txt", 6000 * (10 * b"some words " + b"\n") + b"\xc3(\n")
    check_corpus(config(path))
    assert f"{path}, line 6001: not valid UTF-8 (byte 0xc3)" in refused(path)
    path = write(tmp_path / "a.jsonl", 6000 * ('{"text": "%s"}\n' % (10 * "some words ")) + "oops\n")
    assert f"{path}, line 6001: not valid JSON" in refused(path)


def test_invalid_utf8_in_parquet(tmp_path, monkeypatch):
    """The rows are counted over batches."""
    monkeypatch.setattr(rows, "_BATCH_ROWS", 2)
    path = tmp_path / "a.parquet"
    buffers = [None, pa.py_buffer(np.arange(6, dtype=np.int32)), pa.py_buffer(b"abcd\xff")]
    pq.write_table(pa.table({"text": pa.Array.from_buffers(pa.string(), 5, buffers)}), path)
    assert f"{path}, rows 5 to 5: a value is not valid UTF-8" in refused(path)


def test_an_empty_file_beside_a_full_one_is_fine(tmp_path):
    write(tmp_path / "full.txt", "a sentence")
    for name, data in (("a.txt", ""), ("a.csv", ""), ("b.csv", "text\n"), ("a.jsonl", "")):
        write(tmp_path / name, data)
    check_corpus(config(tmp_path))
    assert read(tmp_path)[0] == ["a sentence"]


# Fingerprint


def test_fingerprint_is_of_the_content(tmp_path):
    """A copy elsewhere, or a new time of the same content, is the same corpus; another content is not."""
    path = write(tmp_path / "here/a.txt", "one")
    before = corpus_fingerprint(config(tmp_path / "here"))
    assert before == json.loads(json.dumps(before))
    os.utime(path, ns=(0, 10**18))
    write(tmp_path / "there/a.txt", "one")
    assert all(corpus_fingerprint(config(tmp_path / d)) == before for d in ("here", "there"))
    write(tmp_path / "there/a.txt", "two")
    write(tmp_path / "here/b.txt", "two")
    assert all(corpus_fingerprint(config(tmp_path / d)) != before for d in ("here", "there"))


def test_the_bundled_corpus_is_known_by_its_content(tmp_path, monkeypatch):
    monkeypatch.setattr("raysed.bundled.CORPUS", path := write(tmp_path / "corpus.txt", "One sentence.\n"))
    before = corpus_fingerprint(CorpusConfig())
    write(path, "Another one.\n")
    assert read("bundled:generated-text")[0] == ["Another one."] and corpus_fingerprint(CorpusConfig()) != before


# -- passages --------------------------------------------------------------------------------------------------------

TEXT = st.text(alphabet="ab .!?。\"'é", max_size=200).map(lambda text: " ".join(text.split()))


@given(TEXT, st.integers(5, 60))
def test_passages_are_the_text_in_turn_and_none_is_too_long(text, most):
    parts = passages(text, most)
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")
    assert all(0 < len(part) <= most and part == part.strip() for part in parts)
    assert parts == ([text] if text else []) or len(text) > most


def test_passages_end_with_sentences_where_they_can():
    sentences = [f"Sentence {index} says something." for index in range(50)]
    parts = passages(" ".join(sentences), 100)
    assert all(part.endswith("something.") for part in parts) and len(parts) < 50 / 2


def test_long_lines_become_passages_instead_of_being_skipped(tmp_path):
    long, file = "The cat sat near the tree. " * 200, tmp_path / "text.txt"
    file.write_text(f"A short line.\n{long}\n\nx\n")

    def read(**settings) -> tuple[list[str], CorpusReport]:
        report = CorpusReport()
        chunks = sentence_chunks(CorpusConfig(source=str(file), **settings), 0, report)
        return [sentence for _, chunk in chunks for sentence in chunk], report

    kept, report = read()
    assert kept == ["A short line."] and report.too_long == 1 and "passages" not in report.summary()
    kept, report = read(passage_characters=400)
    assert report.split == 1 and report.too_long == 0 and report.too_short == 1 and report.empty == 1
    assert kept[0] == "A short line." and kept[1] == " ".join(["The cat sat near the tree."] * 14)
    assert len(kept) == 3 and report.duplicates == 13  # of the same sentence again and again
    assert report.lines == report.empty + report.too_short + report.duplicates + report.usable
