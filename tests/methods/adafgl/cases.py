"""Graphs by hand that the tests of AdaFGL share."""

import numpy as np

from graft.data.graphs import make_graph
from graft.methods.adafgl import AdaFGL
from tests.toy import toy_setup

SOON = AdaFGL(extractor_share=0.01)  # one round of the first step


def linked(edges, classes, train=None):
    """A graph by hand, of two classes; all of its nodes train unless told otherwise."""
    nodes = len(classes)
    train = np.ones(nodes, bool) if train is None else np.isin(np.arange(nodes), train)
    masks = {"train": train, "validation": ~train, "test": ~train}
    pairs = np.asarray(edges, int).reshape(-1, 2).T
    return make_graph("hand", np.eye(nodes, 4), pairs, np.asarray(classes), 2, masks)


def cliques():
    """Two cliques of four nodes, each of one class."""
    return linked([(a + s, b + s) for s in (0, 4) for a in range(4) for b in range(a)], [0] * 4 + [1] * 4)


def bipartite():
    """Four nodes of one class, each linked to four of the other."""
    return linked([(a, b) for a in range(4) for b in range(4, 8)], [0] * 4 + [1] * 4)


def fleet_of(*graphs, method=SOON, **settings):
    fleet = toy_setup(method, graphs=list(graphs), **settings).fleet(list(range(len(graphs))))
    method.start_client(fleet)
    return fleet
