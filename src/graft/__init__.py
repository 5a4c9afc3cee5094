"""Graft: graph federated training. docs/api.md lists every public name."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from graft.data import DATASETS
    from graft.data.client_graphs import Federation
    from graft.data.datasets import load
    from graft.data.federation import FederationData
    from graft.data.graphs import Graph, make_graph
    from graft.data.lazy_graphs import ClientGraphs
    from graft.data.shards import ShardedGraphs, write_shards
    from graft.engines.in_process import InProcess
    from graft.errors import DataWarning, GraftError, InputError, MemoryWarning, RunError
    from graft.experiments.build import build_federation, build_setup
    from graft.experiments.callbacks import Callback, RunStart
    from graft.experiments.experiment import Experiment, make_experiment
    from graft.experiments.experiment_settings import ExperimentSettings
    from graft.experiments.load_result import load_result
    from graft.experiments.prediction import ClientModel
    from graft.experiments.predictions import Predictions
    from graft.experiments.result import Result
    from graft.experiments.run import resume, run
    from graft.experiments.sweep.sweep import Sweep, sweep
    from graft.experiments.trackers.mlflow import MLflow
    from graft.experiments.trackers.tensorboard import TensorBoard
    from graft.experiments.trackers.wandb import WandB
    from graft.experiments.tuning.tune import tune
    from graft.experiments.tuning.tuning import Tuning
    from graft.experiments.verdicts import Verdict
    from graft.federation.clients import Clients, Replies
    from graft.federation.fleet import Fleet
    from graft.federation.method import Method, Placement, step
    from graft.federation.peers import (
        PeerMethod,
        Peers,
        draw_peers,
        equal_links,
        everyone_else,
        heard_mask,
        mix_models,
    )
    from graft.federation.plug import Plug, aggregated, replace_aggregated
    from graft.federation.reveals import MODEL, NODES, VOTE, Reveals
    from graft.federation.server import Server
    from graft.federation.session import Session
    from graft.federation.topologies import Topology
    from graft.fields import Search
    from graft.graphs.fleet_graph import FleetGraph
    from graft.methods import METHODS, PLUGS
    from graft.models import FAMILIES, MODELS
    from graft.models.architecture import (
        LayeredModel,
        Model,
        Output,
        add_bias,
        glorot,
        linear,
        project,
        propagate,
        start_linear,
    )
    from graft.models.build import build_model
    from graft.tensors.randomness import Stream, index_tensor
    from graft.tensors.trees import (
        Tree,
        Weights,
        broadcast_tree,
        count_bytes,
        flatten,
        map_tree,
        select_clients,
        squared_distance,
        stack,
        unflatten,
        weighted_mean,
    )
    from graft.training.losses import divergence, log_softmax, mean_over
    from graft.training.optimizers import Training

# Where the public names are; they are imported when they are first used, so that help need not wait for PyTorch.
_MODULES = {
    "data": ("DATASETS",),
    "data.client_graphs": ("Federation",),
    "data.datasets": ("load",),
    "data.federation": ("FederationData",),
    "data.graphs": ("Graph", "make_graph"),
    "data.lazy_graphs": ("ClientGraphs",),
    "data.shards": ("ShardedGraphs", "write_shards"),
    "engines.in_process": ("InProcess",),
    "errors": ("DataWarning", "GraftError", "InputError", "MemoryWarning", "RunError"),
    "experiments.build": ("build_federation", "build_setup"),
    "experiments.callbacks": ("Callback", "RunStart"),
    "experiments.experiment": ("Experiment", "make_experiment"),
    "experiments.experiment_settings": ("ExperimentSettings",),
    "experiments.load_result": ("load_result",),
    "experiments.prediction": ("ClientModel",),
    "experiments.predictions": ("Predictions",),
    "experiments.result": ("Result",),
    "experiments.run": ("resume", "run"),
    "experiments.sweep.sweep": ("Sweep", "sweep"),
    "experiments.trackers.mlflow": ("MLflow",),
    "experiments.trackers.tensorboard": ("TensorBoard",),
    "experiments.trackers.wandb": ("WandB",),
    "experiments.tuning.tune": ("tune",),
    "experiments.tuning.tuning": ("Tuning",),
    "experiments.verdicts": ("Verdict",),
    "federation.clients": ("Clients", "Replies"),
    "federation.fleet": ("Fleet",),
    "federation.method": ("Method", "Placement", "step"),
    "federation.peers": (
        *("PeerMethod", "Peers"),
        *("draw_peers", "equal_links", "everyone_else", "heard_mask", "mix_models"),
    ),
    "federation.plug": ("Plug", "aggregated", "replace_aggregated"),
    "federation.reveals": ("MODEL", "NODES", "VOTE", "Reveals"),
    "federation.server": ("Server",),
    "federation.session": ("Session",),
    "federation.topologies": ("Topology",),
    "fields": ("Search",),
    "graphs.fleet_graph": ("FleetGraph",),
    "methods": ("METHODS", "PLUGS"),
    "models": ("FAMILIES", "MODELS"),
    "models.architecture": (
        *("LayeredModel", "Model", "Output"),
        *("add_bias", "glorot", "linear", "project", "propagate", "start_linear"),
    ),
    "models.build": ("build_model",),
    "tensors.randomness": ("Stream", "index_tensor"),
    "tensors.trees": (
        *("Tree", "Weights", "broadcast_tree", "count_bytes", "flatten", "map_tree", "select_clients"),
        *("squared_distance", "stack", "unflatten", "weighted_mean"),
    ),
    "training.losses": ("divergence", "log_softmax", "mean_over"),
    "training.optimizers": ("Training",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "DATASETS",
    "FAMILIES",
    "METHODS",
    "MODEL",
    "MODELS",
    "NODES",
    "PLUGS",
    "VOTE",
    "Callback",
    "ClientGraphs",
    "ClientModel",
    "Clients",
    "DataWarning",
    "Experiment",
    "ExperimentSettings",
    "Federation",
    "FederationData",
    "Fleet",
    "FleetGraph",
    "GraftError",
    "Graph",
    "InProcess",
    "InputError",
    "LayeredModel",
    "MLflow",
    "MemoryWarning",
    "Method",
    "Model",
    "Output",
    "PeerMethod",
    "Peers",
    "Placement",
    "Plug",
    "Predictions",
    "Replies",
    "Result",
    "Reveals",
    "RunError",
    "RunStart",
    "Search",
    "Server",
    "Session",
    "ShardedGraphs",
    "Stream",
    "Sweep",
    "TensorBoard",
    "Topology",
    "Training",
    "Tree",
    "Tuning",
    "Verdict",
    "WandB",
    "Weights",
    "__version__",
    "add_bias",
    "aggregated",
    "broadcast_tree",
    "build_federation",
    "build_model",
    "build_setup",
    "count_bytes",
    "divergence",
    "draw_peers",
    "equal_links",
    "everyone_else",
    "flatten",
    "glorot",
    "heard_mask",
    "index_tensor",
    "linear",
    "load",
    "load_result",
    "log_softmax",
    "make_experiment",
    "make_graph",
    "map_tree",
    "mean_over",
    "mix_models",
    "project",
    "propagate",
    "replace_aggregated",
    "resume",
    "run",
    "select_clients",
    "squared_distance",
    "stack",
    "start_linear",
    "step",
    "sweep",
    "tune",
    "unflatten",
    "weighted_mean",
    "write_shards",
]


if not TYPE_CHECKING:  # a type checker would take it that any name exists

    def __getattr__(name: str) -> Any:
        """Imports a public name when it is first used."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'graft' has no attribute '{name}'")
        from importlib import import_module

        return getattr(import_module(f"graft.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
