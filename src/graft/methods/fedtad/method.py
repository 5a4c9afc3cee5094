"""FedTAD. Zhu, Li, Wu, Wu, Hu and Li: FedTAD: topology-aware data-free knowledge distillation for subgraph federated
learning. IJCAI 2024."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from scipy.sparse import csr_array, diags_array
from torch import Tensor
from torch.nn import functional

from graft.errors import InputError
from graft.federation.method import step
from graft.federation.plug import Plug, aggregated, replace_aggregated, write_rows
from graft.methods.fedavg import FedAvg
from graft.methods.fedtad.synthetic_graph import Similarity, answers, disclosed, merged, neighbour_graph
from graft.methods.fedtad.walks import BUDGET, as_scipy, blocks, return_probabilities
from graft.models.architecture import LayeredModel, Model, linear, start_linear
from graft.tensors.randomness import index_tensor
from graft.tensors.trees import Tree, Weights, flatten, map_tree, select_clients, trainable
from graft.training.loop import Part, Training, fit, start_adam

if TYPE_CHECKING:
    from collections.abc import Callable

    from graft.federation.exchange import Clients, Server
    from graft.federation.fleet import Fleet
    from graft.federation.plug import Uploads
    from graft.graphs.fleet_graph import FleetGraph
    from graft.tensors.randomness import Stream

HIDDEN = (64, 128, 256)  # widths of the generator's layers


@dataclass(frozen=True)
class Distillation(Plug):
    """After any averaging, the server's model learns from every client's what that client knows reliably.

    How reliable a client is for a class is told once, from its labelled nodes and how alike their neighbourhoods are. A
    generator makes up nodes that the reliable recognise, and there the server's model follows them.
    The defaults are what worked best on validation nodes, see docs/results/fedtad.md; `fedtad_paper` has the paper's.
    """

    reliability: Literal["topology", "count", "equal"] = "topology"  # count: of labelled nodes (-nv); equal: -eq
    walk_length: int = 5  # p: return probabilities of 1 to p steps describe where a node is
    walk_loops: bool = False  # whether a walk may stay where it is
    walk_budget: int = BUDGET  # multiplications for exact return probabilities; beyond it they are estimated
    walk_probes: int = 256  # of the estimate, whose standard error is at most sqrt(2 / probes) of an even step's value
    include_self: bool = True  # a node counts among its neighbours, alike by 1; off: an isolated node counts nothing
    reliability_noise: float = 0.0  # relative Gaussian noise on what a client tells of itself
    iterations: int = 5  # I: of the two phases in a round; 0 is the host alone
    generator_steps: int = 1  # I_g: steps of the generator in an iteration
    student_steps: int = 5  # I_d: steps of the server's model in an iteration
    semantic_weight: float = 1.0  # lambda1: reliable clients must recognise the class of a made-up node
    diversity_weight: float = 1.0  # lambda2: made-up nodes must differ
    adversarial: bool = False  # whether the generator also looks for nodes on which the models disagree
    # "paper": divergence of predictions, whose gradient reaches the generator through the teachers too, and mean cosine
    # of nodes; "released": difference of logits, and distances of nodes times those of their noise.
    distil_losses: Literal["paper", "released"] = "paper"
    pseudo_nodes: int = 100  # B
    pseudo_neighbours: int = 5  # of a made-up node, itself included
    pseudo_similarity: Similarity = "dot"  # by which those are chosen
    noise_width: int = 32  # of what the generator starts from
    # "norm": made-up nodes are as long as real ones are on average; without a bound the generator was seen to inflate
    # them until divergences reach 10^4.
    bound: Literal["norm", "none"] = "norm"
    pseudo_learning_rate: float = 1e-3
    student_learning_rate: float = 1e-4
    distil_decay: float = 5e-4  # weight decay of both
    student_optimizer: Literal["persistent", "reset"] = "persistent"  # kept over rounds, or new in each
    teachers: Literal["all", "group"] = "all"  # group: only those whom the host mixed into a client's own model
    distil_on: Literal["generated", "real"] = "generated"  # real: on the clients' graphs, -r-eq; needs reveal_data
    reveal_data: bool = False  # lets clients send their features and edges to the server, for simulations alone

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least = {
            "walk_length": 1,
            "walk_budget": 0,
            "walk_probes": 1,
            "iterations": 0,
            "generator_steps": 0,
            "student_steps": 0,
            "pseudo_nodes": 1,
            "pseudo_neighbours": 1,
            "noise_width": 1,
            "reliability_noise": 0,
            "semantic_weight": 0,
            "diversity_weight": 0,
            "pseudo_learning_rate": 0,
            "student_learning_rate": 0,
            "distil_decay": 0,
        }
        for name, least in at_least.items():
            if not least <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least {least}.")
        if self.pseudo_neighbours > self.pseudo_nodes:
            raise InputError(f"{self.pseudo_nodes} made-up nodes cannot have {self.pseudo_neighbours} neighbours each.")
        if self.distil_on == "real" and not (self.reveal_data and self.reliability == "equal"):
            raise InputError(
                "distil_on = real shows the server every client's features and edges, and none of their labels: it "
                "needs reveal_data = true and reliability = equal."
            )

    def start_plug(self, server: Server) -> None:
        data = shape_of_data(server)
        everyone, device = server.clients, server.device
        known = Tree(
            reliability=torch.zeros(everyone, data.classes, device=device),
            norm=torch.zeros(everyone, device=device),
            size=torch.zeros(everyone, device=device),
            # Read in every round, so it is not kept on a GPU.
            heard=torch.zeros(everyone, dtype=torch.bool),
        )
        if self.distil_on == "generated":
            start = server.initial(Generator(data.features, data.classes, self.noise_width))
            # The training loop wants a client axis; the server is one.
            known.generator = map_tree(lambda leaf: leaf.unsqueeze(0), start)
            known.generator_optimizer = start_adam(dict(flatten(known.generator)))
        if self.student_optimizer == "persistent":
            known.student_optimizer = fresh_optimizer(server, aggregated(server))
        server.state.distillation = known

    def after_round(self, server: Server, clients: Clients, uploads: Uploads) -> None:
        if not self.iterations:
            return
        self.listen(server, clients, uploads)
        before = aggregated(server, uploads.clients)
        students = self.students(server, before, uploads.clients)
        told = server.state.distillation.reliability[index_tensor(tuple(uploads.clients), server.device)]
        scope = self.scope(server, before, uploads.models)
        if self.distil_on == "real":
            self.teach_on_real(server, clients, uploads.models, scope, students)
        else:
            self.teach(server, uploads.models, told, scope, students)
        self.keep_optimizer(server, students.optimizer, uploads.clients)
        # Where nobody knows anything reliably there is nothing to learn, and weight decay must not act alone.
        usable = (told > 0).any()
        taught = map_tree(lambda new, old: torch.where(usable, new, old), students.weights, before)
        replace_aggregated(server, uploads.clients, taught)

    def listen(self, server: Server, clients: Clients, uploads: Uploads) -> None:
        """Ask the clients that were never asked before how reliable they are."""
        known = server.state.distillation
        if "heard" not in server.derived:
            server.derived["heard"] = set(known.heard.nonzero().flatten().tolist())
        new = [client for client in uploads.clients if client not in server.derived["heard"]]
        if not new:
            return
        server.derived["heard"].update(new)
        replies = clients.everyone.only(new).ask(self.tell_reliability)
        told = Tree(
            reliability=replies.reliability,
            norm=replies.norm,
            size=replies.size.float(),
            heard=torch.ones(len(new), dtype=torch.bool, device=known.heard.device),
        )
        known.update(write_rows(Tree({name: known[name] for name in told}), replies.clients, told))

    @step(fleet=False)
    def tell_reliability(self, fleet: Fleet) -> Tree:
        """How much each class of a client can be relied on, and how long its nodes are on average."""
        measures: dict[str, Callable[[Fleet], np.ndarray]] = {
            "topology": self.topology_reliability,
            "count": lambda fleet: by_class(fleet, np.ones(len(train_nodes(fleet)))),
            "equal": lambda fleet: np.ones(class_count(fleet)),
        }
        told = torch.as_tensor(measures[self.reliability](fleet), dtype=torch.float32, device=fleet.device)
        noisy = told * (1 + self.reliability_noise * fleet.random.normal(len(told))[0])
        # Features of both signs can make neighbours so unlike that they would count against a class.
        return Tree(
            reliability=noisy.clamp(min=0).unsqueeze(0),
            norm=torch.as_tensor(mean_norm(fleet), dtype=torch.float32, device=fleet.device).reshape(1),
            size=fleet.size,
        )

    @step(fleet=False)
    def disclose(self, fleet: Fleet) -> Tree:
        """A client's features and edges; only where it was told that this is a simulation."""
        if not self.reveal_data:
            raise InputError("a client keeps its features and edges unless reveal_data is set")
        return disclosed(fleet.graph)

    def topology_reliability(self, fleet: Fleet) -> np.ndarray:
        """Eqs. 3 to 5: how alike labelled nodes are to their neighbours, in features and in place, summed by class."""
        nodes = int(fleet.size[0])
        adjacency = as_scipy(fleet.graph.neighbours, nodes, nodes)
        train = train_nodes(fleet)
        around = adjacency[train]
        near = np.union1d(train, around.indices).astype(np.int64)
        places = np.zeros((nodes, self.walk_length))
        places[near] = return_probabilities(
            adjacency,
            near,
            self.walk_length,
            fleet.random,
            loops=self.walk_loops,
            budget=self.walk_budget,
            probes=self.walk_probes,
        )
        alike, degree = similarity_sums(around, train, [features_of(fleet), places]), around.sum(1)
        mean = (1 + alike) / (degree + 1) if self.include_self else alike / np.maximum(degree, 1)
        return by_class(fleet, mean)

    def students(self, server: Server, models: Tree, clients: list[int]) -> Students:
        """The models that the host made, with what is kept to train them."""
        personal = "models" in server.state
        if self.student_optimizer == "reset":
            optimizer = fresh_optimizer(server, models)
        else:
            optimizer = server.state.distillation.student_optimizer
            if personal and len(clients) < server.clients:
                optimizer = select_clients(optimizer, index_tensor(tuple(clients), server.device))
        return Students(models, optimizer, server.random("students", clients if personal else [0]))

    def keep_optimizer(self, server: Server, optimizer: Tree, clients: list[int]) -> None:
        known = server.state.distillation
        if self.student_optimizer == "persistent":
            personal = "models" in server.state
            known.student_optimizer = write_rows(known.student_optimizer, clients, optimizer) if personal else optimizer

    def scope(self, server: Server, students: Weights, teachers: Weights) -> Tensor:
        """Which teachers each student listens to, [students, teachers]; one row where it is the same for all."""
        count = len(next(leaf for _, leaf in flatten(teachers)))
        if self.teachers == "all" or "models" not in server.state:
            return torch.ones(1, count, device=server.device)
        return (mixing(students, teachers) > 1e-4).to(torch.float32)

    def teach(self, server: Server, teachers: Weights, told: Tensor, scope: Tensor, students: Students) -> None:
        """The two phases in turn: look for nodes on which models disagree, and settle them as the reliable say."""
        known = server.state.distillation
        labels = pseudo_labels(told.sum(0) > 0, self.pseudo_nodes)
        lesson = MadeUpLesson(
            model=server.models[0],
            teachers=teachers,
            votes=votes_of(told, scope, labels),
            common_votes=votes_of(told, torch.ones_like(scope[:1]), labels)[0],
            labels=labels,
            norm=(known.norm * known.size).sum() / known.size.sum().clamp(min=1),
        )
        draws = server.random("noise").normal(self.iterations * self.pseudo_nodes * self.noise_width)
        sizes = Tree()
        for noise in draws.view(self.iterations, self.pseudo_nodes, self.noise_width):
            self.train_generator(known, lesson, students.weights, noise, sizes)
            with torch.no_grad():
                graph = self.make_up(known.generator, lesson, noise)
            last = self.train_students(lesson, students, graph, self.student_steps)
        server.record(distillation=last.mean(), **sizes)

    def teach_on_real(
        self, server: Server, clients: Clients, teachers: Weights, scope: Tensor, students: Students
    ) -> None:
        """The oracle without a generator: all teachers count alike on every real node."""
        parts, shape = clients.everyone.ask(self.disclose), shape_of_data(server)
        graph = merged([parts[client] for client in parts.clients], shape.features, server.device)
        # As large as on made-up nodes, of which every class adds the mean of its own.
        shares = scope / scope.sum(1, keepdim=True) * shape.classes / graph.nodes
        lesson = Lesson(server.models[0], teachers, shares.unsqueeze(2).expand(-1, -1, graph.nodes))
        last = self.train_students(lesson, students, graph, self.iterations * self.student_steps)
        server.record(distillation=last.mean())

    def train_generator(self, known: Tree, lesson: MadeUpLesson, students: Weights, noise: Tensor, sizes: Tree) -> None:
        """Look for nodes that students see otherwise than their teachers; what the terms came to is noted."""

        def loss(parts: Tree) -> Tensor:
            terms = self.generator_terms(parts.generator, lesson, students, noise)
            sizes.update(map_tree(Tensor.detach, terms))
            looking = -terms.divergence if self.adversarial else 0.0
            total = looking + self.semantic_weight * terms.semantics + self.diversity_weight * terms.diversity
            return total.reshape(1)  # type: ignore[no-any-return]

        part = Part(known.generator, loss, known.generator_optimizer)
        training = Training(self.generator_steps, "adam", self.pseudo_learning_rate, self.distil_decay)
        fitted, states, _ = fit({"generator": part}, training)
        known.generator, known.generator_optimizer = fitted.generator, states.generator

    def generator_terms(self, weights: Weights, lesson: MadeUpLesson, students: Weights, noise: Tensor) -> Tree:
        """Eqs. 8 to 10 on the nodes that the generator makes of some noise."""
        graph = self.make_up(weights, lesson, noise)
        wanted, found = (answers(lesson.model, models, graph) for models in (lesson.teachers, students))
        fixed = wanted.detach() if self.distil_losses == "released" else wanted
        return Tree(
            divergence=DIVERGENCES[self.distil_losses](found, fixed, lesson.votes).mean(),
            semantics=recognition(wanted, lesson.labels, lesson.common_votes),
            diversity=DIVERSITIES[self.distil_losses](graph.features[0], noise, len(wanted)),
        )

    def train_students(self, lesson: Lesson, students: Students, graph: FleetGraph, steps: int) -> Tensor:
        """Follow the teachers on one graph, all students at once; gives their last losses."""
        with torch.no_grad():
            wanted = answers(lesson.model, lesson.teachers, graph)

        def loss(parts: Tree) -> Tensor:
            found = answers(lesson.model, parts.students, graph, students.random)
            return DIVERGENCES[self.distil_losses](found, wanted, lesson.votes)

        training = Training(steps, "adam", self.student_learning_rate, self.distil_decay)
        part = Part(students.weights, loss, students.optimizer, lesson.model.frozen)
        fitted, states, last = fit({"students": part}, training)
        students.weights, students.optimizer = fitted.students, states.students
        return last.get("students", wanted.new_zeros(1))

    def make_up(self, weights: Weights, lesson: MadeUpLesson, noise: Tensor) -> FleetGraph:
        """Make up nodes of the wanted classes and join each to those that are most similar."""
        features = generate(weights, lesson.labels, noise)
        if self.bound == "norm":
            features = lesson.norm * functional.normalize(features, dim=1, eps=1e-12)
        return neighbour_graph(features, self.pseudo_neighbours, self.pseudo_similarity)


@dataclass(frozen=True)
class FedTAD(Distillation, FedAvg):
    """FedAvg whose model then learns, on made-up nodes, what each client knows reliably of each class."""


@dataclass(frozen=True)
class PaperDistillation(Distillation):
    """The server phase as published: the generator looks for disagreement above all, and students take large steps."""

    semantic_weight: float = 0.1
    diversity_weight: float = 0.1
    adversarial: bool = True
    student_learning_rate: float = 1e-3


@dataclass(frozen=True)
class FedTADPaper(PaperDistillation, FedAvg):
    """FedTAD as published."""


@dataclass(frozen=True)
class ReleasedDistillation(PaperDistillation):
    """The losses and the unbounded generator of the authors' released code.

    The place of a node is there a list of node numbers, drawn at random, and the reliability that comes of it the count
    of labelled nodes, to a correlation of 0.9996: here it is that count.
    """

    reliability: Literal["topology", "count", "equal"] = "count"
    semantic_weight: float = 1.0
    diversity_weight: float = 1.0
    distil_losses: Literal["paper", "released"] = "released"
    pseudo_similarity: Similarity = "cosine"
    bound: Literal["norm", "none"] = "none"


@dataclass(frozen=True)
class FedTADReleased(ReleasedDistillation, FedAvg):
    """FedTAD with the losses and settings of the authors' released code."""


@dataclass(frozen=True)
class Lesson:
    """What does not change while the server's models learn in a round."""

    model: Model
    teachers: Weights  # stacked
    votes: Tensor  # how much each teacher counts at each node for each student, [students or 1, teachers, nodes]


@dataclass(frozen=True)
class MadeUpLesson(Lesson):
    """The same, where a generator makes up the nodes."""

    common_votes: Tensor  # of all teachers, for the generator that students share, [teachers, nodes]
    labels: Tensor  # class of each made-up node
    norm: Tensor  # how long real nodes are


@dataclass
class Students:
    """The server's models while they learn, stacked: one, or one for every client of the round."""

    weights: Tree
    optimizer: Tree
    random: Stream


def relative(told: Tensor, scope: Tensor) -> Tensor:
    """Eq. 6: the share of each teacher in what is known of a class, [students, teachers, classes]; they add up to 1
    over the teachers, or to 0 for a class that nobody knows."""
    heard = scope.unsqueeze(2) * told
    total = heard.sum(1, keepdim=True)
    return torch.where(total > 0, heard / total.clamp(min=1e-12), 0)


def votes_of(told: Tensor, scope: Tensor, labels: Tensor) -> Tensor:
    """The share of each teacher at each made-up node, divided by how many nodes have its class:
    [students, teachers, nodes]."""
    count = torch.zeros(told.shape[1], device=told.device).index_add_(0, labels, torch.ones_like(labels).to(told))
    return relative(told, scope)[:, :, labels] / count[labels]


def pseudo_labels(usable: Tensor, nodes: int) -> Tensor:
    """As many nodes of each usable class as of any other, the first ones getting one more where that does not divide.

    Nothing depends on how many classes are usable but values, so this runs without a look at them.
    """
    classes = (~usable).to(torch.int8).argsort(stable=True)
    count = usable.sum().clamp(min=1)
    each, rest = nodes // count, nodes % count
    place = torch.arange(nodes, device=usable.device)
    within_first = place // (each + 1)
    beyond = rest + (place - rest * (each + 1)) // each.clamp(min=1)
    return classes[torch.where(place < rest * (each + 1), within_first, beyond)]


def prediction_gap(found: Tensor, wanted: Tensor, votes: Tensor) -> Tensor:
    """Eq. 10: KL(student || teacher), weighted over teachers and nodes; one number a student."""
    target = torch.einsum("stn,tnc->snc", votes, wanted.log_softmax(2))
    mine = found.log_softmax(2)
    # The derivative of the student's own logarithm vanishes in the sum over classes; left out, it leaves no rounding
    # behind, which Adam would blow up where student and teachers agree.
    gap = votes.sum(1).unsqueeze(2) * mine.detach() - target
    return (mine.exp() * gap).sum((1, 2))


def logit_gap(found: Tensor, wanted: Tensor, votes: Tensor) -> Tensor:
    """The mean difference of logits, weighted over teachers and nodes; one number a student."""
    return ((found.unsqueeze(1) - wanted).abs().mean(3) * votes).sum((1, 2))


def recognition(wanted: Tensor, labels: Tensor, votes: Tensor) -> Tensor:
    """Eq. 8: cross-entropy of the teachers on the wanted classes."""
    chosen = labels.expand(len(wanted), -1).unsqueeze(2)
    missed = -wanted.log_softmax(2).gather(2, chosen).squeeze(2)
    return (votes * missed).sum()


def mean_cosine(features: Tensor, noise: Tensor, teachers: int) -> Tensor:  # noqa: ARG001
    """Eq. 9: over all pairs of nodes, each with itself included, which makes it the length of a mean, squared."""
    return functional.normalize(features, dim=1, eps=1e-12).mean(0).square().sum()


def nearness(features: Tensor, noise: Tensor, teachers: int) -> Tensor:
    """Near 1 for nodes that hardly differ where their noise does; added up once a teacher."""
    apart = torch.cdist(features, features, p=1) / features.shape[1]
    drawn_apart = torch.cdist(noise, noise).square() / noise.shape[1]
    return teachers * (-(drawn_apart * apart).mean()).exp()


DIVERGENCES = {"paper": prediction_gap, "released": logit_gap}
DIVERSITIES = {"paper": mean_cosine, "released": nearness}


@dataclass(frozen=True)
class Generator(Model):
    """A vector for every class, joined with noise, and four linear layers that make the features of a node."""

    features: int
    classes: int
    noise: int

    name = "generator"

    def start(self, generator: torch.Generator) -> Tree:
        weights = Tree(classes=torch.randn(self.classes, self.classes, generator=generator))
        widths = pairwise((self.classes + self.noise, *HIDDEN, self.features))
        for place, (inputs, outputs) in enumerate(widths):
            weights[f"layer{place}"] = start_linear(inputs, outputs, generator)
        return weights


def generate(weights: Weights, labels: Tensor, noise: Tensor) -> Tensor:
    """Made-up nodes of some classes, [nodes, features]."""
    hidden = torch.cat([weights["classes"][0][labels], noise], dim=1).unsqueeze(0)
    for place in range(len(HIDDEN)):
        hidden = torch.tanh(linear(hidden, weights[f"layer{place}"]))
    return linear(hidden, weights[f"layer{len(HIDDEN)}"]).squeeze(0)


def mixing(students: Weights, teachers: Weights) -> Tensor:
    """The shares in which each student is a mean of the teachers, [students, teachers], by least squares.

    A personalised host does not say whom it mixed, but its models do: there are far more weights than clients.
    """

    def rows(models: Weights) -> Tensor:
        return torch.cat([leaf.flatten(1) for _, leaf in flatten(models) if leaf.is_floating_point()], dim=1).double()

    sources = rows(teachers)
    centre = sources.mean(0)
    offsets = sources - centre
    inverse = torch.linalg.pinv(offsets @ offsets.T, hermitian=True)
    shares: Tensor = (rows(students) - centre) @ offsets.T @ inverse
    shares += (1 - shares.sum(1, keepdim=True)) / len(sources)  # they add up to 1
    return shares


def fresh_optimizer(server: Server, students: Weights) -> Tree:
    return start_adam(dict(flatten(trainable(students, server.models[0].frozen))))


def shape_of_data(server: Server) -> LayeredModel:
    """Any architecture of Graft's own knows how many features and classes there are."""
    built = server.architecture("mlp")
    assert isinstance(built, LayeredModel)
    return built


def class_count(fleet: Fleet) -> int:
    built = fleet.architecture("mlp")
    assert isinstance(built, LayeredModel)
    return built.classes


def train_nodes(fleet: Fleet) -> np.ndarray:
    return fleet.labels.masks[0, 0].nonzero().flatten().cpu().numpy()


def by_class(fleet: Fleet, values: np.ndarray) -> np.ndarray:
    """Sums of one value a labelled node over each class."""
    labels = fleet.labels.classes[0].cpu().numpy()[train_nodes(fleet)]
    return np.bincount(labels, weights=values, minlength=class_count(fleet))


def features_of(fleet: Fleet) -> Any:
    """The features of a single client without its spare nodes, dense or sparse."""
    nodes, features = int(fleet.size[0]), fleet.graph.features
    if isinstance(features, Tensor):
        return features[0, :nodes].cpu().numpy()
    return as_scipy(features, nodes, features.width)


def mean_norm(fleet: Fleet) -> float:
    return float(np.sqrt(squared_norms(features_of(fleet))).mean())


def squared_norms(rows: Any) -> np.ndarray:
    squared: np.ndarray = rows.multiply(rows).sum(1) if isinstance(rows, csr_array) else np.square(rows).sum(1)
    return squared


def similarity_sums(around: csr_array, nodes: np.ndarray, parts: list[Any]) -> np.ndarray:
    """For some nodes, with their rows of the adjacency, the sum of cosines with their neighbours; a node is described
    by several tables side by side, dense or sparse."""
    norms = np.sqrt(sum(squared_norms(part) for part in parts))
    scale = 1 / np.maximum(norms, 1e-12)
    found = np.zeros(len(nodes))
    for part in parts:
        sparse = isinstance(part, csr_array)
        unit = csr_array(diags_array(scale) @ part) if sparse else scale[:, None] * part
        for some in blocks(np.full(len(nodes), part.shape[1])):
            own, others = unit[nodes[some]], around[some] @ unit
            found[some] += own.multiply(others).sum(1) if sparse else (own * others).sum(1)
    return found
