"""Settings of experiments whose data come with some of them: clients' own graphs, shards, generated clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graft.data import OWN_GRAPHS, count_clients, is_generated, is_sharded
from graft.errors import InputError


def with_own_graphs(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the values of an experiment with those that its data decide, where they do; `defaults` are of all
    settings that data may come with."""
    graphs, dataset = values.get("graphs"), values.get("dataset")
    if not isinstance(graphs, list):
        graphs = []  # or of a type that is refused where fields are checked
    if graphs and dataset:
        raise InputError(f"Both graphs and the dataset '{dataset}' were given: leave one of them out.")
    if isinstance(dataset, str) and is_sharded(dataset):
        return with_shards(values, dataset, defaults)
    if isinstance(dataset, str) and is_generated(dataset):
        return {"feature_norm": 0.0, **own_graph_values(values, values.get("clients", defaults["clients"]))}
    count = len(graphs) if graphs else count_clients(dataset) if isinstance(dataset, str) else None
    return values if count is None else own_graph_values(values, count) | ({"dataset": ""} if graphs else {})


def with_shards(values: Mapping[str, Any], source: str, defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the values of an experiment with the settings that its shards were written with; others are refused."""
    if all(name in values for name in defaults):
        return values  # as of a run that goes on; they are compared when the shards are opened
    from graft.data.shard_manifest import open_manifest

    return with_written(values, open_manifest(source).settings, defaults, source)


def with_written(
    values: Mapping[str, Any], settings: Mapping[str, Any], defaults: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """Returns the values of an experiment with the settings in a manifest of shards; others are refused."""
    written = {name: settings.get(name, default) for name, default in defaults.items()}
    return with_prepared(values, written, f"the shards in {source} were written")


def with_prepared(values: Mapping[str, Any], fixed: Mapping[str, Any], prepared: str) -> dict[str, Any]:
    """Returns the values of an experiment whose data are prepared already, as `prepared` says; others are refused."""
    for name, value in fixed.items():
        if values.get(name, value) != value:
            raise InputError(
                f"{name} is {values[name]}, but {prepared} with {name}={value}: leave {name} out, or prepare the data "
                f"anew, as with `graft shard`."
            )
    return {**values, **fixed}


def own_graph_values(values: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Returns the values of an experiment in which so many clients bring their own graphs; others are refused."""
    own = {"clients": count, "partition": OWN_GRAPHS}
    for name in own:
        if values.get(name, own[name]) != own[name]:
            raise InputError(
                f"{name} is {values[name]}, but every client brings its own graph, {count} in all: nothing is shared "
                f"out, so leave {name} out."
            )
    return {**values, **own}
