"""FIARSE: cases worked out by hand."""

from dataclasses import replace

import pytest
import torch

from graft.engines.in_process import InProcess
from graft.errors import InputError
from graft.methods.fedavg import FedAvg
from graft.methods.fiarse import FIARSE, FIARSEGrouped
from graft.methods.fiarse.submodels import Importance, in_use, mask_of, places, thresholds
from graft.tensors.trees import Tree, flatten, map_tree
from tests.methods.line import Numbers
from tests.methods.quadratic import OneNumber
from tests.toy import gap, run_rounds, same, toy_graph, toy_setup

ROW = torch.tensor([2.0, 1.0, 0.5, -0.2])
SHAPES = {"x": torch.Size([1, 4])}


def mask(values, capacity, sizes=None, scope="global"):
    values = torch.tensor(values) if isinstance(values, list) else values
    sizes = sizes or [len(values)]
    return mask_of(places(values, sizes, scope), sizes, scope, capacity).int().tolist()


# Masks ---------------------------------------------------------------------------------------------------------------


def test_half_of_four_weights_are_the_two_largest_and_the_threshold_is_the_less_of_them():
    assert mask(ROW, 0.5) == [1, 1, 0, 0]
    assert mask(ROW.flip(0), 0.5) == [0, 0, 1, 1]
    held = torch.tensor([[True, True, False, False], [True] * 4])
    assert thresholds(ROW.expand(2, -1), held, SHAPES, "global")["x"].tolist() == [1, 0]


def test_of_equal_weights_the_first_are_held_and_never_more_than_there_is_room_for():
    assert mask([0.0, 0.0, 3.0, 0.0, -3.0], 0.6) == [1, 0, 1, 0, 1]
    assert mask([0.0] * 5, 0.6) == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("capacity", [1.0, 0.64, 0.36, 0.29, 0.16, 0.04])
def test_a_submodel_has_exactly_its_share_rounded_down(capacity):
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0)).round(decimals=1)  # with many ties
    assert sum(mask(values, capacity)) == round(1000 * capacity)
    assert sum(mask(values[:99], capacity, [90, 9])) == max(2, int(99 * capacity))


def test_layers_are_cut_together_or_each_by_itself():
    values, sizes = [5.0, 4.0, 3.0, 6.0, 1.0, 0.5, 0.2, 0.1], [4, 4]
    assert mask(values, 0.5, sizes) == [1, 1, 0, 1, 1, 0, 0, 0]  # the largest of the second layer, in place of the 3
    assert mask(values, 0.5, sizes, "layer") == [1, 0, 0, 1, 1, 1, 0, 0]


def test_no_layer_is_left_without_any_weight():
    assert mask([5.0, 4.0, 0.1, 0.2], 0.25, [2, 2]) == [1, 0, 0, 1]
    assert mask([5.0, 4.0, 0.1, 0.2], 0.25, [2, 2], "layer") == [1, 0, 0, 1]


# Training ------------------------------------------------------------------------------------------------------------


def effective(values, held, threshold):
    values = values.clone().requires_grad_()
    used = Importance.apply(values, torch.tensor(held), torch.tensor(threshold))
    return used.detach(), torch.autograd.grad(used.sum(), values)[0]


def test_gradient_is_largest_at_the_threshold_and_nothing_below_by_hand():
    used, factor = effective(ROW, [True] * 4, 1.0)
    assert used.tolist() == [2, 1, 0, 0]
    torch.testing.assert_close(factor, torch.tensor([1 + 4 / 9, 1.5, 0, 0]))
    used, factor = effective(ROW, [True, False, True, True], 0.5)
    assert used.tolist() == [2, 0, 0.5, 0]
    torch.testing.assert_close(factor, torch.tensor([1 + 2 / 6.25, 0, 1.5, 0]))


def test_without_a_threshold_weights_learn_as_ever_also_those_that_are_zero():
    used, factor = effective(torch.tensor([2.0, 0.0, -1.0]), [True] * 3, 0.0)
    assert used.tolist() == [2, 0, -1]
    assert factor.tolist() == [1, 1, 1]


def test_gradient_of_a_masked_layer_is_that_of_the_formula():
    random = torch.Generator().manual_seed(0)
    layer, inputs = torch.randn(2, 5, 4, generator=random), torch.randn(2, 3, 5, generator=random)
    held, threshold = layer.abs() >= 0.3, torch.tensor([0.3, 0.8])
    at_least = threshold.view(2, 1, 1)
    weights = layer.clone().requires_grad_()
    outputs = torch.tanh(inputs @ in_use({"w": weights}, {"w": held}, {"w": threshold})["w"])
    ours = torch.autograd.grad(outputs.square().sum(), weights)[0]
    cut = torch.where(held & (layer.abs() >= at_least), layer, 0).requires_grad_()
    plain = torch.autograd.grad(torch.tanh(inputs @ cut).square().sum(), cut)[0]
    size = layer.abs()
    wanted = plain * (cut != 0) * (1 + 2 * at_least * size / (size + at_least) ** 2)
    torch.testing.assert_close(ours, wanted)
    assert not torch.allclose(ours, plain * (cut != 0), atol=1e-3)


class Slope(FIARSE):
    """Every weight falls by the rate times this gradient, as far as its client works with it."""

    gradient = torch.tensor([0.5, 0.5, 0.5, 0.5])

    def loss(self, fleet, weights, masks, at_least):
        used = in_use(weights, masks, at_least)
        return (used["x"] * self.gradient).sum((1, 2)) + self.decay(fleet, weights, used)


class RowModel(Numbers):
    """A single row of weights, that starts at given values."""

    def start(self, generator):  # noqa: ARG002
        return Tree(x=ROW.view(1, 4).clone())


def row_setup(method, clients=1, **settings):
    sgd = {"optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.0, "epochs": 1}
    return toy_setup(method, clients, RowModel((1, 4)), **(sgd | settings))


def after(method, rounds=1, clients=1, **settings):
    return run_rounds(row_setup(method, clients, **settings), rounds).server.state.models["@numbers"].x[0]


def test_a_step_by_hand():
    """The threshold is 1: the first two weights fall by 0.1 * 0.5 * (1 + 4/9) and 0.1 * 0.5 * 1.5."""
    torch.testing.assert_close(after(Slope("0.5")), torch.tensor([2 - 0.5 * 0.1 * 13 / 9, 1 - 0.075, 0.5, -0.2]))
    torch.testing.assert_close(after(Slope("1")), ROW - 0.05)


def test_a_weight_that_falls_below_the_threshold_rests_for_the_round():
    finished = run_rounds(row_setup(Slope("0.5"), epochs=3), rounds=1)
    moved = finished.server.state.models["@numbers"].x[0]
    assert moved[1] == pytest.approx(1 - 0.075)  # the first step took it below 1
    assert moved[0] < 2 - 2 * 0.07
    assert finished.client(0).model.x[0].tolist() == [*moved[:2].tolist(), 0, 0]  # and in the next it may learn again
    assert run_rounds(row_setup(Slope("0.5"), epochs=3), rounds=2).server.state.models["@numbers"].x[0, 1] < moved[1]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "momentum"])
def test_weight_decay_and_optimisers_move_no_weight_that_a_client_does_not_hold(optimizer):
    settings = {"optimizer": optimizer, "weight_decay": 0.5, "epochs": 4}
    moved = after(Slope("0.5"), **settings)
    assert moved[2:].tolist() == ROW[2:].tolist()
    assert (moved[:2] < ROW[:2]).all()
    assert (after(Slope("1"), **settings)[2:] != ROW[2:]).all()


def test_weight_decay_is_of_the_weights_in_use_and_is_that_of_the_optimiser():
    decayed = after(Slope("0.5"), weight_decay=0.4)
    torch.testing.assert_close(decayed, after(Slope("0.5")) - 0.04 * ROW * torch.tensor([1, 1, 0, 0]))
    resting = after(Slope("0.5"), weight_decay=0.4, epochs=2)
    assert resting[1] == decayed[1]  # below the threshold it does not decay either


def test_every_round_has_a_new_optimiser():
    setup = row_setup(Slope("1"), optimizer="momentum", epochs=1)
    finished = run_rounds(setup, rounds=2)
    torch.testing.assert_close(finished.server.state.models["@numbers"].x[0], ROW - 0.1)
    assert not finished.client(0).get("optimizer")


# The server ----------------------------------------------------------------------------------------------------------


def aggregated(method, changes, weights=(1.0, 1.0)):
    """The server's model after two clients of other capacities changed what they hold."""
    setup = row_setup(method, clients=2)
    server = run_rounds(setup, rounds=1).session.server
    server.state.models["@numbers"] = Tree(x=ROW.view(1, 4))
    server.state.places["@numbers"] = torch.arange(4)
    replies = {
        client: Tree(change=torch.tensor(change), weight=torch.tensor(weight))
        for client, (change, weight) in enumerate(zip(changes, weights, strict=True))
    }
    method.aggregate_group(server, "@numbers", [0, 1], replies)
    return (ROW - server.state.models["@numbers"].x[0]).tolist()


def test_mean_over_those_who_held_a_weight_by_hand():
    moved = aggregated(FIARSE("0.5,0.25"), [[0.2, 0.4], [0.6]])
    assert moved == pytest.approx([0.4, 0.4, 0, 0])
    moved = aggregated(FIARSE("0.5,0.25", server_step=0.5), [[0.2, 0.4], [0.6]], (3.0, 1.0))
    assert moved == pytest.approx([0.15, 0.2, 0, 0])


def test_a_weight_without_gradient_counts_or_does_not():
    changes = [[0.2, 0.4], [0.6, 0.0]]
    assert aggregated(FIARSE("0.5"), changes) == pytest.approx([0.4, 0.2, 0, 0])
    assert aggregated(FIARSE("0.5", counted="changed"), changes) == pytest.approx([0.4, 0.4, 0, 0])


def test_clients_without_labels_do_not_count():
    assert aggregated(FIARSE("0.5"), [[0.2, 0.4], [0.0, 0.0]], (1.0, 0.0)) == pytest.approx([0.2, 0.4, 0, 0])
    assert aggregated(FIARSE("0.5"), [[0.0, 0.0], [0.0, 0.0]], (0.0, 0.0)) == [0, 0, 0, 0]


@pytest.mark.parametrize("models", ["gcn", "gat", "gin"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_where_everybody_has_room_for_all_it_is_fedavg(models, weight_decay):
    settings = {
        "models": models,
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "weight_decay": weight_decay,
        "weight_by": "uniform",
        "dropout": 0.5,
    }
    wanted = run_rounds(toy_setup(FedAvg(), **settings), rounds=3).server.state.model
    ours = run_rounds(toy_setup(FIARSE("1"), **settings), rounds=3)
    assert gap(FIARSE("1").shared(ours.server), wanted) < 1e-6
    cut = run_rounds(toy_setup(FIARSE("1,0.5"), **settings), rounds=3)
    assert gap(FIARSE("1").shared(cut.server), wanted) > 1e-4


def test_votes_are_those_of_the_experiment_if_asked():
    settings = {"optimizer": "sgd", "weight_by": "nodes", "dropout": 0.5}
    wanted = run_rounds(toy_setup(FedAvg(), **settings), rounds=2).server.state.model
    votes, uniform = (
        FIARSE("1").shared(run_rounds(toy_setup(FIARSE("1", average=average), **settings), rounds=2).server)
        for average in ("votes", "uniform")
    )
    assert gap(votes, wanted) < 1e-6 < gap(uniform, wanted)


# Submodels -----------------------------------------------------------------------------------------------------------


def held(client):
    """How many entries of its matrices a client has that are not zero, and how many there are."""
    matrices = [leaf for _, leaf in flatten(client.model) if leaf.dim() > 1]
    return sum(int((leaf != 0).sum()) for leaf in matrices), sum(leaf.numel() for leaf in matrices)


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_client_k_holds_the_capacity_k_modulo_five(rounds):
    finished = run_rounds(toy_setup(FIARSE(), clients=7, models="gcn", dropout=0.5), rounds=rounds)
    for client, capacity in enumerate([1, 0.64, 0.36, 0.16, 0.04, 1, 0.64]):
        count, of = held(finished.client(client))
        assert count == int(capacity * of), (client, capacity)
        assert finished.client(client).mask.sum() == count


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_own_models_are_cut_from_the_new_common_model(participation):
    setup = toy_setup(FIARSE("1,0.4"), clients=4, dropout=0.5, participation=participation)
    finished = run_rounds(setup, rounds=4)
    model = dict(flatten(FIARSE().shared(finished.server)))
    for client in finished.session.participants(4):
        for path, leaf in flatten(finished.client(client).model):
            assert torch.equal(leaf, torch.where(leaf != 0, model[path], 0)) or leaf.dim() == 1
            assert leaf.dim() > 1 or torch.equal(leaf, model[path])  # biases are everybody's
    assert held(finished.client(finished.session.participants(4)[0]))[0] > 0


def test_a_client_that_missed_rounds_trains_what_is_the_largest_by_now():
    setup = toy_setup(FIARSE("0.4"), clients=4, participation=0.5)
    finished = run_rounds(setup, rounds=3)
    absent = [client for client in range(4) if client not in finished.session.participants(3)]
    assert finished.server.state.current.tolist() == [client not in absent for client in range(4)]
    everybody = replace(setup, participation=1.0)
    engine = InProcess(everybody)
    engine.restore(finished.engine.state())
    before = map_tree(torch.clone, finished.server.state)
    run = run_rounds(everybody, rounds=1, first=4, engine=engine, state=finished.server.state)
    told = 4 * int(0.4 * 136) + 136 // 8 + 4 * (8 + 8 + 3)
    assert run.traffic.down == (len(absent) + 4) * told
    assert not same(before.models, run.server.state.models)


def test_biases_are_everybody_s_unless_they_are_masked_too():
    plain, masked = (
        run_rounds(toy_setup(FIARSE("0.5", scope="layer", mask_biases=biases), clients=1), rounds=2)
        for biases in (False, True)
    )
    assert (plain.client(0).model.layer0.bias != 0).tolist()[4:] != [False] * 4
    assert masked.client(0).mask.numel() == plain.client(0).mask.numel() + 19
    assert not masked.client(0).model.layer0.bias[4:].any()  # all are 0 at first, so the first ones are held


def test_messages_are_the_weights_held_and_their_places_in_bits():
    """136 weights in matrices and 19 biases: 136, 87 and 48 weights are held."""
    finished = run_rounds(toy_setup(FIARSE()), rounds=2)
    values, biases, bits, votes = 4 * (136 + 87 + 48), 3 * 4 * 19, 3 * 17, 3 * 8
    assert finished.traffic.up == 2 * (values + biases + votes)
    assert finished.traffic.down == 2 * (values + biases + bits)
    assert int(finished.records["fewest_held"]) >= 1


def test_models_without_a_matrix_and_capacities_that_are_none_are_refused():
    with pytest.raises(InputError, match="matrices"):
        run_rounds(toy_setup(FIARSE(), models=OneNumber()))
    for text in ("", "1,", "0", "1.5", "a half", "1,-0.2", "nan"):
        with pytest.raises(InputError, match="capacities"):
            FIARSE(text)
    assert FIARSE("1, 0.5").ladder == [1, 0.5]


# Groups --------------------------------------------------------------------------------------------------------------


def test_a_group_is_fiarse_among_its_clients():
    """Clients 0 and 2 are GCNs; alone they would be the clients 0 and 1."""
    settings = {"dropout": 0.0, "optimizer": "sgd", "learning_rate": 0.1}
    graphs = [toy_graph(12, 0), toy_graph(9, 1), toy_graph(7, 2), toy_graph(11, 3)]
    mixed = run_rounds(toy_setup(FIARSEGrouped(repeat=2), models="gcn,sage", graphs=graphs, clients=4, **settings), 3)
    alone = run_rounds(toy_setup(FIARSE(), models="gcn", graphs=graphs[::2], clients=2, **settings), 3)
    assert gap(mixed.server.state.models["@gcn"], alone.server.state.models["@gcn"]) < 1e-6
    assert gap(mixed.client(2).model, alone.client(1).model) < 1e-6
    other = run_rounds(toy_setup(FIARSEGrouped(repeat=1), models="gcn,sage", graphs=graphs, clients=4, **settings), 3)
    assert gap(other.server.state.models["@gcn"], alone.server.state.models["@gcn"]) > 1e-4


def test_clients_of_each_of_five_architectures_have_one_capacity_after_the_other():
    method = FIARSEGrouped()
    assert [method.capacity(client) for client in (0, 4, 5, 9, 10, 25)] == [1, 1, 0.64, 0.64, 0.36, 1]
    finished = run_rounds(toy_setup(method, clients=10, models="architectures"), rounds=1)
    assert len(finished.server.state.models) == 5
    for client in range(10):
        count, of = held(finished.client(client))
        assert count == (of if client < 5 else int(0.64 * of)), client
    assert method.shared(finished.server) is None
    assert FIARSE().shared(finished.server) is not None
