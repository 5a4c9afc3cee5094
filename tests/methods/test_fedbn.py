"""FedBN: what stays with clients, and the limits."""

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCNConv, GraphNorm, PairNorm

import graft
from graft.engines.in_process import InProcess
from graft.errors import InputError
from graft.federation.fleet import initial_weights
from graft.methods.fedavg import FedAvg
from graft.methods.fedbn import FedBN
from graft.models import build_model
from graft.models.architecture import Model, Output
from graft.models.own import OwnModel
from graft.tensors.trees import Tree, flatten
from graft.testing.contract import unlabelled
from tests.methods.normed import Normed
from tests.toy import CLASSES, gap, run_rounds, same, toy_graph, toy_setup

GIN_NORMS = {"layer0/scale", "layer0/shift", "layer1/scale", "layer1/shift"}


class TwoNumbers(Model):
    """A weight and a scale, which is declared to be that of a normalisation layer."""

    name = "numbers"
    normalisation = frozenset({"norm/scale"})

    def start(self, generator):  # noqa: ARG002
        return Tree(x=torch.tensor(7.0), norm=Tree(scale=torch.tensor(7.0)))

    def __call__(self, weights, graph, random=None):  # noqa: ARG002
        blank = weights["x"].view(-1, 1, 1).expand(-1, graph.nodes, 1)
        return Output(blank, blank)


class Told(FedBN):
    """Weight and scale of client k go to 1 and 10, or to 5 and 50."""

    def trained(self, fleet, start, private):  # noqa: ARG002
        wanted = torch.tensor([1.0, 5.0])[fleet.clients]
        return fleet.fit(start, lambda own, _: (own.x - wanted).square() + (own.norm.scale - 10 * wanted).square())


@pytest.mark.parametrize(("weight_by", "average"), [("nodes", 2.0), ("uniform", 3.0)])
def test_weights_one_and_five_are_averaged_and_scales_are_not(weight_by, average):
    # One step of SGD with a rate of 1/2 on (x - a)^2 lands on a; the clients have 9 and 3 nodes.
    training = {"optimizer": "sgd", "learning_rate": 0.5, "weight_decay": 0.0, "epochs": 1, "weight_by": weight_by}
    setup = toy_setup(Told(), 2, TwoNumbers(), sizes=(9, 3), **training)
    finished = run_rounds(setup, rounds=1)
    assert {path: float(leaf) for path, leaf in flatten(finished.server.state.shared)} == {"x": average}
    assert [float(finished.client(client).model.norm.scale) for client in (0, 1)] == [10.0, 50.0]


class SharesAll(FedBN):
    def private(self, model, paths):  # noqa: ARG002
        return frozenset()


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
@pytest.mark.parametrize("model", ["gin", "gin3", "gcn"])
def test_with_all_paths_shared_it_is_fedavg_bit_for_bit(model, optimizer):
    settings = {"models": model, "dropout": 0.5, "optimizer": optimizer}
    wanted = run_rounds(toy_setup(FedAvg(), **settings), rounds=3)
    ours = run_rounds(toy_setup(SharesAll(), **settings), rounds=3)
    assert same(ours.server.state.shared, wanted.server.state.model)
    assert all(same(ours.client(client), wanted.client(client)) for client in range(3))
    assert ours.traffic == wanted.traffic


def test_without_its_norms_it_is_not_fedavg():
    wanted = run_rounds(toy_setup(FedAvg(), models="gin"), rounds=3)
    ours = run_rounds(toy_setup(FedBN(), models="gin"), rounds=3)
    assert not same(ours.client(0).model, wanted.client(0).model)
    first = [run_rounds(toy_setup(method, models="gin"), rounds=1).client(0).model for method in (FedBN(), FedAvg())]
    assert same(*first)  # nothing was averaged by then


def test_norms_are_never_sent_and_everything_else_is():
    setup = toy_setup(FedBN(), models="gin")
    engine, seen = InProcess(setup), []
    ask = engine.ask
    engine.ask = lambda request: seen.append((request.message, ask(request))) or seen[-1][1]
    finished = run_rounds(setup, rounds=2, engine=engine)
    everything = {path for path, _ in flatten(initial_weights(setup.models[0], 0))}
    assert everything > GIN_NORMS
    for message, replies in seen:
        assert {path for path, _ in flatten(message)} == everything - GIN_NORMS
        sent = {path.removeprefix("shared/") for path, _ in flatten(replies.parts[0][1])}
        assert sent == everything - GIN_NORMS | {"weight"}
    assert gap(finished.client(0).model.layer0.scale, finished.client(1).model.layer0.scale) > 1e-3
    assert setup.method.shared(finished.server) is None


def test_a_client_goes_on_from_the_averaged_weights_and_its_own_norms():
    frozen = {"optimizer": "sgd", "learning_rate": 1e-12}
    trained = run_rounds(toy_setup(FedBN(), models="gin"), rounds=1)
    still = toy_setup(FedBN(), models="gin", **frozen)
    engine = InProcess(still)
    states = trained.engine.state()
    for state in states.values():
        state.pop("optimizer")
    engine.restore(states)
    second = run_rounds(still, rounds=1, engine=engine, first=2, state=Tree(trained.server.state))
    before, after = trained.client(1).model, second.client(1).model
    assert gap(after.layer0.scale, before.layer0.scale) < 1e-6
    assert gap(after.layer0.first, trained.server.state.shared.layer0.first) < 1e-6
    assert gap(before.layer0.first, trained.server.state.shared.layer0.first) > 1e-3


@pytest.mark.parametrize(
    ("name", "head", "paths"),
    [
        ("gin", "linear", GIN_NORMS),
        ("gin", "conv", {"layer0/scale", "layer0/shift", "head/scale", "head/shift"}),
        *((name, "linear", set()) for name in ("gcn", "gat", "sage", "sgc", "mlp", "ortho_gcn")),
    ],
)
def test_norms_of_native_models_are_in_their_weights(name, head, paths):
    model = build_model(name, 6, CLASSES, width=8, head=head)
    assert model.normalisation == paths
    assert paths <= {path for path, _ in flatten(initial_weights(model, 0))}
    # What starts as ones and zeros of one number a unit is a scale or a bias; no scale is forgotten.
    ones = {path for path, leaf in flatten(initial_weights(model, 0)) if leaf.dim() == 1 and bool((leaf == 1).all())}
    assert ones == {path for path in paths if path.endswith("scale")}


class Batchy(nn.BatchNorm1d):
    """A class of one's own that inherits from a normalisation layer."""


class Mixed(nn.Module):
    """Norms under any names, and a linear layer that is called one."""

    def __init__(self):
        super().__init__()
        self.conv = GCNConv(6, 8)
        self.first, self.second, self.third = nn.LayerNorm(8), GraphNorm(8), Batchy(8)
        self.deep = nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.ReLU())
        self.pair = PairNorm()  # has no weights
        self.norm = nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x, edge_index):
        hidden = self.third(self.second(self.first(self.conv(x, edge_index))))
        return self.head(self.norm(self.pair(self.deep(hidden))))


@pytest.fixture
def mixed():
    with torch.random.fork_rng():
        return Mixed()


def test_norms_of_own_modules_are_told_by_their_classes(mixed):
    batch = {f"third/{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    graph = {f"second/{name}" for name in ("weight", "bias", "mean_scale")}
    others = {"first/weight", "first/bias", "deep/1/weight", "deep/1/bias"}
    assert OwnModel(mixed).normalisation == batch | graph | others
    assert OwnModel(mixed.head).normalisation == frozenset()


def test_norms_of_own_modules_stay_with_their_clients(mixed):
    finished = run_rounds(toy_setup(FedBN(), 2, mixed), rounds=2)
    first, second = (finished.client(client).model for client in (0, 1))
    assert set(finished.server.state.shared) == {"conv", "deep", "norm", "head"}
    assert list(finished.server.state.shared.deep) == ["0"]
    assert gap(first.third.running_var, second.third.running_var) > 1e-3
    assert int(first.third.num_batches_tracked) == 2 * 3


def test_statistics_stay_as_those_of_a_client_alone():
    with torch.random.fork_rng():
        setup = toy_setup(FedBN(), 2, Normed(), graphs=[toy_graph(9), toy_graph(8)])
    finished = run_rounds(setup, rounds=1)
    assert list(finished.server.state.shared) == ["head"]
    means = [finished.client(client).model.norm.running_mean for client in (0, 1)]
    assert gap(*(Tree(mean=mean) for mean in means)) > 1e-3


@pytest.mark.parametrize("models", ["gcn", "pyg:GraphSAGE"])
def test_models_without_normalisation_are_refused(models):
    with pytest.raises(InputError, match="has none, so it would be FedAvg: use gin, or a module of your own"):
        run_rounds(toy_setup(FedBN(), models=models))


def test_it_trains_gin_unless_somebody_says_otherwise():
    result = graft.run("fedbn", "digits", clients=2, rounds=1, width=8, seed=0)
    assert {row["model"] for row in result.summary["per_client"]} == {"gin"}
    assert result.accuracy["test_global"] is None


def test_client_that_is_never_asked_keeps_its_start_and_one_without_labels_its_norms():
    setup = toy_setup(FedBN(), models="gin", participation=0.34)  # one client a round
    finished = run_rounds(setup, rounds=1)
    (asked,) = finished.session.participants(1)
    start = initial_weights(setup.models[0], 0)
    assert [same(finished.client(client).model, start) for client in range(3)] == [c != asked for c in range(3)]
    mixed = toy_setup(FedBN(), models="gin", graphs=[toy_graph(9), unlabelled(toy_graph(8))])
    silent = run_rounds(mixed, rounds=2).client(1).model
    received = run_rounds(mixed, rounds=1).server.state.shared
    assert torch.equal(silent.layer0.scale, start.layer0.scale)
    assert same(silent.layer0.first, received.layer0.first)
