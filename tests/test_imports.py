"""Who may import what: the rooms of the package depend on each other one way, and heavy libraries have their place."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "ray", "transformers", "deepspeed", "matplotlib", "datasets", "scipy")

RAY, DEEPSPEED = {"cluster"}, {"train"}
"""Rooms that may use these libraries. Who imports whom is held by the contracts in pyproject.toml (`make lint`)."""


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {module_name(path): ast.parse(path.read_text()) for path in sorted((ROOT / "raysed").rglob("*.py"))}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(tree: ast.AST, deep: bool) -> set[str]:
    """Modules that a module imports: when it is loaded, or anywhere in it (`deep`), but not for type checkers only."""
    found, waiting = set(), list(ast.iter_child_nodes(tree))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute in this package"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in TREES else node.module for name in names}
        elif not is_type_checking(node) and (deep or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            waiting += ast.iter_child_nodes(node)
    return found


def libraries(module: str) -> set[str]:
    return {name.split(".")[0] for name in imports(TREES[module], deep=True)}


def room(module: str) -> str:
    return module.split(".")[1]


EDGES = {
    module: {name for name in imports(tree, deep=False) if name in TREES and name not in ("raysed", module)}
    for module, tree in TREES.items()
}


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected components of more than one node (Tarjan 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in order:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == order[node]:
            members = set(stack[stack.index(node) :])
            del stack[stack.index(node) :]
            if len(members) > 1:
                found.append(members)

    for node in edges:
        if node not in order:
            visit(node)
    return found


def test_the_search_for_circles_finds_them():
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"e"}, "e": {"d"}}) == [{"d", "e"}, {"b", "c"}]


def test_no_import_goes_round_in_a_circle():
    assert len(TREES) > 20
    assert circles(EDGES) == []


@pytest.mark.parametrize("library, rooms", [("ray", RAY), ("deepspeed", DEEPSPEED)])
def test_clusters_are_the_business_of_few_rooms(library, rooms):
    """Anywhere in a module, also inside of functions; a metric that dashboards show may be sent from members only."""
    users = {room(module) for module in TREES if "." in module and library in libraries(module)}
    assert users <= rooms
    assert users, "the test looks for nothing"


def test_objectives_and_evaluation_know_nothing_of_runs():
    """They work on tensors and tables, so they can be tried in one process."""
    for module in TREES:
        if module.startswith(("raysed.train.stages.", "raysed.score.")):
            rooms = {room(name) for name in imports(TREES[module], deep=True) if name.startswith("raysed.")}
            runs = {"store", "cluster", "plan", "make", "report", "pipeline"}
            assert not rooms & runs, module


def imported_with(module: str) -> set[str]:
    """Libraries that come with a module of the package, when it is loaded."""
    reached, waiting = set(), {module}
    while waiting:
        reached.add(module := waiting.pop())
        waiting |= EDGES[module] - reached
    return {name.split(".")[0] for module in reached for name in imports(TREES[module], deep=False)}


def test_what_checks_a_run_is_imported_beside_the_start_of_ray():
    """One thread imports the one while another starts the other, so neither may wait for what the other imports."""
    checks, starts = imported_with("raysed.plan.check"), imported_with("raysed.pipeline")
    assert "torch" in checks and not checks & {"ray", "deepspeed", "datasets"}
    assert "ray" in libraries("raysed.cluster.session") and not starts & {"torch", "transformers"}


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import raysed", (*HEAVY, "numpy", "pyarrow", "pydantic")),
        (
            "import raysed.config, raysed.plan.consistency, raysed.store.storage, raysed.store.metrics, raysed.cli",
            HEAVY,
        ),
        ("import raysed.data.corpus, raysed.bundled", HEAVY),
        ("import raysed.pipeline, raysed.store.status", HEAVY),
        (
            "import raysed.cluster.watchdog, raysed.store.progress",
            ("torch", "transformers", "fsspec", "raysed.config"),
        ),
        (
            "import raysed.cluster.tuning, raysed.cluster.distilling, raysed.cluster.streaming, raysed.cluster.execute",
            ("sklearn", "scipy.stats", "matplotlib", "datasets", "deepspeed"),
        ),
    ],
)
def test_light_imports_stay_light(statement, absent):
    code = f"{statement}\nimport sys\nprint(*sorted(set({absent!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


_STATE = """
import gc, importlib, logging, os, pathlib, random, signal, sys, warnings
libraries, modules, bundled = eval(sys.argv[1]), eval(sys.argv[2]), sys.argv[3]
for name in libraries:
    importlib.import_module(name)
import numpy as np, torch, transformers

def tiny():
    config = transformers.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    return transformers.BertModel(config).eval()

tiny()(torch.ones(1, 2, dtype=torch.long))
transformers.AutoModel.from_pretrained(bundled), transformers.AutoTokenizer.from_pretrained(bundled)

def state():
    loggers = [logging.root, *(l for l in logging.root.manager.loggerDict.values() if isinstance(l, logging.Logger))]
    set_up = {l.name: (l.level, l.propagate, l.disabled, len(l.handlers), len(l.filters)) for l in loggers}
    return {
        "garbage collector": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "environment": dict(os.environ),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "oneDNN": (torch._C._get_mkldnn_enabled(), torch._C._get_onednn_allow_tf32()),
        "torch": (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_float32_matmul_precision()),
        "random numbers": (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()),
        "logging": {name: how for name, how in set_up.items() if how != (0, True, False, 0, 0)},
        "warnings": [str(one) for one in warnings.filters],
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "transformers": transformers.utils.logging.get_verbosity(),
    }

def changed(before):
    return [what for what, value in state().items() if value != before[what]]

before = state()
for name in modules:
    importlib.import_module(name)
print("importing changes", *changed(before))
from raysed.config import EncoderConfig
from raysed.model.encoder import Encoder
from raysed.model.pretrained import load_encoder
transformer = tiny()
before = state()
Encoder(transformer)
load_encoder(EncoderConfig(path="bundled:encoder"))
print("building changes", *changed(before))
"""


def test_neither_imports_nor_encoders_change_global_state():
    """Importing any module of the package and building an encoder, once the libraries have changed what they change."""
    libraries = {name for tree in TREES.values() for name in imports(tree, deep=False)} - {*TREES, "__future__"}
    arguments = [repr(sorted(names)) for names in (libraries, TREES)]
    command = [sys.executable, "-c", _STATE, *arguments, str(ROOT / "raysed/bundled/encoder")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["importing changes", "building changes"], done.stderr


def test_scripts_beside_the_package_import_what_is_there():
    """Nothing else runs all of benchmarks/ and tools/."""
    for path in (path for folder in ("benchmarks", "jobs", "papers", "tools") for path in ROOT.glob(f"{folder}/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("raysed", "papers"):
                module = importlib.import_module(node.module)
                for name in (alias.name for alias in node.names):
                    if not hasattr(module, name):
                        importlib.import_module(f"{node.module}.{name}")  # a module, or a mistake
