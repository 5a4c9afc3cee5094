"""Plugs: what can be added to any method that aggregates models of one architecture, without editing that method.

A plugged method is a class that inherits from the plug and from its host: it has the fields, the state and the steps of
both. The plug wraps the host's `aggregate(server, clients, replies)`: once the host has aggregated the clients' models,
`replies.model`, the plug may change what the server made of them: `server.state.model`, or `server.state.models` where
every client is given a model of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from graft.errors import InputError
from graft.federation.method import LinkRecord, Method
from graft.tensors.randomness import index_tensor
from graft.tensors.trees import Tree, Weights, flatten, map_tree, select_clients, write_rows

if TYPE_CHECKING:
    from graft.federation.clients import Clients, Replies
    from graft.federation.server import Server
    from graft.federation.topologies import Topology


class Aggregates(Protocol):
    """A host: it hands the replies of its clients, each with a `model`, to a method of their own."""

    def aggregate(self, server: Server, clients: Clients, replies: Replies) -> None: ...


@dataclass(frozen=True)
class Plug(Method):
    """Something that is done at the server after the aggregation of a host, the next class in line."""

    one_model: ClassVar[bool] = True
    averages: ClassVar[tuple[str, ...]] = ()  # it may look at the model of every client, whatever its host averages
    host: ClassVar[type[Method] | None] = None  # what it was added to by `plugged`
    plug: ClassVar[type[Plug] | None] = None

    def __reduce__(self) -> Any:
        """A class that `plugged` made cannot be found by its name, so it is made again."""
        if self.host is None or self.plug is None:
            return super().__reduce__()
        return make_plugged, (self.host, self.plug, {field.name: getattr(self, field.name) for field in fields(self)})

    def start_server(self, server: Server) -> None:
        super().start_server(server)
        check_models(server)
        self.start_plug(server)

    def start_plug(self, server: Server) -> None:
        """Sets what the plug keeps at the server, beside the state of the host."""

    def conduct(self, server: Server, clients: Clients, topology: Topology | None = None) -> LinkRecord:  # noqa: ARG002
        """Runs one round; the server's optimiser steps within it, between the aggregation and what the plug does."""
        self.round(server, clients)
        return {}

    def round(self, server: Server, clients: Clients) -> None:
        server.cache["plugged"] = False
        super().round(server, clients)
        if not server.cache["plugged"]:
            raise InputError("A plug works on what its host aggregates, and this one's round calls no `aggregate`.")

    def aggregate(self, server: Server, clients: Clients, replies: Replies) -> None:
        with server.optimizing(self):
            cast("Aggregates", super()).aggregate(server, clients, replies)
        self.after_aggregation(server, clients, replies)
        server.cache["plugged"] = True

    def after_aggregation(self, server: Server, clients: Clients, replies: Replies) -> None:
        """What the plug does once the host has aggregated `replies.model`."""
        raise NotImplementedError


def takes_plugs(host: type[Method]) -> bool:
    """Returns whether a method aggregates models of one architecture, without a plug so far."""
    return host.one_model and hasattr(host, "aggregate") and not issubclass(host, Plug)


PLUGGED: dict[tuple[type[Method], type[Plug]], type[Method]] = {}  # every pair is one class, however often it is made


def plugged(host: type[Method], plug: type[Plug]) -> type[Method]:
    """Returns the class of a method with a plug: its fields are those of both."""
    if (host, plug) not in PLUGGED:
        clashes = name_clashes(host, plug)
        if clashes:
            raise InputError(f"{plug.__name__} cannot be added to {host.__name__}: both have {', '.join(clashes)}.")
        namespace = {
            "__doc__": f"{host.__name__} with {plug.__name__}.",
            "host": host,
            "plug": plug,
            "capturable": host.capturable and plug.capturable,
            "averaged": host.averaged,
        }
        kind: Any = type(f"{host.__name__}With{plug.__name__}", (plug, host), namespace)
        PLUGGED[host, plug] = dataclass(frozen=True)(kind)
    return PLUGGED[host, plug]


def make_plugged(host: type[Method], plug: type[Plug], values: dict[str, Any]) -> Method:
    return plugged(host, plug)(**values)


def name_clashes(host: type[Method], plug: type[Plug]) -> list[str]:
    """Returns the names that a host and a plug would use for two different things."""
    own = {name for kind in plug.__mro__ if issubclass(kind, Plug) and kind is not Plug for name in vars(kind)}
    agreed = {*vars(Plug), *vars(Method)}  # what a plug does beside its host or for it
    names = {name for name in own - agreed if not name.startswith("__")}
    return sorted(names & {name for kind in host.__mro__ for name in vars(kind)})


def check_models(server: Server) -> None:
    """Refuses a host whose server keeps no model of the clients' architecture."""
    stacked = aggregated(server) if {"model", "models"} & set(server.state) else Tree()
    shapes = {path: leaf.shape[1:] for path, leaf in flatten(stacked)}
    if not shapes or shapes != {path: leaf.shape for path, leaf in flatten(server.initial())}:
        raise InputError("A plug needs a method whose server keeps the clients' model, or one such model for each.")


def aggregated(server: Server, clients: list[int] | None = None) -> Tree:
    """Returns the models that the server made, stacked: one for all, or those of some clients, or of every client."""
    if "models" not in server.state:
        return map_tree(lambda leaf: leaf.unsqueeze(0), server.state.model)
    if clients is None or len(clients) == server.clients:
        models: Tree = server.state.models
        return models
    return select_clients(server.state.models, index_tensor(tuple(clients), server.device))


def replace_aggregated(server: Server, clients: list[int], models: Weights) -> None:
    """Puts other models in the place of those that `aggregated` gave."""
    if "models" in server.state:
        server.state.models = write_rows(server.state.models, index_tensor(tuple(clients), server.device), models)
    else:
        server.state.model = map_tree(lambda leaf: leaf[0], models)
