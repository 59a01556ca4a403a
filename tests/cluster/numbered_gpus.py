"""GPUs that are numbers only: Ray hands them out as if they were there, and CPUs do their work."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.train.torch import TorchConfig


def compute_on_cpus(replace: Callable[..., Any] = setattr) -> None:
    """Has this process compute on CPUs what it has a GPU for; Ray's workers call this as they start."""
    from raysed.resources import Share, device_here

    replace(device_here, "__code__", (lambda gpu=None: "cpu").__code__)  # wherever it was imported to
    replace(Share, "device", "cpu")


@contextmanager
def ray_head(cpus: int, gpus: int) -> Iterator[str]:
    """A Ray on this machine that belongs to no program; gives its address."""
    options = {"num_cpus": cpus, "num_gpus": gpus, "object_store_memory": 300 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=options)
    yield cluster.address
    cluster.shutdown()


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
