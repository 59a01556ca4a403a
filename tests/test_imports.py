"""Imports: light ones stay light, and scripts import what is there.

The contracts in pyproject.toml say who may import whom (`make lint`).
"""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "ray", "transformers", "deepspeed", "matplotlib", "datasets", "scipy")
LIGHT = "config plan.consistency store.storage store.metrics store.status cli data.corpus bundled pipeline"
CLUSTER = "cluster.tuning cluster.distilling cluster.streaming cluster.execute"


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("", (*HEAVY, "numpy", "pyarrow", "pydantic")),
        (LIGHT, HEAVY),
        ("cluster.watchdog store.progress", ("torch", "transformers", "fsspec", "raysed.config")),
        (CLUSTER, ("sklearn", "scipy.stats", "matplotlib", "datasets", "deepspeed")),
    ],
    ids=["package", "settings", "watchdog", "cluster"],
)
def test_light_imports_stay_light(modules, absent):
    names = ", ".join(["raysed", *(f"raysed.{name}" for name in modules.split())])
    code = f"import sys, {names}\nprint(*sorted(set({absent!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_scripts_beside_the_package_import_what_is_there():
    """Nothing else runs all of benchmarks/ and tools/."""
    for path in (path for folder in ("benchmarks", "jobs", "papers", "tools") for path in ROOT.glob(f"{folder}/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("raysed", "papers"):
                module = importlib.import_module(node.module)
                for name in (alias.name for alias in node.names):
                    if not hasattr(module, name):
                        importlib.import_module(f"{node.module}.{name}")  # a module, or a mistake
