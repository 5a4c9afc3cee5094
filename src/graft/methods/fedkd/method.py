"""FedKD. Wu, Wu, Lyu, Huang and Xie: Communication-efficient federated learning via knowledge distillation.
Nature Communications 13, 2022."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le

from graft.federation.fleet import Nodes
from graft.federation.method import Held, step
from graft.federation.reveals import VOTE, Reveals
from graft.federation.several_models import OWN, SeveralModels
from graft.fields import Search
from graft.methods.fedkd.compression import apply_update, compress_leaf, rebuild_update
from graft.tensors.trees import Tree, Weights, map_tree, select_clients, stack, weighted_mean
from graft.training.losses import divergence, mean_over

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from graft.federation.clients import Clients
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server
    from graft.models.architecture import Output


@dataclass(frozen=True)
class FedKD(SeveralModels):
    """A private mentor of any architecture and a small mentee distil into each other, the less the larger the errors of
    both; updates of the mentee are sent as truncated singular value decompositions.

    The update is compressed, never the weights, and the server applies the same reconstruction as clients, so all
    copies of the mentee stay equal. The attention term of the original, which is about transformers, is left out.
    """

    heterogeneous: ClassVar[bool] = True
    reveals: ClassVar = {
        "send/change": Reveals("update of the mentee, by training on the client's data, as factors", model=True),
        "send/weight": replace(VOTE, when="if weighting is by_weight"),
    }
    judges_unless: ClassVar = {"answer": ("mentor",)}

    # Architecture of the model that is sent.
    mentee: Annotated[str, Search(choices=("gcn", "sage", "sgc", "tag"))] = "gcn"
    # Weight of the mutual distillation; 0: no distillation.
    distil: Annotated[float, Ge(0), Search(0.1, 10.0, log=True)] = 1.0
    # Weight of the distance between the mentor's embedding and the mentee's, projected.
    hidden: Annotated[float, Ge(0), Search(0.01, 10.0, log=True)] = 1.0
    # Where mentor and mentee are compared: on training nodes, or on all nodes of the client.
    kd_nodes: Annotated[Nodes, Search(choices=("train", "all"))] = "train"
    compress: bool = True  # whether matrices are sent as factors; off: as they are
    # Share of a matrix's squared singular values that its factors keep before the first round.
    energy_start: Annotated[float, Gt(0), Le(1)] = 0.95
    # Share of a matrix's squared singular values that its factors keep in the last round; linear in between.
    energy_end: Annotated[float, Gt(0), Le(1)] = 0.98
    weighting: Literal["uniform", "by_weight"] = "uniform"  # updates count alike, or by the experiment's weight_by
    # What predicts: the mentor, or at every client whichever of it, the mentee and the mean of both is best on its
    # validation nodes.
    answer: Annotated[Literal["mentor", "best"], Search(choices=("mentor", "best"))] = "mentor"

    def rehearsals(self) -> Sequence[FedKD]:
        """Returns it with factors of few and of all singular values, and with matrices as they are: which of them is
        sent depends on the update."""
        if not self.compress:
            return [self]
        rising = replace(self, energy_start=0.01, energy_end=1.0)
        falling = replace(self, energy_start=1.0, energy_end=0.01)
        return [self, rising, falling, replace(self, compress=False)]

    def second_model(self) -> str:
        return self.mentee

    def start_server(self, server: Server) -> None:
        server.state.mentee = server.initial(server.architecture(self.mentee))
        server.state.current = torch.ones(server.clients, dtype=torch.bool)  # which clients have that very mentee

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        model = fleet.architecture(self.mentee)
        fleet.state.mentee = fleet.initial(model)
        fleet.state.change = map_tree(torch.zeros_like, fleet.state.mentee)
        inputs = fleet.predict(fleet.state.mentee, model).embedding.shape[2]
        outputs = fleet.predict(fleet.state.model).embedding.shape[2]
        draws = fleet.random.uniform(inputs * outputs).view(-1, inputs, outputs)
        fleet.state.projection = (2 * draws - 1) * inputs**-0.5

    def round(self, server: Server, clients: Clients) -> None:
        current = server.state.current.tolist()
        behind = clients.only([client for client in clients.members if not current[client]])
        if len(behind):  # they missed updates, so they need the whole model
            behind.ask(self.catch_up, server.state.mentee)
        clients.ask(self.train)
        energy = self.energy(float(server.round) / server.rounds)
        # Factors differ in size from client to client, so sending is a step of its own beside training as a fleet.
        replies = clients.ask(self.send, Tree(energy=energy))
        parts = [replies[client] for client in replies.clients]
        updates = stack([rebuild_update(part.change, server.state.mentee) for part in parts])
        uniform = torch.ones(len(parts), device=server.device)
        votes = uniform if self.weighting == "uniform" else torch.stack([part.weight for part in parts])
        update = self.packed(weighted_mean(updates, votes), energy)
        clients.ask(self.receive, update)
        server.state.mentee = apply_update(server.state.mentee, update)
        server.state.current = torch.zeros(server.clients, dtype=torch.bool)
        server.state.current[clients.members] = True
        server.record(energy=energy)

    @step
    def catch_up(self, fleet: Fleet, mentee: Weights) -> Tree:
        fleet.state.mentee = map_tree(torch.clone, mentee)
        return Tree()

    @step
    def train(self, fleet: Fleet) -> Tree:
        # All learn from the same forward pass. No loss reaches the other's model and optimisers work element by
        # element, so training the sum is training each on its own loss with an optimiser of its own.
        state = fleet.state
        pair = fleet.fit(
            Tree(mentor=state.model, mentee=state.mentee, projection=state.projection),
            lambda pair, batch: torch.add(*self.losses(batch, pair)),
            frozen=frozenset(f"mentor/{path}" for path in fleet.model.frozen),
        )
        # All updates count alike; that of a client without labels, whose mentor has nothing to teach, is zero.
        state.change = map_tree(torch.sub, fleet.trained_by_labels(pair.mentee, state.mentee), state.mentee)
        state.model, state.projection = pair.mentor, pair.projection
        return Tree()

    @step(fleet=False)
    def send(self, fleet: Fleet, message: Weights) -> Tree:
        update = self.packed(select_clients(fleet.state.change, 0), float(message["energy"]))
        reply = Tree(change=map_tree(lambda leaf: leaf.unsqueeze(0), update))
        return reply if self.weighting == "uniform" else Tree(**reply, weight=fleet.weight)

    @step(fleet=False)
    def receive(self, fleet: Fleet, update: Weights) -> Tree:
        # The same product as the server's, so that not even a last bit differs between the copies.
        mentee = apply_update(select_clients(fleet.state.mentee, 0), select_clients(update, 0))
        fleet.state.mentee = map_tree(lambda leaf: leaf.unsqueeze(0), mentee)
        self.choose(fleet)
        return Tree()

    def losses(self, fleet: Fleet, pair: Weights) -> tuple[Tensor, Tensor]:
        """Returns the losses of the mentor, and of the mentee with the projection."""
        mentor = fleet.forward(pair["mentor"])
        mentee = fleet.forward(pair["mentee"], fleet.architecture(self.mentee))
        return self.compare(fleet, mentor, mentee, pair["projection"])

    def compare(self, fleet: Fleet, mentor: Output, mentee: Output, projection: Tensor) -> tuple[Tensor, Tensor]:
        nodes = fleet.node_mask(self.kd_nodes)
        projected = mentee.embedding @ projection
        errors = fleet.cross_entropy(mentor.logits), fleet.cross_entropy(mentee.logits)
        # The larger the errors, the less distillation. A gradient through this would raise the errors.
        doubt = (errors[0] + errors[1]).detach().clamp(min=1e-6)
        doubt = torch.where(fleet.labels.masks[:, 0].any(1), doubt, 1.0)  # without labels there is no error
        to_mentor = self.distil * divergence(mentee.logits, mentor.logits, nodes)
        to_mentee = self.distil * divergence(mentor.logits, mentee.logits, nodes)
        to_mentor = to_mentor + self.hidden * squared_error(projected, mentor.embedding, nodes)
        to_mentee = to_mentee + self.hidden * squared_error(mentor.embedding, projected, nodes)
        return errors[0] + to_mentor / doubt, errors[1] + to_mentee / doubt

    def candidates(self) -> Sequence[tuple[str, ...]]:
        return [(OWN,)] if self.answer == "mentor" else [(OWN,), ("mentee",), (OWN, "mentee")]

    def held(self, fleet: Fleet) -> Mapping[str, Held]:
        own = {OWN: Held(fleet.state.model)}
        return own | {"mentee": Held(fleet.state.mentee, self.mentee)} if self.chooses else own

    def energy(self, progress: float) -> float:
        """Th(t): the share of the energy to keep after this share of all rounds."""
        return self.energy_start + (self.energy_end - self.energy_start) * min(progress, 1.0)

    def packed(self, update: Weights, energy: float) -> Weights:
        """Returns an update as it is sent."""
        return map_tree(lambda leaf: compress_leaf(leaf, energy), update) if self.compress else update


def squared_error(teacher: Tensor, student: Tensor, nodes: Tensor) -> Tensor:
    """Returns the mean over nodes and coordinates; no gradient reaches the teacher."""
    return mean_over((teacher.detach() - student).square().mean(2), nodes)
