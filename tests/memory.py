"""How much memory a computation takes, its kernels' own scratch space included."""

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from graft.data.graphs import make_graph


def peak_of(function):
    """The most bytes that tensors made by a function, backwards included if it goes there, take up at one time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        function()
    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    assert changes, "the profiler saw no memory at all"
    return int(np.cumsum([0, *changes]).max())


def crowded_graph(nodes=3000, pairs=560_000):
    """A graph with so many edges, over a million both ways, that nothing of edges by width can hide."""
    random = np.random.default_rng(0)
    codes = random.choice(nodes * nodes, pairs, replace=False)
    edges = np.stack([codes // nodes, codes % nodes])
    return make_graph("crowded", random.normal(size=(nodes, 4)), edges, np.zeros(nodes, int), 2)


def gather_rows(graph, width=64):
    """The negative control: one row of features for every edge."""
    return torch.zeros(graph.nodes, width)[torch.from_numpy(graph.edges[1])]
