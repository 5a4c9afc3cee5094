"""FedGKC. Federated graph knowledge collaboration: clients with different graph neural networks learn from each
other through a small copilot model that travels (arXiv 2501.12624)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from graft.errors import InputError
from graft.federation.method import Method, step
from graft.tensors.trees import Tree, Weights, map_tree, weighted_mean
from graft.training.losses import divergence, log_softmax, mean_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from graft.federation.exchange import Clients, Server
    from graft.federation.fleet import Fleet
    from graft.graphs.fleet_graph import FleetGraph
    from graft.models.architecture import Model, Output

VIEWS = {  # preset: (edges, features) left out of the weak view, (edges, features) left out of the strong one
    "graft": ((0.2, 0.2), (0.5, 0.4)),
    "fgssl": ((0.3, 0.3), (0.8, 0.5)),
    "light": ((0.1, 0.1), (0.3, 0.3)),
}

TERMS = {  # what the two losses are made of
    "copilot": ("labels", "predictions", "neighbourhood"),
    "local": ("labels", "predictions", "neighbourhood", "self"),
}


@dataclass(frozen=True)
class FedGKC(Method):
    """Clients keep models of any shape; a small copilot of one shape travels and is averaged by what it knows.

    The defaults are what worked best on validation nodes, see docs/results/fedgkc.md; `fedgkc_paper` has the paper's.
    """

    heterogeneous: ClassVar[bool] = True

    copilot: str = "gcn"  # architecture of the travelling model
    alpha: float = 0.8  # weight of the labels in both losses
    beta: float = 0.0  # weight of the neighbourhood distillation; the rest, 1 - alpha - beta, is for the predictions
    feedback: float = 0.0  # how much the copilot imitates its local model: 1 in the paper, 0 learns from labels alone
    gate: bool = True  # a model teaches a client only while it is no worse than its pupil on the validation nodes there
    smoothing: float = 0.1  # lambda: how much over-smoothing lowers a client's knowledge
    self_weight: float = 0.0  # weight of the distillation between two views of the graph
    views: Literal["graft", "fgssl", "light"] = "graft"  # how strongly the two views are perturbed
    schedule: Literal["interleaved", "block"] = "interleaved"  # copilot and local model in turn, or one after the other
    copilot_epochs: int = 0  # epochs of the copilot in a block schedule; 0 means as many as the local model's
    detach_weak: bool = True  # the weak view teaches the strong one and is not taught by it
    neigh_reduction: Literal["sum", "mean"] = "sum"  # over the neighbours of a node
    mse_reduction: Literal["mean", "sum_dim"] = "mean"  # over the coordinates of an embedding
    neigh_projection: bool = False  # a private linear map to the copilot's width, for clients of another width
    smkd: bool = True  # off: labels and predictions only, as in mutual learning
    kama: bool = True  # off: averaged by size alone
    self_distill: bool = True  # off: no views
    mutual: bool = True  # off: the two models do not teach each other
    strength: bool = True  # off: confidence does not count as knowledge
    clarity1: bool = True  # off: the margin over the other classes does not count
    clarity2: bool = True  # off: over-smoothing does not count

    def __post_init__(self) -> None:
        if not all(share >= -1e-9 for share in (self.alpha, self.beta, 1 - self.alpha - self.beta)):
            raise InputError(f"alpha {self.alpha} and beta {self.beta} must be at least 0 and add up to at most 1.")
        for name in ("feedback", "smoothing", "self_weight", "copilot_epochs"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 0.")

    def start_server(self, server: Server) -> None:
        server.state.copilot = server.initial(server.architecture(self.copilot))

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        copilot = fleet.architecture(self.copilot)
        width = fleet.predict(fleet.state.model).embedding.shape[2]
        wanted = fleet.predict(fleet.initial(copilot), copilot).embedding.shape[2]
        if self.neigh_projection:
            start = torch.eye(width, wanted, device=fleet.device)
            fleet.state.projection = Tree(weight=start.expand(len(fleet.clients), -1, -1))
        elif self.neighbours_matter and width != wanted:
            raise InputError(
                f"The neighbourhood distillation compares embeddings of width {width} with the copilot's {wanted}: "
                "use one width, or set neigh_projection, or beta to 0."
            )

    def round(self, server: Server, clients: Clients) -> None:
        replies = clients.ask(self.train, server.state.copilot)
        volume = replies.size.double() / replies.size.sum()
        knowledge = replies.knowledge.double().clamp(min=0)  # Eq. 8 goes negative for a near-uniform copilot
        known = knowledge.sum() > 1e-8
        trusted = torch.where(known, knowledge / knowledge.sum().clamp(min=1e-8), volume)
        shares = (volume + trusted) / 2 if self.kama else volume
        server.state.copilot = weighted_mean(replies.copilot, shares)
        server.record(
            strength=replies.strength,
            clarity=replies.clarity,
            knowledge=replies.knowledge,
            volume_weight=volume,
            weight=shares,
            fell_back=~known,
            negative=(replies.knowledge < 0).sum(),
            **{f"{model}_{term}": size for model, terms in replies.terms.items() for term, size in terms.items()},
        )

    @step
    def train(self, fleet: Fleet, copilot: Weights) -> Tree:
        """Self-mutual knowledge distillation, then what the copilot knows."""
        models = {"copilot": copilot, "model": fleet.state.model}
        if self.neigh_projection:
            models["model"] = Tree(model=fleet.state.model, projection=fleet.state.projection)
        nothing = torch.zeros(len(fleet.clients), device=fleet.device)
        sizes = Tree({name: Tree(dict.fromkeys(terms, nothing)) for name, terms in TERMS.items()})
        said = Tree()
        losses = {
            "copilot": partial(total, self.copilot_terms, fleet, sizes.copilot),
            "model": partial(total, partial(self.local_terms, said=said), fleet, sizes.local),
        }
        # Buffers of your own module stand one level deeper when the projection is trained with it.
        own = {f"model/{path}" for path in fleet.model.frozen} if self.neigh_projection else fleet.model.frozen
        frozen = {"copilot": fleet.architecture(self.copilot).frozen, "model": frozenset(own)}
        if self.schedule == "interleaved":
            trained = fleet.fit_in_turn(models, losses, frozen=frozen)
        else:
            trained = Tree(models)
            for name, epochs in (("copilot", self.copilot_epochs or None), ("model", None)):
                others = {other: trained[other] for other in models if other != name}
                loss = losses[name]
                fitted = fleet.fit_in_turn(
                    {name: trained[name]},
                    {name: lambda parts, loss=loss, others=others: loss(Tree(others | parts))},  # type: ignore[misc]
                    epochs,
                    frozen,
                )
                trained[name] = fitted[name]
        fleet.state.model = trained.model
        if self.neigh_projection:
            fleet.state.model, fleet.state.projection = trained.model.model, trained.model.projection
        # The last lesson was the copilot's as it is now; only in batches was it not about all nodes.
        strength, clarity = self.knowledge(fleet, trained.copilot, said if fleet.training.batches == 1 else None)
        return Tree(
            copilot=trained.copilot,
            size=fleet.size,
            strength=strength,
            clarity=clarity,
            knowledge=strength + clarity,
            terms=sizes,
        )

    @property
    def neighbours_matter(self) -> bool:
        return self.smkd and self.mutual and self.beta > 0

    def copilot_terms(self, fleet: Fleet, models: Tree) -> Tree:
        """Eq. 2: labels, and what the local model says."""
        listens = self.mutual and self.feedback > 0
        output, pupil = look(fleet, models.copilot, fleet.architecture(self.copilot), judged=listens and self.gate)
        terms = Tree(labels=self.alpha * fleet.cross_entropy(output.logits))
        if listens:
            teacher = self.projected(models, fleet.predict(self.local(models)))
            lessons = self.lessons(fleet, teacher, output)
            if self.gate:
                trust = no_worse(fleet, teacher, pupil)
                lessons = map_tree(lambda lesson: trust * lesson, lessons)
            terms.update(map_tree(lambda lesson: self.feedback * lesson, lessons))
        return terms

    def local_terms(self, fleet: Fleet, models: Tree, said: Tree | None = None) -> Tree:
        """Eq. 5: labels, what the copilot says, which is noted, and agreement between two views."""
        output, pupil = look(fleet, self.local(models), judged=self.mutual and self.gate)
        terms = Tree(labels=self.alpha * fleet.cross_entropy(output.logits))
        if self.mutual:
            teacher = fleet.predict(models.copilot, fleet.architecture(self.copilot))
            if said is not None:
                said.logits = teacher.logits
            lessons = self.lessons(fleet, teacher, self.projected(models, output))
            if self.gate:
                trust = no_worse(fleet, teacher, pupil)
                lessons = map_tree(lambda lesson: trust * lesson, lessons)
            terms.update(lessons)
        if self.smkd and self.self_distill and self.self_weight:
            terms["self"] = self.self_weight * self.agreement(fleet, self.local(models))
        return terms

    def local(self, models: Tree) -> Weights:
        return models.model.model if self.neigh_projection else models.model  # type: ignore[no-any-return]

    def projected(self, models: Tree, output: Output) -> Output:
        """What the local model says, with embeddings as wide as the copilot's."""
        if not self.neigh_projection:
            return output
        return output._replace(embedding=output.embedding @ models.model.projection.weight)

    def lessons(self, fleet: Fleet, teacher: Output, student: Output) -> Tree:
        """What one model teaches the other; no gradient reaches the teacher."""
        taught = divergence(teacher.logits, student.logits, fleet.graph.real)
        if not self.smkd:
            return Tree(predictions=(1 - self.alpha) * taught)
        lessons = Tree(predictions=(1 - self.alpha - self.beta) * taught)
        if self.beta:
            around = self.neighbourhood(fleet.graph, teacher.embedding, student.embedding)
            lessons.neighbourhood = self.beta * around
        return lessons

    def neighbourhood(self, graph: FleetGraph, teacher: Tensor, student: Tensor) -> Tensor:
        """Eq. 1: every node is taught by the embeddings of its neighbours and its own."""
        wanted = log_softmax(teacher.detach())
        weights = wanted.exp()
        # sum_j KL(t_j || s_i) = sum_j t_j log t_j - (sum_j t_j) log s_i: a sparse product, nothing of edges by width.
        around = graph.with_self_loops @ torch.cat([weights, (weights * wanted).sum(2, keepdim=True)], dim=2)
        found = log_softmax(student)
        per_node = around[:, :, -1] - (around[:, :, :-1] * found).sum(2)
        if self.neigh_reduction == "mean":
            per_node = per_node / (graph.degree + 1)
        return mean_over(per_node, graph.real)

    def agreement(self, fleet: Fleet, weights: Weights) -> Tensor:
        """Eq. 4: the strongly perturbed view learns from the weakly perturbed one."""
        weak_rates, strong_rates = VIEWS[self.views]
        weak_view = fleet.graph.perturbed(fleet.random, *weak_rates)
        strong_view = fleet.graph.perturbed(fleet.random, *strong_rates)
        look = fleet.predict if self.detach_weak else fleet.forward
        weak, strong = look(weights, graph=weak_view), fleet.forward(weights, graph=strong_view)
        gap = (weak.embedding - strong.embedding).square()
        squared = gap.mean(2) if self.mse_reduction == "mean" else gap.sum(2)
        wanted, found = log_softmax(weak.logits), log_softmax(strong.logits)
        return mean_over(squared + (wanted.exp() * (wanted - found)).sum(2), fleet.graph.real)

    def knowledge(self, fleet: Fleet, copilot: Weights, said: Tree | None = None) -> tuple[Tensor, Tensor]:
        """Eqs. 7 and 8: how sure the copilot is, and how clear and how little smoothed, one number a client.

        `said` are its logits, where they are known already.
        """
        logits = said.logits if said else fleet.predict(copilot, fleet.architecture(self.copilot)).logits
        return knowledge_of(self, fleet.graph, log_softmax(logits).exp())


@dataclass(frozen=True)
class FedGKCPaper(FedGKC):
    """FedGKC as published: both models always teach each other, by neighbourhoods and predictions, and two views."""

    alpha: float = 0.6
    beta: float = 0.2
    feedback: float = 1.0
    gate: bool = False
    self_weight: float = 1.0


def look(fleet: Fleet, weights: Weights, model: Model | None = None, *, judged: bool) -> tuple[Output, Output]:
    """What a pupil says in training mode, and where it is judged also in evaluation mode."""
    if judged:
        return fleet.forward_and_predict(weights, model)
    output = fleet.forward(weights, model)
    return output, output


def no_worse(fleet: Fleet, teacher: Output, pupil: Output) -> Tensor:
    """1 for a client whose validation nodes the teacher gets right at least as often as the pupil, else 0."""
    first, second = (fleet.count_validated(output.logits) for output in (teacher, pupil))
    return (first >= second).float()


def knowledge_of(method: FedGKC, graph: FleetGraph, chances: Tensor) -> tuple[Tensor, Tensor]:
    """Strength and clarity of predictions [clients, nodes, classes], each a mean over a client's nodes."""
    best = chances.amax(2)
    margin = (2 * best - 1) / max(chances.shape[2] - 1, 1)
    unit = functional.normalize(chances, dim=2, eps=1e-12)
    alike = ((graph.neighbours @ unit) * unit).sum(2) / graph.degree.clamp(min=1)
    clarity = method.clarity1 * margin - method.clarity2 * method.smoothing * alike
    return mean_over(method.strength * best, graph.real), mean_over(clarity, graph.real)


def total(terms: Callable[[Fleet, Tree], Tree], fleet: Fleet, sizes: Tree, models: Tree) -> Tensor:
    """The sum of some terms; their sizes are noted, and after training those of the last epoch stand there."""
    found = terms(fleet, models)
    sizes.update(map_tree(Tensor.detach, found))
    first, *others = found.values()
    return sum(others, start=first)  # type: ignore[no-any-return]
