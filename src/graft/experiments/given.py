"""Objects that are given in Python where an experiment has a name: a method, a dataset, models."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from graft.data import OWN_GRAPHS
from graft.data.client_graphs import Federation
from graft.data.federation import FederationData
from graft.data.lazy_graphs import ClientGraphs
from graft.data.shards import ShardedGraphs
from graft.errors import InputError
from graft.experiments.experiment import GIVEN, PREPARED, Experiment, make_experiment
from graft.experiments.make_method import add_plug, make_method
from graft.experiments.own_data import own_graph_values, with_prepared
from graft.federation.method import Method
from graft.federation.plug import Plug
from graft.methods import METHODS, PLUGS
from graft.registry import parse_reference


@dataclass(frozen=True)
class Given:
    """Objects that stand in for names."""

    method: Method | None = None
    dataset: Any = None
    models: Any = None
    federation: FederationData | None = None  # built before, for several runs on the same data

    def method_of(self, experiment: Experiment) -> Method:
        """Returns the method of an experiment: the one that was given, with the plug that is added to it, or the one
        named."""
        if self.method is None:
            return make_method(experiment.method, experiment.settings, experiment.plug)
        if experiment.plug and getattr(self.method, "host", None) is None:
            return add_plug(self.method, experiment.plug, experiment.settings)
        return self.method

    def check(
        self,
        experiment: Experiment,
        call: str = "resume",
        needed: Collection[str] = ("dataset", "models", "method"),
    ) -> None:
        """Refuses to resume or open a run without those of the objects that it was given which are needed."""
        missing = [name for name in ("dataset", "models") if getattr(experiment, name) == GIVEN]
        if experiment.method not in METHODS and parse_reference(experiment.method) is None:
            missing.append("method")
        for name in missing:
            if name in needed and getattr(self, name) is None:
                way = "resume it there" if call == "resume" else "open it there"
                raise InputError(f"This run was given its {name} in Python: {way}, graft.{call}(..., {name}=...).")


def describe(method: str | Method, dataset: Any, models: Any, settings: Mapping[str, Any]) -> tuple[Experiment, Given]:
    """Returns the experiment of names and objects as a person gives them, and the objects among them."""
    values = dict(settings)
    if isinstance(method, type):
        raise InputError(f"method is the class {method.__name__}; give an instance, as {method.__name__}().")
    if isinstance(method, Method):
        check_settings_beside(method, values)
        values = {**method.experiment_defaults, **values, **names_of(method)}
    else:
        values["method"] = method
    if dataset is None:
        raise InputError("dataset is None; give a name, a path, a PyG Data, or the graphs of clients.")
    if isinstance(dataset, ShardedGraphs):
        dataset = dataset.store.url
    elif isinstance(dataset, ClientGraphs):
        own = {**PREPARED, "clients": len(dataset), "partition": OWN_GRAPHS, "split": "own"}
        values = with_prepared(values, own, "the graphs come")
    elif isinstance(dataset, Mapping) or (isinstance(dataset, Sequence) and not isinstance(dataset, str)):
        dataset = Federation(dataset)
    if isinstance(dataset, Federation):
        values = own_graph_values(values, len(dataset))
    if not (values.get("graphs") and dataset == Experiment.dataset):
        values["dataset"] = str(dataset) if isinstance(dataset, str | Path) else GIVEN
    if models is not None:
        values["models"] = models if all_names(models) else GIVEN
    given = Given(
        method=method if isinstance(method, Method) else None,
        dataset=None if isinstance(dataset, str | Path) else dataset,
        models=None if models is None or all_names(models) else models,
    )
    return make_experiment(values), given


def names_of(method: Method) -> dict[str, str]:
    """Returns the name that a method can be found by again, and that of its plug."""
    if isinstance(method, Plug) and method.host and method.plug:
        return {"method": METHODS.spell(method.host), "plug": PLUGS.spell(method.plug)}
    return {"method": METHODS.spell(type(method))}


def check_settings_beside(method: Method, values: Mapping[str, Any]) -> None:
    """Refuses settings beside a method that has its own, but for those of a plug."""
    settings = values.get("settings") or {}
    own = {field.name for field in fields(method)}
    wrong = [name for name in settings if name in own or not values.get("plug")]
    if wrong:
        kind = type(method).__name__
        raise InputError(
            f"settings has {wrong[0]}, but the method was given as an object: set its fields there, as {kind}(...)."
        )


def all_names(models: Any) -> bool:
    """Returns whether models are given by their names alone."""
    return isinstance(models, str) or (isinstance(models, list | tuple) and all(isinstance(m, str) for m in models))
