"""FedGKC. Wu, Zeng, Lai, Su, Jia, Zhu, Li, Li, Wang and Zhou: Knowledge-driven federated graph learning on model
heterogeneity. arXiv 2501.12624, 2025."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from graft.errors import InputError
from graft.federation.method import Held, step
from graft.federation.reveals import MODEL, NODES, Reveals
from graft.federation.several_models import OWN, SeveralModels
from graft.fields import Search
from graft.methods.fedgkc.distillation import (
    VIEWS,
    best_or_mean,
    neighbourhood_loss,
    no_worse,
    student_outputs,
    sum_of_terms,
    view_loss,
    with_others,
)
from graft.methods.fedgkc.knowledge import Knowledge, aggregation_shares, knowledge_of
from graft.methods.fedppn import validated
from graft.methods.scaffold import add_share, nothing
from graft.models.architecture import Output
from graft.tensors.trees import Tree, Weights, add_update, difference, map_tree, squared_distance, trainable
from graft.training.losses import divergence, log_softmax

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graft.federation.clients import Clients
    from graft.federation.fleet import Fleet, Loss
    from graft.federation.server import Server
    from graft.models.architecture import Model
    from graft.training.optimizers import Training

Schedule = Literal["copilot_first", "local_first", "simultaneous", "block"]
Teacher = Literal["copilot", "received", "mean", "best"]
Answer = Literal["local", "copilot", "mean", "best"]
TERMS = {  # of the two losses
    "copilot": ("labels", "predictions", "neighbourhood"),
    "local": ("labels", "predictions", "neighbourhood", "self"),
}
CANDIDATES: dict[str, list[tuple[str, ...]]] = {  # what may predict, by `answer`
    "local": [(OWN,)],
    "copilot": [("copilot",)],
    "mean": [(OWN, "copilot")],
    "best": [(OWN,), ("copilot",), ("received",), (OWN, "copilot")],
}


@dataclass(frozen=True)
class FedGKC(SeveralModels):
    """Clients keep models of any shape; a small copilot of one shape travels and is averaged by what it knows.

    The defaults are what worked best on validation nodes, see docs/results/fedgkc.md; `fedgkc_paper` has the paper's.
    """

    heterogeneous: ClassVar[bool] = True
    capturable: ClassVar[bool] = True
    reveals: ClassVar = {
        "train/copilot": MODEL,
        "train/size": NODES,
        "train/strength": Reveals("mean confidence of the copilot over the client's nodes"),
        "train/clarity": Reveals("mean margin of its predictions, less their similarity to those of neighbours"),
        "train/knowledge": Reveals(
            "knowledge of the copilot: the sum of its strength and clarity, or its accuracy on validation nodes"
        ),
        "train/terms": Reveals("terms of the client's last training losses"),
    }
    averages: ClassVar[tuple[str, ...]] = ("train/copilot",)
    averaged: ClassVar[str | None] = "copilot"
    logged: ClassVar[tuple[str, ...]] = ("train/strength", "train/clarity", "train/terms")
    judges_unless: ClassVar = {
        "gate": (False,),
        "teacher": ("copilot", "received", "mean"),
        "knowledge_from": ("confidence",),
        "answer": ("local", "copilot", "mean"),
    }

    # Architecture of the travelling model.
    copilot: Annotated[str, Search(choices=("gcn", "sage", "sgc", "tag"))] = "tag"
    alpha: Annotated[float, Ge(0), Search(0.4, 0.8)] = 0.6  # weight of the labels in both losses
    # Weight of the neighbourhood distillation; the rest, 1 - alpha - beta, is for the predictions.
    beta: Annotated[float, Ge(0), Search(0.0, 0.2)] = 0.0
    # How much the copilot imitates its local model: 1 in the paper, 0 learns from labels alone.
    feedback: Annotated[float, Ge(0), Search(0.0, 1.0)] = 0.0
    gate: bool = True  # a model teaches a client only while it is no worse than its student on validation nodes there
    # lambda: how much over-smoothing lowers a client's knowledge.
    smoothing: Annotated[float, Ge(0), Search(0.0, 0.5)] = 0.1
    # Weight of the distillation between two views of the graph.
    self_weight: Annotated[float, Ge(0), Search(0.0, 1.0)] = 0.25
    views: Literal["graft", "fgssl", "light"] = "graft"  # how strongly the two views are perturbed
    # In every epoch the copilot takes its step first and then teaches, or the local model does, or both step at once;
    # or the copilot trains for all its epochs before the local model does.
    schedule: Annotated[Schedule, Search(choices=("copilot_first", "local_first", "simultaneous"))] = "copilot_first"
    # Epochs of the copilot in a round if schedule is block; 0: as many as of the local model.
    copilot_epochs: Annotated[int, Ge(0)] = 0
    detach_weak: bool = True  # whether the weak view teaches the strong one without being taught by it
    # Whether the neighbourhood distillation of a node is a sum or a mean over its neighbours.
    neigh_reduction: Literal["sum", "mean"] = "sum"
    # Whether the squared error between views is a mean or a sum over the coordinates of an embedding.
    mse_reduction: Literal["mean", "sum_dim"] = "mean"
    # Whether embeddings of another width than the copilot's are mapped to it by a private linear map.
    neigh_projection: bool = False
    # The copilot's own optimiser, where it is not that of the experiment.
    copilot_optimizer: Annotated[
        Literal["common", "adam", "sgd", "momentum"], Search(choices=("common", "momentum"))
    ] = "common"
    # Learning rate of the copilot's own optimiser.
    copilot_learning_rate: Annotated[float, Gt(0), Search(0.01, 0.5, log=True)] = 0.1
    # Drift correction of the copilot, as in FedDC: its pull towards what it received less its client's drift; 0: none.
    pull: Annotated[float, Ge(0), Search(0.0, 0.2)] = 0.0
    # Which copilot teaches the local model: that which trains beside it, that which it received, the mean of what both
    # predict, or at every client whichever of the three is best on its validation nodes.
    teacher: Annotated[Teacher, Search(choices=("copilot", "received", "mean", "best"))] = "received"
    # Softens predictions where one model teaches the other.
    temperature: Annotated[float, Gt(0), Search(0.5, 4.0, log=True)] = 1.0
    # What predicts: the local model, the copilot after its training, the mean of both, or at every client whichever of
    # these and the copilot as it was received is best on its validation nodes.
    answer: Annotated[Answer, Search(choices=("local", "best"))] = "best"
    travels: bool = True  # off: every copilot stays with its client, to see what is left without a federation
    smkd: bool = True  # off: models learn from labels and each other's predictions only, as in FML
    kama: bool = True  # off: copilots are averaged by numbers of nodes alone
    volume: bool = True  # off: copilots are averaged by their knowledge alone
    # What knowledge is: confident and clear predictions, or the share of validation nodes that a copilot gets right.
    knowledge_from: Literal["confidence", "validation"] = "confidence"
    sharpness: Annotated[float, Gt(0)] = 1.0  # power of knowledge before clients' shares in it are taken; 1: paper
    self_distill: bool = True  # off: no distillation between views
    mutual: bool = True  # off: the two models do not teach each other
    strength: bool = True  # off: confidence does not count as knowledge
    clarity1: bool = True  # off: the margin over the other classes does not count as knowledge
    clarity2: bool = True  # off: over-smoothing does not lower knowledge

    def check(self) -> None:
        super().check()
        if self.alpha + self.beta > 1 + 1e-9:
            raise InputError(f"alpha {self.alpha} and beta {self.beta} must add up to at most 1.")

    def averaged_model(self, server: Server) -> Model:
        return server.architecture(self.copilot)

    def second_model(self) -> str:
        return self.copilot

    def graph_views(self) -> int:
        return 2 if self.smkd and self.self_distill and self.self_weight > 0 else 0

    def start_server(self, server: Server) -> None:
        model = self.averaged_model(server)
        server.state.copilot = server.initial(model)
        if self.pull:
            server.state.drift = nothing(server.state.copilot, model.frozen)

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        copilot = fleet.architecture(self.copilot)
        width = fleet.predict(fleet.state.model).embedding.shape[2]
        start = fleet.initial(copilot)
        copilot_width = fleet.predict(start, copilot).embedding.shape[2]
        if self.keeps_copilot:
            fleet.state.copilot = map_tree(torch.clone, start)
        if self.answer == "best":
            fleet.state.received = map_tree(torch.clone, start)
        if self.pull:
            fleet.state.drift = nothing(start, copilot.frozen)
        if self.neigh_projection:
            identity = torch.eye(width, copilot_width, device=fleet.device)
            fleet.state.projection = Tree(weight=identity.expand(len(fleet.clients), -1, -1))
        elif self.compares_embeddings and width != copilot_width:
            raise InputError(
                f"The neighbourhood distillation compares embeddings of width {width} with the copilot's "
                f"{copilot_width}: use one width, or set neigh_projection, or beta to 0."
            )

    @property
    def compares_embeddings(self) -> bool:
        return self.smkd and self.mutual and self.beta > 0

    @property
    def keeps_copilot(self) -> bool:
        """Returns whether clients need their copilot beyond its training."""
        return self.answer != "local" or not self.travels

    def round(self, server: Server, clients: Clients) -> None:
        replies = clients.ask(self.train, server.state.copilot if self.travels else None)
        shares = aggregation_shares(self, replies.size, replies.knowledge)
        weight = shares.final if self.kama else shares.volume
        if self.travels:
            share = len(replies) / server.clients
            server.state.copilot = self.corrected(server, replies.mean("copilot", weight), share)
        server.record(
            strength=replies.strength,
            clarity=replies.clarity,
            knowledge=replies.knowledge,
            volume_weight=shares.volume,
            weight=weight,
            fell_back=shares.fell_back,
            negative=(replies.knowledge < 0).sum(),
            **{f"{model}_{term}": size for model, terms in replies.terms.items() for term, size in terms.items()},
        )

    def corrected(self, server: Server, mean: Weights, share: float) -> Weights:
        """Returns the mean copilot and, with drift correction, the mean drift of all clients on top of it."""
        if not self.pull:
            return mean
        update = difference(mean, server.state.copilot, server.architecture(self.copilot).frozen)
        server.state.drift = add_share(server.state.drift, update, share)
        return add_update(mean, server.state.drift)

    @step
    def train(self, fleet: Fleet, received: Weights | None = None) -> Tree:
        """Self-mutual knowledge distillation, then the knowledge of the copilot."""
        copilot: Weights = fleet.state.copilot if received is None else received
        models: dict[str, Weights] = {"copilot": copilot, "model": fleet.state.model}
        if self.neigh_projection:
            models["model"] = Tree(model=fleet.state.model, projection=fleet.state.projection)
        zeros = torch.zeros(len(fleet.clients), device=fleet.device)
        sizes = Tree({name: Tree(dict.fromkeys(terms, zeros)) for name, terms in TERMS.items()})
        teacher_outputs = Tree()
        before = self.before_training(fleet, copilot)
        local_terms = partial(self.local_terms, before=before, teacher_outputs=teacher_outputs)
        losses: dict[str, Loss] = {
            "copilot": self.pulled(fleet, copilot, partial(sum_of_terms, self.copilot_terms, sizes.copilot)),
            "model": partial(sum_of_terms, local_terms, sizes.local),
        }
        trained = self.fit_models(fleet, models, losses)
        fleet.state.model = trained.model
        if self.neigh_projection:
            fleet.state.model, fleet.state.projection = trained.model.model, trained.model.projection
        self.keep(fleet, trained.copilot, copilot)
        # Where the local model steps last, the copilot taught as it is now; but in batches not on all nodes.
        taught_last = self.schedule in ("copilot_first", "block") and fleet.training.batches == 1
        logits = teacher_outputs.get("logits") if taught_last else None
        if logits is None:
            logits = fleet.predict(trained.copilot, fleet.architecture(self.copilot)).logits
        self.choose(fleet, {"copilot": logits, **({} if before is None else {"received": before.logits})})
        strength, clarity, knowledge = self.knowledge(fleet, logits)
        return Tree(
            **({"copilot": trained.copilot} if self.travels else {}),
            size=fleet.labelled_only(fleet.size),
            strength=strength,
            clarity=clarity,
            knowledge=fleet.labelled_only(knowledge),
            terms=sizes,
        )

    def pulled(self, fleet: Fleet, received: Weights, loss: Loss) -> Loss:
        """Returns the copilot's loss, with its pull towards what it received less its client's drift if it has one."""
        if not self.pull:
            return loss
        frozen = fleet.architecture(self.copilot).frozen
        target = map_tree(torch.sub, trainable(received, frozen), fleet.state.drift)

        def with_pull(models: Tree, batch: Fleet) -> Tensor:
            return loss(models, batch) + self.pull / 2 * squared_distance(trainable(models.copilot, frozen), target)

        return with_pull

    def keep(self, fleet: Fleet, copilot: Weights, received: Weights) -> None:
        """Keeps what clients need of a copilot after its training."""
        if self.pull:
            update = difference(copilot, received, fleet.architecture(self.copilot).frozen)
            fleet.state.drift = map_tree(torch.add, fleet.state.drift, update)
        if self.keeps_copilot:
            fleet.state.copilot = copilot
        if self.answer == "best":
            fleet.state.received = map_tree(torch.clone, received)

    def fit_models(self, fleet: Fleet, models: dict[str, Weights], losses: dict[str, Loss]) -> Tree:
        """Train copilot and local model by the schedule."""
        # Buffers of your own module stand one level deeper when the projection is trained with it.
        own = {f"model/{path}" for path in fleet.model.frozen} if self.neigh_projection else fleet.model.frozen
        frozen = {"copilot": fleet.architecture(self.copilot).frozen, "model": frozenset(own)}
        trainings = self.trainings(fleet)
        if self.schedule != "block":
            in_turn = losses if self.schedule == "copilot_first" else dict(reversed(losses.items()))
            at_once = self.schedule == "simultaneous"
            return fleet.fit_in_turn(models, in_turn, None, frozen, trainings=trainings, simultaneous=at_once)
        trained = Tree(models)
        for name, epochs in (("copilot", self.copilot_epochs or None), ("model", None)):
            others = {other: trained[other] for other in models if other != name}
            loss = {name: partial(with_others, losses[name], others)}
            trained[name] = fleet.fit_in_turn({name: trained[name]}, loss, epochs, frozen, trainings=trainings)[name]
        return trained

    def trainings(self, fleet: Fleet) -> dict[str, Training]:
        """Returns how the copilot trains, where not as the experiment has it."""
        if self.copilot_optimizer == "common":
            return {}
        rate = self.copilot_learning_rate
        return {"copilot": replace(fleet.training, optimizer=self.copilot_optimizer, learning_rate=rate)}

    def copilot_terms(self, fleet: Fleet, models: Tree) -> Tree:
        """Eq. 2: labels, and distillation from the local model."""
        distils = self.mutual and self.feedback > 0
        model = fleet.architecture(self.copilot)
        output, evaluated = student_outputs(fleet, models.copilot, model, evaluate=distils and self.gate)
        terms = Tree(labels=self.alpha * fleet.cross_entropy(output.logits))
        if distils:
            teacher = self.projected(models, fleet.predict(self.local(models)))
            feedback = self.gated(fleet, teacher, evaluated, self.mutual_terms(fleet, teacher, output))
            terms.update(map_tree(lambda term: self.feedback * term, feedback))
        return terms

    def local_terms(
        self, fleet: Fleet, models: Tree, before: Output | None = None, teacher_outputs: Tree | None = None
    ) -> Tree:
        """Eq. 5: labels, distillation from the copilot, whose logits are left in `teacher_outputs`, and agreement
        between two views. `before` is what the copilot that was received predicts."""
        output, evaluated = student_outputs(fleet, self.local(models), evaluate=self.mutual and self.gate)
        terms = Tree(labels=self.alpha * fleet.cross_entropy(output.logits))
        if self.mutual:
            teacher = self.teaching(fleet, models.copilot, before, teacher_outputs)
            student = self.projected(models, output)
            terms.update(self.gated(fleet, teacher, evaluated, self.mutual_terms(fleet, teacher, student)))
        if self.graph_views():
            terms["self"] = self.self_weight * self.agreement(fleet, self.local(models))
        return terms

    def before_training(self, fleet: Fleet, received: Weights) -> Output | None:
        """Returns what a received copilot predicts, once for all epochs of a round; None where it does not teach."""
        if self.teacher == "copilot" or not self.mutual:
            return None
        return fleet.predict(received, fleet.architecture(self.copilot))

    def teaching(
        self, fleet: Fleet, copilot: Weights, before: Output | None, teacher_outputs: Tree | None = None
    ) -> Output:
        """Returns what the local model's teacher predicts."""
        received = before and Output(*map(fleet.at_nodes, before))
        if received and self.teacher == "received":
            return received
        trained = fleet.predict(copilot, fleet.architecture(self.copilot))
        if teacher_outputs is not None:
            teacher_outputs.logits = trained.logits
        return best_or_mean(fleet, trained, received, best=self.teacher == "best") if received else trained

    def candidates(self) -> Sequence[tuple[str, ...]]:
        return CANDIDATES[self.answer]

    def held(self, fleet: Fleet) -> Mapping[str, Held]:
        copilots = [name for name in ("copilot", "received") if name in fleet.state]
        return {OWN: Held(fleet.state.model)} | {name: Held(fleet.state[name], self.copilot) for name in copilots}

    def local(self, models: Tree) -> Weights:
        weights: Weights = models.model.model if self.neigh_projection else models.model
        return weights

    def projected(self, models: Tree, output: Output) -> Output:
        """Returns the output of the local model, with embeddings of the copilot's width."""
        if not self.neigh_projection:
            return output
        return output._replace(embedding=output.embedding @ models.model.projection.weight)

    def mutual_terms(self, fleet: Fleet, teacher: Output, student: Output) -> Tree:
        """Distillation from one model to the other; no gradient reaches the teacher."""
        predictions = divergence(teacher.logits, student.logits, fleet.graph.real, self.temperature)
        if not self.smkd:
            return Tree(predictions=(1 - self.alpha) * predictions)
        terms = Tree(predictions=(1 - self.alpha - self.beta) * predictions)
        if self.beta:
            embeddings = teacher.embedding, student.embedding
            terms.neighbourhood = self.beta * neighbourhood_loss(fleet.graph, *embeddings, self.neigh_reduction)
        return terms

    def gated(self, fleet: Fleet, teacher: Output, student: Output, terms: Tree) -> Tree:
        """Returns the terms, with 0 for a client where the gate is on and the teacher is worse than its student."""
        if not self.gate:
            return terms
        trust = no_worse(fleet, teacher, student)
        return map_tree(lambda term: trust * term, terms)

    def agreement(self, fleet: Fleet, weights: Weights) -> Tensor:
        """Eq. 4: the strongly perturbed view learns from the weakly perturbed one."""
        weak_rates, strong_rates = VIEWS[self.views]
        weak_view = fleet.graph.perturbed(fleet.random, *weak_rates)
        strong_view = fleet.graph.perturbed(fleet.random, *strong_rates)
        teach = fleet.predict if self.detach_weak else fleet.forward
        weak, strong = teach(weights, graph=weak_view), fleet.forward(weights, graph=strong_view)
        return view_loss(fleet.graph, weak, strong, self.mse_reduction)

    def knowledge(self, fleet: Fleet, logits: Tensor) -> Knowledge:
        """Returns what a copilot knows, by its logits."""
        strength, clarity = knowledge_of(self, fleet.graph, log_softmax(logits).exp())
        by_labels = self.knowledge_from == "validation"
        return Knowledge(strength, clarity, validated(fleet, logits) if by_labels else strength + clarity)
