"""Federations whose embeddings are their features, so that prototypes can be worked out by hand."""

import numpy as np
import torch

from graft.data.graphs import make_graph
from graft.models.architecture import Model, Output, linear
from graft.tensors.trees import Tree
from tests.toy import toy_setup


class Mirror(Model):
    """Its embeddings are the features, times a weight that is 1; its classifier always says class 0."""

    name = "mirror"

    def __init__(self, classes, features=2):
        self.classes, self.features = classes, features

    def start(self, generator):  # noqa: ARG002
        head = Tree(weight=torch.zeros(self.features, self.classes), bias=-torch.arange(float(self.classes)))
        return Tree(scale=torch.ones(1), head=head)

    def __call__(self, weights, graph, random=None):  # noqa: ARG002
        features = graph.features if isinstance(graph.features, torch.Tensor) else graph.features.dense()
        embedding = features * weights["scale"].unsqueeze(2)
        return Output(embedding, linear(embedding, weights["head"]))


def hand_graph(points, classes, total, train=None):
    """Nodes at some points with their classes; all of them train unless told otherwise."""
    points = np.asarray(points, dtype=np.float32)
    train = np.ones(len(points), bool) if train is None else np.asarray(train, bool)
    masks = {"train": train, "validation": ~train, "test": ~train}
    return make_graph("hand", points, np.empty((2, 0), int), np.asarray(classes), total, masks)


def mirror_setup(method, graphs, **training):
    """Clients that hold these graphs and do not train unless told to."""
    model = Mirror(graphs[0].classes, graphs[0].features)
    return toy_setup(method, len(graphs), model, graphs=graphs, **({"epochs": 0} | training))


def known(prototypes, present=None):
    """Prototypes as one client receives them."""
    prototypes = torch.tensor(prototypes, dtype=torch.float32)
    present = torch.ones(len(prototypes)).bool() if present is None else torch.tensor(present)
    return Tree(prototypes=prototypes.unsqueeze(0), present=present.unsqueeze(0))
