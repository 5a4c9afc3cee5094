"""FedSage+. Zhang, Yang, Li, Sun and Yiu: Subgraph federated learning with missing neighbor generation.
NeurIPS 2021."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import is_not
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from torch.nn import functional

from graft.federation.method import step
from graft.federation.reveals import Reveals
from graft.fields import Search
from graft.graphs.fleet_graph import FleetGraph
from graft.methods.fedavg import FedAvg
from graft.methods.fedsage_plus.lesson import Lesson, dense_features, make_lesson, nearest_features
from graft.methods.fedsage_plus.mending import add_neighbours, mend_graph, offset_nodes
from graft.methods.fedsage_plus.neighbour_generator import (
    ACTIVATIONS,
    Generated,
    Generator,
    convolve,
    count_missing,
    encode,
    make_features,
)
from graft.models.architecture import LayeredModel, add_bias, project
from graft.tensors.randomness import Stream, index_tensor
from graft.tensors.trees import Tree, Weights, map_tree
from graft.training.optimizers import Training

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graft.federation.clients import Clients, Replies
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server


@dataclass(frozen=True)
class FedSagePlus(FedAvg):
    """Clients generate the neighbours that they lost to others, and train GraphSAGE on graphs mended with them.

    That training is FedAvg of equal votes, whatever the experiment's weight_by. A client trains its generator in the
    first round it participates in: alone, and then with the others of that round, who return for the features it
    generates the direction in which features of their own lie. No features travel but generated ones. Yet such a
    gradient is the difference between a generated and a real feature, so whoever holds both can reconstruct the real
    one: the server must be trusted with that. A client is given only the sum over all others, which hides them if there
    are two or more.
    """

    architecture: ClassVar[str | None] = "sage"
    supports_batches: ClassVar[bool] = False  # mended graphs are whole
    reveals: ClassVar = {
        "imagine/made": Reveals("features that its generator makes for training nodes with hidden neighbours"),
        "imagine/node": Reveals("which of these were made for the same node"),
        "judge/gradient": Reveals(
            "difference of received features to those of the nearest of some real nodes: whoever made them has the real"
            " features too",
            ("features", "edges"),
        ),
        "mend/generated": Reveals("number of neighbours that its generator makes for all of its nodes"),
    }
    averages: ClassVar[tuple[str, ...]] = ("train/model",)
    averaged: ClassVar[str | None] = "model"
    logged: ClassVar[tuple[str, ...]] = ("mend/generated",)

    # Share of the validation nodes that are hidden for the generator to learn from; 0 mends nothing, as FedSage.
    hidden: Annotated[float, Ge(0), Le(1), Search(0.2, 0.8)] = 0.5
    slots: Annotated[int, Ge(1)] = 5  # most neighbours that are generated for a node
    encoder_width: Annotated[int, Ge(1)] = 32  # hidden width of the generator's graph convolutions
    latent: Annotated[int, Ge(1)] = 128  # width of the generator's latent vector of a node
    # Rank of the generator's last layer; 0 is full rank as in the paper, 2048 x slots x features numbers.
    rank: Annotated[int, Ge(0)] = 64
    output: Literal["tanh", "identity"] = "tanh"  # activation of generated features; tanh keeps them between -1 and 1
    count_weight: Annotated[float, Ge(0)] = 1.0  # weight of the error in the number of hidden neighbours
    # Weight of the error in generated features, compared with nodes of the client and of others.
    feature_weight: Annotated[float, Ge(0), Search(0.1, 10.0, log=True)] = 1.0
    # Weight of the classification loss on graphs with generated neighbours.
    class_weight: Annotated[float, Ge(0), Search(0.1, 10.0, log=True)] = 1.0
    # Epochs in which a client first trains its generator alone.
    generator_epochs: Annotated[int, Ge(0), Search(5, 50, log=True)] = 20
    shared_epochs: Annotated[int, Ge(0)] = 20  # epochs in which the generator then learns from other clients too
    # Learning rate of the generator.
    generator_learning_rate: Annotated[float, Gt(0), Search(1e-4, 1e-2, log=True)] = 1e-3
    generator_weight_decay: Annotated[float, Ge(0)] = 1e-4  # weight decay of the generator

    def rehearsals(self) -> Sequence[FedSagePlus]:
        """Returns it with a small generator of a few epochs: nothing of it is sent."""
        few, shared = min(self.generator_epochs, 1), min(self.shared_epochs, 2)
        return [replace(self, encoder_width=4, latent=4, rank=4, generator_epochs=few, shared_epochs=shared)]

    def start_server(self, server: Server) -> None:
        super().start_server(server)
        # Which clients have mended their graphs.
        server.state.mended = torch.zeros(server.clients, dtype=torch.bool, device=server.device)

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        fleet.state.mended = torch.zeros(len(fleet.clients), dtype=torch.bool, device=fleet.device)
        if self.hidden:
            widths = (self.encoder_width, self.latent, self.slots, self.rank)
            fleet.state.generator = fleet.initial(Generator(fleet.features, fleet.classes, *widths))
            # The hidden nodes, and the noise of the final neighbours, must be the same whenever they are needed.
            fleet.state.seeds = fleet.random.bits(2)
            fleet.state.draws = torch.zeros_like(fleet.random.keys)

    def round(self, server: Server, clients: Clients) -> None:
        if "mended" not in server.cache:  # read once, so that later rounds need not wait for the device
            server.cache["mended"] = set(server.state.mended.nonzero().flatten().tolist())
        new = clients.only([client for client in clients.members if client not in server.cache["mended"]])
        if self.hidden and len(new):
            new.ask(self.learn)
            for _ in range(self.shared_epochs):
                self.learn_together(clients, new)
            server.record(generated=new.ask(self.mend).generated)
            server.cache["mended"].update(new.members)
            rows = index_tensor(tuple(new.members), server.device)
            server.state.mended = server.state.mended.index_fill(0, rows, True)
        self.aggregate(server, clients, clients.ask(self.train, server.state.model))

    def aggregate(self, server: Server, clients: Clients, replies: Replies) -> None:  # noqa: ARG002
        server.state.model = replies.mean("model", (replies.weight > 0).to(replies.weight))

    def learn_together(self, clients: Clients, new: Clients) -> None:
        """Let every client judge what newcomers generate, and send each newcomer the sum of the gradients of others."""
        replies = new.ask(self.imagine)
        generated = {client: replies[client].made for client in new.members}
        gradients = {client: torch.zeros_like(features) for client, features in generated.items()}
        judges = clients.only([judge for judge in clients.members if any(client != judge for client in generated)])
        if len(judges):
            each = {}
            for judge in judges.members:
                others = [client for client in generated if client != judge]
                each[judge] = Tree(
                    made=torch.cat([generated[client] for client in others]),
                    node=offset_nodes([replies[client].node for client in others]),
                )
            judged = judges.ask(self.judge, each=each)
            for judge in judges.members:
                others = [client for client in generated if client != judge]
                parts = judged[judge].gradient.split([len(generated[client]) for client in others])
                for client, part in zip(others, parts, strict=True):
                    gradients[client] = gradients[client] + part
        each = {client: Tree(gradient=gradients[client], clients=len(clients)) for client in new.members}
        new.ask(self.refine, each=each)

    @step(fleet=False)
    def learn(self, fleet: Fleet) -> Tree:
        """Train the generator alone, on the neighbours that were hidden."""
        lesson, random = self.lesson(fleet), fleet.random
        generator = fleet.state.generator
        # A count that begins below zero everywhere would never generate anything.
        expected = mean_at_train_nodes(fleet, lesson.missing).unsqueeze(1)
        start = Tree({**generator, "count": Tree(weight=generator.count.weight, bias=expected)})
        fleet.state.generator = fleet.fit(
            start,
            lambda weights, batch: self.own_loss(batch, lesson, weights, self.generate(batch, lesson, weights, random)),
            "generator",
            training=self.training(self.generator_epochs, "reset"),
        )
        return Tree()

    @step(fleet=False)
    def imagine(self, fleet: Fleet) -> Tree:
        """Send the features generated for training nodes with hidden neighbours, and which belong to one node."""
        fleet.state.draws = fleet.random.keys.clone()
        lesson = self.lesson(fleet)
        with torch.no_grad():
            generated = self.generate(fleet, lesson, fleet.state.generator, Stream(fleet.state.draws), settled=True)
        comparable = self.comparable(fleet, lesson, generated)
        _, node = torch.unique(generated.owners[comparable], return_inverse=True)
        return Tree(made=generated.features[:, comparable], node=node.unsqueeze(0))

    @step(fleet=False)
    def judge(self, fleet: Fleet, message: Weights) -> Tree:
        """Return, for what others generated, the gradient of its distance to the nearest of a few neighbours of a
        random node here."""
        generated, node = message["made"][0], message["node"][0]
        graph, features = fleet.graph, dense_features(fleet.graph)[0]
        counts = graph.neighbour_counts[0]
        linked = (counts > 0).nonzero()[:, 0]
        if len(node) == 0 or len(linked) == 0:
            return Tree(gradient=torch.zeros_like(generated).unsqueeze(0))
        count = int(node.max()) + 1
        centre = linked[(fleet.random.uniform(count)[0] * len(linked)).long()]
        draws = fleet.random.uniform(count * self.slots).view(count, self.slots)
        entry = graph.neighbours.starts[centre].unsqueeze(1) + (draws * counts[centre].unsqueeze(1)).long()
        sampled = graph.neighbours.columns[entry].long()[node]
        targets = nearest_features(generated, features, sampled, torch.ones_like(sampled, dtype=torch.bool))
        return Tree(gradient=(2 / generated.shape[1] * (generated - targets)).unsqueeze(0))

    @step(fleet=False)
    def refine(self, fleet: Fleet, message: Weights) -> Tree:
        """Take one step of the part that makes features, on the own loss and the gradients of others."""
        lesson, generator = self.lesson(fleet), fleet.state.generator
        scale = self.feature_weight / self.most_generated(fleet)

        def loss(maker: Weights, fleet: Fleet) -> Tensor:
            weights = Tree({**generator, "maker": maker})
            # The same draws as in `imagine`, or the gradient would be that of other features.
            generated = self.generate(fleet, lesson, weights, Stream(fleet.state.draws), settled=True)
            own = self.own_loss(fleet, lesson, weights, generated)
            judged = generated.features[:, self.comparable(fleet, lesson, generated)]
            of_others = scale * (message["gradient"] * judged).sum((1, 2))
            total: Tensor = (own + of_others) / message["clients"]
            return total

        maker = fleet.fit(generator.maker, loss, "maker", training=self.training(1, "persistent"))
        fleet.state.generator = Tree({**generator, "maker": maker})
        return Tree()

    @step(fleet=False)
    def mend(self, fleet: Fleet) -> Tree:
        """Add the generated neighbours to the graph from here on; returns how many there are."""
        fleet.state.mended = torch.ones_like(fleet.state.mended)
        added = fleet.caches[0][neighbours_key(fleet)] = self.neighbours(fleet, 0)
        return Tree(generated=torch.tensor([len(added[0])], device=fleet.device))

    def loss(self, fleet: Fleet, weights: Weights, received: Weights) -> Tensor:  # noqa: ARG002
        return fleet.cross_entropy(fleet.forward(weights, graph=self.mended(fleet)).logits)

    def own_loss(self, fleet: Fleet, lesson: Lesson, weights: Weights, generated: Generated) -> Tensor:
        """Errors of numbers and features of the hidden neighbours, and of labels on the graph mended with them."""
        errors = functional.smooth_l1_loss(generated.counts, lesson.missing, reduction="none")
        return (
            self.count_weight * mean_at_train_nodes(fleet, errors)
            + self.feature_weight * self.feature_loss(fleet, lesson, generated)
            + self.class_weight * self.class_loss(fleet, lesson, weights, generated)
        )

    def feature_loss(self, fleet: Fleet, lesson: Lesson, generated: Generated) -> Tensor:
        """Returns the squared error of each generated neighbour to the hidden neighbour it is nearest to."""
        comparable = self.comparable(fleet, lesson, generated)
        owners, features = generated.owners[comparable], generated.features[0, comparable]
        targets = nearest_features(features, lesson.features, lesson.targets[owners], lesson.valid[owners])
        return (features - targets).square().mean(1).sum() / self.most_generated(fleet)

    def class_loss(self, fleet: Fleet, lesson: Lesson, weights: Weights, generated: Generated) -> Tensor:
        """Cross-entropy of an auxiliary classifier, two graph convolutions, that sees the generated neighbours too."""
        classifier, size = weights["classifier"], int(fleet.size[0])
        adjacency = FleetGraph(add_neighbours(lesson.graph, [generated.owners]), None, fleet.size).normalised
        real = project(lesson.graph.features, classifier["first"]["weight"])[:, :size]
        inputs = torch.cat([real, generated.features @ classifier["first"]["weight"]], dim=1)
        hidden = torch.relu(add_bias(adjacency @ inputs, classifier["first"]))
        return fleet.cross_entropy(convolve(adjacency, hidden, classifier["second"]))

    def logits(self, fleet: Fleet) -> Tensor:
        return self.shared_logits(fleet, self.personal(fleet))

    def shared_logits(self, fleet: Fleet, model: Weights) -> Tensor:
        """Returns the logits of the real nodes of the mended graphs."""
        return fleet.predict(model, graph=self.mended(fleet)).logits[:, : fleet.graph.nodes]

    def model_alone(self) -> bool:
        return not self.hidden

    def mended(self, fleet: Fleet) -> FleetGraph:
        """Returns the graphs with their generated neighbours, which follow each client's own nodes; unchanged for
        clients that have no trained generator.

        Generated features do not change any more, but are too large to be kept as state: they are made once while a
        fleet lives, and again after a restart.
        """
        if not self.hidden:
            return fleet.graph
        key = neighbours_key(fleet)
        for position, cache in enumerate(fleet.caches):
            if key not in cache and bool(fleet.state.mended[position]):
                cache[key] = self.neighbours(fleet, position)
        parts = [cache.get(key) for cache in fleet.caches]
        if not any(part is not None for part in parts):
            return fleet.graph
        # The first client of the fleet keeps the graph of all, as long as it is of the same neighbours.
        whole, graph = f"graph with {key}", fleet.graph
        mended: FleetGraph
        made_of, mended = fleet.caches[0].get(whole, (None, graph))
        if made_of is None or len(made_of) != len(parts) or any(map(is_not, made_of, parts)):
            mended = mend_graph(graph, [part or no_neighbours(fleet) for part in parts])
            fleet.caches[0][whole] = parts, mended
        return mended

    @torch.no_grad()
    def neighbours(self, fleet: Fleet, position: int) -> tuple[Tensor, Tensor]:
        """Owners and features of what one client's generator adds to its whole graph."""
        graph = fleet.graph.select([position])
        state = map_tree(lambda leaf: leaf[position : position + 1], fleet.state)
        latent = encode(layered(fleet), state.generator, graph, None)
        counts = count_missing(latent, state.generator)
        generated = self.make(fleet, latent, counts, graph.real, state.generator, Stream(state.seeds[:, 1]), None)
        return generated.owners, generated.features[0]

    def lesson(self, fleet: Fleet) -> Lesson:
        return make_lesson(fleet, self.hidden, self.slots)

    def generate(
        self, fleet: Fleet, lesson: Lesson, weights: Weights, random: Stream, *, settled: bool = False
    ) -> Generated:
        """Returns neighbours for the visible nodes; `settled` leaves dropout out of the encoder, which no longer
        trains."""
        latent = encode(layered(fleet), weights, lesson.graph, None if settled else random)
        counts = count_missing(latent, weights)
        return self.make(fleet, latent, counts, lesson.visible, weights, random, random)

    def make(
        self,
        fleet: Fleet,
        latent: Tensor,
        counts: Tensor,
        visible: Tensor,
        weights: Weights,
        noise: Stream,
        random: Stream | None,
    ) -> Generated:
        """As many neighbours of each visible node as counted, cut to a whole number and to the slots."""
        numbers = (counts.detach().long().clamp(max=self.slots) * visible)[0]
        noisy = latent + noise.normal(latent[0].numel()).view_as(latent)
        owners, features = make_features(layered(fleet), weights["maker"], noisy, numbers, self.slots, random)
        return Generated(counts, owners, ACTIVATIONS[self.output](features))

    def comparable(self, fleet: Fleet, lesson: Lesson, generated: Generated) -> Tensor:
        """Returns which generated neighbours have a target: those of training nodes with hidden neighbours."""
        nodes = fleet.labels.masks[0, 0] & (lesson.missing[0] > 0)
        return nodes[generated.owners].nonzero()[:, 0]

    def most_generated(self, fleet: Fleet) -> Tensor:
        """Returns how many could be generated for the training nodes: what sums are divided by, as in the original."""
        return self.slots * fleet.labels.masks[:, 0].sum(1).clamp(min=1)

    def training(self, epochs: int, state: Literal["persistent", "reset"]) -> Training:
        """Returns the settings of the generator's optimiser."""
        rate, decay = self.generator_learning_rate, self.generator_weight_decay
        return Training(epochs, "adam", rate, decay, optimizer_state=state)


def layered(fleet: Fleet) -> LayeredModel:
    assert isinstance(fleet.model, LayeredModel)
    return fleet.model


def mean_at_train_nodes(fleet: Fleet, values: Tensor) -> Tensor:
    """Returns the mean over training nodes; zero without any."""
    _, _, shares = fleet.train_nodes
    return (fleet.at_train_nodes(values) * shares).sum(1)


def neighbours_key(fleet: Fleet) -> str:
    """Returns the key of a client's generated neighbours; those for the data it is scored on may be others."""
    return "neighbours where it is scored" if fleet.data is fleet.scoring else "neighbours"


def no_neighbours(fleet: Fleet) -> tuple[Tensor, Tensor]:
    empty = torch.zeros(0, fleet.graph.width, device=fleet.device)
    return empty[:, 0].long(), empty
