"""The clients of one user's module as a fleet: their recordings are stacked, if the module allows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from graft.data.graphs import make_graph
from graft.graphs.fleet_graph import FleetGraph, build_fleet_graph
from graft.models.own_random import drawing, kept_generators, stream_dropout
from graft.models.recorder import Constants, NotRecordable, again, are_close, copies, gradients, record, tensors_in
from graft.models.recording import Recording
from graft.models.stacked import StackedRecording, stack_recordings
from graft.tensors.randomness import Stream
from graft.tensors.sparse import BlockSparse

Parameters = Mapping[str, Tensor]
DUMMIES = 2  # nodes that every client gets, for edges that are none
KEPT: WeakKeyDictionary[FleetGraph, dict[Any, StackedRecording]] = WeakKeyDictionary()


class Inputs(NamedTuple):
    """What a module is given of one client's graph."""

    x: Tensor
    edge_index: Tensor
    edge_weight: Tensor | None


Run = Callable[[Parameters, Inputs, bool], Any]  # of a module, with inputs, in training mode or not


def stacked_recording(
    module: nn.Module, run: Run, kind: Any, parameters: Parameters, graph: FleetGraph, *, training: bool
) -> StackedRecording | None:
    """Returns the recording for all clients of a graph; None where the graph does not last, or a GPU is captured.

    Of parameters, which have a client axis, those of the first client are used.
    """
    kept = KEPT.setdefault(graph, {})
    if kind not in kept:
        if graph.sizes.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        if graph.cacheable:
            first = {name: leaf[0] for name, leaf in parameters.items()}
            kept[kind] = make_stacked(module, run, first, graph, training=training)
        elif graph._source is not None and graph._source[0].cacheable:
            source, rows = graph._source
            whole = stacked_recording(module, run, kind, parameters, source, training=training)
            assert whole is not None
            chosen = list(range(source.clients)[rows]) if isinstance(rows, slice) else rows
            kept[kind] = whole.select(chosen)
        else:
            return None
    return kept[kind]


def make_stacked(
    module: nn.Module, run: Run, one: Parameters, graph: FleetGraph, *, training: bool
) -> StackedRecording:
    """Records the passes of all clients and stacks them, or says why that cannot be done."""
    clients, device = range(graph.clients), graph.sizes.device
    random = Stream(torch.arange(1, graph.clients + 1, device=device)) if training else None

    def run_in_mode(trial: Parameters, inputs: Inputs) -> Any:
        return run(trial, inputs, training)

    with kept_generators(device):
        try:
            recordings = record_clients(module, run_in_mode, one, graph, random, seek_sparse=True)
            stacked = stack_recordings(recordings, graph.nodes + DUMMIES)
        except NotRecordable:  # what is mostly empty for one client need not be so for another
            recordings = record_clients(module, run_in_mode, one, graph, random, seek_sparse=False)
            stacked = stack_recordings(recordings, graph.nodes + DUMMIES)
        trained = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        others = [copies(one, negated=trained, scale=1 + 0.1 * client) for client in clients]
        check_stacked(stacked, run_in_mode, others, graph, random)
    return stacked


def record_clients(
    module: nn.Module,
    run: Callable[[Parameters, Inputs], Any],
    one: Parameters,
    graph: FleetGraph,
    random: Stream | None,
    *,
    seek_sparse: bool,
) -> list[Recording]:
    """Returns the recording of every client on its padded graph."""
    saved = module.state_dict()
    buffers = [buffer for name, buffer in module.named_buffers() if name not in saved]
    recordings = []
    for client in range(graph.clients):
        inputs, sparse = padded_inputs(graph, client)
        given = [part for part in inputs if part is not None]
        matrices = {} if sparse is None else {id(inputs.x): sparse}
        own = None if random is None else random.select(range(client, client + 1))
        recordings.append(
            record(
                module,
                bound(run, inputs),
                one,
                Constants([*given, *buffers], matrices, seek_sparse),
                own,
                check=False,
            )
        )
    return recordings


def bound(run: Callable[[Parameters, Inputs], Any], inputs: Inputs) -> Callable[[Parameters], Any]:
    """Returns how a module is run on some inputs."""
    return lambda parameters: run(parameters, inputs)


def check_stacked(
    stacked: StackedRecording,
    run: Callable[[Parameters, Inputs], Any],
    parameters: list[dict[str, Tensor]],
    graph: FleetGraph,
    random: Stream | None,
) -> None:
    """Refuses a stacked recording that does not give every client what the module gives it by itself, unpadded."""
    sizes = graph.sizes.tolist()
    together = {
        name: torch.stack([own[name].detach() for own in parameters]).requires_grad_(leaf.requires_grad)
        for name, leaf in parameters[0].items()
    }
    with drawing(None if random is None else stream_dropout(again(random), stacked=True)):
        outputs = tensors_in(stacked(together))
    real = [output[client, :size] for output in outputs for client, size in enumerate(sizes)]
    leaves = [leaf[client] for leaf in gradients(real, list(together.values())) for client in range(len(sizes))]
    wanted, slopes = [], []
    for client, own in enumerate(parameters):
        part = None if random is None else again(random.select(range(client, client + 1)))
        with drawing(None if part is None else stream_dropout(part)):
            alone = tensors_in(run(own, unpadded_inputs(graph, client)))
        wanted.append(alone)
        slopes.append(gradients(alone, list(own.values())))
    in_order = [alone[index] for index in range(len(outputs)) for alone in wanted]
    slopes_in_order = [own[index] for index in range(len(slopes[0])) for own in slopes]
    buffers = any(
        not torch.equal(leaf, torch.stack([own[name] for own in parameters]))
        for name, leaf in together.items()
        if not leaf.requires_grad
    )
    if buffers or not are_close(in_order, real) or not are_close(slopes_in_order, leaves):
        raise NotRecordable("what it gives for a node depends on nodes that are not connected with it")


def client_inputs(graph: FleetGraph, client: int) -> Inputs:
    """Returns the features of all nodes of one client, padding included, and its edges."""
    entries = graph.neighbours.entries_of([client])
    rows, columns = graph.neighbours.row_of[entries], graph.neighbours.columns[entries].long()
    weights = None if graph.neighbours.values is None else graph.neighbours.values[entries]
    edge_index = torch.stack([rows, columns]) - client * graph.nodes
    features = graph.features
    x = features[client] if isinstance(features, Tensor) else features.select([client]).dense()[0]
    return Inputs(x, edge_index, weights)


def unpadded_inputs(graph: FleetGraph, client: int) -> Inputs:
    """Returns what one client's module would be given if it were alone."""
    inputs = client_inputs(graph, client)
    return inputs._replace(x=inputs.x[: int(graph.sizes[client])])


def padded_inputs(graph: FleetGraph, client: int) -> tuple[Inputs, BlockSparse | None]:
    """Returns the inputs of one client with as many nodes and edges as any has, and two nodes more, which those edges
    join that are none; and its features, if they are sparse, as such.

    Not one node: layers take self-loops away.
    """
    x, edge_index, weights = client_inputs(graph, client)
    most = int(graph.neighbours._bounds.diff().max())
    missing = most - edge_index.shape[1]
    dummies = torch.tensor([[graph.nodes], [graph.nodes + 1]], device=edge_index.device).expand(2, missing)
    edge_index = torch.cat([edge_index, dummies], dim=1)
    weights = None if weights is None else functional.pad(weights, (0, missing), value=1.0)
    sparse = None
    if isinstance(graph.features, BlockSparse):
        own = graph.features.select([client])
        starts = torch.cat([own.starts, own.starts[-1:].expand(DUMMIES)])
        sparse = BlockSparse(starts, own.columns, own.values, 1, (own.rows + DUMMIES, own.width))
    return Inputs(functional.pad(x, (0, 0, 0, DUMMIES)), edge_index, weights), sparse


def probe_graph(features: int, device: torch.device) -> FleetGraph:
    """Returns the graphs of two made-up clients, on which a module is tried."""
    random = np.random.default_rng(0)
    graphs = [
        make_graph(
            "probe",
            random.normal(size=(nodes, features)).astype(np.float32),
            random.integers(0, nodes - 1, (2, 2 * nodes)),
            np.arange(nodes) % 2,
            2,
        )
        for nodes in (9, 6)
    ]
    return build_fleet_graph(graphs, device)
