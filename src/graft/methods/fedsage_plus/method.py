"""FedSage+. Zhang, Yang, Li, Sun and Yiu: Subgraph federated learning with missing neighbor generation.
NeurIPS 2021."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from graft.errors import InputError
from graft.federation.method import step
from graft.graphs.fleet_graph import FleetGraph
from graft.graphs.node_subset import gather_nodes
from graft.methods.fedavg import FedAvg
from graft.models.architecture import LayeredModel, Model, add_bias, glorot, linear, project, start_linear
from graft.tensors.randomness import Stream
from graft.tensors.sparse import BlockSparse
from graft.tensors.trees import Tree, Weights, map_tree, weighted_mean
from graft.training.loop import Training

if TYPE_CHECKING:
    from graft.federation.exchange import Clients, Server
    from graft.federation.fleet import Fleet

OUTPUTS = {"tanh": torch.tanh, "identity": lambda values: values}


@dataclass(frozen=True)
class FedSagePlus(FedAvg):
    """Clients generate the neighbours that they lost to others, and train GraphSAGE on graphs mended with them.

    That training is FedAvg of equal votes, whatever the experiment's weight_by. A client learns its generator in the
    first round it takes part in: alone, and then with the others of that round, who say of the features it generates
    in which direction features of their own lie. No features travel but generated ones. Yet such a gradient is the
    difference between a generated and a real feature, so whoever holds both can work the real one out: the server must
    be trusted with that. A client is given only the sum over all others, which hides them if there are two or more.
    """

    hidden: float = 0.5  # share of the validation nodes that are hidden to learn from; 0 mends nothing, as FedSage
    slots: int = 5  # most neighbours that are generated for a node
    encoder_width: int = 32
    latent: int = 128  # width of what the generator knows of a node
    rank: int = 64  # of the generator's last layer; 0 is in full as in the paper, 2048 x slots x features numbers
    output: Literal["tanh", "identity"] = "tanh"  # of generated features; tanh is for features between -1 and 1
    count_weight: float = 1.0  # weight of the error in the number of hidden neighbours
    feature_weight: float = 1.0  # weight of the error in their features, at home and at other clients
    class_weight: float = 1.0  # weight of the labels, as far as generated neighbours help to tell them
    generator_epochs: int = 20  # alone
    shared_epochs: int = 20  # with the other clients
    generator_learning_rate: float = 1e-3
    generator_weight_decay: float = 1e-4

    architecture: ClassVar[str | None] = "sage"
    supports_batches: ClassVar[bool] = False  # mended graphs are whole

    def __post_init__(self) -> None:
        if not 0 <= self.hidden <= 1:
            raise InputError(f"hidden is {self.hidden}; it must be between 0 and 1.")
        for name in ("slots", "encoder_width", "latent"):
            if not getattr(self, name) >= 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        weights = ("count_weight", "feature_weight", "class_weight")
        for name in (*weights, "rank", "generator_epochs", "shared_epochs", "generator_weight_decay"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 0.")
        if not 0 < self.generator_learning_rate < float("inf"):
            raise InputError(f"generator_learning_rate is {self.generator_learning_rate}; it must be above 0.")

    def start_server(self, server: Server) -> None:
        super().start_server(server)
        server.state.mended = torch.zeros(server.clients, dtype=torch.bool)  # which clients have mended their graphs

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        fleet.state.mended = torch.zeros(len(fleet.clients), dtype=torch.bool, device=fleet.device)
        if self.hidden:
            fleet.state.generator = fleet.initial(self.generator(fleet))
            # What is hidden, and the noise of the neighbours that are kept, must be the same whenever they are needed.
            fleet.state.seeds = fleet.random.bits(2)
            fleet.state.draws = torch.zeros_like(fleet.random.keys)

    def generator(self, fleet: Fleet) -> Generator:
        model = layered(fleet)
        widths = (self.encoder_width, self.latent, self.slots, self.rank)
        return Generator(model.features, model.classes, *widths)

    def round(self, server: Server, clients: Clients) -> None:
        mended = server.state.mended.tolist()
        new = clients.only([client for client in clients.members if not mended[client]])
        if self.hidden and len(new):
            new.ask(self.learn)
            for _ in range(self.shared_epochs):
                self.learn_together(clients, new)
            server.record(generated=new.ask(self.mend).generated)
            server.state.mended = server.state.mended.clone()
            server.state.mended[new.members] = True
        replies = clients.ask(self.train, server.state.model)
        server.state.model = weighted_mean(replies.model, torch.ones_like(replies.weight))

    def learn_together(self, clients: Clients, new: Clients) -> None:
        """Every client in the round judges what newcomers generate; these hear the sum of the judgements of others."""
        replies = new.ask(self.imagine)
        made = {client: replies[client].made for client in new.members}
        judgements = {client: torch.zeros_like(features) for client, features in made.items()}
        judges = clients.only([judge for judge in clients.members if any(client != judge for client in made)])
        if len(judges):
            each = {}
            for judge in judges.members:
                others = [client for client in made if client != judge]
                each[judge] = Tree(
                    made=torch.cat([made[client] for client in others]),
                    node=told_apart([replies[client].node for client in others]),
                )
            judged = judges.ask(self.judge, each=each)
            for judge in judges.members:
                others = [client for client in made if client != judge]
                parts = judged[judge].gradient.split([len(made[client]) for client in others])
                for client, part in zip(others, parts, strict=True):
                    judgements[client] = judgements[client] + part
        each = {client: Tree(gradient=judgements[client], clients=len(clients)) for client in new.members}
        new.ask(self.refine, each=each)

    @step(fleet=False)
    def learn(self, fleet: Fleet) -> Tree:
        """Learn the generator alone, from the neighbours that were hidden."""
        lesson, random = self.lesson(fleet), fleet.random
        generator = fleet.state.generator
        # A count that begins below zero everywhere would never generate anything.
        expected = mean_at_train_nodes(fleet, lesson.missing).unsqueeze(1)
        start = Tree({**generator, "count": Tree(weight=generator.count.weight, bias=expected)})
        fleet.state.generator = fleet.fit(
            start,
            lambda weights: self.loss_at_home(fleet, lesson, weights, self.generate(fleet, lesson, weights, random)),
            "generator",
            training=self.training(self.generator_epochs, "reset"),
        )
        return Tree()

    @step(fleet=False)
    def imagine(self, fleet: Fleet) -> Tree:
        """The features that are generated for training nodes with hidden neighbours, and which belong to one node."""
        fleet.state.draws = fleet.random.keys.clone()
        lesson = self.lesson(fleet)
        with torch.no_grad():
            imagined = self.generate(fleet, lesson, fleet.state.generator, Stream(fleet.state.draws), settled=True)
        taught = self.taught(fleet, lesson, imagined)
        _, node = torch.unique(imagined.owners[taught], return_inverse=True)
        return Tree(made=imagined.made[:, taught], node=node.unsqueeze(0))

    @step(fleet=False)
    def judge(self, fleet: Fleet, message: Weights) -> Tree:
        """For what others generate, the gradient of its distance to the nearest of a few neighbours of a random node
        here."""
        made, node = message["made"][0], message["node"][0]
        graph, x = fleet.graph, dense(fleet.graph)[0]
        linked = (graph.degree[0] > 0).nonzero()[:, 0]
        if len(node) == 0 or len(linked) == 0:
            return Tree(gradient=torch.zeros_like(made).unsqueeze(0))
        count = int(node.max()) + 1
        centre = linked[(fleet.random.uniform(count)[0] * len(linked)).long()]
        draws = fleet.random.uniform(count * self.slots).view(count, self.slots)
        entry = graph.neighbours.starts[centre].unsqueeze(1) + (draws * graph.degree[0, centre].unsqueeze(1)).long()
        sampled = graph.neighbours.columns[entry].long()[node]
        wanted = nearest(made, x, sampled, torch.ones_like(sampled, dtype=torch.bool))
        return Tree(gradient=(2 / made.shape[1] * (made - wanted)).unsqueeze(0))

    @step(fleet=False)
    def refine(self, fleet: Fleet, message: Weights) -> Tree:
        """One step of the part that makes features, by what is known at home and what the others said."""
        lesson, generator = self.lesson(fleet), fleet.state.generator
        scale = self.feature_weight / self.most_generated(fleet)

        def loss(maker: Weights) -> Tensor:
            weights = Tree({**generator, "maker": maker})
            # The same draws as in `imagine`, or the gradient would be that of other features.
            imagined = self.generate(fleet, lesson, weights, Stream(fleet.state.draws), settled=True)
            at_home = self.loss_at_home(fleet, lesson, weights, imagined)
            judged = imagined.made[:, self.taught(fleet, lesson, imagined)]
            elsewhere = scale * (message["gradient"] * judged).sum((1, 2))
            total: Tensor = (at_home + elsewhere) / message["clients"]
            return total

        maker = fleet.fit(generator.maker, loss, "maker", training=self.training(1, "persistent"))
        fleet.state.generator = Tree({**generator, "maker": maker})
        return Tree()

    @step(fleet=False)
    def mend(self, fleet: Fleet) -> Tree:
        """From here on the graph has the generated neighbours; how many there are is told."""
        fleet.state.mended = torch.ones_like(fleet.state.mended)
        added = fleet.derived[place_of(fleet, 0)] = self.neighbours(fleet, 0)
        return Tree(generated=torch.tensor([len(added[0])], device=fleet.device))

    def loss(self, fleet: Fleet, weights: Weights, received: Weights) -> Tensor:  # noqa: ARG002
        return fleet.cross_entropy(fleet.forward(weights, graph=self.mended(fleet)).logits)

    def answers(self, fleet: Fleet) -> Tensor:
        return self.logits(fleet, self.personal(fleet))

    @step
    def score_shared(self, fleet: Fleet, model: Weights) -> dict[str, Tensor]:
        return {"correct": fleet.scored.count_correct(self.logits(fleet.scored, model))}

    def logits(self, fleet: Fleet, weights: Weights) -> Tensor:
        """What a model says of the real nodes of the mended graphs."""
        return fleet.predict(weights, graph=self.mended(fleet)).logits[:, : fleet.graph.nodes]

    def training(self, epochs: int, state: Literal["persistent", "reset"]) -> Training:
        rate, decay = self.generator_learning_rate, self.generator_weight_decay
        return Training(epochs, "adam", rate, decay, optimizer_state=state)

    def lesson(self, fleet: Fleet) -> Lesson:
        """What one client can learn from: its graph without some nodes, and what it knows of those."""
        graph = fleet.graph
        hidden = hidden_nodes(fleet, self.hidden)
        there = graph.real & ~hidden
        missing = (graph.neighbours @ hidden.float().unsqueeze(2)).squeeze(2) * there
        targets, known = neighbours_among(graph, hidden[0], self.slots)
        return Lesson(impaired(graph, hidden), there, missing, targets, known, dense(graph)[0])

    def generate(
        self, fleet: Fleet, lesson: Lesson, weights: Weights, random: Stream, *, settled: bool = False
    ) -> Imagined:
        """Neighbours for the nodes of the impaired graph; once settled, only the part that makes features trains."""
        latent = self.encode(fleet, lesson.graph, weights, None if settled else random)
        counts = count_missing(latent, weights)
        return self.make(fleet, latent, counts, lesson.there, weights, random, random)

    def encode(self, fleet: Fleet, graph: FleetGraph, weights: Weights, random: Stream | None) -> Tensor:
        """Two graph convolutions: what the generator knows of every node."""
        encoder = weights["encoder"]
        hidden = torch.relu(convolve(graph.normalised, graph.features, encoder["first"]))
        return torch.relu(convolve(graph.normalised, layered(fleet).apply_dropout(hidden, random), encoder["second"]))

    def make(
        self,
        fleet: Fleet,
        latent: Tensor,
        counts: Tensor,
        there: Tensor,
        weights: Weights,
        noise: Stream,
        random: Stream | None,
    ) -> Imagined:
        """Features of as many neighbours of each node as its count says, cut to a whole number and to the slots.

        They come slot by slot, so that nothing is made that no node asked for.
        """
        maker = weights["maker"]
        number = (counts.detach().long().clamp(max=self.slots) * there)[0]
        nodes = number.nonzero()[:, 0]
        hidden = (latent + noise.normal(latent[0].numel()).view_as(latent))[:, nodes]
        hidden = torch.relu(linear(torch.relu(linear(hidden, maker["first"])), maker["second"]))
        if len(nodes):
            hidden = layered(fleet).apply_dropout(hidden, random)
        if self.rank:
            hidden = hidden @ maker["narrow"]
        columns = maker["last"]["weight"].chunk(self.slots, dim=2)
        biases = maker["last"]["bias"].chunk(self.slots, dim=1)
        owners, made = [], []
        for slot in range(self.slots):
            asked = (number[nodes] > slot).nonzero()[:, 0]
            owners.append(nodes[asked])
            made.append(hidden[:, asked] @ columns[slot] + biases[slot].unsqueeze(1))
        return Imagined(counts, torch.cat(owners), OUTPUTS[self.output](torch.cat(made, dim=1)))

    def loss_at_home(self, fleet: Fleet, lesson: Lesson, weights: Weights, imagined: Imagined) -> Tensor:
        """Numbers and features of the hidden neighbours, and labels on the graph mended with those generated."""
        errors = functional.smooth_l1_loss(imagined.counts, lesson.missing, reduction="none")
        return (
            self.count_weight * mean_at_train_nodes(fleet, errors)
            + self.feature_weight * self.feature_loss(fleet, lesson, imagined)
            + self.class_weight * self.class_loss(fleet, lesson, weights, imagined)
        )

    def taught(self, fleet: Fleet, lesson: Lesson, imagined: Imagined) -> Tensor:
        """Which generated neighbours there is something to compare with: those of training nodes that miss some."""
        nodes = fleet.labels.masks[0, 0] & (lesson.missing[0] > 0)
        return nodes[imagined.owners].nonzero()[:, 0]

    def most_generated(self, fleet: Fleet) -> Tensor:
        """How many could be generated for the training nodes: what sums are divided by, as in the original."""
        return self.slots * fleet.labels.masks[:, 0].sum(1).clamp(min=1)

    def feature_loss(self, fleet: Fleet, lesson: Lesson, imagined: Imagined) -> Tensor:
        """The squared error of each generated neighbour to the hidden neighbour it is nearest to."""
        taught = self.taught(fleet, lesson, imagined)
        owners, made = imagined.owners[taught], imagined.made[0, taught]
        wanted = nearest(made, lesson.x, lesson.targets[owners], lesson.known[owners])
        return (made - wanted).square().mean(1).sum() / self.most_generated(fleet)

    def class_loss(self, fleet: Fleet, lesson: Lesson, weights: Weights, imagined: Imagined) -> Tensor:
        """A classifier of its own, two graph convolutions, that sees the generated neighbours too."""
        classifier, size = weights["classifier"], int(fleet.size[0])
        around = FleetGraph(joined(lesson.graph, [imagined.owners]), None, fleet.size).normalised
        real = project(lesson.graph.features, classifier["first"]["weight"])[:, :size]
        inputs = torch.cat([real, imagined.made @ classifier["first"]["weight"]], dim=1)
        hidden = torch.relu(add_bias(around @ inputs, classifier["first"]))
        return fleet.cross_entropy(convolve(around, hidden, classifier["second"]))

    def mended(self, fleet: Fleet) -> FleetGraph:
        """The graphs with their generated neighbours, which follow each client's own nodes; as they are for clients
        that have not learnt to generate any.

        Generated features do not change any more, but are too large to be kept as state: they are made once while a
        fleet lives, and again after a restart.
        """
        if not self.hidden:
            return fleet.graph
        places = [place_of(fleet, position) for position in range(len(fleet.clients))]
        for position, place in enumerate(places):
            if place not in fleet.derived and bool(fleet.state.mended[position]):
                fleet.derived[place] = self.neighbours(fleet, position)
        ready = tuple(place in fleet.derived for place in places)
        if not any(ready):
            return fleet.graph
        whole = ("mended", places[0][1])
        if fleet.derived.get(whole, (None,))[0] != (places, ready):
            parts = [fleet.derived.get(place, nothing(fleet)) for place in places]
            fleet.derived[whole] = (places, ready), assembled(fleet.graph, parts)
        return fleet.derived[whole][1]  # type: ignore[no-any-return]

    @torch.no_grad()
    def neighbours(self, fleet: Fleet, position: int) -> tuple[Tensor, Tensor]:
        """What one client's generator adds to its whole graph: owners, and features."""
        graph = fleet.graph.select([position])
        state = map_tree(lambda leaf: leaf[position : position + 1], fleet.state)
        latent = self.encode(fleet, graph, state.generator, None)
        counts = count_missing(latent, state.generator)
        made = self.make(fleet, latent, counts, graph.real, state.generator, Stream(state.seeds[:, 1]), None)
        return made.owners, made.made[0]


class Lesson(NamedTuple):
    """What one client's generator learns from."""

    graph: FleetGraph  # without the edges of hidden nodes
    there: Tensor  # bool [1, nodes]: neither spare nor hidden
    missing: Tensor  # [1, nodes]: how many of a node's neighbours are hidden
    targets: Tensor  # int64 [nodes, slots]: some of those
    known: Tensor  # bool [nodes, slots]: whether there is one
    x: Tensor  # [nodes, features]


class Imagined(NamedTuple):
    """What a generator says of one client's nodes."""

    counts: Tensor  # [1, nodes]: neighbours that a node misses
    owners: Tensor  # int64 [generated]: whose neighbour each generated one is
    made: Tensor  # [1, generated, features]


@dataclass(frozen=True)
class Generator(Model):
    """NeighGen: an encoder, a number of missing neighbours, a maker of their features and an auxiliary classifier."""

    features: int
    classes: int
    encoder_width: int
    latent: int
    slots: int
    rank: int

    name = "generator"

    def start(self, generator: torch.Generator) -> Tree:
        def convolutions(outputs: int) -> Tree:
            first, second = (self.features, self.encoder_width), (self.encoder_width, outputs)
            return Tree(first=start_convolution(*first, generator), second=start_convolution(*second, generator))

        maker = Tree(first=start_linear(self.latent, 256, generator), second=start_linear(256, 2048, generator))
        if self.rank:
            maker.narrow = start_linear(2048, self.rank, generator).weight
        maker.last = start_linear(self.rank or 2048, self.slots * self.features, generator)
        return Tree(
            encoder=convolutions(self.latent),
            count=start_linear(self.latent, 1, generator),
            maker=maker,
            classifier=convolutions(self.classes),
        )


def start_convolution(inputs: int, outputs: int, generator: torch.Generator) -> Tree:
    return Tree(weight=glorot(inputs, outputs, generator), bias=torch.zeros(outputs))


def convolve(around: BlockSparse, hidden: Tensor, weights: Weights) -> Tensor:
    return add_bias(around @ project(hidden, weights["weight"]), weights)


def count_missing(latent: Tensor, weights: Weights) -> Tensor:
    return torch.relu(linear(latent, weights["count"])).squeeze(2)


def layered(fleet: Fleet) -> LayeredModel:
    assert isinstance(fleet.model, LayeredModel)
    return fleet.model


def hidden_nodes(fleet: Fleet, share: float) -> Tensor:
    """The validation nodes that a generator does not see, [clients, nodes]."""
    may = fleet.labels.masks[:, 1]
    draws = Stream(fleet.state.seeds[:, 0]).uniform(fleet.graph.nodes).masked_fill(~may, 2.0)
    rank = draws.argsort(1).argsort(1)
    return may & (rank < (share * may.sum(1, keepdim=True)).long())


def impaired(graph: FleetGraph, hidden: Tensor) -> FleetGraph:
    """The view without the edges of some nodes."""
    flat, pattern = hidden.flatten(), graph.neighbours
    kept = ~(flat[pattern.row_of] | flat[pattern.columns])
    return FleetGraph(pattern.with_values(kept.float()), graph.features, graph.sizes, whole=graph)


def neighbours_among(graph: FleetGraph, chosen: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """For every node of one client the first of its neighbours that were chosen, [nodes, most], and which exist."""
    rows, columns = graph.neighbours.row_of, graph.neighbours.columns.long()
    rows, columns = rows[chosen[columns]], columns[chosen[columns]]
    first = torch.searchsorted(rows, rows)  # entries are sorted by row
    place = torch.arange(len(rows), device=rows.device) - first
    rows, columns, place = (part[place < most] for part in (rows, columns, place))
    found = torch.full((graph.nodes, most), -1, device=chosen.device)
    found[rows, place] = columns
    return found.clamp(min=0), found >= 0


def nearest(made: Tensor, x: Tensor, candidates: Tensor, known: Tensor) -> Tensor:
    """For every row the nearest of its candidates among the nodes; at least one must be known."""
    with torch.no_grad():
        gaps = [(x[one] - made).square().sum(1) for one in candidates.unbind(1)]  # no tensor of rows by candidates
        best = torch.stack(gaps, dim=1).masked_fill(~known, float("inf")).argmin(1, keepdim=True)
        return x[candidates.gather(1, best)[:, 0]]


def mean_at_train_nodes(fleet: Fleet, values: Tensor) -> Tensor:
    """The mean over training nodes; zero without any."""
    _, _, shares = fleet.train_nodes
    return (fleet.at_train_nodes(values) * shares).sum(1)


def told_apart(parts: Sequence[Tensor]) -> Tensor:
    """Numbers of nodes of several clients, counted on so that none means two nodes."""
    counts = [int(part.max()) + 1 if len(part) else 0 for part in parts]
    return torch.cat([part + sum(counts[:place]) for place, part in enumerate(parts)])


def place_of(fleet: Fleet, position: int) -> tuple[int, bool]:
    """Under what a client's generated neighbours are found; those for the data it is scored on are others."""
    return fleet.clients[position], fleet.clean is not None and fleet.graph is fleet.clean[0]


def nothing(fleet: Fleet) -> tuple[Tensor, Tensor]:
    empty = torch.zeros(0, fleet.graph.width, device=fleet.device)
    return empty[:, 0].long(), empty


def dense(graph: FleetGraph) -> Tensor:
    return graph.features if isinstance(graph.features, Tensor) else graph.features.dense()


class MendedFeatures:
    """Given features, sparse or not, and those of each client's generated nodes, which follow its own."""

    def __init__(self, given: Tensor | BlockSparse, made: Tensor, order: Tensor) -> None:
        self.given = given  # [clients, nodes, features]
        self.made = made  # [clients, most generated, features]
        self.order = order  # int64 [clients, all nodes]: where each is among the given, the made and a spare one
        self.width = made.shape[2]

    def __matmul__(self, weight: Tensor) -> Tensor:
        parts = [self.given @ weight, self.made @ weight, weight.new_zeros(len(weight), 1, weight.shape[2])]
        return gather_nodes(torch.cat(parts, dim=1), self.order)


def assembled(graph: FleetGraph, parts: Sequence[tuple[Tensor, Tensor]]) -> FleetGraph:
    """The mended graphs; their `sizes` and `real` are still those of the real nodes."""
    neighbours = joined(graph, [owners for owners, _ in parts])
    most = max(len(owners) for owners, _ in parts)
    made = torch.zeros(graph.clients, most, graph.width, device=graph.sizes.device)
    order = torch.full((graph.clients, neighbours.rows), graph.nodes + most, device=made.device)
    for client, size in enumerate(graph.sizes.tolist()):
        count = len(parts[client][0])
        made[client, :count] = parts[client][1]
        order[client, :size] = torch.arange(size)
        order[client, size : size + count] = torch.arange(graph.nodes, graph.nodes + count)
    return FleetGraph(neighbours, MendedFeatures(graph.features, made, order), graph.sizes)


def joined(graph: FleetGraph, owners: Sequence[Tensor]) -> BlockSparse:
    """A with an edge, in both directions, from each client's last nodes on to new nodes: one for every owner."""
    sizes = graph.sizes.tolist()
    nodes = max(size + len(own) for size, own in zip(sizes, owners, strict=True))
    rows, columns = graph.neighbours.row_of, graph.neighbours.columns.long()
    if graph.neighbours.values is not None:
        rows, columns = rows[graph.neighbours.values > 0], columns[graph.neighbours.values > 0]
    moved = torch.div(rows, graph.nodes, rounding_mode="floor") * (nodes - graph.nodes)
    ends = [(rows + moved, columns + moved)]
    for client, own in enumerate(owners):
        new = torch.arange(len(own), device=rows.device) + sizes[client] + client * nodes
        ends += [(own + client * nodes, new), (new, own + client * nodes)]
    rows, columns = (torch.cat(part) for part in zip(*ends, strict=True))
    total = graph.clients * nodes
    order = (rows * total + columns).argsort()
    starts = functional.pad(torch.bincount(rows, minlength=total).cumsum(0), (1, 0))
    pattern = BlockSparse(starts.to(torch.int32), columns[order].to(torch.int32), None, graph.clients, (nodes, nodes))
    return pattern.with_values(None)
