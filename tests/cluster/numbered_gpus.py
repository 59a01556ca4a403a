"""GPUs that are numbers only: Ray hands them out as if they were there, and CPUs do their work."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import ray
from ray.train.torch import TorchConfig


def compute_on_cpus(replace: Callable[..., Any] = setattr) -> None:
    """Has this process compute on CPUs what it has a GPU for; Ray's workers call this as they start."""
    from raysed.resources import Share, device_here

    replace(device_here, "__code__", (lambda gpu=None: "cpu").__code__)  # wherever it was imported to
    replace(Share, "device", "cpu")


@contextmanager
def ray_head(cpus: int, gpus: int) -> Iterator[str]:
    """A Ray on this machine that belongs to no program; gives its address."""
    place = Path(os.path.realpath(tempfile.mkdtemp(prefix="r")))  # few letters: Ray's sockets are below it
    environment = {**os.environ, "RAY_TMPDIR": str(place), "RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    options = [
        f"--object-store-memory={300 * 2**20}",
        "--block",
        "--port=0",
        f"--num-cpus={cpus}",
        f"--num-gpus={gpus}",
        "--include-dashboard=false",
    ]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", *options]
    said = place / "said"
    with said.open("w") as log:
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        until = time.monotonic() + 200
        while "Ray runtime started" not in said.read_text():
            assert head.poll() is None and time.monotonic() < until, said.read_text()
            time.sleep(0.1)
        yield (place / "ray/ray_current_cluster").read_text().strip()
    finally:
        head.send_signal(signal.SIGTERM)  # it ends Ray's processes before itself
        head.wait(60)
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def joined(address: str, *modules: ModuleType) -> Iterator[None]:
    """This process is a program of that Ray, which RAY_ADDRESS names, too; workers get `modules` by value."""
    modules = (*modules, sys.modules[__name__])
    init = TorchConfig.__init__  # of Train's backend, which the program chooses: nccl needs a GPU
    hook = {"worker_process_setup_hook": compute_on_cpus}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", address)
        patch.setattr(TorchConfig, "__init__", lambda config, **about: init(config, **{**about, "backend": "gloo"}))
        compute_on_cpus(patch.setattr)
        for module in modules:
            ray.cloudpickle.register_pickle_by_value(module)
        ray.init(address, runtime_env=hook, logging_level=logging.ERROR, log_to_driver=False)
        yield
        ray.shutdown()
        for module in modules:
            ray.cloudpickle.unregister_pickle_by_value(module)
