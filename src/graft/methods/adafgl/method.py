"""AdaFGL. Li, Wu, Zhang, Sun, Li and Wang: AdaFGL: a new paradigm for federated node classification with topology
heterogeneity. ICDE 2024."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from torch.nn import functional

from graft.errors import InputError
from graft.federation.method import step
from graft.fields import Search
from graft.graphs.label_propagation import propagate_labels
from graft.methods.adafgl.branches import Branches, BranchLogits
from graft.methods.adafgl.propagation import TrainRows, propagation_matrix, rows_at, similar_pairs
from graft.methods.fedavg import FedAvg
from graft.models.architecture import LayeredModel
from graft.tensors.randomness import index_tensor
from graft.tensors.sparse import contiguous
from graft.tensors.trees import Tree, Weights, map_tree, select_clients, stack
from graft.training.losses import mean_over, softmax

if TYPE_CHECKING:
    from collections.abc import Callable

    from graft.federation.clients import Clients, Replies
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server

UNKNOWN = 0.5  # the homophily of a client that has too few training nodes to tell
LEAST_CHANCE = 1e-12  # whose logarithm is taken


@dataclass(frozen=True)
class AdaFGL(FedAvg):
    """FedAvg at first; then every client alone trains a homophilous and a heterophilous branch on what the averaged
    model knows, and mixes them by the homophily of its graph.

    The last averaged model, not the best, is that extractor: no method of Graft is given validation scores for its
    training. It is sent once more to a client that begins its second step; from then on nothing is sent. Matrices of
    nodes by nodes are dense.
    """

    capturable: ClassVar[bool] = False  # rounds are of two kinds
    supports_batches: ClassVar[bool] = False  # nodes are compared with all others
    averages: ClassVar[tuple[str, ...]] = ("train/model",)

    # Share of the rounds in which the extractor is trained by FedAvg, at least one; 1 is FedAvg.
    extractor_share: Annotated[float, Gt(0), Le(1), Search(0.2, 0.8)] = 0.5
    # alpha: share of the client's edges in what features are propagated along, beside pairs that the extractor finds
    # similar.
    adjacency: Annotated[float, Ge(0), Le(1), Search(0.0, 1.0)] = 0.5
    # beta: share of these pairs in the signed messages, beside the similarity of current predictions.
    signed_share: Annotated[float, Ge(0), Le(1), Search(0.0, 1.0)] = 0.2
    hops: Annotated[int, Ge(0), Search(1, 5)] = 3  # how far features are propagated
    # Pairs of nodes are similar from this cosine of the extractor's predictions on.
    similar: Annotated[float, Ge(0), Le(1), Search(0.9, 0.999)] = 0.999
    # Whether the extractor's predictions go through a second softmax where they are compared and mixed, as in the
    # authors' code: `similar` is meant for that.
    double_softmax: bool = True
    # Whether branches are mixed by the homophily, or one of them is chosen by it.
    fusion: Literal["soft", "hard"] = "soft"
    # Homophily from which on the homophilous branch is chosen if fusion is hard.
    threshold: Annotated[float, Ge(0), Le(1)] = 0.9
    label_steps: Annotated[int, Ge(0)] = 10  # of the label propagation that measures homophily
    label_share: Annotated[float, Ge(0), Le(1)] = 0.5  # share of the neighbours in each of these steps
    # Nodes that a client may have, as every one is compared with every other.
    max_dense_nodes: Annotated[int, Ge(1)] = 8000

    def start_server(self, server: Server) -> None:
        super().start_server(server)
        if self.extractor_share < 1:
            # Which clients have begun their second step.
            server.state.personal = torch.zeros(server.clients, dtype=torch.bool, device=server.device)

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        if self.extractor_share == 1:
            return
        self.check_sizes(fleet)
        fleet.state.branches = fleet.initial(self.branches(fleet))
        fleet.state.homophily = torch.full((len(fleet.clients),), UNKNOWN, device=fleet.device)
        fleet.state.personal = torch.zeros(len(fleet.clients), dtype=torch.bool, device=fleet.device)
        # No epochs: the optimiser of the branches, too, must be there from the first round.
        fleet.fit_in_turn({"branches": fleet.state.branches}, {"branches": no_loss}, epochs=0)

    def check_sizes(self, fleet: Fleet) -> None:
        """Refuses clients whose matrices of nodes by nodes would be too large."""
        sizes = torch.maximum(fleet.graph.sizes, fleet.scoring.graph.sizes).tolist()
        largest, client = max(zip(sizes, fleet.clients, strict=True))
        if largest > self.max_dense_nodes:
            raise InputError(
                f"Client {client} has {largest} nodes, and AdaFGL compares every node with every other: raise "
                f"max_dense_nodes, which is {self.max_dense_nodes} (such a matrix takes "
                f"{4 * largest**2 / 1e9:.1f} GB), or share the graph among more clients."
            )

    def round(self, server: Server, clients: Clients) -> None:
        if float(server.round) <= self.extractor_rounds(server.rounds):
            self.aggregate(server, clients, clients.ask(self.train, server.state.model))
            return
        begun = server.state.personal.tolist()
        beginning = clients.only([client for client in clients.members if not begun[client]])
        if len(beginning):
            beginning.ask(self.begin, server.state.model)
            rows = index_tensor(tuple(beginning.members), server.device)
            server.state.personal = server.state.personal.index_fill(0, rows, True)
        clients.ask(self.personalise)

    def extractor_rounds(self, rounds: int) -> int:
        """Returns how many of all rounds train the extractor."""
        return max(1, round(self.extractor_share * rounds))

    @step
    def begin(self, fleet: Fleet, model: Weights) -> Tree:
        """Keep the extractor, and measure how homophilous the client's graph is."""
        fleet.state.model = map_tree(torch.clone, model)
        fleet.state.homophily = self.homophily(fleet)
        fleet.state.personal = torch.ones_like(fleet.state.personal)
        for cache in fleet.caches:  # what was made of another model
            cache.clear()
        return Tree()

    @step
    def personalise(self, fleet: Fleet) -> Tree:
        """Train both branches alone."""
        knowledge, rows = self.knowledge(fleet), self.train_rows(fleet)
        fleet.state.branches = fleet.fit(
            fleet.state.branches,
            lambda weights, batch: self.branch_loss(batch, weights, knowledge, rows),
            "branches",
            frozen=frozenset(),
        )
        return Tree()

    def branch_loss(self, fleet: Fleet, weights: Weights, knowledge: Weights, rows: TrainRows) -> Tensor:
        """Labels for all four outputs, and the extractor's predictions for the homophilous one."""
        logits = self.branches(fleet).train_logits(
            weights, fleet.graph, knowledge, rows, self.signed_share, fleet.random
        )
        errors = (logits.homophilous - knowledge["chances"]).square().mean(2)
        at_rows = (fleet.at_train_nodes(logits.homophilous), *logits.heterophilous)
        labels = [fleet.train_loss(part) for part in at_rows]
        return torch.stack([*labels, mean_over(errors, fleet.graph.real)]).sum(0)

    def branch_logits(self, fleet: Fleet, weights: Weights, knowledge: Weights) -> BranchLogits:
        """Returns the logits of both branches at all nodes, in evaluation mode."""
        return self.branches(fleet).logits(weights, fleet.graph, knowledge, self.signed_share)

    def branches(self, fleet: Fleet) -> Branches:
        """Returns the architecture of the personal models, with the width and dropout of the experiment."""
        model = fleet.architecture("mlp")
        assert isinstance(model, LayeredModel)
        return Branches(fleet.features, fleet.classes, model.width, self.hops, model.dropout)

    def ask_own_models(
        self, server: Server, clients: Clients, own: Callable[..., Any], given: Callable[..., Any]
    ) -> Replies:
        """Asks for scores, and says so once the second step has begun: on a GPU a score of the first was captured."""
        if self.extractor_share < 1 and bool(server.state.personal.any()):
            return clients.ask(own, Tree(second_step=1))
        return super().ask_own_models(server, clients, own, given)

    @step(pure=True)
    def score(self, fleet: Fleet, message: Weights | None = None) -> dict[str, Tensor]:
        """How many nodes each client's own model, or its mixed branches, classify correctly."""
        fleet = fleet.on(fleet.scoring)
        return {"correct": fleet.count_correct(super().logits(fleet) if message is None else self.own_logits(fleet))}

    @step(fleet=False, pure=True)
    def measure(self, fleet: Fleet, message: Weights | None = None) -> Tree:  # noqa: ARG002
        """Metrics of the same."""
        return super().measure(fleet)

    def logits(self, fleet: Fleet) -> Tensor:
        if self.extractor_share < 1 and bool(fleet.state.personal.any()):
            return self.own_logits(fleet)
        return super().logits(fleet)

    def own_logits(self, fleet: Fleet) -> Tensor:
        """Returns logits of the mixed branches, and for a client that has not begun its second step those of its
        model."""
        return torch.where(fleet.state.personal.view(-1, 1, 1), self.mixed(fleet).log(), super().logits(fleet))

    def model_alone(self) -> bool:
        return self.extractor_share == 1

    @torch.no_grad()
    def mixed(self, fleet: Fleet) -> Tensor:
        """Returns the probabilities of both branches, mixed by homophily."""
        knowledge = self.knowledge(fleet)
        logits = self.branch_logits(fleet, fleet.state.branches, knowledge)
        homophilous = (softmax(logits.homophilous) + self.compared(knowledge["chances"])) / 2
        heterophilous = torch.stack([softmax(part) for part in logits.heterophilous]).mean(0)
        return self.fuse(fleet.state.homophily, homophilous, heterophilous).clamp(min=LEAST_CHANCE)

    def fuse(self, homophily: Tensor, homophilous: Tensor, heterophilous: Tensor) -> Tensor:
        """Returns probabilities out of those of both branches."""
        share = homophily if self.fusion == "soft" else (homophily >= self.threshold).to(homophily)
        return heterophilous + share.view(-1, 1, 1) * (homophilous - heterophilous)

    def homophily(self, fleet: Fleet) -> Tensor:
        """Returns the share of one half of each client's training nodes, drawn at random, whose labels propagation from
        the other half gets right."""
        train = fleet.labels.masks[:, 0]
        draws = torch.where(train, fleet.random.uniform(train.shape[1]), 2)
        rank = draws.argsort(dim=1, stable=True).argsort(1)
        known = train & (rank < (train.sum(1, keepdim=True) + 1) // 2)
        return self.label_accuracy(fleet, known, train & ~known)

    def label_accuracy(self, fleet: Fleet, known: Tensor, asked: Tensor) -> Tensor:
        """Returns the share of the asked nodes that label propagation from the known ones gets right."""
        truth = functional.one_hot(fleet.labels.classes, fleet.classes).float()
        start = torch.where(known.unsqueeze(2), truth, 1 / fleet.classes)
        labels = propagate_labels(fleet.graph, start, known, self.label_steps, self.label_share)
        right = labels.max(2).indices == fleet.labels.classes
        return torch.where(asked.any(1), mean_over(right.float(), asked), UNKNOWN)

    def knowledge(self, fleet: Fleet) -> Tree:
        """Returns what the extractor knows of the clients' graphs: its predictions, which nodes are similar, and what
        features are propagated along; made once, as the extractor does not change any more."""
        key = "knowledge where it is scored" if fleet.data is fleet.scoring else "knowledge"
        return kept(fleet, key, self.make_knowledge)

    def train_rows(self, fleet: Fleet) -> TrainRows:
        """Returns the rows at training nodes of what features are propagated along; made once, too."""

        def make(fleet: Fleet) -> Tree:
            return rows_at(fleet.data.train_subset, self.knowledge(fleet), self.hops)

        return TrainRows(fleet.data.train_subset, **kept(fleet, "rows at training nodes", make))

    @torch.no_grad()
    def make_knowledge(self, fleet: Fleet) -> Tree:
        chances = fleet.predict(fleet.state.model).logits.softmax(2)
        similar = similar_pairs(self.compared(chances), fleet.graph.real, self.similar)
        return Tree(
            chances=chances,
            similar=similar,
            propagation=propagation_matrix(fleet.graph, similar, self.adjacency),
        )

    def compared(self, chances: Tensor) -> Tensor:
        """Returns the extractor's predictions as they are compared and mixed."""
        return chances.softmax(2) if self.double_softmax else chances


def kept(fleet: Fleet, key: str, make: Callable[[Fleet], Tree]) -> Tree:
    """Returns what was made of clients' data and state when it was first asked for."""
    if any(key not in cache for cache in fleet.caches):
        made = make(fleet)
        for row, cache in enumerate(fleet.caches):
            cache.setdefault(key, (made, row))
    sources, rows = zip(*(cache[key] for cache in fleet.caches), strict=True)
    if all(source is sources[0] for source in sources) and contiguous(list(rows)):  # views, without a copy
        return select_clients(sources[0], slice(rows[0], rows[-1] + 1))
    return stack([select_clients(source, row) for source, row in zip(sources, rows, strict=True)])


def no_loss(models: Weights, fleet: Fleet) -> Tensor:  # noqa: ARG001
    """Stands for the loss of a model that is not trained yet."""
    raise AssertionError
