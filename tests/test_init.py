"""`raysed init`: a user's text in, a config out that a run accepts."""

import re
import sys
from pathlib import Path

import pytest

from raysed import cli, pipeline
from raysed.config import load_config
from raysed.plan.check import check
from raysed.store.storage import Storage

ROOT = Path(__file__).resolve().parents[1]
GRADED = "score\tsentence1\tsentence2\n" + "".join(
    f"{n % 6}\tThe cat sat on tree {n}.\tA dog ran to tree {n}.\n" for n in range(120)
)


@pytest.fixture
def called(undone, monkeypatch, capsys, tmp_path):
    """Calls `raysed init` in an empty directory; returns the exit code, and what it said."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["raysed", "init", "--corpus", *map(str, words)])
        code = cli.main()
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def text(make_sentences, tmp_path):
    """300 sentences in words that the tiny encoder knows."""
    (tmp_path / "tickets.txt").write_text("\n".join(dict.fromkeys(make_sentences(400, 0))))
    return "tickets.txt"


def test_it_tells_what_is_there_and_ends_with_what_to_type(called, text, tmp_path):
    (tmp_path / "graded.tsv").write_text(GRADED)
    code, said, wrong = called(text, "--dev", "graded.tsv", "--output", "my config.yaml")
    assert code == 0 and not wrong
    lines = said.splitlines()
    told = [line[:11].strip() for line in lines[: lines.index("")] if line[0] != " "]
    assert told == ["corpus", "columns", "rows", "samples", "pairs", "tokens", "encoder", "warning", "written"]
    assert "graded.tsv: 120 with scores from 0 to 5, 0 without" in said
    command = "  raysed run --config 'my config.yaml'"
    assert lines[-2:] == [f"{command} --plan", command]
    assert load_config(tmp_path / "my config.yaml").evaluation.dev == "graded"


def test_the_page_shows_what_it_says(called):
    said = called("bundled:generated-text", "--dev", "bundled:generated-dev", "--task", "bundled:generated-test")[1]
    shown = re.search(r"init-output -->\n```\n(.*?)```", (ROOT / "docs/quickstart.md").read_text(), flags=re.S)[1]
    assert shown == said


def test_what_is_written_passes_the_checks_of_a_run(called, text, tmp_path, tiny_encoder_dir):
    (tmp_path / "graded.tsv").write_text(GRADED)
    for number, words in enumerate(([], ["--dev", "graded.tsv"], ["--teachers", "bundled:encoder"])):
        assert called(text, "--encoder", tiny_encoder_dir, "--output", f"{number}.yaml", *words)[0] == 0
        assert check(load_config(tmp_path / f"{number}.yaml")).needs_corpus


def test_a_file_that_is_there_stays_unless_force_is_given(called, text, tmp_path):
    (tmp_path / "raysed.yaml").write_text("mine")
    code, said, wrong = called(text)
    expected = "error: raysed.yaml already exists; name another file with --output, or overwrite it with --force\n"
    assert (code, said, wrong) == (2, "", expected)
    assert (tmp_path / "raysed.yaml").read_text() == "mine"
    assert called(text, "--force")[0] == 0 and load_config(tmp_path / "raysed.yaml").run == "tickets"


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_what_is_written_runs_to_the_end(called, text, make_sentences, tmp_path, tiny_encoder_dir):
    pairs = zip(make_sentences(120, 1), make_sentences(120, 2))
    rows = [f"{n % 6}\t{first}\t{second}" for n, (first, second) in enumerate(pairs)]
    (tmp_path / "graded.tsv").write_text("\n".join(["score\tsentence1\tsentence2", *rows]))
    assert called(text, "--dev", "graded.tsv", "--encoder", tiny_encoder_dir)[0] == 0
    small = ["corpus.sentences=64", "members.count=2", "ct.steps=4", "sed.epochs=1", "flow.epochs=1"]
    small += [
        "resources.engine=local",
        "resources.concurrent_members=1",
        "export.allow_worse=true",
        f"storage={tmp_path / 'runs'}",
    ]
    pipeline.run(load_config(tmp_path / "raysed.yaml", small))
    storage = Storage(str(tmp_path / "runs"), "tickets")
    assert '"status": "complete"' in storage.read_text("report.json")
    assert (tmp_path / "runs/tickets/model/model.safetensors").is_file()
