"""Faults to plant from outside: a cluster that loses nodes, a job in a process of its own, and ways to hit its parts.

Faults are timed by what a run has written, not by the clock, so that a slow machine tests the same.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import load_file
from started_jobs import artefact

from raysed.store.storage import Storage

ROOT = Path(__file__).resolve().parent.parent

SETTINGS: dict[str, Any] = {
    "run": "run",
    "recipes": ["ct-sed-flow"],
    "corpus": {"source": "bundled:generated-text", "sentences": 1200},
    "evaluation": {
        "tasks": {f"generated-{name}": f"bundled:generated-{name}" for name in ("dev", "test")},
        "dev": "generated-dev",
        "pool_layers": [2],
    },
    "export": {"allow_worse": True},
    "members": {"count": 3, "evaluate_every": 20, "checkpoint_every": 5, "max_retries": 0},
    "ct": {"steps": 40, "schedule": "scaled", "learning_rates": [1e-4] * 5},
    "sed": {
        "epochs": 2,
        "learning_rate": 1e-3,
        "precision": "fp32",
        "checkpoint_every": 5,
        "evaluate_every": 25,
        "max_retries": 0,
    },
}
"""40 updates of each member, 74 of the learner; every loss that is not followed by a new checkpoint ends the run. In
bf16, where a processor has it, learners of other numbers of workers would be further apart than fp32 rounds."""


class Nodes:
    """A Ray cluster on this machine: a head that works for nobody, and workers of one CPU that come and go."""

    def __init__(self, workers: int):
        self._workers = workers

    def __enter__(self) -> "Nodes":
        from ray.cluster_utils import Cluster

        head: dict[str, Any] = {"num_cpus": 0, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(self._workers):
            self.add()
        return self

    def __exit__(self, *error: object) -> None:
        self.cluster.shutdown()

    @property
    def address(self) -> str:
        return self.cluster.address

    def add(self) -> Any:
        """Adds a worker."""
        return self.cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)

    def of(self, pid: int) -> Any:
        """Returns the node that a worker process belongs to."""
        return next(node for node in self.cluster.worker_nodes if _parent(pid) == _raylet(node))

    def workers_called(self, title: str) -> list[int]:
        """Returns the worker processes of this cluster whose title starts so."""
        raylets = {_raylet(node) for node in self.cluster.list_all_nodes()}
        return [pid for pid in _processes() if _parent(pid) in raylets and _title(pid).startswith(title)]

    def lose(self, node: Any) -> None:
        """Ends a node and all of its processes at once, as when a machine is switched off."""
        children = Path(f"/proc/{_raylet(node)}/task/{_raylet(node)}/children").read_text().split()
        self.cluster.remove_node(node, allow_graceful=False)
        for pid in children:
            kill(int(pid))

    def give_notice(self, node: Any, seconds: float) -> None:
        """Tells Ray that a node will be taken away, as a cloud does with its spot machines."""
        import ray
        from ray.core.generated import autoscaler_pb2

        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        client = ray._raylet.GcsClient(address=self.address)
        accepted, why = client.drain_node(node.node_id, reason, "preempted", int(1000 * (time.time() + seconds)))
        assert accepted, why


def _parent(pid: int) -> int:
    """The process that started another one; 0 where that is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _raylet(node: Any) -> int:
    return node.all_processes["raylet"][0].process.pid


class Job:
    """`jobs/ensemble_then_distill.py` in a process of its own, on a cluster."""

    def __init__(self, directory: Path, address: str, **changes: Any):
        self.run = directory / "run"
        self._storage = Storage(str(directory), "run")
        self._log = directory / "job.log"
        config = directory / "config.yaml"
        blocks = {
            key: {**SETTINGS.get(key, {}), **value} if isinstance(value, dict) else value
            for key, value in changes.items()
        }
        config.write_text(yaml.safe_dump({**SETTINGS, **blocks, "storage": self._storage.location}))
        self._command = [sys.executable, "-u", "jobs/ensemble_then_distill.py", "--config", str(config)]
        self._environment = {**os.environ, "RAY_ADDRESS": address}
        self.start()

    def start(self) -> None:
        """Starts the same command, for the first time or again."""
        with self._log.open("a") as log:
            self.process = subprocess.Popen(self._command, cwd=ROOT, env=self._environment, stdout=log, stderr=log)

    def stop(self, number: signal.Signals) -> None:
        """Ends the driver by a signal, and waits for it."""
        self.process.send_signal(number)
        self.process.wait(60)

    def output(self) -> str:
        """Returns what it has printed so far, over all starts."""
        return self._log.read_text()

    def end(self, seconds: float = 400) -> None:
        """Waits for a good end."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = "a hang"
        assert code == 0, f"the job ended with {code}:\n{self.output()[-5000:]}"

    def wait_until(self, condition: Callable[[], Any], what: str, seconds: float = 300) -> Any:
        """Waits for something to be true while the job runs; returns it."""
        until = time.monotonic() + seconds
        while not (found := condition()):
            if self.process.poll() is not None or time.monotonic() > until:
                self.process.kill()
                raise AssertionError(f"never came: {what}\n{self.output()[-5000:]}")
            time.sleep(0.02)
        return found

    def wait_for_step(self, training: str, step: int) -> int:
        """Waits until a training has logged a step; returns the process that trains it."""
        self.wait_until(lambda: self.step(training) >= step, f"step {step} of {training}")
        return self.wait_until(lambda: self.writer_of(training), f"the process of {training}")

    def wait_for_step_beyond(self, training: str, step: int) -> None:
        """Waits until a training that was stopped at a step has started again and come further."""
        self.wait_until(lambda: self.step(training) < step, f"a new start of {training}")  # the log begins anew
        self.wait_until(lambda: self.step(training) > step, f"step {step + 1} of {training}")

    def step(self, training: str) -> int:
        """Returns the last step that a training has logged."""
        path = self.run / "logs" / training / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return json.loads(lines[-1])["step"] if lines and lines[-1].endswith("}") else 0

    def writer_of(self, training: str) -> int | None:
        """Returns the process that has a training's log open."""
        log = str(self.run / "logs" / training / "metrics.jsonl")
        return next((pid for pid in _processes() if log in _open_files(pid)), None)

    def entry(self, name: str) -> dict[str, Any] | None:
        """Returns an artefact's entry in the manifest, if it is there."""
        path = self.run / "manifest" / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def digest(self, name: str, place: str = "") -> str:
        """Returns the checksum of an artefact's weights, which may be in a directory of it."""
        return hashlib.sha256((self._storage.fetch(name) / place / "model.safetensors").read_bytes()).hexdigest()

    def weights(self, name: str) -> dict[str, Any]:
        """Returns an artefact's tensors."""
        return load_file(artefact(self.run, name) / "model.safetensors")

    def left_behind(self) -> list[str]:
        """Returns temporary files and checkpoints that a finished run should not have."""
        return list(self._storage.plain.sizes_below("checkpoints"))


def freeze(pid: int) -> None:
    """Stops a process, which stays what it is."""
    os.kill(pid, signal.SIGSTOP)


def kill(pid: int) -> None:
    """Ends a process at once, if it is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _processes() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _open_files(pid: int) -> list[str]:
    try:
        return [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:  # it has ended meanwhile, or is somebody else's
        return []
