"""The one loop: a fleet's optimiser against PyTorch's, one optimiser a client."""

from dataclasses import replace

import pytest
import torch

from graft.engines.in_process import InProcess
from graft.federation.fleet import initial_weights
from graft.methods.fedavg import FedAvg
from graft.methods.local import Local
from graft.tensors.trees import Tree, flatten, map_tree, select_clients, stack
from graft.training import loop
from graft.training.loop import Part
from graft.training.optimizers import Training
from tests.toy import gap, run_rounds, same, toy_setup

TARGETS = torch.tensor([0.5, -1.0, 3.0])


def fit(weights, loss, training, state, frozen=frozenset()):
    """Train one part alone."""
    part = Part(weights, lambda parts, _: loss(parts.one), state, frozen)
    fitted, states, last = loop.fit({"one": part}, training)
    return fitted.one, states.one, last["one"]


def make_weights(clients=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Tree(
        layer=Tree(weight=torch.randn(clients, 2, 3, generator=generator)),
        bias=torch.randn(clients, 3, generator=generator),
        scale=torch.randn(clients, generator=generator),
    )


def bowl(weights, targets=TARGETS):
    """A loss with another minimum for every client, and curved, so that no two gradients are the same."""
    rows = (weights.layer.weight.sum(1) + weights.bias) * weights.scale.unsqueeze(1) - targets.unsqueeze(1)
    return (0.1 * rows.square() + rows.cos()).sum(1)


def by_hand(weights, client, epochs, optimizer=torch.optim.Adam, state=None, **settings):
    """One client alone, with PyTorch's own optimiser; returns the weights after every step, and the optimiser."""
    tree = map_tree(lambda leaf: leaf.clone().requires_grad_(), select_clients(weights, slice(client, client + 1)))
    made = optimizer([leaf for _, leaf in flatten(tree)], **settings)
    if state is not None:
        made.load_state_dict(state)
    path = []
    for _ in range(epochs):
        made.zero_grad()
        bowl(tree, TARGETS[client : client + 1]).sum().backward()
        made.step()
        path.append(map_tree(lambda leaf: leaf.detach()[0].clone(), tree))
    return path, made


OPTIMISERS = {
    "adam": (torch.optim.Adam, {"learning_rate": 0.05, "weight_decay": 0.0}),
    "adam with decay": (torch.optim.Adam, {"learning_rate": 0.05, "weight_decay": 0.1}),
    "sgd": (torch.optim.SGD, {"learning_rate": 0.01, "weight_decay": 0.0}),
    "sgd with decay": (torch.optim.SGD, {"learning_rate": 0.01, "weight_decay": 0.1}),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_fleet_optimiser_equals_pytorchs_step_by_step(name):
    optimizer, settings = OPTIMISERS[name]
    start = make_weights()
    wanted = [
        by_hand(start, client, 5, optimizer, lr=settings["learning_rate"], weight_decay=settings["weight_decay"])[0]
        for client in range(3)
    ]
    for steps in range(1, 6):
        fitted, _, _ = fit(start, bowl, Training(epochs=steps, optimizer=name.split()[0], **settings), None)
        for client in range(3):
            assert gap(select_clients(fitted, client), wanted[client][steps - 1]) < 1e-5
            assert steps == 1 or gap(select_clients(fitted, client), wanted[client][steps - 2]) > 1e-4


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_momentum_equals_pytorchs_step_by_step(decay):
    start = make_weights()
    settings = {"momentum": 0.8, "weight_decay": decay}
    wanted = [by_hand(start, client, 5, torch.optim.SGD, lr=0.01, **settings)[0] for client in range(3)]
    plain = [by_hand(start, client, 5, torch.optim.SGD, lr=0.01, weight_decay=decay)[0] for client in range(3)]
    for steps in range(1, 6):
        training = Training(epochs=steps, optimizer="momentum", learning_rate=0.01, **settings)
        fitted, state, _ = fit(start, bowl, training, None)
        for client in range(3):
            assert gap(select_clients(fitted, client), wanted[client][steps - 1]) < 1e-5
            assert steps == 1 or gap(select_clients(fitted, client), plain[client][steps - 1]) > 1e-4
    assert [path for path, _ in flatten(state)] == [f"velocity/{path}" for path, _ in flatten(start)]


def test_gradients_are_cut_client_by_client_as_pytorch_does():
    start = make_weights()
    most = 1.0
    training = Training(epochs=1, optimizer="sgd", learning_rate=0.1, weight_decay=0.0)
    cut, _, _ = fit(start, bowl, replace(training, clip_norm=most), None)
    whole, _, _ = fit(start, bowl, training, None)
    norms = []
    for client in range(3):
        tree = map_tree(lambda leaf: leaf.clone().requires_grad_(), select_clients(start, slice(client, client + 1)))
        parameters = [leaf for _, leaf in flatten(tree)]
        bowl(tree, TARGETS[client : client + 1]).sum().backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, most)))
        torch.optim.SGD(parameters, lr=0.1).step()
        assert gap(select_clients(cut, client), map_tree(lambda leaf: leaf.detach()[0], tree)) < 1e-6
        assert (gap(select_clients(cut, client), select_clients(whole, client)) > 1e-4) == (norms[client] > most)
    assert min(norms) < most < max(norms)  # one is long enough to be cut, another is not


def test_method_may_train_in_its_own_way():
    fleet = toy_setup(Local()).fleet([0, 1, 2])

    def trained(**settings):
        fleet.state.clear()
        own = replace(fleet.training, **settings)
        return fleet.fit(
            fleet.initial(), lambda weights, batch: batch.cross_entropy(batch.forward(weights).logits), training=own
        )

    usual = trained()
    assert gap(trained(epochs=1), usual) > 1e-3
    assert "model" in fleet.state.optimizer
    assert gap(trained(optimizer="momentum", optimizer_state="reset"), usual) > 1e-3
    assert not fleet.state.optimizer


def test_weight_decay_matters():
    start = make_weights()
    with_decay, without = (fit(start, bowl, Training(weight_decay=decay), None)[0] for decay in (0.5, 0.0))
    assert gap(with_decay, without) > 1e-4


def test_gradients_that_are_slices_of_one_tensor_are_read_right():
    def joined(weights):
        both = torch.cat([weights.first, weights.second], dim=2)
        return (both.cumsum(2) - TARGETS.view(3, 1, 1)).square().sum((1, 2))

    start = Tree(first=torch.randn(3, 4, 5), second=torch.randn(3, 4, 5))
    fitted, _, _ = fit(start, joined, Training(epochs=3, weight_decay=0.0), None)
    tree = map_tree(lambda leaf: leaf.clone().requires_grad_(), start)
    optimizer = torch.optim.Adam([tree.first, tree.second], lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        joined(tree).sum().backward()
        optimizer.step()
    assert gap(fitted, map_tree(torch.Tensor.detach, tree)) < 1e-6


def test_weights_of_any_layout_can_be_trained():
    start = torch.randn(3, 5, 4).transpose(1, 2)

    def loss(weights):
        return (weights.weight - torch.arange(20.0).view(4, 5)).square().sum((1, 2))

    turned, _, _ = fit(Tree(weight=start), loss, Training(), None)
    plain, _, _ = fit(Tree(weight=start.contiguous()), loss, Training(), None)
    assert torch.equal(turned.weight, plain.weight)


def test_clients_with_fewer_steps_keep_their_own_bias_correction():
    start = make_weights()
    training = Training(epochs=2, learning_rate=0.05, weight_decay=0.0)

    def alone(client):
        return lambda weights: bowl(weights, TARGETS[client : client + 1])

    # Client 0 has trained twice before, client 1 once, client 2 never; now all train together.
    weights, states = [], []
    for client, times in enumerate((2, 1, 0)):
        own, state = select_clients(start, slice(client, client + 1)), None
        for _ in range(times):
            own, state, _ = fit(own, alone(client), training, state)
        if state is None:
            state = map_tree(torch.zeros_like, states[0])
        weights.append(own)
        states.append(state)
    together = map_tree(lambda *parts: torch.cat(parts), *weights)
    state = map_tree(lambda *parts: torch.cat(parts), *states)
    assert state.steps.tolist() == [4, 2, 0]
    fitted, state, _ = fit(together, bowl, training, state)
    assert state.steps.tolist() == [6, 4, 2]
    for client, epochs in enumerate((6, 4, 2)):
        wanted = by_hand(start, client, epochs, lr=0.05)[0][-1]
        assert gap(select_clients(fitted, client), wanted) < 1e-5
    common = map_tree(torch.clone, state)
    common.steps.fill_(6)  # negative control: one count for all would go elsewhere
    right, _, _ = fit(fitted, bowl, training, map_tree(torch.clone, state))
    wrong, _, _ = fit(fitted, bowl, training, common)
    assert gap(select_clients(right, 2), select_clients(wrong, 2)) > 1e-4
    assert gap(select_clients(right, 0), select_clients(wrong, 0)) < 1e-6


def test_clients_that_sit_out_rounds_train_as_they_would_alone():
    settings = {"participation": 0.67, "epochs": 2, "learning_rate": 0.05}
    setup = toy_setup(FedAvg(), **settings)
    fleet, alone = run_rounds(setup, rounds=4), run_rounds(setup, rounds=4, engine=InProcess(setup, alone=True))
    steps = [int(fleet.client(number).optimizer.model.steps) for number in range(3)]
    assert sum(steps) == 4 * 2 * 2
    assert len(set(steps)) > 1  # some sat out more often than others
    for number in range(3):
        assert gap(fleet.client(number), alone.client(number)) < 1e-5
    assert gap(fleet.server.state, alone.server.state) < 1e-5
    everyone = run_rounds(toy_setup(FedAvg(), epochs=2, learning_rate=0.05), rounds=4)
    assert gap(everyone.server.state, fleet.server.state) > 1e-3


def test_client_that_sits_out_keeps_its_state():
    setup = toy_setup(FedAvg(), participation=0.34)
    engine = InProcess(setup)
    before = {number: map_tree(torch.clone, state) for number, state in engine.state().items()}
    run_rounds(setup, rounds=1, engine=engine)
    changed = [number for number in range(3) if not same(engine.state()[number].model, before[number].model)]
    assert len(changed) == 1


def test_twelve_epochs_in_one_go_equal_four_rounds_of_three():
    start = make_weights()
    whole, _, _ = fit(start, bowl, Training(epochs=12), None)
    parts, state = start, None
    for _ in range(4):
        parts, state, _ = fit(parts, bowl, Training(epochs=3), state)
    assert same(parts, whole)
    fresh, state = start, None
    for _ in range(4):
        fresh, state, _ = fit(fresh, bowl, Training(epochs=3, optimizer_state="reset"), state)
    assert gap(fresh, whole) > 1e-4
    assert state.steps.tolist() == [3, 3, 3]


def test_reset_optimiser_leaves_nothing_behind():
    kept = run_rounds(toy_setup(Local()), rounds=1).client(0)
    reset = run_rounds(toy_setup(Local(), optimizer_state="reset"), rounds=1).client(0)
    assert same(kept.model, reset.model)
    assert int(kept.optimizer.model.steps) == 3
    assert "optimizer" not in reset


def test_reset_is_a_new_optimiser_every_round():
    start = make_weights()
    fitted, state = start, None
    for _ in range(2):
        fitted, state, _ = fit(fitted, bowl, Training(epochs=3, optimizer_state="reset", weight_decay=0.0), state)
    once = by_hand(start, 1, 3, lr=0.01)[0][-1]
    twice = by_hand(stack([once] * 3), 1, 3, lr=0.01)[0][-1]
    assert gap(select_clients(fitted, 1), twice) < 1e-5
    assert gap(select_clients(fitted, 1), by_hand(start, 1, 6, lr=0.01)[0][-1]) > 1e-4


def test_loss_reported_is_that_of_the_last_step_one_a_client():
    start = make_weights()
    before, _, _ = fit(start, bowl, Training(epochs=2), None)
    _, _, last = fit(start, bowl, Training(epochs=3), None)
    torch.testing.assert_close(last, bowl(before))
    assert not last.requires_grad


def test_fit_leaves_its_input_alone_and_returns_plain_tensors():
    start = make_weights()
    before = map_tree(torch.clone, start)
    fitted, _, _ = fit(start, bowl, Training(), None)
    assert same(start, before)
    assert not any(leaf.requires_grad for _, leaf in flatten(fitted))
    assert not any(leaf.data_ptr() == dict(flatten(start))[path].data_ptr() for path, leaf in flatten(fitted))


def test_weights_shared_by_all_clients_are_parted_by_training():
    one = select_clients(make_weights(), 0)
    shared = map_tree(lambda leaf: leaf.expand(3, *leaf.shape), one)
    fitted, _, _ = fit(shared, bowl, Training(), None)
    assert gap(select_clients(fitted, 0), select_clients(fitted, 1)) > 1e-3
    assert same(map_tree(lambda leaf: leaf[0], shared), one)


def test_frozen_and_whole_number_leaves_are_carried_along():
    start = make_weights() | {"seen": torch.tensor([1, 2, 3]), "mean": torch.ones(3, 2)}
    fitted, state, _ = fit(start, bowl, Training(weight_decay=0.5), None, frozen=frozenset({"mean"}))
    assert fitted.seen.tolist() == [1, 2, 3]
    assert torch.equal(fitted["mean"], torch.ones(3, 2))
    assert "mean" not in dict(flatten(state.first))
    assert gap(fitted.layer, start["layer"]) > 1e-3


def test_leaf_without_gradient_stays_where_it_is():
    start = make_weights() | {"idle": torch.ones(3, 2)}
    fitted, _, _ = fit(start, bowl, Training(weight_decay=0.5), None)
    assert torch.equal(fitted.idle, torch.ones(3, 2))
    assert not torch.equal(fitted.bias, start["bias"])


def test_votes_follow_the_setting():
    def votes(weight_by):
        return toy_setup(FedAvg(), weight_by=weight_by).fleet([0, 1, 2]).weight.tolist()

    assert votes("nodes") == [12, 9, 7]
    assert votes("train") == [6, 4, 4]
    assert votes("uniform") == [1, 1, 1]


def test_two_models_of_one_client_have_optimisers_of_their_own():
    fleet = toy_setup(Local()).fleet([0, 1, 2])
    start = map_tree(torch.clone, fleet.initial())

    def loss(weights, fleet):
        return fleet.cross_entropy(fleet.forward(weights).logits)

    fleet.fit(start, loss, name="small")
    fleet.fit(fleet.fit(start, loss, name="large"), loss, name="large")
    assert fleet.state.optimizer.small.steps.tolist() == [3, 3, 3]
    assert fleet.state.optimizer.large.steps.tolist() == [6, 6, 6]
    assert set(fleet.call.losses) == {"small", "large"}
    assert same(select_clients(start, 0), initial_weights(fleet.model, 0))


def test_parts_take_turns_and_see_each_other_as_they_are_by_then():
    """By hand, SGD with step 0.5: a goes from 0 to 1 (target 2), then b from 0 to a = 1, halfway: 0.5; and again."""
    parts = {
        "a": Part(Tree(x=torch.zeros(1)), lambda parts, _: 0.5 * (parts.a.x - 2).square()),
        "b": Part(Tree(x=torch.zeros(1)), lambda parts, _: 0.5 * (parts.b.x - parts.a.x.detach()).square()),
    }
    training = Training(epochs=2, optimizer="sgd", learning_rate=0.5, weight_decay=0.0)
    fitted, _, last = loop.fit(parts, training)
    assert fitted.a.x.tolist() == [1.5]
    assert fitted.b.x.tolist() == [1.0]
    assert last["b"].tolist() == [0.5 * (0.5 - 1.5) ** 2]
    turned, _, _ = loop.fit(dict(reversed(parts.items())), training)
    assert turned.b.x.tolist() == [0.5]  # first b against a = 0, then against a = 1


def test_parts_have_optimisers_of_their_own():
    start = make_weights()
    together, states, _ = loop.fit(
        {name: Part(start, lambda parts, _, name=name: bowl(parts[name])) for name in ("first", "second")}, Training()
    )
    alone, state, _ = fit(start, bowl, Training(), None)
    assert same(together.first, alone)
    assert same(together.second, alone)
    assert same(states.first, state)


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_state_that_does_not_belong_to_the_weights_is_refused_before_a_kernel_reads_it(optimizer):
    """Fused kernels walk over raw memory: other shapes were seen to corrupt the heap."""
    training = Training(optimizer=optimizer)
    start = make_weights()
    _, state, _ = fit(start, bowl, training, None)
    moment = "first" if optimizer == "adam" else "velocity"
    narrow = map_tree(torch.clone, state)
    narrow[moment].layer.weight = narrow[moment].layer.weight[:, :, :2].contiguous()
    fewer = map_tree(lambda leaf: leaf[:2].clone(), state)
    for wrong, where in ((narrow, "layer/weight"), (fewer, "")):
        with pytest.raises(ValueError, match=f"the optimiser's state '{where}.*' has the shape"):
            fit(start, bowl, training, wrong)
    wider = Tree(start, bias=torch.zeros(3, 5), layer=Tree(weight=torch.zeros(3, 2, 5)))
    with pytest.raises(ValueError, match="has the shape"):
        fit(wider, bowl, training, state)
    fit(start, bowl, training, state)  # what belongs is taken


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum"])
def test_clients_that_are_done_early_end_where_they_would_alone(optimizer):
    """Weights, moments and last losses are those of as many epochs."""
    weights, epochs = make_weights(), torch.tensor([1, 4, 2])
    training = Training(epochs=4, optimizer=optimizer, learning_rate=0.05, weight_decay=0.1)
    part = Part(weights, lambda parts, _: bowl(parts.one))
    together = loop.fit({"one": part}, training, epochs=epochs)
    for client, count in enumerate(epochs.tolist()):
        rows = slice(client, client + 1)
        own, target = select_clients(weights, rows), TARGETS[rows]
        part = Part(own, lambda parts, _, target=target: bowl(parts.one, target))
        alone = loop.fit({"one": part}, replace(training, epochs=count))
        assert gap(select_clients(together.weights.one, rows), alone.weights.one) < 1e-6
        assert gap(select_clients(together.states.one, rows), alone.states.one) < 1e-6
        assert gap({"": together.losses["one"][rows]}, {"": alone.losses["one"]}) < 1e-6
    everybody = loop.fit({"one": Part(weights, lambda parts, _: bowl(parts.one))}, training)
    assert gap(together.weights.one, everybody.weights.one) > 1e-3


def test_buffers_of_clients_that_are_done_stay():
    def counting(parts, _):
        parts.one.seen.add_(1)
        return parts.one.x.square()

    weights = Tree(x=torch.ones(3), seen=torch.zeros(3, dtype=torch.int64))
    part = Part(weights, counting)
    fitted = loop.fit({"one": part}, Training(epochs=3), epochs=torch.tensor([1, 3, 2]))
    assert fitted.weights.one.seen.tolist() == [1, 3, 2]
    assert loop.fit({"one": part}, Training(epochs=3)).weights.one.seen.tolist() == [3, 3, 3]


def test_every_client_draws_its_epochs_anew_in_every_round_whoever_is_beside_it():
    setup = toy_setup(FedAvg(), epochs=4, least_epochs=2, batches=2)
    drawn = [setup.fleet([0, 1, 2]).for_call(number, "train").steps.tolist() for number in range(60)]
    assert {steps for row in drawn for steps in row} == {4, 6, 8}  # two batches an epoch
    assert all(abs(sum(column) / 60 - 6) < 1 for column in zip(*drawn, strict=True))
    assert len({tuple(row) for row in drawn}) > 10
    alone = [setup.fleet([1]).for_call(number, "other step").steps.tolist() for number in range(60)]
    assert [row[1:2] for row in drawn] == alone
    other = replace(setup, seed=1)
    assert drawn != [other.fleet([0, 1, 2]).for_call(number, "train").steps.tolist() for number in range(60)]
    assert toy_setup(FedAvg(), epochs=4, batches=2).fleet([0]).steps == 8
    assert toy_setup(FedAvg(), epochs=4, least_epochs=4).fleet([0]).steps == 4


@pytest.mark.parametrize("models", ["gcn", "gcn,sage"])
def test_a_fleet_with_different_epochs_equals_its_clients_one_by_one(models):
    setup = toy_setup(Local(), models=models, epochs=4, least_epochs=1, dropout=0.5, batches=2)
    together = run_rounds(setup, rounds=3)
    alone = run_rounds(setup, rounds=3, engine=InProcess(setup, alone=True))
    for client in range(3):
        assert gap(together.client(client), alone.client(client)) < 1e-5
    even = run_rounds(replace(setup, training=replace(setup.training, least_epochs=0)), rounds=3)
    assert gap(together.client(0).model, even.client(0).model) > 1e-4


def test_each_part_steps_by_its_own_optimiser():
    weights, other = make_weights(), make_weights(seed=1)
    own = Training(epochs=3, optimizer="sgd", learning_rate=0.02)
    common = Training(epochs=3, learning_rate=0.05)
    alone = fit(weights, bowl, own, None)[0]
    parts = {
        "one": Part(weights, lambda parts, _: bowl(parts.one), training=own),
        "other": Part(other, lambda parts, _: bowl(parts.other)),
    }
    together = loop.fit(parts, common).weights
    assert same(together.one, alone)
    assert same(together.other, fit(other, bowl, common, None)[0])
    assert not same(together.one, fit(weights, bowl, common, None)[0])


def test_simultaneous_steps_see_each_other_as_they_were():
    def after(simultaneous):
        start = {"leader": Tree(x=torch.tensor([1.0])), "follower": Tree(x=torch.tensor([0.0]))}
        losses = {
            "leader": lambda parts, _: parts.leader.x * 1.0,
            "follower": lambda parts, _: (parts.follower.x - parts.leader.x.detach()).square() / 2,
        }
        parts = {name: Part(start[name], losses[name]) for name in start}
        training = Training(epochs=1, optimizer="sgd", learning_rate=0.5, weight_decay=0.0)
        weights = loop.fit(parts, training, simultaneous=simultaneous).weights
        return float(weights.leader.x), float(weights.follower.x)

    assert after(simultaneous=False) == (0.5, 0.25)  # the leader has moved to 0.5 before the follower steps
    assert after(simultaneous=True) == (0.5, 0.5)
