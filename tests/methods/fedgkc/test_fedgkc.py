"""FedGKC: cases worked out by hand."""

import itertools
import json
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import graft.models
from graft.data.graphs import make_graph
from graft.engines.in_process import InProcess
from graft.errors import InputError
from graft.experiments.run import participants
from graft.federation.exchange import Replies, Request, Server
from graft.federation.fleet import initial
from graft.graphs.fleet_graph import build_fleet_graph
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc import FedGKC as Defaults
from graft.methods.fedgkc import FedGKCPaper as FedGKC
from graft.methods.fedgkc.distillation import VIEWS, neighbourhood_loss, no_worse, sum_of_terms
from graft.methods.fedgkc.knowledge import knowledge_of
from graft.methods.fedgkc.method import TERMS
from graft.methods.local import Local
from graft.models.architecture import LayeredModel, Output
from graft.models.gcn import GCN
from graft.models.sage import SAGE
from graft.tensors.trees import Tree, count_bytes, flatten, map_tree, select_clients
from tests.memory import crowded_graph, gather_rows, peak_of
from tests.toy import CLASSES, SIZES, gap, play, random_weights, same, toy_graph, toy_graphs, toy_setup, trained_tree

CPU = torch.device("cpu")
ALPHA, BETA, REST = 0.6, 0.2, 0.2  # the defaults
ARCHITECTURES = ("gcn", "gat", "sage", "gin", "sgc", "mlp")


# Federations that can be worked out by hand --------------------------------------------------------------------------


@dataclass(frozen=True)
class Said(LayeredModel):
    """Says what its features and a table of weights say: the embedding is one table, the logits features + another."""

    kind = "said"

    def start(self, generator):  # noqa: ARG002
        return Tree(embedding=torch.zeros(4, self.classes), logits=torch.zeros(4, self.classes))

    def __call__(self, weights, graph, random=None):  # noqa: ARG002
        features = graph.features if isinstance(graph.features, torch.Tensor) else graph.features.dense()
        nodes = graph.nodes
        return Output(weights["embedding"][:, :nodes] + 0 * features, weights["logits"][:, :nodes] + features)


@pytest.fixture
def _said(monkeypatch):
    monkeypatch.setitem(graft.models.MODELS, "said", Said)


by_hand = pytest.mark.usefixtures("_said")


def hand_graph(chances, edges=()):
    """Nodes whose features are the logarithms of what is to be predicted."""
    x = np.log(np.asarray(chances, dtype=np.float64))
    nodes, classes = x.shape
    masks = {"train": np.arange(nodes) == 0, "validation": np.zeros(nodes, bool), "test": np.zeros(nodes, bool)}
    pairs = np.asarray(edges, dtype=int).reshape(-1, 2).T
    return make_graph("hand", x, pairs, np.zeros(nodes, int), classes, masks)


def hand_setup(graphs, models="said", epochs=0, **fields_of_method):
    return toy_setup(FedGKC(copilot="said", **fields_of_method), models=models, graphs=graphs, epochs=epochs)


FIRST = [(0.7, 0.2, 0.1), (0.5, 0.3, 0.2), (0.1, 0.1, 0.8)]
SECOND = [(0.4, 0.3, 0.3), (0.9, 0.05, 0.05)]
PATH = [(0, 1), (1, 2)]


def fleet_of(method, models="gcn", graphs=None, clients=None, **settings):
    """A fleet in its first round of training, and different random weights of copilot and local model."""
    setup = toy_setup(method, models=models, graphs=graphs or toy_graphs(), **settings)
    fleet = setup.fleet(clients or setup.clients)
    fleet.begin(1, "train")
    count = len(fleet.clients)
    copilot = random_weights(fleet.architecture(method.copilot), count, seed=1)
    return fleet, Tree(copilot=copilot, model=random_weights(fleet.model, count, seed=2))


# KAMA ----------------------------------------------------------------------------------------------------------------


@by_hand
def test_knowledge_and_weights_of_two_clients_are_those_worked_out_by_hand():
    setup = hand_setup([hand_graph(FIRST, PATH), hand_graph(SECOND)])
    record = play(setup, rounds=1).server.take_records()
    assert record["knowledge"] == pytest.approx([0.761909, 0.8], abs=1e-6)
    assert record["volume_weight"] == pytest.approx([0.6, 0.4])
    assert record["weight"] == pytest.approx([0.543903, 0.456097], abs=1e-6)
    assert (record["fell_back"], record["negative"]) == (False, 0)
    plain = play(hand_setup(setup.graphs, kama=False), rounds=1).server.take_records()
    assert plain["weight"] == pytest.approx([0.6, 0.4])
    assert plain["knowledge"] == record["knowledge"]


@pytest.mark.parametrize(
    ("graph", "scores"),
    [(hand_graph(FIRST, PATH), (0.805075, 0.428576, 1.052077)), (hand_graph(SECOND), (0.3, 1.3))],
    ids=["path", "isolated nodes"],
)
def test_every_nodes_score_is_the_one_worked_out_by_hand(graph, scores):
    for node, score in enumerate(scores):
        laid = build_fleet_graph([graph], CPU)
        laid.real = torch.arange(graph.nodes).unsqueeze(0) == node  # a mean over this node alone
        strength, clarity = knowledge_of(FedGKC(), laid, laid.features.softmax(2))
        assert float(strength + clarity) == pytest.approx(score, abs=1e-6)


@by_hand
@pytest.mark.parametrize(
    ("switch", "first", "second"),
    [
        ("strength", 0.761909 - 2 / 3, 0.8 - 0.65),
        ("clarity1", 0.761909 - 0.5 / 3, 0.8 - 0.15),
        ("clarity2", 2 / 3 + 0.5 / 3, 0.8),  # client 2 has no neighbours that could be alike
        ("kama", 0.761909, 0.8),
    ],
)
def test_switches_of_knowledge_change_what_they_say(switch, first, second):
    setup = hand_setup([hand_graph(FIRST, PATH), hand_graph(SECOND)], **{switch: False})
    record = play(setup, rounds=1).server.take_records()
    assert record["knowledge"] == pytest.approx([first, second], abs=1e-5)
    shares = [first / (first + second), second / (first + second)] if switch != "kama" else [0.6, 0.4]
    assert record["weight"] == pytest.approx([(0.6 + shares[0]) / 2, (0.4 + shares[1]) / 2], abs=1e-5)


def dense_similarity(graph, chances):
    """The mean cosine between a node and its neighbours, edge by edge; 0 without neighbours."""
    found = torch.zeros(graph.nodes)
    for node in range(graph.nodes):
        around = graph.edges[1][graph.edges[0] == node]
        alike = [functional.cosine_similarity(chances[node], chances[other], dim=0) for other in around]
        found[node] = torch.stack(alike).mean() if alike else 0
    return found


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_knowledge_is_a_straight_line_in_confidence_less_the_similarity(classes):  # Eq. 14
    graphs = toy_graphs()
    laid = build_fleet_graph(graphs, CPU)
    chances = torch.randn(3, 12, classes, generator=torch.Generator().manual_seed(0)).softmax(2)
    strength, clarity = knowledge_of(FedGKC(smoothing=0.3), laid, chances)
    for client, graph in enumerate(graphs):
        own = chances[client, : graph.nodes]
        line = (1 + 2 / (classes - 1)) * own.amax(1) - 1 / (classes - 1)
        wanted = (line - 0.3 * dense_similarity(graph, own)).mean()
        torch.testing.assert_close(strength[client] + clarity[client], wanted, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(strength[client], own.amax(1).mean())
    blind = knowledge_of(FedGKC(smoothing=0), laid, chances)[1]
    assert (blind - clarity > 1e-2).all()


def averaged(size, knowledge, values=None, **settings):
    """A server after a round in which clients answered this; their copilots are single numbers."""
    size, knowledge = torch.tensor(size), torch.as_tensor(knowledge, dtype=torch.float32)
    values = torch.zeros(len(size)) if values is None else values
    reply = Tree(
        copilot=Tree(x=values), size=size, strength=knowledge, clarity=knowledge, knowledge=knowledge, terms=Tree()
    )
    server = Server(None, [], len(size), 0, CPU, None, state=Tree(copilot=Tree(x=torch.zeros(()))))
    replies = Replies([(list(range(len(size))), reply)])
    FedGKC(**settings).round(server, SimpleNamespace(ask=lambda step, message: replies))  # noqa: ARG005
    return server


@pytest.mark.parametrize("seed", range(5))
def test_gain_over_volume_weights_is_half_a_mean_difference_and_a_covariance(seed):  # Eq. 16
    random = np.random.default_rng(seed)
    knowledge, size, values = random.uniform(0.1, 2, 6), random.integers(1, 500, 6), random.normal(size=6)
    server = averaged(size.tolist(), knowledge, torch.tensor(values))
    volume = size / size.sum()
    covariance = ((knowledge - knowledge.mean()) * (values - values.mean())).mean()
    wanted = 0.5 * (values.mean() - volume @ values + covariance / knowledge.mean())
    assert float(server.state.copilot.x) - volume @ values == pytest.approx(wanted, abs=1e-6)
    without = averaged(size.tolist(), knowledge, torch.tensor(values), kama=False)
    assert float(without.state.copilot.x) == pytest.approx(volume @ values, abs=1e-9)


@pytest.mark.parametrize(
    ("knowledge", "weights", "negative"),
    [
        ((-0.076, -0.09, -0.05), (0.5, 0.3, 0.2), 3),  # a ratio of negative numbers would reverse the order
        ((0.0, 0.0, 0.0), (0.5, 0.3, 0.2), 0),
        ((1e-9, 1e-9, 1e-9), (0.5, 0.3, 0.2), 0),
        ((-0.5, 0.3, 0.1), (0.25, 0.525, 0.225), 1),
        ((0.2, 0.2, 0.2), (5 / 12, 19 / 60, 4 / 15), 0),
    ],
)
def test_knowledge_below_zero_counts_as_none(knowledge, weights, negative):
    record = averaged([50, 30, 20], knowledge).take_records()
    assert record["weight"] == pytest.approx(weights)
    assert sum(record["weight"]) == pytest.approx(1)
    assert record["negative"] == negative
    assert record["fell_back"] == (sum(max(one, 0) for one in knowledge) < 1e-8)


@by_hand
def test_uniform_predictions_of_seven_classes_fall_back_to_volume_weights():
    uniform = [(1 / 7,) * 7] * 4
    ring = [(0, 1), (1, 2), (2, 3), (3, 0)]
    setup = hand_setup([hand_graph(uniform[:3], PATH), hand_graph(uniform, ring)])
    played = play(setup, rounds=1)
    record = played.server.take_records()
    assert record["knowledge"] == pytest.approx([1 / 42 - 0.1] * 2, abs=1e-6)
    assert record["weight"] == pytest.approx([3 / 7, 4 / 7])
    assert (record["fell_back"], record["negative"]) == (True, 2)
    assert all(leaf.isfinite().all() for _, leaf in flatten(played.server.state))
    lonely = hand_setup([hand_graph(uniform[:3]), hand_graph(uniform, ring)])  # nobody to be alike: no penalty
    assert play(lonely, rounds=1).server.take_records()["weight"] == pytest.approx([(3 / 7 + 1) / 2, 2 / 7])


def test_identical_clients_have_equal_weights():
    graph = toy_graph(12)
    method = FedGKC(self_distill=False)  # every client draws views of its own
    record = play(toy_setup(method, graphs=[graph] * 3), rounds=2).server.take_records()
    assert record["weight"] == pytest.approx([1 / 3] * 3, abs=1e-6)
    other = play(toy_setup(method, graphs=[graph, graph, toy_graph(12, seed=5)]), rounds=2).server.take_records()
    assert max(other["weight"]) - min(other["weight"]) > 1e-3


def test_the_copilot_of_a_single_client_is_taken_as_it_is():
    setup = toy_setup(FedGKC(), clients=1)
    engine, replies = watched(setup)
    played = play(setup, rounds=2, engine=engine)
    assert same(played.server.state.copilot, replies[-1][0].copilot)
    assert not same(played.server.state.copilot, replies[0][0].copilot)


def test_server_averages_copilots_by_the_recorded_weights():
    setup = toy_setup(FedGKC(), models="gcn,sage")
    engine, replies = watched(setup)
    played = play(setup, rounds=2, engine=engine)
    weights = played.server.take_records()["weight"]
    assert sum(weights) == pytest.approx(1)
    for path, leaf in flatten(played.server.state.copilot):
        parts = [dict(flatten(replies[-1][client].copilot))[path].double() for client in range(3)]
        wanted = sum(weight * part for weight, part in zip(weights, parts, strict=True))
        torch.testing.assert_close(leaf.double(), wanted, atol=1e-6, rtol=1e-6)


def test_knowledge_is_that_of_the_trained_copilot_without_dropout():
    setup = toy_setup(FedGKC(), dropout=0.5)
    engine, replies = watched(setup)
    knowledge = torch.tensor(play(setup, rounds=1, engine=engine).server.take_records()["knowledge"])
    fleet = engine.fleets[0]
    start = fleet.initial(fleet.architecture("gcn"))
    trained, before = (sum(FedGKC().knowledge(fleet, copilot)) for copilot in (replies[0].copilot, start))
    torch.testing.assert_close(knowledge, trained)
    assert (knowledge - before).abs().min() > 1e-4


def test_both_weights_are_shared_out_among_the_clients_that_take_part():
    setup = toy_setup(FedGKC(), clients=4, models="gcn,sage", participation=0.5)
    members = participants([0, 1, 2, 3], 0.5, 0, 1)
    record = play(setup, rounds=1).server.take_records()
    size = torch.tensor([setup.graphs[client].nodes for client in members]).double()
    knowledge = torch.tensor(record["knowledge"])
    assert len(members) == 2
    assert record["volume_weight"] == pytest.approx((size / size.sum()).tolist())
    assert record["weight"] == pytest.approx(((size / size.sum() + knowledge / knowledge.sum()) / 2).tolist(), abs=1e-6)


# The neighbourhood ---------------------------------------------------------------------------------------------------

TEACHER = torch.tensor([[[0.75, 0.25], [0.5, 0.5]]]).log()
STUDENT = torch.tensor([[[0.5, 0.5], [0.75, 0.25]]]).log()


@pytest.mark.parametrize(("reduction", "wanted"), [("sum", 0.137327), ("mean", 0.068663)])
def test_neighbourhood_of_two_nodes_is_the_one_worked_out_by_hand(reduction, wanted):
    laid = build_fleet_graph([hand_graph([(0.5, 0.5)] * 2, [(0, 1)])], CPU)
    assert float(neighbourhood_loss(laid, TEACHER, STUDENT, reduction)) == pytest.approx(wanted, abs=1e-6)
    swapped = float(neighbourhood_loss(laid, STUDENT, TEACHER.flip(1) + torch.tensor([0.1, 0]), reduction))
    assert abs(swapped - wanted) > 1e-4
    apart = build_fleet_graph([hand_graph([(0.5, 0.5)] * 2)], CPU)  # without the edge only the node itself teaches
    alone = float(neighbourhood_loss(apart, TEACHER, STUDENT, reduction))
    assert alone == pytest.approx((0.130812 + 0.143841) / 2, abs=1e-6)


def gathered(graph, teacher, student, reduction="sum"):
    """Eq. 1 edge by edge, the way that needs a tensor of edges by width."""
    own = np.arange(graph.nodes)
    nodes, around = np.concatenate([graph.edges, [own, own]], axis=1)
    wanted = teacher[around].log_softmax(1)
    each = (wanted.exp() * (wanted - student[nodes].log_softmax(1))).sum(1)
    summed = torch.zeros(graph.nodes).index_add(0, torch.from_numpy(nodes), each)
    counts = torch.from_numpy(np.bincount(nodes)) if reduction == "mean" else 1
    return (summed / counts).mean()


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_neighbourhood_and_its_gradient_equal_those_edge_by_edge(reduction):
    graphs = [*toy_graphs(), toy_graph(8, edgeless=True)]
    generator = torch.Generator().manual_seed(0)
    teacher, student = (torch.randn(4, 12, 8, generator=generator).requires_grad_() for _ in range(2))
    ours = neighbourhood_loss(build_fleet_graph(graphs, CPU), teacher, student, reduction)
    wanted = [
        gathered(graph, teacher[client, : graph.nodes].detach(), student[client, : graph.nodes], reduction)
        for client, graph in enumerate(graphs)
    ]
    torch.testing.assert_close(ours, torch.stack(wanted), atol=1e-6, rtol=1e-6)
    (mine,) = torch.autograd.grad(ours.sum(), [student], retain_graph=True)
    (theirs,) = torch.autograd.grad(sum(wanted), [student])
    torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)
    assert torch.autograd.grad(ours.sum(), [teacher], allow_unused=True) == (None,)
    other = "mean" if reduction == "sum" else "sum"
    assert not torch.allclose(neighbourhood_loss(build_fleet_graph(graphs, CPU), teacher, student, other), ours)


def test_equal_models_have_nothing_to_teach_on_a_graph_without_edges():
    for edgeless in (True, False):
        fleet, models = fleet_of(FedGKC(), graphs=[toy_graph(9, edgeless=edgeless)])
        models.copilot = map_tree(torch.clone, models.model)
        for terms in (FedGKC().copilot_terms(fleet, models), FedGKC().local_terms(fleet, models)):
            assert float(terms.predictions) == pytest.approx(0, abs=1e-6)
            assert (abs(float(terms.neighbourhood)) < 1e-6) == edgeless  # with edges it compares different nodes


# The losses ----------------------------------------------------------------------------------------------------------


@by_hand
def test_the_teacher_comes_first_in_every_divergence():
    fleet, _ = fleet_of(FedGKC(copilot="said"), "said", [hand_graph([(1.0, 1.0)] * 2)])
    certain, unsure = torch.tensor([0.75, 0.25]).log(), torch.tensor([0.5, 0.5]).log()
    for local, copilot in ((certain, unsure), (unsure, certain)):
        tables = (Tree(embedding=said.expand(1, 2, 2), logits=said.expand(1, 2, 2)) for said in (copilot, local))
        models = Tree(zip(("copilot", "model"), tables, strict=True))
        method = FedGKC(copilot="said")
        both = method.copilot_terms(fleet, models), method.local_terms(fleet, models)
        sizes = (0.130812, 0.143841) if local is certain else (0.143841, 0.130812)
        for terms, size in zip(both, sizes, strict=True):
            assert float(terms.predictions) == pytest.approx(REST * size, abs=1e-6)
            assert float(terms.neighbourhood) == pytest.approx(BETA * size, abs=1e-6)


def views_of(fleet, method):
    """The two views that the local model sees in the first epoch of a step."""
    fleet.begin(1, "train")
    return [fleet.graph.perturbed(fleet.random, *rates) for rates in VIEWS[method.views]]


def unweighted(fleet, graphs, models, method):
    """Every term of both losses with PyTorch's own functions, client by client and edge by edge."""
    local, copilot = fleet.predict(models.model), fleet.predict(models.copilot, fleet.architecture(method.copilot))
    weak, strong = (fleet.predict(models.model, graph=view) for view in views_of(fleet, method))

    def cut(output, client):
        return output.embedding[client, : graphs[client].nodes], output.logits[client, : graphs[client].nodes]

    def divergence(teacher, student):
        return functional.kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean")

    found = {"copilot": [], "local": []}
    for client, graph in enumerate(graphs):
        (emb_l, log_l), (emb_c, log_c) = cut(local, client), cut(copilot, client)
        (emb_w, log_w), (emb_s, log_s) = cut(weak, client), cut(strong, client)
        train, y = torch.from_numpy(graph.train), torch.from_numpy(graph.y)
        squared = functional.mse_loss(emb_s, emb_w)
        if method.mse_reduction == "sum_dim":
            squared = squared * emb_s.shape[1]
        found["copilot"].append(
            {
                "labels": functional.cross_entropy(log_c[train], y[train]),
                "predictions": divergence(log_l, log_c),
                "neighbourhood": gathered(graph, emb_l, emb_c, method.neigh_reduction),
            }
        )
        found["local"].append(
            {
                "labels": functional.cross_entropy(log_l[train], y[train]),
                "predictions": divergence(log_c, log_l),
                "neighbourhood": gathered(graph, emb_c, emb_l, method.neigh_reduction),
                "self": squared + divergence(log_w, log_s),
            }
        )
    return {name: {term: torch.stack([one[term] for one in each]) for term in each[0]} for name, each in found.items()}


FULL = {"labels": ALPHA, "predictions": REST, "neighbourhood": BETA}
SELF = {"self": 1}
DUAL = {"labels": ALPHA, "predictions": 1 - ALPHA}  # the "conventional dual-model": mutual learning
ALONE = {"labels": ALPHA}
OTHER = {"labels": 0.5, "predictions": 0.4, "neighbourhood": 0.1}

LOSSES = [  # settings, what the copilot's loss is made of, and what the local model's is
    ({}, FULL, FULL | SELF),
    ({"kama": False}, FULL, FULL | SELF),
    ({"smkd": False}, DUAL, DUAL),
    ({"smkd": False, "kama": False}, DUAL, DUAL),
    ({"self_distill": False}, FULL, FULL),
    ({"mutual": False}, ALONE, ALONE | SELF),
    ({"mutual": False, "self_distill": False}, ALONE, ALONE),
    ({"strength": False}, FULL, FULL | SELF),
    ({"clarity1": False}, FULL, FULL | SELF),
    ({"clarity2": False}, FULL, FULL | SELF),
    ({"feedback": 0.5}, {"labels": ALPHA, "predictions": REST / 2, "neighbourhood": BETA / 2}, FULL | SELF),
    ({"feedback": 0.5, "smkd": False}, {"labels": ALPHA, "predictions": (1 - ALPHA) / 2}, DUAL),
    ({"feedback": 0.0}, ALONE, FULL | SELF),
    ({"self_weight": 3.0}, FULL, FULL | {"self": 3}),
    ({"self_weight": 0.0}, FULL, FULL),
    ({"alpha": 0.5, "beta": 0.1}, OTHER, OTHER | SELF),
    ({"beta": 0.0}, DUAL, DUAL | SELF),
    ({"neigh_reduction": "mean"}, FULL, FULL | SELF),
    ({"mse_reduction": "sum_dim"}, FULL, FULL | SELF),
    ({"views": "fgssl"}, FULL, FULL | SELF),
    ({"views": "light"}, FULL, FULL | SELF),
]
every_loss = pytest.mark.parametrize(("settings", "copilot", "local"), LOSSES, ids=[str(case[0]) for case in LOSSES])
SWITCHES = [case[0] for case in LOSSES if False in case[0].values()]


@every_loss
def test_losses_are_made_of_the_terms_that_the_settings_say(settings, copilot, local):
    method, graphs = FedGKC(**settings), toy_graphs()
    fleet, models = fleet_of(method, "sage", graphs)
    sizes = unweighted(fleet, graphs, models, method)
    fleet.begin(1, "train")
    for name, terms, shares in (("copilot", method.copilot_terms, copilot), ("local", method.local_terms, local)):
        noted = Tree()
        value = sum_of_terms(terms, fleet, noted, models)
        assert noted.keys() == shares.keys()
        for term, share in shares.items():
            torch.testing.assert_close(noted[term], share * sizes[name][term], atol=1e-5, rtol=1e-5)
            assert (noted[term] > 1e-4).all()
        torch.testing.assert_close(value, sum(noted.values()))


@pytest.mark.parametrize("settings", [{}, *SWITCHES], ids=str)
def test_server_weights_are_those_that_the_switches_say(settings):
    record = play(toy_setup(FedGKC(**settings), models="gcn,sage"), rounds=1).server.take_records()
    volume, knowledge = torch.tensor(SIZES) / 28, torch.tensor(record["knowledge"]).clamp(min=0)
    assert record["fell_back"] == ("strength" in settings)  # so early, the margin alone is below zero everywhere
    trusted = volume if record["fell_back"] else knowledge / knowledge.sum()
    wanted = volume if "kama" in settings else (volume + trusted) / 2
    assert record["weight"] == pytest.approx(wanted.tolist(), abs=1e-6)


@pytest.mark.parametrize("settings", [{}, {"neigh_projection": True}, {"smkd": False}], ids=str)
def test_no_gradient_reaches_the_teacher(settings):
    method = FedGKC(**settings)
    fleet, models = fleet_of(method, "sage")
    (copilot, of_copilot), (model, of_model) = trained_tree(models.copilot), trained_tree(models.model)
    of_projection = []
    if method.neigh_projection:
        projection, of_projection = trained_tree(Tree(weight=torch.eye(8).expand(3, -1, -1)))
        model = Tree(model=model, projection=projection)
    models = Tree(copilot=copilot, model=model)

    def gradients(terms, parameters):
        value = sum_of_terms(terms, fleet, Tree(), models).sum()
        return torch.autograd.grad(value, parameters, allow_unused=True)

    assert all(one is None for one in gradients(method.copilot_terms, of_model + of_projection))
    assert all(one is None for one in gradients(method.local_terms, of_copilot))
    assert all(one.any() for one in gradients(method.copilot_terms, of_copilot))
    assert all(one.any() for one in gradients(method.local_terms, of_model + of_projection))


@pytest.mark.parametrize("detach_weak", [True, False])
def test_the_weak_view_teaches_and_is_not_taught(detach_weak):
    method = FedGKC(detach_weak=detach_weak)
    fleet, models = fleet_of(method, "sage", [toy_graph(12)])
    weights, parameters = trained_tree(models.model)
    fleet.begin(1, "train")
    value = method.agreement(fleet, weights).sum()
    ours = torch.autograd.grad(value, parameters)

    def by_hand(taught):
        weak, strong = (fleet.model(weights, view) for view in views_of(fleet, method))
        target = weak if taught else map_detached(weak)
        loss = functional.mse_loss(strong.embedding, target.embedding)
        logs = [output.logits[0].log_softmax(1) for output in (strong, target)]
        return loss + functional.kl_div(*logs, reduction="batchmean", log_target=True)

    wanted, other = (torch.autograd.grad(by_hand(taught), parameters) for taught in (not detach_weak, detach_weak))
    torch.testing.assert_close(value, by_hand(taught=False), atol=1e-6, rtol=1e-6)
    for mine, right, wrong in zip(ours, wanted, other, strict=True):
        torch.testing.assert_close(mine, right, atol=1e-6, rtol=1e-5)
        assert not torch.allclose(mine, wrong, atol=1e-5)


def map_detached(output):
    return Output(output.embedding.detach(), output.logits.detach())


def test_views_that_leave_nothing_out_agree(monkeypatch):
    monkeypatch.setitem(VIEWS, "graft", ((0.0, 0.0), (0.0, 0.0)))
    fleet, models = fleet_of(FedGKC(), "gat")
    assert not FedGKC().agreement(fleet, models.model).any()
    assert (FedGKC(views="light").agreement(fleet, models.model) > 1e-4).all()
    noisy, models = fleet_of(FedGKC(), "gat", dropout=0.5)
    assert (FedGKC().agreement(noisy, models.model) > 1e-4).all()


def test_views_are_drawn_anew_in_every_epoch_and_round():
    fleet, models = fleet_of(FedGKC())
    first, second = (FedGKC().agreement(fleet, models.model) for _ in range(2))
    fleet.begin(2, "train")
    later = FedGKC().agreement(fleet, models.model)
    fleet.begin(1, "train")
    again = FedGKC().agreement(fleet, models.model)
    assert torch.equal(first, again)
    assert not any(torch.equal(one, other) for one, other in itertools.combinations((first, second, later), 2))


# Rounds --------------------------------------------------------------------------------------------------------------

BARE = {"alpha": 1.0, "beta": 0.0, "self_distill": False, "kama": False}


@pytest.mark.parametrize("models", ["gcn", "gcn,sage,gat"])
def test_with_labels_alone_copilots_follow_fedavg_and_local_models_follow_local_training(models):
    def played(method, models=models):
        setup = toy_setup(method, models=models)
        return play(setup, rounds=3, engine=InProcess(setup, alone=True))  # the same products

    def alike(first, second):
        return gap(first, second) < 1e-6

    ours, federated, local = played(FedGKC(**BARE)), played(FedAvg(), "gcn"), played(Local())
    assert alike(ours.server.state.copilot, federated.server.state.model)
    for client in range(3):
        assert alike(ours.client(client).model, local.client(client).model)
        assert alike(ours.client(client).optimizer.model, local.client(client).optimizer.model)
        assert alike(ours.client(client).optimizer.copilot, federated.client(client).optimizer.model)
    # Weights by knowledge move the copilots only, as nothing is learnt from them; views move the local models only.
    for settings, copilots, locals_ in (
        ({"kama": True}, False, True),
        ({"self_distill": True}, True, False),
        ({"alpha": 0.9}, False, False),
        ({"alpha": 0.9, "beta": 0.1}, False, False),
    ):
        other = played(FedGKC(**(BARE | settings)))
        assert alike(other.server.state.copilot, federated.server.state.model) == copilots
        assert alike(other.client(0).model, local.client(0).model) == locals_


@pytest.mark.parametrize("settings", [{}, {"neigh_projection": True}, {"smkd": False}], ids=str)
def test_block_and_interleaved_are_the_same_bit_for_bit_for_one_epoch_only(settings):
    for epochs in (1, 3):
        block, interleaved = (
            play(toy_setup(FedGKC(schedule=schedule, **settings), models="gcn,sage", dropout=0.5, epochs=epochs))
            for schedule in ("block", "interleaved")
        )
        agree = same(block.server.state, interleaved.server.state)
        assert agree == all(same(block.client(client), interleaved.client(client)) for client in range(3))
        assert agree == (epochs == 1)


def test_the_block_schedule_trains_one_model_after_the_other():
    """Against the loop written out: first the copilot against the old local model, then the local model."""
    method = FedGKC(schedule="block", copilot_epochs=2, self_distill=False)
    setup = toy_setup(method, models="sage", optimizer="sgd", learning_rate=0.1, weight_decay=0.0, epochs=3)
    played = play(setup, rounds=1)
    fleet = setup.fleet([0, 1, 2])
    models = Tree(copilot=fleet.initial(fleet.architecture("gcn")), model=fleet.initial())
    for name, terms, epochs in (("copilot", method.copilot_terms, 2), ("model", method.local_terms, 3)):
        for _ in range(epochs):
            models[name], parameters = trained_tree(models[name])
            gradients = torch.autograd.grad(sum_of_terms(terms, fleet, Tree(), models).sum(), parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter -= 0.1 * gradient
    wanted = map_tree(torch.Tensor.detach, models.model)
    assert all(gap(played.client(client).model, select_clients(wanted, client)) < 1e-6 for client in range(3))
    usual = play(replace(setup, method=replace(method, copilot_epochs=0)), rounds=1)
    assert gap(usual.client(0).model, played.client(0).model) > 1e-6


def test_without_feedback_the_copilot_learns_from_labels_alone():
    def copilot(models, **settings):
        return play(toy_setup(FedGKC(**settings), models=models)).server.state.copilot

    assert same(copilot("gcn", feedback=0.0), copilot("gcn", mutual=False))
    assert gap(copilot("sage", feedback=0.0), copilot("gcn", feedback=0.0)) < 1e-6  # whatever the local model says
    assert gap(copilot("sage"), copilot("gcn")) > 1e-4
    deaf, plain = (play(toy_setup(FedGKC(feedback=0.0, mutual=mutual))).client(0).model for mutual in (True, False))
    assert gap(deaf, plain) > 1e-4  # the local model still learns from the copilot


def test_local_models_learn_from_the_others_through_the_copilot():
    graphs = toy_graphs()
    changed = [graphs[0], replace(graphs[1], x=-graphs[1].x), graphs[2]]
    for method, moves in ((FedGKC(), True), (FedGKC(mutual=False), False)):
        usual, other = (play(toy_setup(method, graphs=each), rounds=3).client(0).model for each in (graphs, changed))
        assert (gap(usual, other) > 1e-4) == moves


def test_the_local_model_is_scored_and_never_overwritten():
    setup = toy_setup(FedGKC(), epochs=0)
    played = play(setup, rounds=2)
    start = initial(setup.models[0], 0)
    assert all(same(played.client(client).model, start) for client in range(3))
    assert FedGKC().shared(played.server) is None
    trained = play(toy_setup(FedGKC()), rounds=2)
    fleet = trained.engine.fleets[0]
    correct = trained.engine.ask(Request("score", 2, [0, 1, 2])).correct
    assert torch.equal(correct, fleet.correct(fleet.state.model))


@pytest.mark.parametrize("copilot", ARCHITECTURES)
def test_any_architecture_may_travel(copilot):
    setup = toy_setup(FedGKC(copilot=copilot), models="sage,gin", dropout=0.5)
    played = play(setup)
    start = initial(setup.architecture(copilot), 0)
    assert [path for path, _ in flatten(played.server.state.copilot)] == [path for path, _ in flatten(start)]
    assert gap(played.server.state.copilot, start) > 1e-3
    assert all(leaf.isfinite().all() for client in range(3) for _, leaf in flatten(played.client(client)))
    alone = play(setup, engine=InProcess(setup, alone=True))
    assert gap(played.server.state, alone.server.state) < 1e-5


def test_unknown_architecture_of_the_copilot_is_refused():
    with pytest.raises(InputError, match="Unknown model 'pilot'"):
        play(toy_setup(FedGKC(copilot="pilot")), rounds=1)


def test_client_without_training_nodes_learns_from_its_copilot():
    graphs = toy_graphs()
    graphs[1] = replace(graphs[1], train=graphs[1].train & False)
    setup = toy_setup(FedGKC(), graphs=graphs, weight_decay=0.0)
    played = play(setup)
    record = played.server.take_records()
    assert (record["copilot_labels"][1], record["local_labels"][1]) == (0, 0)
    assert min(record["copilot_labels"][0], record["local_predictions"][1], record["local_self"][1]) > 1e-5
    assert gap(played.client(1).model, initial(setup.models[0], 0)) > 1e-3
    assert all(leaf.isfinite().all() for client in range(3) for _, leaf in flatten(played.client(client)))


@pytest.mark.parametrize("models", ARCHITECTURES)
def test_isolated_nodes_and_clients_without_edges_give_finite_numbers(models):
    graphs = [toy_graph(12), toy_graph(8, edgeless=True), toy_graph(9)]
    for held in (graphs, graphs[1:2]):  # among others, and alone: then there is no edge at all
        played = play(toy_setup(FedGKC(), models=models, graphs=held))
        assert all(leaf.isfinite().all() for client in played.engine.state().values() for _, leaf in flatten(client))
        record = played.server.take_records()
        assert all(np.isfinite(values).all() for values in record.values())
        assert min(record["local_self"]) > 0  # features are left out of a view even where there are no edges


# Widths, and modules of one's own ------------------------------------------------------------------------------------

WIDTHS = [GCN(6, CLASSES, width=8, dropout=0.0), SAGE(6, CLASSES, width=4, dropout=0.0), GCN(6, CLASSES, width=12)]


def watched(setup):
    """An engine, and a list of its replies."""
    engine, seen = InProcess(setup), []
    ask = engine.ask
    engine.ask = lambda request: seen.append(ask(request)) or seen[-1]
    return engine, seen


def test_embeddings_of_other_widths_are_refused_without_a_projection():
    with pytest.raises(InputError, match="width 4 with the copilot's 8: use one width, or set neigh_projection"):
        InProcess(toy_setup(FedGKC(), models=WIDTHS))
    for settings in ({"beta": 0.0}, {"smkd": False}, {"mutual": False}):  # then nothing compares embeddings
        play(toy_setup(FedGKC(**settings), models=WIDTHS), rounds=1)


def test_projection_is_trained_and_stays_at_its_client():
    setup = toy_setup(FedGKC(neigh_projection=True), models=WIDTHS)
    engine, replies = watched(setup)
    played = play(setup, rounds=2, engine=engine)
    for client, width in enumerate((8, 4, 12)):
        learnt = played.client(client).projection.weight
        assert learnt.shape == (width, 8)
        assert (learnt - torch.eye(width, 8)).abs().max() > 1e-3
    fields_sent = {"copilot", "size", "strength", "clarity", "knowledge", "terms"}
    copilot = [path for path, _ in flatten(played.server.state.copilot)]
    for reply in replies:
        assert all(reply[client].keys() == fields_sent for client in range(3))
        assert all([path for path, _ in flatten(reply[client].copilot)] == copilot for client in range(3))
    without = play(toy_setup(FedGKC()), rounds=2)
    assert played.traffic == without.traffic
    assert "projection" not in without.client(0)
    alone = play(setup, rounds=2, engine=InProcess(setup, alone=True))
    assert all(gap(played.client(client), alone.client(client)) < 1e-5 for client in range(3))


def test_projection_that_changes_nothing_changes_no_loss():
    fleet, models = fleet_of(FedGKC(), "sage")
    wide = FedGKC(neigh_projection=True)
    for factor in (1, 2):
        weight = factor * torch.eye(8).expand(3, -1, -1)
        projected = Tree(copilot=models.copilot, model=Tree(model=models.model, projection=Tree(weight=weight)))
        for name in ("copilot_terms", "local_terms"):
            terms = []
            for method, held in ((FedGKC(), models), (wide, projected)):
                fleet.begin(1, "train")
                terms.append(getattr(method, name)(fleet, held))
            for term in terms[0]:
                close = torch.allclose(terms[0][term], terms[1][term], atol=1e-6)
                assert close == (factor == 1 or term != "neighbourhood")


class Own(nn.Module):
    """Keeps what it was shown."""

    def __init__(self, width=8, pair=True):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(6, width), nn.BatchNorm1d(width), nn.Linear(width, CLASSES)
        self.pair, self.shown = pair, []

    def forward(self, x, edge_index):
        self.shown.append((x, edge_index, self.training))
        summed = x.index_add(0, edge_index[0], x[edge_index[1]])
        hidden = self.norm(self.body(summed)).relu()
        return (hidden, self.head(hidden)) if self.pair else self.head(hidden)


def own(**settings):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Own(**settings)


def test_own_module_is_a_local_model_and_sees_the_views():
    module, graph = own(), toy_graph(12)
    setup = toy_setup(FedGKC(), models=[module, "gcn"], graphs=[graph, toy_graph(9)], epochs=2)
    engine = InProcess(setup)
    module.shown.clear()
    played = play(setup, rounds=1, engine=engine)
    x, edges = torch.from_numpy(graph.x), {tuple(edge) for edge in graph.edges.T.tolist()}
    # In each epoch: once to teach the copilot, once to learn, once on the weak view and once on the strong one.
    assert [training for *_, training in module.shown] == [False, True, False, True] * 2
    thinned, masked = [], []
    for seen_x, seen_edges, _ in module.shown:
        pairs = {tuple(edge) for edge in seen_edges.T.tolist()}
        assert pairs <= edges
        assert {(b, a) for a, b in pairs} == pairs
        hidden = (seen_x == 0).all(0)
        assert torch.equal(seen_x, torch.where(hidden, 0, x))
        thinned.append(len(pairs) < len(edges))
        masked.append(bool(hidden.any()))
    assert thinned == [False, False, True, True] * 2
    assert any(masked[2::4])
    assert any(masked[3::4])
    assert not any(masked[0::4] + masked[1::4])
    assert gap(played.client(0).model.body, initial(setup.models[0], 0).body) > 1e-3
    assert played.server.take_records()["local_self"][0] > 0


@pytest.mark.parametrize(("module", "width"), [(own(width=5), 5), (own(pair=False), CLASSES)], ids=["narrow", "logits"])
def test_own_module_of_another_width_needs_a_projection(module, width):
    graphs = [toy_graph(12), toy_graph(9)]
    with pytest.raises(InputError, match=f"width {width} with the copilot's 8"):
        InProcess(toy_setup(FedGKC(), models=[module, "gcn"], graphs=graphs))
    played = play(toy_setup(FedGKC(neigh_projection=True), models=[module, "gcn"], graphs=graphs))
    assert played.client(0).projection.weight.shape == (width, 8)
    held = {path for path, _ in flatten(played.client(0).optimizer.model.first)}
    trained = {path for path, leaf in flatten(played.client(0).model) if not path.startswith("norm/running")}
    trained -= {"norm/num_batches_tracked"}
    assert held == {f"model/{path}" for path in trained} | {"projection/weight"}  # nothing for buffers
    assert all(leaf.isfinite().all() for client in (0, 1) for _, leaf in flatten(played.client(client)))


# What is sent and recorded -------------------------------------------------------------------------------------------

RECORDED = ["copilot_labels", "copilot_predictions", "copilot_neighbourhood"]
RECORDED += ["local_labels", "local_predictions", "local_neighbourhood", "local_self"]


def test_bytes_are_the_copilot_down_and_the_copilot_and_eleven_numbers_up():
    setup = toy_setup(FedGKC(), models="gat,sage,gin")
    copilot = count_bytes(initial(setup.architecture("gcn"), 0))
    assert copilot == 4 * (6 * 8 + 8 + 8 * 8 + 8 + 8 * 3 + 3)
    played = play(setup, rounds=2)
    beside = 8 + 3 * 4 + 7 * 4  # nodes; strength, clarity and knowledge; the terms of the losses
    assert (played.traffic.down, played.traffic.up) == (2 * 3 * copilot, 2 * 3 * (copilot + beside))
    half = play(toy_setup(FedGKC(), participation=0.34), rounds=2)
    assert (half.traffic.down, half.traffic.up) == (2 * copilot, 2 * (copilot + beside))


def test_the_round_is_recorded_client_by_client():
    setup = toy_setup(FedGKC(), models="gcn,sage", dropout=0.5)
    played, alone = play(setup), play(setup, engine=InProcess(setup, alone=True))
    record, other = played.server.take_records(), alone.server.take_records()
    assert json.loads(json.dumps(record)) == record
    assert {"strength", "clarity", "knowledge", "volume_weight", "weight", *RECORDED} <= record.keys()
    for name, values in record.items():
        assert values == pytest.approx(other[name], abs=1e-5)
    both = [sum(pair) for pair in zip(record["strength"], record["clarity"], strict=True)]
    assert record["knowledge"] == pytest.approx(both, abs=1e-6)
    shares = [share / sum(both) for share in both]
    halves = [(volume + share) / 2 for volume, share in zip(record["volume_weight"], shares, strict=True)]
    assert record["weight"] == pytest.approx(halves, abs=1e-6)
    assert record["volume_weight"] == pytest.approx([size / 28 for size in SIZES])


@every_loss
def test_recorded_terms_add_up_to_the_last_losses(settings, copilot, local):
    for schedule in ("interleaved", "block"):
        played = play(toy_setup(FedGKC(schedule=schedule, **settings), dropout=0.5))
        record, losses = played.server.take_records(), {name: loss for name, _, loss in played.engine.losses()}
        for name, label, shares in (("copilot", "train/copilot", copilot), ("local", "train", local)):
            terms = {term: record[f"{name}_{term}"] for term in TERMS[name]}
            summed = torch.tensor(list(terms.values())).sum(0)
            torch.testing.assert_close(summed, losses[label], atol=1e-5, rtol=1e-5)
            assert {term for term, sizes in terms.items() if any(sizes)} == shares.keys()


def test_recorded_terms_of_a_single_epoch_are_those_of_the_start():
    method = FedGKC(schedule="block")
    setup = toy_setup(method, models="sage", epochs=1)
    record = play(setup, rounds=1).server.take_records()
    fleet = setup.fleet([0, 1, 2])
    fleet.begin(1, "train")
    start = Tree(copilot=fleet.initial(fleet.architecture("gcn")), model=fleet.initial())
    for term, size in method.copilot_terms(fleet, start).items():
        assert record[f"copilot_{term}"] == pytest.approx(size.tolist(), abs=1e-6)
    assert record["local_labels"] == pytest.approx(method.local_terms(fleet, start).labels.tolist(), abs=1e-6)


def test_a_round_without_training_records_terms_of_zero():
    record = play(toy_setup(FedGKC(), epochs=0), rounds=1).server.take_records()
    assert all(record[name] == [0, 0, 0] for name in RECORDED)
    assert min(record["weight"]) > 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"alpha": 0.9, "beta": 0.2}, "add up to at most 1"),
        ({"alpha": -0.1}, "at least 0"),
        ({"alpha": float("nan")}, "at least 0"),
        ({"beta": -0.1}, "at least 0"),
        ({"feedback": -1.0}, "feedback is -1.0"),
        ({"smoothing": float("nan")}, "smoothing is nan"),
        ({"self_weight": float("inf")}, "self_weight is inf"),
        ({"copilot_epochs": -1}, "copilot_epochs is -1"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        FedGKC(**settings)
    FedGKC(alpha=0.8, beta=0.2)


# What a step may cost ------------------------------------------------------------------------------------------------


class Reads(TorchDispatchMode):
    """Notes every operation that reads a value back to the host, or whose result has a size that depends on values."""

    WATCHED = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "bincount", "is_nonzero", "equal")

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if function.overloadpacket.__name__ in self.WATCHED:
            self.found.append(function.overloadpacket.__name__)
        return function(*arguments, **(named or {}))


@pytest.mark.parametrize("settings", [{}, {"schedule": "block", "neigh_projection": True}], ids=str)
@pytest.mark.parametrize("models", ARCHITECTURES)
def test_a_step_reads_nothing_back_once_its_graphs_are_prepared(models, settings, monkeypatch):
    setup = toy_setup(FedGKC(copilot="gat", **settings), models=models, optimizer="sgd", dropout=0.5)
    engine = InProcess(setup)
    copilot = initial(setup.architecture("gat"), 0)
    lists, whole = [], torch.Tensor.tolist

    def watched_list(tensor):
        lists.append(tensor)
        return whole(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", watched_list)
    for number, reads in ((1, True), (2, False)):
        lists.clear()
        with Reads() as seen:
            engine.ask(Request("train", number, [0, 1, 2], copilot))
        assert bool(seen.found + lists) == reads


def test_nothing_of_edges_by_width_is_ever_made():
    graph, width = crowded_graph(), 64
    laid = build_fleet_graph([graph], CPU)
    generator = torch.Generator().manual_seed(0)
    teacher, student = (torch.randn(1, graph.nodes, width, generator=generator).requires_grad_() for _ in range(2))

    def neighbourhood():
        neighbourhood_loss(laid, teacher, student).sum().backward()

    def similarity():
        sum(knowledge_of(FedGKC(), laid, student.softmax(2))).sum().backward()

    too_much = graph.edges.shape[1] * width * 4
    assert too_much > 256e6
    neighbourhood()  # A + I is worked out once
    assert peak_of(neighbourhood) < too_much / 16
    assert peak_of(similarity) < too_much / 16
    assert peak_of(lambda: gather_rows(graph, width)) >= too_much


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("models", ARCHITECTURES)
def test_replayed_rounds_and_their_records_equal_plain_ones(models):
    for settings in ({}, {"schedule": "block", "neigh_projection": True}):
        setup = toy_setup(FedGKC(copilot="gat", **settings), models=models, dropout=0.5)
        setup = replace(setup, device=torch.device("cuda"))
        replayed, plain = play(setup, rounds=5), play(replace(setup, record=False), rounds=5)
        assert replayed.engine.rounds.recordings
        assert all(gap(replayed.client(client), plain.client(client)) < 1e-4 for client in range(3))
        record, wanted = replayed.server.take_records(), plain.server.take_records()
        earlier = play(setup, rounds=4).server.take_records()
        for name in ("knowledge", "weight", *RECORDED):
            assert record[name] == pytest.approx(wanted[name], abs=1e-4)
            assert record[name] != pytest.approx(earlier[name], abs=1e-6)


# The defaults, which are not the paper's -------------------------------------------------------------------------


def validation_counts(fleet, teacher_right, pupil_right):
    """Outputs that get these validation nodes of each client right, by their place among them."""
    masks, classes = fleet.labels.masks[:, 1], fleet.labels.classes
    outputs = []
    for right in (teacher_right, pupil_right):
        answers = (classes + 1) % CLASSES
        for client, count in enumerate(right):
            nodes = masks[client].nonzero().flatten()[:count]
            answers[client, nodes] = classes[client, nodes]
        logits = functional.one_hot(answers, CLASSES).float()
        outputs.append(Output(logits, logits))
    return outputs


def test_a_model_teaches_only_where_it_is_no_worse_on_validation_nodes():
    fleet = toy_setup(Defaults()).fleet([0, 1, 2])
    assert fleet.labels.masks[:, 1].sum(1).min() >= 1
    teacher, pupil = validation_counts(fleet, [1, 0, 1], [0, 1, 1])
    assert no_worse(fleet, teacher, pupil).tolist() == [1.0, 0.0, 1.0]
    assert no_worse(fleet, pupil, teacher).tolist() == [0.0, 1.0, 1.0]


def test_a_closed_gate_leaves_the_labels_alone(monkeypatch):
    monkeypatch.setattr("graft.methods.fedgkc.method.no_worse", lambda fleet, *_: torch.zeros(len(fleet.clients)))
    settings = {"models": "gcn,sage", "optimizer": "sgd", "weight_decay": 0.0}
    closed = play(toy_setup(Defaults(), learning_rate=0.1, **settings), rounds=3)
    alone = play(toy_setup(Local(), learning_rate=0.08, **settings), rounds=3)  # labels weigh 0.8
    assert max(gap(closed.client(client).model, alone.client(client).model) for client in range(3)) < 1e-6
    other = play(toy_setup(Local(), learning_rate=0.1, **settings), rounds=3)
    assert gap(closed.client(0).model, other.client(0).model) > 1e-4


def test_an_open_gate_is_no_gate(monkeypatch):
    monkeypatch.setattr("graft.methods.fedgkc.method.no_worse", lambda fleet, *_: torch.ones(len(fleet.clients)))
    opened = play(toy_setup(Defaults(feedback=0.5)), rounds=3)
    without = play(toy_setup(Defaults(feedback=0.5, gate=False)), rounds=3)
    assert gap(opened.client(0), without.client(0)) < 1e-6
    monkeypatch.undo()
    gated = play(toy_setup(Defaults(feedback=0.5)), rounds=6)
    without = play(toy_setup(Defaults(feedback=0.5, gate=False)), rounds=6)
    assert max(gap(gated.client(client), without.client(client)) for client in range(3)) > 1e-4


def test_the_default_copilots_follow_fedavg():
    """Labels alone, whatever their weight: with plain SGD at a learning rate to match, exactly FedAvg's copilots."""
    settings = {"models": "gcn", "optimizer": "sgd", "weight_decay": 0.0}
    ours = play(toy_setup(Defaults(kama=False, alpha=1.0), learning_rate=0.1, **settings), rounds=3)
    average = play(toy_setup(FedAvg(), learning_rate=0.1, **settings), rounds=3)
    assert gap(ours.server.state.copilot, average.server.state.model) < 1e-6


def test_the_paper_is_one_name_away():
    usual, paper = Defaults(), FedGKC()
    differ = {field.name for field in fields(usual) if getattr(usual, field.name) != getattr(paper, field.name)}
    assert differ == {"alpha", "beta", "feedback", "gate", "self_weight"}
    assert (paper.alpha, paper.beta, paper.feedback, paper.gate, paper.self_weight) == (0.6, 0.2, 1.0, False, 1.0)
