"""What clients need in memory, and how they are shared out so that a budget is kept.

Three things take memory: the data of all clients and the state that they keep are there all the time, what a step makes
only while it runs. Fleets are cut into parts so that what one part makes fits into what the other two leave; state goes
to a file where it would not fit either. The numbers are estimates: docs/performance.md says how near they are.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graft.data.graphs import Graph
from graft.errors import RunError
from graft.federation.setup import Setup
from graft.machine import free_ram, peak_ram
from graft.models.architecture import LayeredModel, Model
from graft.models.gat import GAT
from graft.tensors.trees import flatten
from graft.training.optimizers import Training

FREE_SHARE = 0.75  # of what is free on the device; the rest is for other programs, and for what is estimated too low
SCORING = 0.5  # what scoring a client takes, as a share of what training it does
WORTH_A_FILE = 0.1  # state below this share of the budget stays in memory: a file would hardly help


class Need(NamedTuple):
    """Bytes that one client takes."""

    data: int  # its graph, features and labels
    state: int  # what it keeps between steps
    work: int  # what a step makes while it trains the client


class Parameters(NamedTuple):
    """How many numbers the models have that a client trains."""

    own: int
    second: int | None = None  # those of a model beside it, where that has another architecture


class Plan(NamedTuple):
    """How clients are shared out among fleets."""

    groups: list[list[int]]
    roomy: bool  # whether everything fits side by side and may stay where it is, as captured steps need
    on_disk: bool  # whether state lives in files
    too_large: list[int]  # clients that do not fit even alone


def budget(device: torch.device) -> int:
    """Returns how many bytes may be used where --memory does not say."""
    return int(FREE_SHARE * free_memory(device))


def free_memory(device: torch.device) -> int:
    """Returns how many bytes are free on a GPU, or in RAM: in a container, of what it was given."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return free_ram()


def estimate(
    graph: Graph, nodes: int, model: Model, parameters: Parameters, training: Training, views: int = 0
) -> Need:
    """Returns what a client needs in a fleet whose clients are padded to so many nodes, and with so many views of its
    graph in a step.

    Two models are counted, as most methods that do more than average have a second one beside the client's own. It
    counts as no smaller than that, since such methods keep more of it than its weights and moments.
    """
    entries = graph.edges.shape[1] + nodes  # of A + I
    # Dense features are there as they are, and propagated: once more for a model that propagates them otherwise.
    dense = 8 if parameters.second is None else 12
    features = dense * nodes * graph.features if isinstance(graph.x, np.ndarray) else 32 * graph.x.nnz
    train_share = 0.0 if graph.train is None else float(graph.train.mean())  # whose rows are kept apart too
    weight = 0 if graph.weights is None else 8  # of an edge, in A and in A + I; of a head, and its logarithm
    # Of an entry its column, its row, its value and its position.
    data = features + int((40 + weight) * entries * (1 + train_share)) + 24 * nodes
    moments = 2 if training.optimizer == "adam" and training.optimizer_state == "persistent" else 0
    both = parameters.own + max(parameters.own, parameters.second or 0)
    state = 4 * both * (1 + moments)
    width, layers = (model.width, model.hidden) if isinstance(model, LayeredModel) else (64, 2)
    heads = model.heads if isinstance(model, GAT) else 0
    # A layer keeps its output, a dropout mask, their product and one more; four live while one is worked out.
    activations = 4 * nodes * (width * (4 * layers + 4) + 6 * graph.classes)
    attention = heads * entries * (40 + weight + 8 * layers)  # the pattern head by head, and numbers for every edge
    views_share = 1 + views / 2  # a view is seen by one of the two models
    activations, attention = int(views_share * activations), int(views_share * attention)
    weights = 4 * both * 3  # as they train, their gradients, and a copy on the way
    if training.batches > 1:  # which are further graphs, and smaller ones
        data *= 2
        activations, attention = (int(size * max(SCORING, 1 / training.batches)) for size in (activations, attention))
    return Need(data, state, activations + attention + weights)


def parameters_of(model: Model) -> int:
    return sum(leaf.numel() for _, leaf in flatten(model.start(torch.Generator())))


def count_parameters(setup: Setup) -> dict[Model, Parameters]:
    """Returns how many numbers clients of every architecture of a federation train."""
    name = setup.method.second_model()
    second = setup.architecture(name) if name else None
    size = parameters_of(second) if second else None
    return {model: Parameters(parameters_of(model), None if model == second else size) for model in setup.architectures}


def plan(groups: Sequence[list[int]], needs: Sequence[Need], budget: int, participation: float) -> Plan:
    """Cuts fleets into parts that run one after the other within a budget."""
    data, state = sum(need.data for need in needs), sum(need.state for need in needs)
    largest = max(need.work for need in needs)
    roomy = data + 2 * state + sum(need.work for need in needs) <= budget  # captured steps hold state in fixed buffers
    on_disk = state > max(budget - data - largest, WORTH_A_FILE * budget)
    room = budget - data - (0 if on_disk else state)
    costs = [need.work + (need.state if on_disk else 0) for need in needs]
    busy = max(SCORING, min(1.0, 2 * participation))  # draws are uneven: now and then twice the share is in one part
    parts = [part for group in groups for part in split(group, costs, room, busy)]
    return Plan(parts, roomy, on_disk, [client for client, cost in enumerate(costs) if cost > room])


def split(group: list[int], costs: Sequence[int], room: int, busy: float) -> list[list[int]]:
    """Returns a group in parts of like size, each with no more clients than fit, and at least one."""
    fitting = max(1, int(room // (busy * max(costs[client] for client in group))))
    return [part.tolist() for part in np.array_split(group, -(-len(group) // fitting))]


def mapped_zeros(shape: Sequence[int], kind: torch.dtype) -> Tensor:
    """Returns a tensor of zeros that lives in a file: the kernel keeps in memory what is in use, and there is room for.

    The file loses its name at once, so it is gone with the tensor, whatever happens.
    """
    count = prod(shape)
    if count == 0:
        return torch.zeros(tuple(shape), dtype=kind)
    try:
        with tempfile.NamedTemporaryFile(prefix="graft-state-") as file:
            if hasattr(os, "posix_fallocate"):  # a disk that is full should say so now, not when it is written to
                os.posix_fallocate(file.fileno(), 0, count * kind.itemsize)
            return torch.from_file(file.name, shared=True, size=count, dtype=kind).view(tuple(shape))
    except OSError as error:
        raise RunError(
            f"The clients' state does not fit into memory, nor into {tempfile.gettempdir()} ({error.strerror}): set "
            "TMPDIR to a larger disk, or raise --memory."
        ) from error


def peak_memory(device: torch.device) -> int:
    """Returns the most memory this process has held: on a GPU there, else in RAM."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_ram()


@contextmanager
def enough_memory() -> Iterator[None]:
    """Turns a lack of memory into one sentence."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        lacking = isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
        if not lacking:
            raise
        raise RunError(
            "The run needs more memory than there is; fewer clients, a smaller width or more batches need less."
        ) from error
