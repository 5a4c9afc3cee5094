"""FIARSE. Wu, Wang, Wang, Liu, Su and Gao: FIARSE: model-heterogeneous federated learning via importance-aware submodel
extraction. NeurIPS 2024."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from graft.errors import InputError
from graft.federation.method import Method, step
from graft.federation.reveals import MODEL, VOTE, Reveals
from graft.fields import Search
from graft.methods.fiarse.submodels import (
    Scope,
    Shapes,
    SquaredNorm,
    as_leaves,
    as_vector,
    in_use,
    mask_of,
    places,
    positions,
    selectable,
    sizes_of,
    thresholds,
    unselectable,
    with_leaves,
)
from graft.methods.scaffold import Average, towards, votes
from graft.models.assigned import different_models
from graft.models.heterogeneous import architecture_names
from graft.tensors.autograd import apply_function
from graft.tensors.masks import as_bits, from_bits
from graft.tensors.trees import Tree, Weights, flatten, map_tree, select_clients, stack, trainable, weighted_mean

if TYPE_CHECKING:
    from graft.federation.clients import Clients, Replies
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server
    from graft.models.architecture import Model
    from graft.training.optimizers import Training


@dataclass(frozen=True)
class FIARSE(Method):
    """Every client holds and trains the largest weights of one common model, as many as it has capacity for; each
    weight is averaged over those who held it.

    A client's own model is the part of the new common model that it has capacity for.
    """

    one_model: ClassVar[bool] = True
    keeps_start: ClassVar[bool] = False
    reveals: ClassVar = {
        "send/change": Reveals("update of the weights that the client holds, by training on its data", model=True),
        "send/dense": MODEL,
        "send/weight": VOTE,
    }

    # gamma: shares of all weights that clients hold, one client after another, and again from the first.
    capacities: str = "1,0.64,0.36,0.16,0.04"
    repeat: Annotated[int, Ge(1)] = 1  # how many clients in a row have the same capacity
    # Whether the largest weights of all are held, or the largest ones of every layer.
    scope: Annotated[Scope, Search(choices=("global", "layer"))] = "global"
    mask_biases: bool = False  # whether biases and other vectors are left out like matrices, as in the authors' code
    # eta_g: step of the server from its model towards the clients' mean.
    server_step: Annotated[float, Gt(0), Search(0.1, 2.0, log=True)] = 1.0
    # Who counts in the mean of a weight: those who held it, or those for whom it changed, as in the authors' code.
    counted: Literal["held", "changed"] = "held"
    average: Average = "uniform"  # every client counts alike, or by its vote (weight_by)

    def check(self) -> None:
        try:
            fine = all(0 < capacity <= 1 for capacity in self.ladder)
        except ValueError:
            fine = False
        if not fine:
            raise InputError(
                f"capacities is {self.capacities!r}; it must be numbers above 0 and at most 1 with commas between them."
            )

    @property
    def ladder(self) -> list[float]:
        return [float(part) for part in self.capacities.split(",")]

    def capacity(self, client: int) -> float:
        """Returns the share of all weights that a client holds."""
        return self.ladder[client // self.repeat % len(self.ladder)]

    def start_server(self, server: Server) -> None:
        server.state.models, server.state.places = Tree(), Tree()
        for name, model in self.architectures(server).items():
            server.state.models[name] = server.initial(model)
            server.state.places[name] = self.places(model, server.state.models[name])
        server.state.current = torch.ones(server.clients, dtype=torch.bool)  # which clients hold what is theirs by now

    def start_client(self, fleet: Fleet) -> None:
        fleet.state.model = fleet.initial(fleet.model)  # all start alike, and as the server does
        weights = select_clients(fleet.state.model, 0)
        shapes, placed = self.shapes(fleet.model, weights), self.places(fleet.model, weights)
        masks = {
            held: mask_of(placed, sizes_of(shapes), self.scope, held) for held in set(map(self.capacity, fleet.clients))
        }
        fleet.state.mask = torch.stack([masks[self.capacity(client)] for client in fleet.clients])
        vector = as_vector(fleet.state.model, shapes) * fleet.state.mask
        fleet.state.model = with_leaves(fleet.state.model, as_leaves(vector, shapes))
        fleet.state.change = torch.zeros_like(vector)

    def round(self, server: Server, clients: Clients) -> None:
        current = server.state.current.tolist()
        behind = clients.only([client for client in clients.members if not current[client]])
        if len(behind):  # they missed rounds, and hold what was theirs when they last took part
            behind.ask(self.receive, each=self.submodels(server, behind.members))
        clients.ask(self.train)
        # Submodels differ in size from client to client, so sending is a step of its own beside training as a fleet.
        replies = clients.ask(self.send)
        for name, members in self.groups(server, clients.members).items():
            self.aggregate_group(server, name, members, replies)
        clients.ask(self.receive, each=self.submodels(server, clients.members))
        server.state.current = torch.zeros(server.clients, dtype=torch.bool)
        server.state.current[list(clients.members)] = True
        # Where layers differ much in scale, a small submodel has next to nothing of some of them; this shows it.
        server.record(fewest_held=self.fewest(server, clients.members))

    @step
    def train(self, fleet: Fleet) -> Tree:
        start, shapes = fleet.state.model, self.client_shapes(fleet)
        before = as_vector(start, shapes)
        held = fleet.state.mask.to(before)
        masks, at_least = as_leaves(held, shapes), thresholds(before, held, shapes, self.scope)
        fleet.state.model = fleet.fit(
            start, lambda weights, batch: self.loss(batch, weights, masks, at_least), training=self.training(fleet)
        )
        fleet.state.change = before - as_vector(fleet.state.model, shapes)
        return Tree()

    @step(fleet=False)
    def send(self, fleet: Fleet) -> Tree:
        """Send the change of the weights that the client holds, packed, and all that every client holds."""
        held, shapes = positions(fleet.state.mask[0]), self.client_shapes(fleet)
        reply = Tree(change=fleet.state.change.index_select(1, held), weight=votes(fleet, self.average))
        dense = unselectable(fleet.state.model, shapes)
        return Tree(**reply, dense=dense) if dense else reply

    @step(fleet=False)
    def receive(self, fleet: Fleet, submodel: Weights) -> Tree:
        """Keep the weights that the client may hold, at the places that the bits tell, and zeros elsewhere."""
        shapes = self.client_shapes(fleet)
        values, count = submodel["values"], fleet.state.mask.shape[1]
        fleet.state.mask = from_bits(submodel["bits"], count)
        held = positions(fleet.state.mask[0])
        leaves = as_leaves(values.new_zeros(1, count).index_copy(1, held, values), shapes)
        fleet.state.model = with_leaves(fleet.state.model, {**leaves, **dict(flatten(submodel.get("dense", {})))})
        return Tree()

    def loss(
        self, fleet: Fleet, weights: Weights, masks: Mapping[str, Tensor], at_least: Mapping[str, Tensor]
    ) -> Tensor:
        used = in_use(weights, masks, at_least)
        return fleet.label_loss(used) + self.decay(fleet, weights, used)

    def decay(self, fleet: Fleet, weights: Weights, used: Weights) -> Tensor:
        """Returns the loss whose gradient is the weight decay of what is in use: the optimiser's own would move weights
        that are not. As the optimiser's, it leaves out clients without labels."""
        in_model = dict(flatten(used))
        squares = [
            apply_function(SquaredNorm, leaf, in_model[path])
            for path, leaf in flatten(trainable(weights, fleet.model.frozen))
        ]
        lengths = fleet.training.weight_decay / 2 * torch.stack(squares).sum(0)
        without_labels = fleet.data.without_labels
        return lengths if without_labels is None else lengths.masked_fill(without_labels, 0)

    def training(self, fleet: Fleet) -> Training:
        """Returns how clients train: with a new optimiser in every round, since each round has other masks."""
        return replace(fleet.training, weight_decay=0.0, optimizer_state="reset")

    def aggregate_group(self, server: Server, name: str, members: Sequence[int], replies: Replies) -> None:
        """Take the mean change of every weight over those clients of one architecture that count there."""
        model, weights = self.architectures(server)[name], server.state.models[name]
        shapes, sent = self.shapes(model, weights), [replies[client] for client in members]
        weight = torch.stack([reply.weight for reply in sent]).float()
        vector = one_vector(weights, shapes)
        change, voters = torch.zeros_like(vector), torch.zeros_like(vector)
        for capacity in dict.fromkeys(map(self.capacity, members)):
            rows = [row for row, client in enumerate(members) if self.capacity(client) == capacity]
            held = positions(self.mask(server, name, shapes, capacity))
            changes, shares = torch.stack([sent[row].change for row in rows]), weight[rows]
            voting = (changes != 0).float() if self.counted == "changed" else torch.ones_like(changes)
            change.index_add_(0, held, shares @ changes)
            voters.index_add_(0, held, shares @ voting)
        moved = vector - self.server_step * torch.where(voters > 0, change / voters, 0)
        leaves = {path: leaf[0] for path, leaf in as_leaves(moved.unsqueeze(0), shapes).items()}
        if "dense" in sent[0]:
            mean = weighted_mean(stack([reply.dense for reply in sent]), weight)
            leaves |= flatten(towards(unselectable(weights, shapes), mean, self.server_step, model.frozen))
        server.state.models[name] = with_leaves(weights, leaves)
        server.state.places[name] = self.places(model, server.state.models[name])

    def submodels(self, server: Server, clients: Sequence[int]) -> dict[int, Tree]:
        """Returns what each client holds of the model of its architecture: values, where they are, and the rest."""
        cut: dict[tuple[str, float], Tree] = {}
        for name, members in self.groups(server, clients).items():
            weights = server.state.models[name]
            shapes = self.shapes(self.architectures(server)[name], weights)
            vector, dense = one_vector(weights, shapes), unselectable(weights, shapes)
            for capacity in set(map(self.capacity, members)):
                mask = self.mask(server, name, shapes, capacity)
                cut[name, capacity] = Tree(values=vector[positions(mask)], bits=as_bits(mask.unsqueeze(0))[0])
                if dense:
                    cut[name, capacity].dense = dense
        return {
            client: cut[name, self.capacity(client)]
            for name, members in self.groups(server, clients).items()
            for client in members
        }

    def mask(self, server: Server, name: str, shapes: Shapes, capacity: float) -> Tensor:
        """Returns which weights of a group's model a client of some capacity holds, [entries]."""
        return mask_of(server.state.places[name], sizes_of(shapes), self.scope, capacity)

    def fewest(self, server: Server, clients: Sequence[int]) -> Tensor:
        """Returns how many weights the smallest submodel has in the layer that has fewest of them."""
        parts = []
        for name, members in self.groups(server, clients).items():
            shapes = self.shapes(self.architectures(server)[name], server.state.models[name])
            mask = self.mask(server, name, shapes, min(map(self.capacity, members)))
            parts += [part.sum() for part in mask.split(sizes_of(shapes))]
        return torch.stack(parts).amin()

    def architectures(self, server: Server) -> dict[str, Model]:
        """Returns the architectures of the federation by their names."""
        return {name: model for model, name in architecture_names(different_models(server.models)).items()}

    def groups(self, server: Server, clients: Sequence[int]) -> dict[str, list[int]]:
        """Returns which of some clients have each architecture, by its name."""
        names = architecture_names(different_models(server.models))
        groups: dict[str, list[int]] = {}
        for client in clients:
            groups.setdefault(names[server.models[client]], []).append(client)
        return groups

    def shapes(self, model: Model, weights: Weights) -> Shapes:
        """Returns the shapes of what may be left out of one client's model, by path."""
        shapes = selectable(weights, model.frozen, biases=self.mask_biases)
        if not shapes:
            raise InputError(f"FIARSE leaves out weights of matrices, and {model.name} has none.")
        return shapes

    def client_shapes(self, fleet: Fleet) -> Shapes:
        return self.shapes(fleet.model, select_clients(fleet.state.model, 0))

    def places(self, model: Model, weights: Weights) -> Tensor:
        """Returns the order in which the weights of one model are handed out."""
        shapes = self.shapes(model, weights)
        return places(one_vector(weights, shapes), sizes_of(shapes), self.scope)

    def shared(self, server: Server) -> Weights | None:
        model: Weights = next(iter(server.state.models.values()))
        return model


@dataclass(frozen=True)
class FIARSEGrouped(FIARSE):
    """FIARSE among the clients of each architecture: every group has a common model of its own.

    With five architectures in turn, the clients of each have all capacities, one after another.
    """

    one_model: ClassVar[bool] = False

    repeat: int = 5  # how many clients in a row have the same capacity: as many as there are architectures

    def shared(self, server: Server) -> None:
        """Returns nothing: each group has a model of its own."""


def one_vector(weights: Weights, shapes: Shapes) -> Tensor:
    """Returns the selectable weights of one model, [entries]."""
    return as_vector(map_tree(lambda leaf: leaf.unsqueeze(0), weights), shapes)[0]
