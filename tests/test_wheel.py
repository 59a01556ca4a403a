"""What is installed runs alone: a wheel of the project has all that a run reads."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

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
    return ended(*command, **where).stdout


def ended(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None):
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_an_installed_wheel_runs_the_quickstart_outside_of_the_repository(installed, tmp_path):
    """Its first stages, a calibration, a learner, report and export. Nothing of Ray is imported."""
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    outside = {"cwd": tmp_path, "env": {**environment, "PYTHONPATH": str(installed)}}
    short = ("recipes=[base-whiten, teachers-sed]", "teachers=[bundled:encoder]", "sed.epochs=0.2", "sed.learners=1")
    short += ("corpus.sentences=300", "evaluation.pool_layers=[1]", "export.allow_worse=true", "resources.engine=local")
    overrides = [part for setting in short for part in ("--set", setting)]
    traced = (sys.executable, "-X", "importtime", installed / "bin/raysed")
    done = ended(*traced, "run", "--run", "first", *overrides, **outside)
    assert "base + whiten" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    unwanted = {"ray", *["deepspeed"] * (find_spec("accelerate") is None)}  # accelerate, of `make bench`, imports it
    assert {"torch", "raysed.pipeline"} <= imported and not unwanted & imported
    for name in ("report.md", "report.json", "model/README.md", "model/model.safetensors"):
        assert (tmp_path / "runs/first" / name).is_file()


SMALL = """
import raysed
from raysed import bundled
from raysed.errors import UserError

pairs = [(first, second, score) for score, first, second in bundled.pairs("dev")[:100]]
options = dict(keep_layers=1, dev=pairs, settings={"sed": {"epochs": 1}, "export": {"allow_worse": True}})
result = raysed.distill("bundled:encoder", bundled.corpus()[:300], **options)
print(result.model.encode("It rains.").shape)
for settings in ({"resources": {"engine": "ray"}}, {"corpus": {"source": "someone/text"}}):
    try:
        raysed.distill("bundled:encoder", settings=options["settings"] | settings, dev=pairs, run="other")
    except UserError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_distillation_needs_no_extra(installed, tmp_path):
    """In an environment of links to all that is installed here, but for the libraries of the extras."""
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.match(r"(ray|deepspeed|datasets)\b", path.name):
            (tmp_path / "installed").mkdir(exist_ok=True)
            (tmp_path / "installed" / path.name).symlink_to(path)
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment["PYTHONPATH"] = f"{installed}{os.pathsep}{tmp_path / 'installed'}"
    said = called(sys.executable, "-S", "-c", SMALL, cwd=tmp_path, env=environment)
    shape, ray, hub = said.splitlines()
    assert shape == "(192,)"
    assert re.fullmatch(r"resources.engine: ray needs ray, which is not installed: run pip install '.*\[ray]'", ray)
    assert hub.startswith("corpus.source: there is no file 'someone/text'; ") and hub.endswith("[datasets]'")
    assert "<svg" in (tmp_path / "runs/distilled/report.html").read_text()
