"""Small graphs for the tests of the data layer."""

import itertools
import os

import numpy as np
import pytest

from graft.data.graphs import make_graph


def make_toy(nodes, edges, labels=None, classes=None, **masks):
    """A graph whose first feature is the node's own number, so that a node can be recognised after a cut."""
    x = np.stack([np.arange(nodes), np.ones(nodes)], axis=1)
    y = np.arange(nodes) % 2 if labels is None else labels
    return make_graph("toy", x, np.array(edges, int).reshape(-1, 2).T, y, classes, masks)


def make_cliques(*groups):
    return [pair for group in groups for pair in itertools.combinations(group, 2)]


@pytest.fixture
def toy():
    return make_toy


@pytest.fixture
def cliques():
    return make_cliques


@pytest.fixture
def real_data():
    if not os.environ.get("GRAFT_DATA"):
        pytest.skip("GRAFT_DATA does not name a folder with datasets")
