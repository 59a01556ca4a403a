"""Imports: light ones stay light, commands need no extra, and scripts import what is there.

The contracts in pyproject.toml say who may import whom (`make lint`).
"""

import ast
import importlib
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "ray", "transformers", "deepspeed", "matplotlib", "datasets", "scipy")
LIGHT = "config plan.consistency store.storage store.metrics store.status cli data.corpus bundled pipeline"
CLUSTER = "cluster.tuning cluster.distilling cluster.streaming runner"


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("", (*HEAVY, "numpy", "pyarrow", "pydantic")),
        (LIGHT, HEAVY),
        ("cluster.tasks store.progress", ("torch", "transformers", "fsspec", "raysed.config")),
        ("cluster.streaming", ("torch", "transformers")),
        (CLUSTER, ("sklearn", "scipy.stats", "matplotlib", "datasets", "deepspeed")),
    ],
    ids=["package", "settings", "tasks", "streaming", "cluster"],
)
def test_light_imports_stay_light(modules, absent):
    names = ", ".join(["raysed", *(f"raysed.{name}" for name in modules.split())])
    code = f"import sys, {names}\nprint(*sorted(set({absent!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


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


def test_every_dependency_is_imported():
    imported = set().union(*(_imported(ast.parse(path.read_text())) for path in ROOT.glob("raysed/**/*.py")))
    modules = {str(name).partition(".")[0] for name in imported}
    used = {dist.lower() for module, dists in packages_distributions().items() if module in modules for dist in dists}
    (block,) = re.findall(r"^dependencies = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), flags=re.M | re.S)
    needed = [Requirement(each) for each in re.findall(r'"([^"]+)",', block)]
    assert len(needed) > 10 and [each.name for each in needed if each.name.lower() not in used] == []


def test_scripts_beside_the_package_import_what_is_there():
    """Nothing else runs all of benchmarks/ and tools/."""
    for path in (path for folder in ("benchmarks", "jobs", "papers", "tools") for path in ROOT.glob(f"{folder}/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("raysed", "papers"):
                module = importlib.import_module(node.module)
                for name in (alias.name for alias in node.names):
                    if not hasattr(module, name):
                        importlib.import_module(f"{node.module}.{name}")  # a module, or a mistake


def test_only_the_script_and_its_plan_see_all_settings():
    """Elsewhere a function takes the block of settings that it needs; below plan/, nobody sees the whole."""
    sees = ("pipeline.py", "side_by_side.py", "api.py", "config.py", "plan/", "commands/")  # of a run, a comparison
    for path in sorted((ROOT / "raysed").rglob("*.py")):
        if path.relative_to(ROOT / "raysed").as_posix().startswith(sees):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [ast.unparse(each.annotation) for each in ast.walk(node.args) if getattr(each, "annotation", 0)]
                assert "Config" not in given, f"{path}: {node.name}"


def test_the_script_of_a_run_can_be_read_in_one_place():
    """It asks a run for things, and knows no engine, rank or device."""
    tree = ast.parse((ROOT / "raysed/pipeline.py").read_text())
    (script,) = [node for node in tree.body if getattr(node, "name", "") == "ensemble_then_distill"]
    assert script.end_lineno - script.lineno < 120
    words = {each.attr for each in ast.walk(script) if isinstance(each, ast.Attribute)}
    assert not words & {"engine", "rank", "world", "device", "gpu", "resources"}
