"""The workers of the tests' Ray."""

import sys

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
