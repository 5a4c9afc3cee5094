"""Small deterministic federations, and weights to try architectures with."""

import torch

from graft.federation.method import Method
from graft.federation.setup import Setup
from graft.tensors.trees import flatten, map_tree, stack
from graft.testing.toy import (
    CLASSES,
    SIZES,
    FinishedRounds,
    declaring,
    gap,
    run_rounds,
    run_session,
    same,
    toy_federation,
    toy_graph,
    toy_graphs,
    toy_setup,
    unbroken_and_resumed,
    with_weights,
)

__all__ = [
    "CLASSES",
    "SIZES",
    "FinishedRounds",
    "bare_fleet",
    "declaring",
    "gap",
    "random_weights",
    "run_rounds",
    "run_session",
    "same",
    "toy_federation",
    "toy_graph",
    "toy_graphs",
    "toy_setup",
    "trained_tree",
    "unbroken_and_resumed",
    "with_weights",
]


def bare_fleet(clients, graphs, model, training, seed=0):
    """Some clients as a fleet that has not started, of any model and without a method."""
    setup = Setup(Method(), "none", graphs, [model] * len(graphs), training, seed=seed)
    return setup.fleet(list(range(len(graphs))), numbers=clients)


def random_weights(model, clients=1, seed=0):
    """Different weights for every client, biases included (which start at zero in some layers)."""
    generator = torch.Generator().manual_seed(seed)
    weights = stack([model.start(generator) for _ in range(clients)])
    for path, leaf in flatten(weights):
        if path.endswith("bias"):
            leaf.uniform_(-0.5, 0.5, generator=generator)
    return weights


def trained_tree(weights):
    """A copy whose floating-point leaves want gradients, and those leaves in order."""
    tree = map_tree(lambda leaf: leaf.detach().clone().requires_grad_(leaf.is_floating_point()), weights)
    return tree, [leaf for _, leaf in flatten(tree) if leaf.requires_grad]
