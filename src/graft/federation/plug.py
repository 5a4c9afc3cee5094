"""Plugs: what can be added to any method whose server keeps models of one architecture, without editing that method.

A plugged method is a class that inherits from the plug and from its host: it has the fields, the state and the steps of
both. The host's round is played first. Then the plug sees the weights that clients uploaded in it, as the field
`model` of a reply, and may change what the server made of them: `server.state.model`, or `server.state.models`
where every client is given a model of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import Tensor

from graft.errors import InputError
from graft.federation.method import Method
from graft.federation.peers import PeerMethod
from graft.tensors.randomness import index_tensor
from graft.tensors.trees import Tree, Weights, flatten, map_tree, select_clients

if TYPE_CHECKING:
    from graft.federation.exchange import Clients, Replies, Server


class Uploads(NamedTuple):
    """The weights that clients trained in this round."""

    clients: list[int]
    models: Tree  # stacked in the order of the clients


@dataclass(frozen=True)
class Plug(Method):
    """Something that is done at the server after the round of a host, the next class in line."""

    host: ClassVar[type[Method] | None] = None  # what it was added to by `plugged`
    plug: ClassVar[type[Plug] | None] = None

    one_model: ClassVar[bool] = True

    def __reduce__(self) -> Any:
        """A class that `plugged` made has no place of its own to be found at, so it is made again."""
        if self.host is None or self.plug is None:
            return super().__reduce__()
        return make_plugged, (self.host, self.plug, {one.name: getattr(self, one.name) for one in fields(self)})

    def start_server(self, server: Server) -> None:
        super().start_server(server)
        check_models(server)
        self.start_plug(server)

    def start_plug(self, server: Server) -> None:
        """Set what the plug keeps at the server, beside the state of the host."""

    def round(self, server: Server, clients: Clients) -> None:
        uploads: list[Uploads] = []

        def listen(replies: Replies) -> None:
            if "model" in replies:
                uploads[:] = [Uploads(replies.clients, replies.model)]

        super().round(server, clients.heard_by(listen))
        if not uploads:
            raise InputError("A plug looks at the weights that clients upload, and this method uploads none.")
        self.after_round(server, clients, uploads[0])

    def after_round(self, server: Server, clients: Clients, uploads: Uploads) -> None:
        """What the plug does once the host has averaged."""
        raise NotImplementedError


def takes_plugs(host: type[Method]) -> bool:
    """Whether a method trains models of one architecture at clients, for a server, without a plug so far."""
    return host.one_model and not host.pooled and not issubclass(host, Plug | PeerMethod)


PLUGGED: dict[
    tuple[type[Method], type[Plug]], type[Method]
] = {}  # every pair is one class, however often it is asked for


def plugged(host: type[Method], plug: type[Plug]) -> type[Method]:
    """The class of a method with a plug: its fields are those of both."""
    if (host, plug) not in PLUGGED:
        shared = name_clashes(host, plug)
        if shared:
            raise InputError(f"{plug.__name__} cannot be added to {host.__name__}: both have {', '.join(shared)}.")
        about = {"__doc__": f"{host.__name__} with {plug.__name__}.", "host": host, "plug": plug}
        kind: Any = type(f"{host.__name__}With{plug.__name__}", (plug, host), about)
        PLUGGED[host, plug] = dataclass(frozen=True)(kind)
    return PLUGGED[host, plug]


def make_plugged(host: type[Method], plug: type[Plug], values: dict[str, Any]) -> Method:
    return plugged(host, plug)(**values)


def name_clashes(host: type[Method], plug: type[Plug]) -> list[str]:
    """Names that a host and a plug would use for two different things."""
    own = {name for kind in plug.__mro__ if issubclass(kind, Plug) and kind is not Plug for name in vars(kind)}
    agreed = {*vars(Plug), *vars(Method), "start_plug", "after_round"}  # what a plug does beside its host or for it
    names = {name for name in own - agreed if not name.startswith("__")}
    return sorted(names & {name for kind in host.__mro__ for name in vars(kind)})


def check_models(server: Server) -> None:
    """Refuse a host whose server keeps no model of the clients' architecture."""
    kept = aggregated(server) if {"model", "models"} & set(server.state) else Tree()
    found = {path: leaf.shape[1:] for path, leaf in flatten(kept)}
    if not found or found != {path: leaf.shape for path, leaf in flatten(server.initial())}:
        raise InputError("A plug needs a method whose server keeps the clients' model, or one such model for each.")


def aggregated(server: Server, clients: list[int] | None = None) -> Tree:
    """The models that the server made, stacked: one for all, or those of some clients, or of every client."""
    if "models" not in server.state:
        return map_tree(lambda leaf: leaf.unsqueeze(0), server.state.model)  # type: ignore[no-any-return]
    if clients is None or len(clients) == server.clients:
        return server.state.models  # type: ignore[no-any-return]
    return select_clients(server.state.models, index_tensor(tuple(clients), server.device))  # type: ignore[no-any-return]


def replace_aggregated(server: Server, clients: list[int], models: Weights) -> None:
    """Put other models in the place of those that `aggregated` gave."""
    if "models" in server.state:
        server.state.models = write_rows(server.state.models, clients, models)
    else:
        server.state.model = map_tree(lambda leaf: leaf[0], models)


def write_rows(whole: Weights, clients: list[int], rows: Weights) -> Tree:
    """A stacked tree with other rows for some clients."""

    def one(leaf: Tensor, new: Tensor) -> Tensor:
        return new if len(clients) == len(leaf) else leaf.index_copy(0, index_tensor(tuple(clients), leaf.device), new)

    return map_tree(one, whole, rows)  # type: ignore[no-any-return]
