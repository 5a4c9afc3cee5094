"""The server phase of FedTAD, as a plug on any method whose server averages models of one architecture."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn import functional

from graft.errors import InputError
from graft.federation.method import Method, step
from graft.federation.plug import Plug, aggregated, replace_aggregated
from graft.federation.reveals import NODES, Reveals
from graft.fields import Search
from graft.methods.fedtad.disclosure import DISCLOSED, disclosed, merge_disclosed
from graft.methods.fedtad.generator import Generator, drawn_labels, generate, pseudo_labels
from graft.methods.fedtad.lesson import Lesson, Students, SyntheticLesson, mixing_coefficients, teacher_votes
from graft.methods.fedtad.losses import DIVERGENCES, DIVERSITIES, recognition
from graft.methods.fedtad.reliability import class_reliability, mean_feature_norm
from graft.methods.fedtad.synthetic_graph import Similarity, neighbour_graph, stacked_logits
from graft.methods.fedtad.votes import ReliableVotes, by_client, check_head, check_votes, with_reliable_head
from graft.methods.fedtad.walks import BUDGET
from graft.tensors.randomness import index_tensor
from graft.tensors.trees import Tree, Weights, flatten, map_tree, select_clients, trainable, write_rows
from graft.training.loop import Part, fit
from graft.training.optimizers import Training, start_adam

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graft.federation.clients import Clients, Replies
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server
    from graft.graphs.fleet_graph import FleetGraph


@dataclass(frozen=True)
class Distillation(Plug):
    """After any averaging, the server's model learns from every client's model, weighted by its reliability.

    A client reports once how reliable it is for each class, from its labelled nodes and how similar they are to their
    neighbours. A generator makes synthetic nodes that reliable teachers recognise, and there the server's model
    follows them.
    The defaults are what worked best on validation nodes, see docs/results/fedtad.md; `fedtad_paper` has the paper's.
    Reliabilities may also weigh the host's average (`votes`), with `iterations = 0` instead of any distillation.
    """

    capturable: ClassVar[bool] = True
    reveals: ClassVar = {
        "tell_reliability/reliability": Reveals("similarity of training nodes to their neighbours, summed by class"),
        "tell_reliability/norm": Reveals("mean norm of the features of the client's nodes", ("features",)),
        "tell_reliability/size": NODES,
        **{f"disclose/{name}": reveals for name, reveals in DISCLOSED.items()},
    }

    # What makes a client reliable for a class: similar neighbours of its labelled nodes, the number of these alone (the
    # paper's -nv), or nothing: all clients count alike (-eq).
    reliability: Literal["topology", "count", "equal"] = "topology"
    walk_length: Annotated[int, Ge(1)] = 5  # p: return probabilities of 1 to p steps describe the position of a node
    walk_loops: bool = False  # whether a random walk may stay where it is
    walk_budget: Annotated[int, Ge(0)] = BUDGET  # most multiplications for exact return probabilities; else estimates
    # Random probes that estimate return probabilities; the error is sqrt(2 / probes) of an even step's value.
    walk_probes: Annotated[int, Ge(1)] = 256
    include_self: bool = True  # a node is among its neighbours, with similarity 1; off: an isolated node counts nothing
    reliability_noise: Annotated[float, Ge(0)] = 0.0  # relative Gaussian noise on the reliability that a client reports
    # Votes in the host's average: the host's; for every client the mean over classes of its share in their reliability;
    # or the host's, but in the last layer, for the weights of each class, the shares in that class.
    votes: Literal["host", "client", "class"] = "host"
    # I: how often generator and server's model train in turn in a round; 0: no distillation.
    iterations: Annotated[int, Ge(0), Search(choices=(1, 3, 5, 10))] = 5
    # I_g: steps of the generator in an iteration.
    generator_steps: Annotated[int, Ge(0), Search(choices=(1, 3, 5, 10))] = 1
    # I_d: steps of the server's model in an iteration.
    student_steps: Annotated[int, Ge(0), Search(choices=(1, 3, 5, 10))] = 5
    # lambda1: weight of the generator's aim that reliable clients recognise a synthetic node's class.
    semantic_weight: Annotated[float, Ge(0), Search(1e-3, 1.0, log=True)] = 1.0
    # lambda2: weight of the generator's aim that synthetic nodes differ.
    diversity_weight: Annotated[float, Ge(0), Search(1e-3, 1.0, log=True)] = 1.0
    adversarial: bool = False  # whether the generator also seeks nodes on which the models disagree
    # "paper": divergence of predictions, whose gradient reaches the generator through the teachers too, and mean cosine
    # of nodes; "released": difference of logits, and distances of nodes times those of their noise.
    distil_losses: Literal["paper", "released"] = "paper"
    # Whether losses are means over the synthetic nodes of each class, or sums over them, which grow with their number.
    class_losses: Literal["mean", "sum"] = "mean"
    pseudo_nodes: Annotated[int, Ge(1)] = 100  # B: synthetic nodes in a batch of the generator
    # Classes of synthetic nodes: equally many of each, or drawn anew in every round, each as likely.
    pseudo_classes: Literal["balanced", "uniform"] = "balanced"
    pseudo_neighbours: Annotated[int, Ge(1)] = 5  # number of a synthetic node's neighbours, itself included
    pseudo_similarity: Similarity = "dot"  # similarity by which a synthetic node's neighbours are chosen
    noise_width: Annotated[int, Ge(1)] = 32  # width of the noise that the generator is given beside a class
    # "norm": synthetic nodes have the mean norm of real ones; without a bound the generator was seen to inflate them
    # until divergences reach 10^4.
    bound: Literal["norm", "none"] = "norm"
    # Learning rate of the generator.
    pseudo_learning_rate: Annotated[float, Ge(0), Search(1e-4, 1e-2, log=True)] = 1e-3
    # Learning rate of the server's model in the distillation.
    student_learning_rate: Annotated[float, Ge(0), Search(1e-5, 1e-2, log=True)] = 1e-4
    distil_decay: Annotated[float, Ge(0)] = 5e-4  # weight decay of generator and server's model in the distillation
    # Whether the optimiser of the server's model is kept over rounds, or new in each.
    student_optimizer: Literal["persistent", "reset"] = "persistent"
    # Who teaches a client's own model, where a host makes one: all, or only clients that were averaged into it.
    teachers: Literal["all", "group"] = "all"
    # Where the server's model is distilled: on synthetic nodes, or on the clients' graphs (-r-eq; needs reveal_data).
    distil_on: Literal["generated", "real"] = "generated"
    reveal_data: bool = False  # lets clients send their features and edges to the server, for simulations alone

    def check(self) -> None:
        super().check()
        if self.pseudo_neighbours > self.pseudo_nodes:
            raise InputError(
                f"{self.pseudo_nodes} synthetic nodes cannot have {self.pseudo_neighbours} neighbours each."
            )
        if self.distil_on == "real" and not (self.reveal_data and self.reliability == "equal"):
            raise InputError(
                "distil_on = real shows the server every client's features and edges, and none of their labels: it "
                "needs reveal_data = true and reliability = equal."
            )

    def rehearsals(self) -> Sequence[Method]:
        """Returns it and its host with few steps at the server, which change no form."""
        few = {name: min(getattr(self, name), 1) for name in ("iterations", "generator_steps", "student_steps")}
        return [replace(method, **few) for method in super().rehearsals()]

    def start_plug(self, server: Server) -> None:
        clients, device = server.clients, server.device
        if self.votes == "class":
            check_head(server)
        state = server.state.distillation = Tree(
            reliability=torch.zeros(clients, server.classes, device=device),
            norm=torch.zeros(clients, device=device),
            size=torch.zeros(clients, device=device),
            heard=torch.zeros(clients, dtype=torch.bool, device=device),  # who has reported its reliability
        )
        if self.distil_on == "generated":
            start = server.initial(Generator(server.features, server.classes, self.noise_width))
            # The training loop wants a client axis; the server is one.
            state.generator = map_tree(lambda leaf: leaf.unsqueeze(0), start)
            state.generator_optimizer = start_adam(dict(flatten(state.generator)))
        if self.student_optimizer == "persistent":
            state.student_optimizer = new_optimizer(server, aggregated(server))

    def aggregate(self, server: Server, clients: Clients, replies: Replies) -> None:
        if self.votes != "client":
            super().aggregate(server, clients, replies)
            return
        check_votes(replies)
        voting = ReliableVotes(replies, by_client(self.reliability_of(server, clients, replies), replies.weight))
        super().aggregate(server, clients, voting)
        voting.check_asked()

    def reliability_of(self, server: Server, clients: Clients, replies: Replies) -> Tensor:
        """Returns the reliability of those who replied for every class, [clients, classes]."""
        self.collect_reliability(server, clients, replies.clients)
        reliability: Tensor = server.state.distillation.reliability
        return reliability[index_tensor(tuple(replies.clients), server.device)]

    def after_aggregation(self, server: Server, clients: Clients, replies: Replies) -> None:
        if self.votes == "class":
            check_votes(replies)
            reliability = self.reliability_of(server, clients, replies)
            server.state.model = with_reliable_head(server.state.model, replies.model, replies.weight, reliability)
        if not self.iterations:
            return
        reliability = self.reliability_of(server, clients, replies)
        before = aggregated(server, replies.clients)
        students = self.students(server, before, replies.clients)
        scope, teachers = self.scope(server, before, replies.model), self.trained_models(clients, replies)
        if self.distil_on == "real":
            self.distil_on_real(server, clients, teachers, scope, students)
        else:
            self.distil(server, teachers, reliability, scope, students)
        self.keep_optimizer(server, students.optimizer, replies.clients)
        # Without any reliable teacher there is nothing to learn, and weight decay must not act alone.
        usable = (reliability > 0).any()
        distilled = map_tree(lambda new, old: torch.where(usable, new, old), students.weights, before)
        replace_aggregated(server, replies.clients, distilled)

    def collect_reliability(self, server: Server, clients: Clients, participants: list[int]) -> None:
        """Ask the participants that were never asked before how reliable they are."""
        state = server.state.distillation
        if "heard" not in server.cache:  # read once, so that later rounds need not wait for the device
            server.cache["heard"] = set(state.heard.nonzero().flatten().tolist())
        new = [client for client in participants if client not in server.cache["heard"]]
        if not new:
            return
        server.cache["heard"].update(new)
        replies = clients.everyone.only(new).ask(self.tell_reliability)
        reported = Tree(
            reliability=replies.reliability,
            norm=replies.norm,
            size=replies.size.float(),
            heard=torch.ones(len(new), dtype=torch.bool, device=state.heard.device),
        )
        rows = index_tensor(tuple(replies.clients), server.device)
        state.update(write_rows(Tree({name: state[name] for name in reported}), rows, reported))

    @step(fleet=False)
    def tell_reliability(self, fleet: Fleet) -> Tree:
        """Report a client's reliability for each class, the mean feature norm of its nodes, and their number."""
        exact = torch.as_tensor(class_reliability(self, fleet), dtype=torch.float32, device=fleet.device)
        noisy = exact * (1 + self.reliability_noise * fleet.random.normal(len(exact))[0])
        # Features of both signs can make neighbours so dissimilar that they would count against a class.
        return Tree(
            reliability=noisy.clamp(min=0).unsqueeze(0),
            norm=torch.as_tensor(mean_feature_norm(fleet), dtype=torch.float32, device=fleet.device).reshape(1),
            size=fleet.size,
        )

    @step(fleet=False)
    def disclose(self, fleet: Fleet) -> Tree:
        """Send a client's features and edges; refused unless this is a simulation."""
        if not self.reveal_data:
            raise InputError("a client keeps its features and edges unless reveal_data is set")
        return disclosed(fleet.graph)

    def students(self, server: Server, models: Tree, clients: list[int]) -> Students:
        """Returns the models that the host aggregated, with the state of their optimiser and their dropout streams."""
        personal = "models" in server.state
        if self.student_optimizer == "reset":
            optimizer = new_optimizer(server, models)
        else:
            optimizer = server.state.distillation.student_optimizer
            if personal and len(clients) < server.clients:
                optimizer = select_clients(optimizer, index_tensor(tuple(clients), server.device))
        return Students(models, optimizer, server.random("students", clients if personal else [0]))

    def keep_optimizer(self, server: Server, optimizer: Tree, clients: list[int]) -> None:
        state = server.state.distillation
        if self.student_optimizer == "persistent":
            personal = "models" in server.state
            rows = index_tensor(tuple(clients), server.device)
            state.student_optimizer = write_rows(state.student_optimizer, rows, optimizer) if personal else optimizer

    def scope(self, server: Server, students: Weights, teachers: Weights) -> Tensor:
        """Returns which teachers each student learns from, [students, teachers]; one row where it is the same for
        all."""
        count = len(next(leaf for _, leaf in flatten(teachers)))
        if self.teachers == "all" or "models" not in server.state:
            return torch.ones(1, count, device=server.device)
        return (mixing_coefficients(students, teachers) > 1e-4).to(torch.float32)

    def distil(self, server: Server, teachers: Weights, reliability: Tensor, scope: Tensor, students: Students) -> None:
        """Train generator and students in turn: seek nodes on which models disagree, and follow reliable teachers."""
        state = server.state.distillation
        usable = reliability.sum(0) > 0
        if self.pseudo_classes == "balanced":
            labels = pseudo_labels(usable, self.pseudo_nodes)
        else:
            labels = drawn_labels(usable, server.random("labels").uniform(self.pseudo_nodes)[0])
        lesson = SyntheticLesson(
            model=server.model,
            teachers=teachers,
            votes=teacher_votes(reliability, scope, labels, self.class_losses),
            common_votes=teacher_votes(reliability, torch.ones_like(scope[:1]), labels, self.class_losses)[0],
            labels=labels,
            norm=(state.norm * state.size).sum() / state.size.sum().clamp(min=1),
        )
        draws = server.random("noise").normal(self.iterations * self.pseudo_nodes * self.noise_width)
        terms = Tree()
        for noise in draws.view(self.iterations, self.pseudo_nodes, self.noise_width):
            self.train_generator(state, lesson, students.weights, noise, terms)
            with torch.no_grad():
                graph = self.synthesise(state.generator, lesson, noise)
            last_losses = self.train_students(lesson, students, graph, self.student_steps)
        server.record(distillation=last_losses.mean(), **terms)

    def distil_on_real(
        self, server: Server, clients: Clients, teachers: Weights, scope: Tensor, students: Students
    ) -> None:
        """The oracle without a generator: all teachers count equally on every real node."""
        graphs = clients.everyone.ask(self.disclose)
        graph = merge_disclosed([graphs[client] for client in graphs.clients], server.features, server.device)
        # As large as on synthetic nodes, of which every class adds the mean of its own.
        shares = scope / scope.sum(1, keepdim=True) * server.classes / graph.nodes
        lesson = Lesson(server.model, teachers, shares.unsqueeze(2).expand(-1, -1, graph.nodes))
        last_losses = self.train_students(lesson, students, graph, self.iterations * self.student_steps)
        server.record(distillation=last_losses.mean())

    def train_generator(
        self, state: Tree, lesson: SyntheticLesson, students: Weights, noise: Tensor, terms: Tree
    ) -> None:
        """Train the generator on one draw of noise; `terms` is updated with the terms of its last loss."""

        def loss(parts: Tree, _: None) -> Tensor:
            current = self.generator_terms(parts.generator, lesson, students, noise)
            terms.update(map_tree(Tensor.detach, current))
            disagreement = -current.divergence if self.adversarial else 0.0
            semantics, diversity = self.semantic_weight * current.semantics, self.diversity_weight * current.diversity
            total: Tensor = disagreement + semantics + diversity
            return total.reshape(1)

        part = Part(state.generator, loss, state.generator_optimizer)
        training = Training(self.generator_steps, "adam", self.pseudo_learning_rate, self.distil_decay)
        fitted, optimizers, _ = fit({"generator": part}, training)
        state.generator, state.generator_optimizer = fitted.generator, optimizers.generator

    def generator_terms(self, weights: Weights, lesson: SyntheticLesson, students: Weights, noise: Tensor) -> Tree:
        """Eqs. 8 to 10 on the nodes that the generator makes of some noise."""
        graph = self.synthesise(weights, lesson, noise)
        by_teachers, by_students = (
            stacked_logits(lesson.model, models, graph) for models in (lesson.teachers, students)
        )
        targets = by_teachers.detach() if self.distil_losses == "released" else by_teachers
        return Tree(
            divergence=DIVERGENCES[self.distil_losses](by_students, targets, lesson.votes).mean(),
            semantics=recognition(by_teachers, lesson.labels, lesson.common_votes),
            diversity=DIVERSITIES[self.distil_losses](graph.features[0], noise, len(by_teachers)),
        )

    def synthesise(self, weights: Weights, lesson: SyntheticLesson, noise: Tensor) -> FleetGraph:
        """Generate nodes of the lesson's classes and join each to those that are most similar."""
        features = generate(weights, lesson.labels, noise)
        if self.bound == "norm":
            features = lesson.norm * functional.normalize(features, dim=1, eps=1e-12)
        return neighbour_graph(features, self.pseudo_neighbours, self.pseudo_similarity)

    def train_students(self, lesson: Lesson, students: Students, graph: FleetGraph, steps: int) -> Tensor:
        """Train all students at once to follow their teachers on one graph; returns their last losses."""
        with torch.no_grad():
            targets = stacked_logits(lesson.model, lesson.teachers, graph)

        def loss(parts: Tree, _: None) -> Tensor:
            logits = stacked_logits(lesson.model, parts.students, graph, students.random)
            return DIVERGENCES[self.distil_losses](logits, targets, lesson.votes)

        training = Training(steps, "adam", self.student_learning_rate, self.distil_decay)
        part = Part(students.weights, loss, students.optimizer, lesson.model.frozen)
        fitted, optimizers, last_losses = fit({"students": part}, training)
        students.weights, students.optimizer = fitted.students, optimizers.students
        return last_losses.get("students", targets.new_zeros(1))


@dataclass(frozen=True)
class PaperDistillation(Distillation):
    """The server phase as published: the generator seeks disagreement above all, and students take large steps.

    How many steps both take is chosen within the paper's grid, on validation nodes.
    """

    include_self: bool = False
    iterations: int = 1
    student_steps: int = 1
    semantic_weight: float = 0.1
    diversity_weight: float = 0.1
    adversarial: bool = True
    class_losses: Literal["mean", "sum"] = "sum"
    pseudo_classes: Literal["balanced", "uniform"] = "uniform"
    bound: Literal["norm", "none"] = "none"
    student_learning_rate: float = 1e-3


@dataclass(frozen=True)
class ReleasedDistillation(Distillation):
    """The losses and the unbounded generator of the authors' released code.

    The position of a node is there a list of node numbers, drawn at random, and the reliability that comes of it the
    count of labelled nodes, to a correlation of 0.9996: here it is that count.
    """

    reliability: Literal["topology", "count", "equal"] = "count"
    adversarial: bool = True
    distil_losses: Literal["paper", "released"] = "released"
    pseudo_similarity: Similarity = "cosine"
    bound: Literal["norm", "none"] = "none"
    student_learning_rate: float = 1e-3


def new_optimizer(server: Server, students: Weights) -> Tree:
    return start_adam(dict(flatten(trainable(students, server.model.frozen))))
