"""Any `nn.Module` with `forward(x, edge_index)`, as a fleet of one."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from graft.errors import InputError
from graft.graphs.fleet_graph import FleetGraph
from graft.models.architecture import Model, Output
from graft.models.own_inputs import GraphInputs, inputs_of
from graft.models.own_random import (
    drawing,
    generator_states,
    have_moved,
    host_bits,
    kept_generators,
    lent_generators,
    stream_dropout,
)
from graft.models.recorder import Constants, python_state, record
from graft.models.recording import Recording
from graft.models.stacked import StackedRecording
from graft.models.together import Inputs, probe_graph, stacked_recording
from graft.tensors.randomness import Stream
from graft.tensors.trees import Tree, Weights, flatten, map_tree, unflatten

Parameters = Mapping[str, Tensor]
# Where PyTorch and PyG, which is slow to import, define their normalisation layers.
NORMALISATION = (
    "torch.nn.modules.batchnorm",
    "torch.nn.modules.instancenorm",
    "torch.nn.modules.normalization",
    "torch_geometric.nn.norm.",
)


class OwnModel(Model):
    """A user's module as it is: it returns logits, or a pair of embedding and logits."""

    stackable: ClassVar[bool] = False
    name = "own"

    def __init__(self, module: nn.Module, features: int | None = None, classes: int | None = None) -> None:
        """The number of features is needed to find out whether clients can share a fleet, that of classes to refuse a
        module that returns another number of logits."""
        self.module = module
        self.features, self.classes = features, classes
        self.frozen = frozenset(name.replace(".", "/") for name, _ in module.named_buffers())
        self.normalisation = normalisation_paths(module)
        self.takes_weights = takes_edge_weight(module)
        self.not_recordable = ""  # why a pass could not be recorded
        self.not_stackable = ""  # why passes of several clients could not be made one
        self._draws: bool | None = None  # whether it draws from PyTorch's generators on a GPU; None before it has run
        self._names: dict[str, str] = {}  # of paths
        self._warned = False

    def __repr__(self) -> str:
        return repr(self.module)

    def start(self, generator: torch.Generator) -> Tree:  # noqa: ARG002
        """Returns the module's own state dict, as it was initialised by its author."""
        return unflatten(
            {name.replace(".", "/"): value.detach().clone() for name, value in self.module.state_dict().items()}
        )

    def __call__(self, weights: Weights, graph: FleetGraph, random: Stream | None = None) -> Output:
        if graph.clients > 1:
            return self._together(weights, graph, random)
        parameters = {self._name(path): leaf.squeeze(0) for path, leaf in flatten(weights)}
        inputs = inputs_of(graph)
        with self._randomness(random, inputs.edge_index.device):
            recording = self._recording(parameters, inputs, random)
            output = self._run(parameters, inputs, random) if recording is None else recording(parameters)
        embedding, logits = output if isinstance(output, tuple) else (output, output)
        self._check(logits)
        return Output(embedding.unsqueeze(0), logits.unsqueeze(0))

    def _check(self, logits: Any) -> None:
        """Refuses what cannot be logits."""
        if self.classes is None or (isinstance(logits, Tensor) and logits.shape[-1] == self.classes):
            return
        returned = f"shape {list(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise InputError(
            f"{type(self.module).__name__} should return logits of shape [nodes, {self.classes}], one a class, or a "
            f"pair of embedding and logits; it returned {returned}."
        )

    def _together(self, weights: Weights, graph: FleetGraph, random: Stream | None) -> Output:
        """Returns the outputs of several clients, at once where that is possible."""
        parameters = {self._name(path): leaf for path, leaf in flatten(weights)}
        stacked = self._stacked(parameters, graph, training=random is not None)
        if stacked is None:
            return self._one_by_one(weights, graph, random)
        if random is not None:
            random.draws += 1  # the seed that a client alone draws
        with drawing(None if random is None else stream_dropout(random, stacked=True)):
            output = stacked(parameters)
        embedding, logits = output if isinstance(output, tuple) else (output, output)
        self._check(logits)
        return Output(embedding[:, : graph.nodes], logits[:, : graph.nodes])

    def _stacked(self, parameters: Parameters, graph: FleetGraph, *, training: bool) -> StackedRecording | None:
        if self.not_stackable:
            return None
        kind = self, training, torch.is_grad_enabled(), tuple(parameters)
        try:
            return stacked_recording(self.module, self._run_on, kind, parameters, graph, training=training)
        except Exception as error:  # as for one client
            self.not_stackable = str(error) or type(error).__name__
            return None

    def _one_by_one(self, weights: Weights, graph: FleetGraph, random: Stream | None) -> Output:
        """Returns the outputs of several clients, each by itself."""
        outputs, draws = [], []
        for client in range(graph.clients):
            own = range(client, client + 1)
            part = graph.select_range(own)
            part.cacheable = graph.cacheable
            stream = None if random is None else random.select(own)
            outputs.append(self(map_tree(lambda leaf, own=own: leaf[own.start : own.stop], weights), part, stream))
            draws.append(0 if stream is None or random is None else stream.draws - random.draws)
        if random is not None:
            random.advance(draws)
        return Output(*(torch.cat(values) for values in zip(*outputs, strict=True)))

    @cached_property
    def shares_fleet(self) -> bool:
        """Returns whether several clients can be run at once, which is tried on two small graphs."""
        if self.features is None or not isinstance(self.module, nn.Module):
            return False
        graph = probe_graph(self.features, torch.device("cpu"))
        parameters = {name: value.detach().unsqueeze(0) for name, value in self.module.state_dict().items()}
        trained = {
            name: leaf.clone().requires_grad_(leaf.is_floating_point() and name.replace(".", "/") not in self.frozen)
            for name, leaf in parameters.items()
        }
        self._stacked(trained, graph, training=True)
        with torch.no_grad():
            self._stacked(parameters, graph, training=False)
        return not self.not_stackable

    def _name(self, path: str) -> str:
        return self._names.get(path) or self._names.setdefault(path, path.replace("/", "."))

    def _run(self, parameters: Parameters, inputs: GraphInputs, random: Stream | None, x: Tensor | None = None) -> Any:
        if inputs.weighted and not self.takes_weights:
            self._warn_of_weights()
        given = Inputs(inputs.x if x is None else x, inputs.edge_index, inputs.edge_weight)
        return self._run_on(parameters, given, random is not None)

    def _run_on(self, parameters: Parameters, inputs: Inputs, training: bool) -> Any:
        """Runs the module itself."""
        self.module.train(training)
        weighted = inputs.edge_weight is not None and self.takes_weights
        keywords = {"edge_weight": inputs.edge_weight} if weighted else {}
        return torch.func.functional_call(self.module, dict(parameters), (inputs.x, inputs.edge_index), keywords)

    def _warn_of_weights(self) -> None:
        if not self._warned:
            self._warned = True
            warn_of_weights(self.module)

    def _recording(self, parameters: Parameters, inputs: GraphInputs, random: Stream | None) -> Recording | None:
        """Returns the recorded pass on a graph, made when the graph is first seen; None where there can be none."""
        if not inputs.lasting or self.not_recordable:
            return None
        kind = self, random is not None, torch.is_grad_enabled(), tuple(parameters)
        if kind in inputs.recordings:
            return inputs.recordings[kind]
        if inputs.edge_index.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        x = inputs.dense()
        given = [x, inputs.edge_index, *([] if inputs.edge_weight is None else [inputs.edge_weight])]
        sparse = {} if inputs.sparse is None else {id(x): inputs.sparse}
        try:
            with kept_generators(x.device):
                inputs.recordings[kind] = record(
                    self.module,
                    lambda parameters: self._run(parameters, inputs, random, x),
                    parameters,
                    Constants([*given, *self._unsaved_buffers()], sparse),
                    random,
                )
        except Exception as error:  # a module may do anything; what is wrong with it is said by running it
            self.not_recordable = str(error) or type(error).__name__
        return inputs.recordings.get(kind)

    def _unsaved_buffers(self) -> list[Tensor]:
        saved = self.module.state_dict()
        return [buffer for name, buffer in self.module.named_buffers() if name not in saved]

    @contextmanager
    def _randomness(self, random: Stream | None, device: torch.device) -> Iterator[None]:
        """Has the module draw what belongs to this client and step.

        On a GPU a seed for PyTorch's generators can only be waited for, so a module that does not need one gets none.
        """
        if random is None:
            yield
            return
        draw = drawing(stream_dropout(random))
        if device.type == "cpu":
            with lent_generators(device, host_bits(random)), draw:
                yield
        elif self._draws is False:
            random.draws += 1  # the seed
            with draw:
                yield
        else:
            with lent_generators(device, int(random.bits(1))), draw:
                seeded = generator_states(device)
                yield
                self._draws = bool(self._draws) or have_moved(device, seeded)

    def host_state(self) -> Any:
        return python_state(self.module)


def normalisation_paths(module: nn.Module) -> frozenset[str]:
    """Returns the paths of all that normalisation layers of a module keep, buffers included: layers are told by their
    classes, or those that these inherit from, whatever they are called in the module."""
    prefixes = tuple(f"{name}." for name, layer in module.named_modules() if name and normalises(layer))
    return frozenset(name.replace(".", "/") for name in module.state_dict() if name.startswith(prefixes))


def normalises(layer: nn.Module) -> bool:
    return any(base.__module__.startswith(NORMALISATION) for base in type(layer).__mro__)


def takes_edge_weight(module: nn.Module) -> bool:
    """Returns whether a module can be given the weights of edges; PyG's models take them where their layers do."""
    return "edge_weight" in inspect.signature(module.forward).parameters and getattr(
        module, "supports_edge_weight", True
    )


def warn_of_weights(module: nn.Module) -> None:
    """Warns that a module does not see the weights of edges."""
    warnings.warn(
        f"{type(module).__name__} takes no edge_weight in its forward pass, so it does not see the weights of edges.",
        RuntimeWarning,
        stacklevel=2,
    )
