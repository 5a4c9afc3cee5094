"""FedRep: cases worked out by hand."""

import pytest
import torch
from torch import nn

from graft.engines.in_process import InProcess
from graft.errors import InputError
from graft.federation.fleet import initial_weights
from graft.methods.fedavg import FedAvg
from graft.methods.fedrep import FedRep, PartlyShared
from graft.methods.local import Local
from graft.models.architecture import Model, Output
from graft.tensors.trees import Tree, flatten, weighted_mean
from graft.testing.contract import unlabelled
from tests.methods.normed import Normed
from tests.toy import CLASSES, gap, run_rounds, same, toy_graph, toy_setup


class Product(Model):
    """A body and a head of one number each."""

    name = "product"

    def start(self, generator):  # noqa: ARG002
        return Tree(layer0=Tree(x=torch.tensor(1.0)), head=Tree(x=torch.tensor(1.0)))

    def __call__(self, weights, graph, random=None):  # noqa: ARG002
        blank = (weights["layer0"]["x"] * weights["head"]["x"]).view(-1, 1, 1).expand(-1, graph.nodes, 1)
        return Output(blank, blank)


class Told(FedRep):
    """The product of body and head goes to 2 at the first client and to 4 at the second: (b h - a)^2 / 2."""

    def loss(self, fleet, weights):
        wanted = torch.tensor([2.0, 4.0])[fleet.clients]
        return (weights.layer0.x * weights.head.x - wanted).square() / 2


def products(**fields):
    """The averaged body, and the bodies and heads of both clients, after a round of SGD with a rate of 1/2."""
    training = {"optimizer": "sgd", "learning_rate": 0.5, "weight_decay": 0.0, "epochs": 1, "weight_by": "uniform"}
    finished = run_rounds(toy_setup(Told(**fields), 2, Product(), **training), rounds=1)
    models = [finished.client(client).model for client in (0, 1)]
    shared = finished.server.state.get("shared", Tree())
    return shared, [(float(model.layer0.x), float(model.head.x)) for model in models]


def test_the_head_learns_first_and_the_body_under_the_new_head():
    # Heads: 1 + (2 - 1) / 2 and 1 + (4 - 1) / 2; bodies: 1 + (2 - 1.5) * 1.5 / 2 and 1 + (4 - 2.5) * 2.5 / 2.
    shared, clients = products()
    assert clients == [(1.375, 1.5), (2.875, 2.5)]
    assert list(flatten(shared)) == [("layer0/x", torch.tensor(2.125))]
    # Trained together both would take the gradient at the start.
    shared, clients = products(share="all")
    assert clients == [(1.5, 1.5), (2.5, 2.5)]
    assert (float(shared.layer0.x), float(shared.head.x)) == (2, 2)


def test_head_and_body_may_take_other_numbers_of_steps():
    # Head of the first client: 1.5, then 1.5 + (2 - 1.5) / 2; its body: 1 + (2 - 1.75) * 1.75 / 2.
    assert products(head_epochs=2)[1][0] == (1.21875, 1.75)
    # Its body after two steps: 1.375 + (2 - 1.375 * 1.5) * 1.5 / 2.
    assert products(body_epochs=2)[1][0] == (1.328125, 1.5)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("model", ["gcn", "gat", "sgc"])
def test_sharing_everything_is_fedavg_bit_for_bit(model, dropout):
    settings = {"models": model, "dropout": dropout}
    wanted = run_rounds(toy_setup(FedAvg(), **settings), rounds=3)
    ours = run_rounds(toy_setup(FedRep(share="all"), **settings), rounds=3)
    assert same(ours.server.state.shared, wanted.server.state.model)
    assert all(same(ours.client(client).model, wanted.client(client).model) for client in range(3))
    assert ours.traffic == wanted.traffic
    assert FedRep(share="all").shared(ours.server) is ours.server.state.shared
    bodies = run_rounds(toy_setup(FedRep(), **settings), rounds=3)
    assert not same(bodies.client(0).model, wanted.client(0).model)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_sharing_nothing_is_local_training_bit_for_bit(dropout):
    wanted = run_rounds(toy_setup(Local(), dropout=dropout), rounds=3)
    ours = run_rounds(toy_setup(FedRep(share="nothing"), dropout=dropout), rounds=3)
    bodies = run_rounds(toy_setup(FedRep(), dropout=dropout), rounds=3)
    for client in range(3):
        assert same(ours.client(client).model, wanted.client(client).model)
        assert not same(bodies.client(client).model, wanted.client(client).model)
    assert (ours.traffic.up, ours.traffic.down) == (0, 0)
    assert ours.server.state == {}


@pytest.mark.parametrize("head", ["linear", "conv"])
def test_messages_hold_the_body_and_a_vote_whatever_the_head_is(head):
    setup = toy_setup(FedRep(), head=head)
    engine, seen = InProcess(setup), []
    ask = engine.ask
    engine.ask = lambda request: seen.append((request.message, ask(request))) or seen[-1][1]
    finished = run_rounds(setup, rounds=2, engine=engine)
    body = [f"{path}" for path, _ in flatten(initial_weights(setup.models[0], 0)) if not path.startswith("head")]
    for message, _ in seen:
        assert [path for path, _ in flatten(message)] == body
    assert finished.traffic.up > finished.traffic.down > 0
    assert FedRep().shared(finished.server) is None


def test_the_body_is_averaged_and_every_client_keeps_its_own_head():
    finished = run_rounds(toy_setup(FedRep()), rounds=2)
    models = [finished.client(client).model for client in range(3)]
    stacked = Tree(layer0=Tree({name: torch.stack([model.layer0[name] for model in models]) for name in ("weight",)}))
    mean = weighted_mean(stacked, torch.tensor([12, 9, 7]))
    assert gap(finished.server.state.shared.layer0.weight, mean.layer0.weight) < 1e-6
    assert gap(models[0].head, models[1].head) > 1e-3
    assert "head" not in finished.server.state.shared


def test_the_optimiser_of_either_part_knows_nothing_of_the_other():
    optimizer = run_rounds(toy_setup(FedRep())).client(0).optimizer
    assert set(optimizer) == {"head", "body"}
    assert list(optimizer.head.first) == ["head"]
    assert "head" not in optimizer.body.first


def test_client_that_is_never_asked_keeps_its_start_and_one_without_labels_its_head():
    setup = toy_setup(FedRep(), participation=0.34)  # one client a round
    finished = run_rounds(setup, rounds=1)
    (asked,) = finished.session.participants(1)
    start = initial_weights(setup.models[0], 0)
    assert [same(finished.client(client).model, start) for client in range(3)] == [c != asked for c in range(3)]
    mixed = toy_setup(FedRep(), graphs=[toy_graph(9), unlabelled(toy_graph(8))])
    silent = run_rounds(mixed, rounds=2).client(1).model
    assert same(silent.head, start.head)
    assert same(silent.layer0, run_rounds(mixed, rounds=1).server.state.shared.layer0)


def test_buffers_of_the_body_are_averaged_and_never_trained():
    with torch.random.fork_rng():
        setup = toy_setup(FedRep(), 2, Normed(), graphs=[toy_graph(9), toy_graph(8)])
    finished = run_rounds(setup, rounds=1)
    mean = (9 * finished.client(0).model.norm.running_var + 8 * finished.client(1).model.norm.running_var) / 17
    torch.testing.assert_close(finished.server.state.shared.norm.running_var, mean)
    assert not any("running" in path for path, _ in flatten(finished.client(0).optimizer))


class Headless(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x, edge_index):  # noqa: ARG002
        return self.last(x)


def test_a_model_without_a_head_is_refused_where_heads_stay():
    with torch.random.fork_rng():
        module = Headless()
    with pytest.raises(InputError, match="own has none: call the last layer of your own module 'head'"):
        run_rounds(toy_setup(FedRep(), 2, module))
    assert run_rounds(toy_setup(FedRep(share="all"), 2, module)).traffic.up > 0


def test_several_architectures_are_refused():
    with pytest.raises(InputError, match="one architecture"):
        run_rounds(toy_setup(FedRep(), models="gcn,sage"))


def test_which_paths_stay_is_for_a_method_to_say():
    with pytest.raises(NotImplementedError):
        PartlyShared().private(Product(), frozenset())


@pytest.mark.parametrize("settings", [{"head_epochs": -1}, {"body_epochs": -1}, {"share": "head"}])
def test_senseless_settings_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        FedRep(**settings)
