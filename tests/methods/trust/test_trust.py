"""TRUST: its losses, its temperature, and the methods that it becomes."""

import math
from dataclasses import replace
from itertools import count

import pytest
import torch

from graft.engines.in_process import InProcess
from graft.errors import InputError
from graft.methods.fedavg import FedAvg
from graft.methods.fml import FML
from graft.methods.local import Local
from graft.methods.trust import TRUST
from graft.methods.trust.conformal import calibrate
from graft.methods.trust.method import ascent, softened_divergence
from graft.tensors.trees import Tree, map_tree
from graft.testing.contract import unlabelled
from graft.training.losses import divergence
from tests.toy import gap, run_rounds, same, toy_graph, toy_setup

DEAF = {"w_kl": 0.0, "w_wd": 0.0, "w_back": 0.0, "pretrain_epochs": 2}
SHORT = {"pretrain_epochs": 2, "iterations": 5}


def prepared(method, models="gcn,sage", rounds=1, **settings):
    """The only fleet of a federation after some rounds."""
    (fleet,) = run_rounds(toy_setup(method, models=models, **settings), rounds=rounds).engine.fleets
    return fleet


def proxy_loss(method, fleet, weights, epoch=0, lesson=None):
    """The loss in an epoch of 10 rounds, and the temperature after it."""
    temperature, at = Tree(fleet.state.temperature), (torch.tensor(each) for each in count(epoch))
    loss = method.proxy_loss(lesson or method.lesson(fleet), temperature, at, torch.tensor(10), weights, fleet)
    return loss, temperature


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.usefixtures("asked_about_all")
def test_without_the_proxy_private_models_are_those_of_local_training_bit_for_bit(optimizer):
    settings = {"models": "gcn,sage", "optimizer": optimizer, "dropout": 0.5}
    wanted = run_rounds(toy_setup(Local(), **settings), rounds=3)
    deaf = run_rounds(toy_setup(TRUST(**DEAF), **settings), rounds=3)
    taught = run_rounds(toy_setup(TRUST(**{**DEAF, "w_back": 1.0}), **settings), rounds=3)
    for client in range(3):
        assert same(deaf.client(client).model, wanted.client(client).model)
        assert gap(taught.client(client).model, wanted.client(client).model) > 1e-4


@pytest.mark.usefixtures("asked_about_all")
def test_without_private_models_proxies_are_fedavg_bit_for_bit():
    wanted = run_rounds(toy_setup(FedAvg(), models="gcn3"), rounds=3)
    deaf = run_rounds(toy_setup(TRUST(**DEAF), models="sage"), rounds=3)
    taught = run_rounds(toy_setup(TRUST(**{**DEAF, "w_kl": 0.5}), models="sage"), rounds=3)
    assert same(deaf.server.state.proxy, wanted.server.state.model)
    assert gap(taught.server.state.proxy, wanted.server.state.model) > 1e-4


def test_at_temperature_one_and_without_a_curriculum_the_proxy_learns_as_the_meme_of_fml():
    method = TRUST(start_share=1.0, tau_min=1.0, tau_max=1.0, w_wd=0.0, w_kl=1.0, proxy="gcn", pretrain_epochs=1)
    fleet = prepared(method)
    proxy = fleet.initial(fleet.architecture("gcn"))
    loss, _ = proxy_loss(method, fleet, proxy)
    pair = Tree(local=fleet.state.model, meme=proxy)
    labels = FML(beta=1.0, kd_nodes="all").losses(fleet, pair)[1]
    told = FML(beta=0.0, kd_nodes="all").losses(fleet, pair)[1]
    torch.testing.assert_close(loss, labels + told)
    assert (told > 1e-3).all()
    few, _ = proxy_loss(replace(method, start_share=0.25), fleet, proxy)
    assert (few - loss).abs().max() > 1e-4


def test_softened_divergence_is_that_of_all_methods_with_a_temperature_for_each_client():
    generator = torch.Generator().manual_seed(0)
    teacher, student = (torch.randn(2, 5, 3, generator=generator) for _ in range(2))
    nodes = torch.rand(2, 5, generator=generator) < 0.7
    found = softened_divergence(teacher, student, nodes, torch.tensor([1.0, 3.0]))
    wanted = [divergence(teacher, student, nodes, heat)[client] for client, heat in enumerate((1.0, 3.0))]
    torch.testing.assert_close(found, torch.stack(wanted))


def test_temperature_goes_up_the_divergence_and_the_proxy_down():
    method = TRUST(w_wd=0.0, w_kl=1.0, tau_decay=0.0, tau_rate=10.0, tau_momentum=0.0, start_share=1.0, tau_max=3.0)
    fleet = prepared(method)
    architecture = fleet.architecture(method.proxy)
    proxy = map_tree(lambda leaf: leaf.clone().requires_grad_(), fleet.initial(architecture))
    lesson = method.lesson(fleet)
    lesson = lesson._replace(logits=10 * lesson.logits)  # a teacher that is surer than its student

    def predictions(weights, parameter):
        student = fleet.forward(weights, architecture).logits
        return softened_divergence(lesson.logits, student, fleet.graph.real, method.tau(parameter))

    before = fleet.state.temperature.parameter
    # At the end of the training the temperature resists with full force.
    _, hotter = proxy_loss(method, fleet, proxy, epoch=30, lesson=lesson)
    with torch.no_grad():
        assert (predictions(proxy, hotter.parameter) > predictions(proxy, before)).all()
    _, first = proxy_loss(method, fleet, proxy, epoch=0, lesson=lesson)
    assert torch.equal(first.parameter, before)
    trained = fleet.fit(proxy, lambda weights, _: predictions(weights, before), "other", training=fleet.training)
    with torch.no_grad():
        assert (predictions(trained, before) < predictions(proxy, before)).all()


def test_step_of_the_temperature_by_hand():
    method = TRUST(tau_rate=0.1, tau_momentum=0.5, tau_decay=0.01)
    state = Tree(parameter=torch.tensor([2.0]), velocity=torch.tensor([-1.0]))
    moved = method.raised(state, torch.tensor([3.0]))
    # The velocity is 0.5 * -1 + (0.01 * 2 - 3) = -3.48; against it by a tenth.
    assert float(moved.velocity) == pytest.approx(-3.48)
    assert float(moved.parameter) == pytest.approx(2.348)
    assert float(method.tau(torch.zeros(()))) == 11
    assert float(TRUST(tau_min=2, tau_max=2).tau(torch.zeros(()))) == 2


def test_temperature_resists_more_and_more():
    forces = [float(ascent(torch.tensor(epoch), torch.tensor(300))) for epoch in (0, 75, 150, 300, 400)]
    assert forces == pytest.approx([0, (1 - math.sqrt(0.5)) / 2, 0.5, 1, 1], abs=1e-6)
    assert forces[1] == pytest.approx(0.146447, abs=1e-6)


def test_epochs_are_counted_over_the_whole_training_and_batches_do_not_count():
    fleet = toy_setup(TRUST(), epochs=3, batches=2).fleet([0, 1, 2]).for_call(4, "train")
    epochs = TRUST().epochs(fleet, count())
    assert [int(next(epochs)) for _ in range(6)] == [9, 9, 10, 10, 11, 11]


def test_private_model_learns_to_rank_what_the_proxy_is_sure_of_and_the_proxy_stays():
    method = TRUST(w_back=100.0, pretrain_epochs=0)
    fleet = toy_setup(method).fleet([0, 1, 2])
    method.start_client(fleet)
    architecture = fleet.architecture(method.proxy)
    proxy = fleet.fit(
        fleet.initial(architecture),
        lambda weights, batch: batch.cross_entropy(batch.forward(weights, architecture).logits),
        "proxy",
        training=replace(fleet.training, epochs=60),
    )
    sets = method.proxy_sets(fleet, proxy)
    losses = []

    def watched(weights, batch):
        losses.append(method.private_loss(batch, weights, sets).detach())
        return method.private_loss(batch, weights, sets)

    fleet.fit(fleet.state.model, watched, training=replace(fleet.training, epochs=20))
    assert (losses[-1] < losses[0]).all()
    own = fleet.label_loss(fleet.state.model)
    assert (losses[0] >= own - 1e-6).all()  # the rest is the proxy's
    assert (losses[0] > own + 0.1).any()


def test_certain_nodes_are_taught_the_predictions_of_the_proxy_and_no_others():
    method = TRUST(backward="certain", w_back=2.0)
    fleet = prepared(method, models="gcn")
    logits = torch.randn(*fleet.labels.classes.shape, 3, generator=torch.Generator().manual_seed(0))
    inside = torch.zeros_like(logits, dtype=torch.bool)
    inside[..., 0], inside[:, 3:, 1] = True, True  # the first three nodes alone have a set of one class
    sets = method.proxy_sets(fleet, fleet.initial(fleet.architecture("gcn3")))._replace(logits=logits, inside=inside)
    weights = fleet.state.model
    own = fleet.predict(weights).logits
    first = torch.zeros_like(fleet.graph.real)
    first[:, :3] = True
    wanted = fleet.cross_entropy(own) + 2 * divergence(logits, own, first)
    torch.testing.assert_close(method.private_loss(fleet, weights, sets), wanted)


def test_penalty_of_the_proxys_sets_rises_with_what_the_private_model_has_unlearnt(monkeypatch):
    method, seen = TRUST(proxy_penalty=0.5, private_penalty=0.8), []
    fleet = prepared(method, models="gcn")
    now = fleet.count_correct(fleet.predict(fleet.state.model).logits)[:, 0, 0] / fleet.totals()[:, 0, 0]

    def watched(*given, penalty, **named):
        seen.append(penalty.tolist())
        return calibrate(*given, penalty=penalty, **named)

    monkeypatch.setattr("graft.methods.trust.method.calibrate", watched)
    for fallen, penalty in ((-0.1, 0.5), (0.4, 0.7)):
        fleet.state.accuracy = now + fallen
        method.proxy_sets(fleet, fleet.initial(fleet.architecture("gcn3")))
        assert torch.equal(fleet.state.accuracy, now)
        of_proxy, of_private = seen[-2:]
        assert of_proxy == pytest.approx([penalty] * 3)
        assert of_private == pytest.approx([0.8] * 3)


def test_validation_labels_count_unless_sets_are_calibrated_on_training_nodes():
    graphs = [toy_graph(12, seed=client) for client in range(3)]
    other = [
        replace(graph, y=torch.where(torch.from_numpy(graph.validation), 2, torch.from_numpy(graph.y)).numpy())
        for graph in graphs
    ]
    for nodes, equal in (("validation", False), ("train", True)):
        method = TRUST(calibrate=nodes, w_back=10.0, **SHORT)
        first, second = (run_rounds(toy_setup(method, graphs=each), rounds=3) for each in (graphs, other))
        assert same(first.server.state, second.server.state) is equal


def test_clients_find_out_what_is_difficult_when_they_first_take_part_and_never_again():
    setup = toy_setup(TRUST(**SHORT), clients=4, participation=0.25, models="gcn,sage")
    engine, asked = InProcess(setup), []
    ask = engine.ask
    engine.ask = lambda request: asked.append((request.step, *request.clients)) or ask(request)
    finished = run_rounds(setup, rounds=8, engine=engine)
    first = [clients for step, *clients in asked if step == "prepare"]
    trained = [clients for step, *clients in asked if step == "train"]
    assert first == [each for number, each in enumerate(trained) if each not in trained[:number]]
    assert finished.server.state.prepared.tolist() == [[client] in trained for client in range(4)]


def test_guide_is_the_private_model_trained_alone_and_stays_as_it_is():
    setup = toy_setup(TRUST(**SHORT), models="gcn,sage")
    alone = run_rounds(toy_setup(Local(), models="gcn,sage", epochs=2), rounds=1)
    once, thrice = (run_rounds(setup, rounds=rounds) for rounds in (1, 3))
    for client in range(3):
        assert gap(once.client(client).guide, alone.client(client).model) < 1e-6
        assert same(once.client(client).guide, thrice.client(client).guide)
        assert gap(thrice.client(client).guide, thrice.client(client).model) > 1e-3


def test_warm_start_goes_on_from_the_guide():
    settings = {"models": "gcn,sage", "epochs": 0}
    cold, warm = (
        run_rounds(toy_setup(TRUST(warm_start=warm, **SHORT), **settings), rounds=1).client(0) for warm in (False, True)
    )
    assert same(warm.model, warm.guide)
    assert gap(cold.model, cold.guide) > 1e-3


def test_difficulty_is_found_out_anew_from_the_private_model_where_that_is_asked_for():
    setup = toy_setup(TRUST(refresh=2, **SHORT), models="gcn,sage")
    after = [run_rounds(setup, rounds=rounds) for rounds in (1, 2, 3, 4)]
    guides, models = ([each.client(0)[name] for each in after] for name in ("guide", "model"))
    assert same(guides[0], guides[1])
    assert same(guides[2], models[1])  # at the beginning of the third round
    assert same(guides[3], guides[2])


def test_client_without_labels_is_taught_and_has_no_say():
    graphs = [toy_graph(9), toy_graph(10, seed=1), unlabelled(toy_graph(8))]
    with_it = run_rounds(toy_setup(TRUST(**SHORT), graphs=graphs), rounds=3)
    without = run_rounds(toy_setup(TRUST(**SHORT), graphs=graphs[:2]), rounds=3)
    assert gap(with_it.server.state.proxy, without.server.state.proxy) < 1e-5
    start = InProcess(toy_setup(TRUST(), graphs=graphs)).state()[2].model
    assert gap(with_it.client(2).model, start) > 1e-3


def test_batches_are_taught_as_parts_of_the_whole():
    setup = toy_setup(TRUST(**SHORT), models="gcn,sage", batches=2)
    together, alone = run_rounds(setup), run_rounds(setup, engine=InProcess(setup, alone=True))
    for client in range(3):
        assert gap(together.client(client), alone.client(client)) < 1e-5
    whole = run_rounds(toy_setup(TRUST(**SHORT), models="gcn,sage"))
    assert gap(together.client(0).model, whole.client(0).model) > 1e-3


def test_optimizer_that_is_reset_begins_each_round_without_velocity():
    method = TRUST(w_kl=1.0, tau_rate=1.0, tau_decay=0.0, **SHORT)
    kept, reset = (
        run_rounds(toy_setup(method, models="gcn", optimizer_state=how, epochs=1, rounds=4), rounds=4).client(0)
        for how in ("persistent", "reset")
    )
    assert abs(float(kept.temperature.velocity)) > 0
    assert float(kept.temperature.velocity) != pytest.approx(float(reset.temperature.velocity), rel=1e-3)


def test_agreement_of_sets_is_on_record_unless_no_sets_are_made():
    finished = run_rounds(toy_setup(TRUST(**SHORT)), rounds=1)
    assert finished.records["agreement"].shape == (3,)
    assert ((finished.records["agreement"] >= 0) & (finished.records["agreement"] <= 1)).all()
    assert "agreement" not in run_rounds(toy_setup(TRUST(w_back=0.0, **SHORT)), rounds=1).records


def test_bounds_of_the_temperature_must_be_in_order():
    with pytest.raises(InputError, match="tau_max 1\\.0, is below tau_min, 2\\.0"):
        TRUST(tau_min=2.0, tau_max=1.0)
