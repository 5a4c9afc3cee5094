"""Fed-PUB. Baek, Jeong, Jin, Yoon and Hwang: Personalized subgraph federated learning. ICML 2023."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from torch.nn import functional

from graft.federation.method import Method, step
from graft.federation.reveals import MODEL, VOTE, Reveals
from graft.fields import Search
from graft.methods.dis_pfl.masks import masked
from graft.methods.fed_pub.masked_weights import masked_and_measured
from graft.methods.fed_pub.proxy import ProxyGraph, random_graph
from graft.methods.fedgta import mix
from graft.tensors.randomness import index_tensor
from graft.tensors.trees import (
    Tree,
    Weights,
    broadcast_tree,
    flatten,
    map_tree,
    select_clients,
    trainable,
    unflatten,
    unsqueeze_to,
    weighted_mean,
    write_rows,
)

if TYPE_CHECKING:
    from graft.federation.clients import Clients, Replies
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server


@dataclass(frozen=True)
class FedPUB(Method):
    """Every client gets a mean of its own, over models that embed one random graph alike, and trains a sparse mask on
    top of it that never leaves.

    A mask multiplies every weight matrix; biases have none. Where its entries are nearly zero, the client predicts
    without them.
    """

    one_model: ClassVar[bool] = True
    keeps_start: ClassVar[bool] = False
    capturable: ClassVar[bool] = True
    reveals: ClassVar = {
        "train/model": MODEL,
        "train/embedding": Reveals("mean embedding of the nodes of a random graph by the client's trained model"),
        "train/weight": VOTE,
        "send_masks/masks": Reveals("masks of the client's weights, trained with them", model=True, when="with a plug"),
    }

    # tau: multiplies the cosines of embeddings before the softmax; 0: all count alike. The authors take 3 for clients
    # that share no node, and 10 for clients that overlap.
    scale: Annotated[float, Ge(0), Search(1.0, 30.0, log=True)] = 3.0
    # lambda1: weight of the masks' absolute values in the loss; in predictions, entries up to it are 0.
    mask_penalty: Annotated[float, Ge(0), Search(1e-5, 1e-2, log=True)] = 1e-3
    # lambda2: weight of the distance of every tensor from the one that was received; not in the first round.
    proximal: Annotated[float, Ge(0), Search(1e-4, 1.0, log=True)] = 1e-3
    # Whether both weights above only enter the loss that is shown, without a gradient, as in the authors' code.
    detached_penalties: bool = False
    masking: bool = True  # whether clients have masks at all
    proxy_blocks: Annotated[int, Ge(1)] = 5  # communities of the random graph
    proxy_nodes: Annotated[int, Ge(1)] = 100  # nodes of each of them
    proxy_edges: Annotated[float, Gt(0), Le(1)] = 0.1  # chance of an edge between two nodes of a community

    def start_server(self, server: Server) -> None:
        same = broadcast_tree(server.initial(), server.clients, server.device)
        server.state.models = map_tree(Tensor.contiguous, same)
        server.state.served = torch.zeros(server.clients, dtype=torch.bool, device=server.device)

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        weights = trainable(fleet.state.model, fleet.model.frozen) if self.masking else Tree()
        matrices = {path: leaf for path, leaf in flatten(weights) if leaf.dim() > 2}  # with the client axis
        fleet.state.masks = map_tree(torch.ones_like, unflatten(matrices))

    def round(self, server: Server, clients: Clients) -> None:
        models = server.state.models
        replies = clients.ask(self.train, each={client: select_clients(models, client) for client in clients.members})
        self.aggregate(server, clients, replies)

    def aggregate(self, server: Server, clients: Clients, replies: Replies) -> None:  # noqa: ARG002
        shares = self.shares(replies.embedding, replies.weight)
        mixed = mix(replies.model, shares)
        state, rows = server.state, index_tensor(tuple(replies.clients), server.device)
        if len(replies) < server.clients:
            # A client that no mean was made for yet will begin with the plain one.
            plain = weighted_mean(replies.model, replies.weight)
            others = map_tree(
                lambda own, common: torch.where(unsqueeze_to(state.served, own), own, common), state.models, plain
            )
            mixed = write_rows(others, rows, mixed)
        state.models = mixed
        state.served = state.served.index_fill(0, rows, True)
        server.record(own_share=shares.diagonal())

    @step
    def train(self, fleet: Fleet, model: Weights) -> Tree:
        start = Tree(weights=model, masks=fleet.state.masks)
        buffers = frozenset(f"weights/{path}" for path in fleet.model.frozen)
        fitted = fleet.fit(start, lambda parts, batch: self.loss(batch, parts, model), frozen=buffers)
        fleet.state.model, fleet.state.masks = fitted.weights, fitted.get("masks", Tree())
        return Tree(model=fleet.state.model, embedding=self.embedding(fleet), weight=fleet.weight)

    @step(pure=True)
    def send_masks(self, fleet: Fleet) -> Tree:
        """Send the masks that a client predicts with, for a plug that wants to know what it predicts."""
        return Tree(masks=self.pruned(fleet.state.masks))

    def loss(self, fleet: Fleet, parts: Tree, received: Weights) -> Tensor:
        used, distance, size = masked_and_measured(parts.weights, parts.get("masks", Tree()), received, fleet)
        penalty = self.mask_penalty * size + self.proximal * distance * (fleet.round > 1)
        if self.detached_penalties:
            penalty = penalty.detach()
        # Without labels there is nothing that penalties are to be weighed against.
        return fleet.label_loss(used) + fleet.labelled_only(penalty)

    def shares(self, embeddings: Tensor, votes: Tensor) -> Tensor:
        """Returns the weights of all clients in each client's mean, [clients, clients]; rows add up to 1."""
        directions = functional.normalize(embeddings.double(), dim=1, eps=1e-12)
        scores = self.scale * (directions @ directions.T)
        learnt = votes > 0
        # Who has nothing to train on has learnt nothing that others could take over.
        return scores.masked_fill(~learnt & learnt.any(), -torch.inf).softmax(1)

    def embedding(self, fleet: Fleet) -> Tensor:
        """Returns the mean over the random graph's nodes of what each client's own model makes of them."""
        key = "proxy graph", len(fleet.clients)
        if key not in fleet.caches[0]:
            shape = self.proxy_blocks, self.proxy_nodes, self.proxy_edges
            single = random_graph(fleet.seed, fleet.features, *shape, fleet.device)
            fleet.caches[0][key] = ProxyGraph(single, len(fleet.clients))
        return fleet.predict(self.personal(fleet), graph=fleet.caches[0][key]).embedding.mean(1)

    def personal(self, fleet: Fleet) -> Weights:
        kept = dict(flatten(self.pruned(fleet.state.masks)))  # new tensors, in whose place the products may stand
        model = flatten(fleet.state.model)
        return unflatten({path: kept[path].mul_(leaf) if path in kept else leaf for path, leaf in model})

    def trained_models(self, clients: Clients, replies: Replies) -> Weights:
        if not self.masking:
            return super().trained_models(clients, replies)
        return masked(replies.model, clients.only(replies.clients).ask(self.send_masks).masks)

    def pruned(self, masks: Weights) -> Tree:
        """Returns masks without their small entries."""
        return map_tree(lambda mask: functional.hardshrink(mask, self.mask_penalty), masks)
