"""What all tests share."""

import os

import pytest
import torch

from graft.models.architecture import LayeredModel

torch.set_num_threads(1)  # toy federations are too small for threads: on a busy machine they only wait for each other
os.environ.pop("COLUMNS", None)  # set in the processes of pytest-xdist: tables are as wide as in one process

RAY_CORES = 6  # that Ray believes to have: three of `ray_pool`, three for runs of a test's own


def pytest_collection_modifyitems(items):
    """Marks tests that need a Ray cluster: they run after all others, in one process with one cluster."""
    for item in items:
        if "ray_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("ray")


@pytest.fixture
def asked_about_all(monkeypatch):
    """Models work out what they say of all nodes, even where just some are asked about, which rounds otherwise."""
    monkeypatch.setattr(LayeredModel, "supports_rows", False)


@pytest.fixture(scope="session")
def ray_cluster():
    """Ray, started once for each process that runs tests; runs with `engine="ray"` and no address use it as it is."""
    pytest.importorskip("ray")
    from graft.engines.ray import Resources, connected

    with connected("", RAY_CORES, Resources()) as ray:
        yield ray


@pytest.fixture(scope="session")
def ray_pool(ray_cluster):
    """Three workers, which a test may give clients of its own; a test that ends workers starts its own pool."""
    from graft.engines.ray import RayPool, Resources

    pool = RayPool(ray_cluster, 3, Resources())
    yield pool
    pool.close()
