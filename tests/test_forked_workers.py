"""The workers of the tests' Ray."""

import subprocess
import sys
from pathlib import Path

import pytest
import ray

from forked_workers import IMPORTED


@pytest.mark.cluster
def test_workers_have_imported_what_all_import(ray_cluster):
    """Else the suite takes far longer: a name of that list cannot be imported, or Ray starts workers in another way."""

    @ray.remote
    def missing(names):
        return [name for name in names if name not in sys.modules]

    assert ray.get(missing.remote(IMPORTED)) == []


FORKS = """
import os, threading
from ray._raylet import ObjectID
from forked_workers import draw_ids

ObjectID.from_random()  # as imports may have done
for _ in range(3):
    draw_ids()
    if os.fork() == 0:
        show = lambda: print(ObjectID.from_random().hex(), flush=True)
        show()
        for _ in range(10):
            thread = threading.Thread(target=show)
            thread.start()
            thread.join()
        os._exit(0)
    os.wait()
"""


def test_no_two_workers_draw_the_same_ids():
    """Neither in their main threads nor in the first, second or tenth thread that they start."""
    here = Path(__file__).parent
    found = subprocess.run([sys.executable, "-c", FORKS], cwd=here, capture_output=True, text=True, check=True).stdout
    assert len(set(found.split())) == len(found.split()) == 33
