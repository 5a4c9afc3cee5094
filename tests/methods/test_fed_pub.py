"""Fed-PUB: cases worked out by hand."""

import math

import pytest
import torch

import graft
from graft.engines.loopback import Loopback
from graft.errors import InputError
from graft.federation.plug import plugged
from graft.methods.dis_pfl.masks import masked
from graft.methods.fed_pub import FedPUB
from graft.methods.fed_pub.masked_weights import masked_and_measured
from graft.methods.fed_pub.proxy import ProxyGraph, random_graph
from graft.methods.fedavg import FedAvg
from graft.methods.fedtad import PaperDistillation
from graft.methods.local import Local
from graft.models.own import OwnModel
from graft.tensors.trees import Tree, count_bytes, flatten, map_tree, select_clients, stack, unflatten, weighted_mean
from graft.testing.contract import unlabelled
from tests.methods.normed import Normed
from tests.toy import gap, run_rounds, same, toy_graph, toy_setup

PLAIN = {"masking": False, "mask_penalty": 0.0, "proximal": 0.0}  # only the aggregation is left


def started(method=None, round=2, **settings):
    """A fleet of three in some round, and its start."""
    fleet = toy_setup(method or FedPUB(), **settings).fleet([0, 1, 2]).for_call(round, "train")
    (method or FedPUB()).start_client(fleet)
    return fleet


def test_shares_of_two_clients_whose_embeddings_are_at_right_angles():
    shares = FedPUB().shares(torch.tensor([[2.0, 0.0], [0.0, 0.5]]), torch.tensor([3, 1]))
    assert shares[0].tolist() == pytest.approx([0.952574, 0.047426], abs=1e-6)
    assert shares[1].tolist() == pytest.approx([0.047426, 0.952574], abs=1e-6)
    ten = FedPUB(scale=10.0).shares(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.ones(2))
    assert float(ten[0, 1] / ten[0, 0]) == pytest.approx(math.exp(10 * (0.5**0.5 - 1)), rel=1e-5)


def test_shares_are_equal_for_equal_embeddings_or_without_a_scale():
    embeddings = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    third = torch.full((3, 3), 1 / 3).double()
    torch.testing.assert_close(FedPUB(scale=0.0).shares(embeddings, torch.ones(3)), third)
    torch.testing.assert_close(FedPUB(scale=50.0).shares(embeddings[:1].expand(3, -1), torch.ones(3)), third)
    assert not torch.allclose(FedPUB(scale=50.0).shares(embeddings, torch.ones(3)), third, atol=0.1)
    assert FedPUB().shares(torch.zeros(2, 4), torch.ones(2)).tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_clients_that_have_learnt_nothing_count_only_where_all_have_not():
    embeddings = torch.eye(3)
    shares = FedPUB().shares(embeddings, torch.tensor([5, 0, 2]))
    assert shares[:, 1].tolist() == [0, 0, 0]
    assert shares[1].tolist() == pytest.approx([0.5, 0, 0.5])
    torch.testing.assert_close(FedPUB().shares(embeddings, torch.zeros(3)), FedPUB().shares(embeddings, torch.ones(3)))


def test_random_graph_has_five_communities_without_an_edge_between_them():
    graph = random_graph(0, 7, 5, 100, 0.1, torch.device("cpu"))
    assert (graph.nodes, graph.clients, tuple(graph.features.shape)) == (500, 1, (1, 500, 7))
    rows, columns = graph.neighbours.row_of, graph.neighbours.columns.long()
    assert torch.equal(rows // 100, columns // 100)
    assert not (rows == columns).any()
    assert set(zip(rows.tolist(), columns.tolist(), strict=True)) == set(
        zip(columns.tolist(), rows.tolist(), strict=True)
    )
    assert len(rows) / 2 == pytest.approx(5 * 4950 * 0.1, rel=0.1)
    assert float(graph.features.mean()) == pytest.approx(0, abs=0.06)
    assert float(graph.features.var()) == pytest.approx(1, abs=0.1)
    complete = random_graph(0, 1, 2, 4, 1.0, torch.device("cpu"))
    assert complete.degree.tolist() == [[3.0] * 8]


def test_all_clients_make_the_same_random_graph_and_another_run_another():
    def made(seed):
        random_graph.cache_clear()
        return random_graph(seed, 3, 2, 20, 0.3, torch.device("cpu"))

    first, again, other = made(0), made(0), made(1)
    assert first is not again
    assert torch.equal(first.features, again.features)
    assert torch.equal(first.neighbours.columns, again.neighbours.columns)
    assert not torch.equal(first.features, other.features)


@pytest.mark.parametrize("models", ["gcn", "gat", "sage", "gin", "sgc", "mlp", "pyg:GCN"])
def test_a_client_embeds_the_random_graph_alike_alone_and_in_a_fleet(models):
    fleet = started(models=models)
    together = FedPUB().embedding(fleet)
    graph = random_graph(fleet.seed, fleet.features, 5, 100, 0.1, fleet.device)
    assert isinstance(fleet.caches[0]["proxy graph", 3], ProxyGraph)
    for client in range(3):
        own = select_clients(fleet.state.model, slice(client, client + 1))
        alone = fleet.predict(own, fleet.model.select([client]), graph).embedding
        torch.testing.assert_close(together[client], alone[0].mean(0), atol=1e-5, rtol=1e-4)
    assert together.shape == (3, 3 if models == "pyg:GCN" else 8)


def test_small_entries_of_masks_are_gone_in_predictions_and_there_in_training():
    method = FedPUB(mask_penalty=1e-3, proximal=0.0, detached_penalties=True)
    fleet = started(method)
    masks = map_tree(torch.clone, fleet.state.masks)
    masks.head.weight[:, 0, 0], masks.head.weight[:, 0, 1], masks.head.weight[:, 0, 2] = 0.5e-3, 2e-3, -0.5e-3
    fleet.state.masks = masks
    weight, predicted = fleet.state.model.head.weight, method.personal(fleet).head.weight
    assert predicted[:, 0, 0].tolist() == predicted[:, 0, 2].tolist() == [0, 0, 0]
    torch.testing.assert_close(predicted[:, 0, 1], 2e-3 * weight[:, 0, 1])
    torch.testing.assert_close(predicted[:, 1:], weight[:, 1:])
    parts = Tree(weights=fleet.state.model, masks=masks)
    effective = map_tree(torch.clone, fleet.state.model)
    for path in ("layer0", "layer1", "head"):
        effective[path].weight = effective[path].weight * masks[path].weight
    penalty = 1e-3 * sum(leaf.abs().flatten(1).sum(1) for _, leaf in flatten(masks))
    loss = method.loss(fleet, parts, fleet.state.model) - penalty
    torch.testing.assert_close(loss, fleet.label_loss(effective))
    assert not torch.equal(loss, fleet.label_loss(method.personal(fleet)))


def test_predictions_leave_masks_and_weights_as_they_are():
    method = FedPUB(mask_penalty=0.5)
    fleet = started(method)
    fleet.state.masks = map_tree(lambda leaf: torch.linspace(-1, 1, leaf.numel()).view(leaf.shape), fleet.state.masks)
    before = map_tree(torch.clone, Tree(model=fleet.state.model, masks=fleet.state.masks))
    wanted = masked(fleet.state.model, method.pruned(fleet.state.masks))
    assert same(method.personal(fleet), wanted)
    assert same(Tree(model=fleet.state.model, masks=fleet.state.masks), before)


def gradients(method, fleet, shift=0.0):
    """Gradients of masks and weights, where weights have moved by so much from those that were received."""
    received = fleet.state.model
    start = Tree(weights=map_tree(lambda leaf: leaf + shift, received), masks=fleet.state.masks)
    leaves = {path: leaf.detach().clone().requires_grad_() for path, leaf in flatten(start)}
    loss = method.loss(fleet, unflatten(leaves), received)
    return loss.detach(), unflatten(
        dict(zip(leaves, torch.autograd.grad(loss.sum(), list(leaves.values())), strict=True))
    )


def test_masks_are_pulled_to_zero_by_a_force_that_does_not_depend_on_their_size():
    fleet = started()
    with_penalty, without = (
        gradients(FedPUB(mask_penalty=penalty, proximal=0.0), fleet)[1].masks for penalty in (0.5, 0.0)
    )
    for pulled, plain in zip(flatten(with_penalty), flatten(without), strict=True):
        torch.testing.assert_close(pulled[1] - plain[1], torch.full_like(plain[1], 0.5), atol=1e-6, rtol=1e-5)


def test_every_tensor_is_pulled_towards_the_received_one_by_a_force_of_one_length():
    fleet = started()
    (_, pulled), (_, plain) = (
        gradients(FedPUB(mask_penalty=0.0, proximal=proximal), fleet, shift=0.25) for proximal in (0.5, 0.0)
    )
    for (path, leaf), (_, other) in zip(flatten(pulled.weights), flatten(plain.weights), strict=True):
        count = leaf[0].numel()  # all numbers moved alike, so each has the same part of the unit length
        wanted = torch.full_like(leaf, 0.5 / count**0.5)
        torch.testing.assert_close(leaf - other, wanted, atol=1e-5, rtol=1e-4, msg=path)
    at_start = gradients(FedPUB(mask_penalty=0.0, proximal=0.5), fleet)[1].weights
    assert gap(at_start, gradients(FedPUB(mask_penalty=0.0, proximal=0.0), fleet)[1].weights) < 1e-7


def test_nothing_is_pulled_towards_the_model_of_the_first_round():
    pulled, plain = FedPUB(proximal=0.5), FedPUB(proximal=0.0)
    first = started(round=1)
    assert same(gradients(pulled, first, shift=0.25)[1], gradients(plain, first, shift=0.25)[1])
    second = started(round=2)
    assert not same(gradients(pulled, second, shift=0.25)[1], gradients(plain, second, shift=0.25)[1])


def test_detached_penalties_show_in_the_loss_and_move_nothing():
    fleet = started()
    shown, moved = gradients(FedPUB(mask_penalty=0.5, proximal=0.5, detached_penalties=True), fleet, shift=0.25)
    plain, wanted = gradients(FedPUB(mask_penalty=0.0, proximal=0.0), fleet, shift=0.25)
    assert same(moved, wanted)
    entries = sum(leaf[0].numel() for _, leaf in flatten(fleet.state.masks))
    lengths = sum(0.25 * leaf[0].numel() ** 0.5 for _, leaf in flatten(fleet.state.model))
    torch.testing.assert_close(shown - plain, torch.full((3,), 0.5 * (entries + lengths)), rtol=1e-4, atol=1e-3)
    attached, _ = gradients(FedPUB(mask_penalty=0.5, proximal=0.5), fleet, shift=0.25)
    torch.testing.assert_close(attached, shown)


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("shift", [0.0, 0.25])
def test_gradients_written_out_are_those_of_autograd(shift, detached):
    method, fleet = FedPUB(mask_penalty=0.5, proximal=0.5, detached_penalties=detached), started()
    generator = torch.Generator().manual_seed(0)
    fleet.state.masks = map_tree(lambda leaf: torch.randn(leaf.shape, generator=generator), fleet.state.masks)
    fleet.state.masks.head.weight[:, 0] = 0  # where absolute values have no slope
    received = fleet.state.model
    start = Tree(weights=map_tree(lambda leaf: leaf + shift, received), masks=fleet.state.masks)
    leaves = {path: leaf.detach().clone().requires_grad_() for path, leaf in flatten(start)}
    parts = unflatten(leaves)
    sizes = [mask.abs().flatten(1).sum(1) for _, mask in flatten(parts.masks)]
    moved = zip(flatten(parts.weights), flatten(received), strict=True)
    distances = [torch.linalg.vector_norm((leaf - before).flatten(1), dim=1) for (_, leaf), (_, before) in moved]
    penalty = 0.5 * torch.stack([*sizes, *distances]).sum(0)
    plain = fleet.label_loss(masked(parts.weights, parts.masks)) + (penalty.detach() if detached else penalty)
    by_autograd = dict(zip(leaves, torch.autograd.grad(plain.sum(), list(leaves.values())), strict=True))
    loss, written_out = gradients(method, fleet, shift)
    torch.testing.assert_close(loss, plain.detach())
    assert gap(written_out, unflatten(by_autograd)) < 1e-5
    others = gradients(FedPUB(mask_penalty=0.4, proximal=0.4, detached_penalties=detached), fleet, shift)[1]
    assert (gap(others, unflatten(by_autograd)) < 1e-5) == detached


def test_a_weight_that_a_module_does_not_use_is_pulled_all_the_same():
    weight, mask = (torch.full((2, 3, 1), value, requires_grad=True) for value in (2.0, 0.5))
    received, fleet = torch.zeros(2, 3, 1), toy_setup(FedPUB(), clients=2).fleet([0, 1])
    parts = Tree(unused=Tree(weight=weight)), Tree(unused=Tree(weight=mask)), Tree(unused=Tree(weight=received))
    _, distance, size = masked_and_measured(*parts, fleet)
    to_weight, to_mask = torch.autograd.grad((distance + 3 * size).sum(), [weight, mask])
    torch.testing.assert_close(to_weight, torch.full_like(weight, 3**-0.5))
    assert (to_mask == 3).all()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_without_masks_penalties_and_scale_it_is_fedavg_with_equal_votes(dropout):
    ours = run_rounds(toy_setup(FedPUB(scale=0.0, **PLAIN), dropout=dropout), rounds=3)
    wanted = run_rounds(toy_setup(FedAvg(), dropout=dropout, weight_by="uniform"), rounds=3)
    for client in range(3):
        assert gap(select_clients(ours.server.state.models, client), wanted.server.state.model) < 1e-5
    first = run_rounds(toy_setup(FedPUB(scale=0.0, **PLAIN), dropout=dropout), rounds=1)
    plain = run_rounds(toy_setup(FedAvg(), dropout=dropout, weight_by="uniform"), rounds=1)
    assert all(same(first.client(client).model, plain.client(client).model) for client in range(3))
    masked = run_rounds(toy_setup(FedPUB(scale=0.0), dropout=dropout), rounds=1)
    assert not same(masked.client(0).model, plain.client(0).model)


def test_masks_of_one_that_stay_one_change_nothing():
    class Held(FedPUB):
        def start_client(self, fleet):
            super().start_client(fleet)
            fleet.state.ones = fleet.state.masks

        def loss(self, fleet, parts, received):
            held = map_tree(lambda mask: mask.detach(), parts.masks)
            return super().loss(fleet, Tree(weights=parts.weights, masks=held), received)

    settings = {"scale": 0.0, "mask_penalty": 0.0, "proximal": 0.0}
    held = run_rounds(toy_setup(Held(**settings), weight_decay=0.0), rounds=2)
    wanted = run_rounds(toy_setup(FedPUB(scale=0.0, **PLAIN), weight_decay=0.0), rounds=2)
    assert same(held.server.state, wanted.server.state)
    assert all(same(held.client(client).masks, held.client(client).ones) for client in range(3))
    trained = run_rounds(toy_setup(FedPUB(**settings), weight_decay=0.0), rounds=2)
    assert not same(trained.server.state, wanted.server.state)


def test_a_large_scale_is_local_training_bit_for_bit():
    ours = run_rounds(toy_setup(FedPUB(scale=1e9, **PLAIN), dropout=0.5), rounds=3)
    wanted = run_rounds(toy_setup(Local(), dropout=0.5), rounds=3)
    assert all(same(ours.client(client).model, wanted.client(client).model) for client in range(3))
    mixed = run_rounds(toy_setup(FedPUB(**PLAIN), dropout=0.5), rounds=3)
    assert not same(mixed.client(0).model, wanted.client(0).model)


def test_identical_clients_get_the_plain_average():
    graphs = [toy_graph(12)] * 3
    finished = run_rounds(toy_setup(FedPUB(), graphs=graphs, dropout=0.0), rounds=2)
    mean = weighted_mean(stack([finished.client(client).model for client in range(3)]), torch.ones(3))
    assert all(gap(select_clients(finished.server.state.models, client), mean) < 1e-6 for client in range(3))
    assert finished.records["own_share"].tolist() == pytest.approx([1 / 3] * 3)
    others = run_rounds(toy_setup(FedPUB(scale=30.0), dropout=0.0), rounds=2)
    mean = weighted_mean(stack([others.client(client).model for client in range(3)]), torch.ones(3))
    assert gap(select_clients(others.server.state.models, 0), mean) > 1e-3


def test_models_are_mixed_by_how_alike_they_embed_the_random_graph():
    method = FedPUB(scale=20.0)
    finished = run_rounds(toy_setup(method), rounds=1)
    fleet = finished.engine.fleets[0]
    shares = method.shares(method.embedding(fleet), fleet.weight).float()
    assert not torch.allclose(shares, torch.full((3, 3), 1 / 3), atol=1e-3)
    for client in range(3):
        mean = weighted_mean(fleet.state.model, shares[client])
        assert gap(select_clients(finished.server.state.models, client), mean) < 1e-6


def test_a_strong_penalty_shrinks_masks_and_predictions_do_without_them():
    weak, strong = (
        run_rounds(toy_setup(FedPUB(mask_penalty=penalty), epochs=20, learning_rate=0.03), rounds=3).client(0)
        for penalty in (0.0, 0.05)
    )
    sizes = [float(sum(leaf.abs().sum() for _, leaf in flatten(state.masks))) for state in (weak, strong)]
    assert sizes[1] < 0.7 * sizes[0]
    gone = [int((FedPUB(mask_penalty=0.05).pruned(state.masks).head.weight == 0).sum()) for state in (weak, strong)]
    assert gone[1] > gone[0]


def test_masks_are_for_weight_matrices_alone():
    masks = {path for path, _ in flatten(started().state.masks)}
    assert masks == {"layer0/weight", "layer1/weight", "head/weight"}
    attention = {path for path, _ in flatten(started(models="gat").state.masks)}
    assert {"layer0/target", "layer0/source"} < attention
    assert not any(path.endswith("bias") for path in attention)
    assert not started(FedPUB(masking=False)).state.masks
    normed = run_rounds(toy_setup(FedPUB(), models=OwnModel(Normed())), rounds=2)
    assert [path for path, _ in flatten(normed.client(0).masks)] == ["head/weight"]
    assert int(normed.client(0).model.norm.num_batches_tracked) > 0


def test_a_client_without_labels_keeps_its_masks_and_is_given_what_is_made_of_the_others():
    graphs = [toy_graph(9), toy_graph(10, seed=1), unlabelled(toy_graph(8))]
    finished = run_rounds(toy_setup(FedPUB(mask_penalty=0.1), graphs=graphs, weight_decay=0.1), rounds=2)
    assert all((leaf == 1).all() for _, leaf in flatten(finished.client(2).masks))
    assert not any((leaf == 1).all() for _, leaf in flatten(finished.client(0).masks))
    before = run_rounds(toy_setup(FedPUB(mask_penalty=0.1), graphs=graphs, weight_decay=0.1), rounds=1)
    assert same(finished.client(2).model, select_clients(before.server.state.models, 2))


def test_clients_that_were_never_asked_begin_with_the_plain_mean_and_others_with_their_last_model():
    setup = toy_setup(FedPUB(), clients=4, participation=0.5)
    first, second = run_rounds(setup, rounds=1), run_rounds(setup, rounds=2)
    asked, later = first.session.participants(1), second.session.participants(2)
    trained = stack([first.client(client).model for client in asked])
    plain = weighted_mean(trained, torch.tensor([setup.graphs[client].nodes for client in asked]))
    for client in set(range(4)) - set(asked):
        assert gap(select_clients(first.server.state.models, client), plain) < 1e-6
    assert gap(select_clients(first.server.state.models, asked[0]), plain) > 1e-4
    resting = set(asked) - set(later)
    assert resting
    for client in resting:
        ours, before = (select_clients(run.server.state.models, client) for run in (second, first))
        assert same(ours, before)
    assert second.server.state.served.tolist() == [client in {*asked, *later} for client in range(4)]


def test_bytes_are_a_model_down_and_a_model_an_embedding_and_a_vote_up_without_masks():
    finished = run_rounds(toy_setup(FedPUB()), rounds=2)
    model = count_bytes(select_clients(finished.server.state.models, 0))
    assert (finished.traffic.down, finished.traffic.up) == (2 * 3 * model, 2 * 3 * (model + 4 * 8 + 8))


def test_processes_with_messages_as_bytes_make_the_same_random_graph():
    setup = toy_setup(FedPUB(scale=20.0))
    here, engine = run_rounds(setup), Loopback(setup)
    try:
        there = run_rounds(setup, engine=engine)
        assert gap(here.server.state.models, there.server.state.models) < 1e-5
    finally:
        engine.close()


def test_the_masked_model_is_scored_and_given_out():
    settings = {"dataset": "synthetic:nodes=120,degree=6,classes=3,features=8", "clients": 2}
    result = graft.run(
        "fed_pub",
        rounds=4,
        device="cpu",
        settings={"mask_penalty": 0.05},
        epochs=15,
        optimizer="adam",
        learning_rate=0.03,
        **settings,
    )
    state, model = result.clients[1], result.client(1, at="last")
    wanted = {path: leaf.clone() for path, leaf in flatten(state.model)}
    for path, mask in flatten(state.masks):
        wanted[path] *= torch.where(mask.abs() < 0.05, 0, mask)
    assert same(model.weights, unflatten(wanted))
    assert any((leaf == 0).any() for path, leaf in wanted.items() if path.endswith("weight"))
    graph = model.run.federation().clients[1]
    accuracy = (model.logits(graph).argmax(1).numpy() == graph.y)[graph.test].mean()
    assert result.rounds[-1]["per_client"]["test"][1] == pytest.approx(float(accuracy))


def test_a_plug_learns_from_the_models_that_clients_predict_with():
    taught = []

    class Watched(PaperDistillation):
        def distil(self, server, teachers, *others):
            taught.append(teachers)
            super().distil(server, teachers, *others)

    kind = plugged(FedPUB, Watched)
    finished = run_rounds(toy_setup(kind(mask_penalty=0.05, pseudo_nodes=12), epochs=20, learning_rate=0.1), rounds=1)
    fleet = finished.engine.fleets[0]
    assert same(taught[0], FedPUB(mask_penalty=0.05).personal(fleet))
    assert not same(taught[0], fleet.state.model)
    masks = count_bytes(select_clients(fleet.state.masks, 0))
    plain = run_rounds(toy_setup(plugged(FedAvg, PaperDistillation)(pseudo_nodes=12), epochs=20), rounds=1)
    assert finished.traffic.up == plain.traffic.up + 3 * (masks + 4 * 8)


@pytest.mark.parametrize(
    ("field", "value"),
    [("scale", -1.0), ("mask_penalty", -1e-3), ("proximal", float("inf")), ("proxy_nodes", 0), ("proxy_edges", 0.0)],
)
def test_values_that_make_no_sense_are_refused(field, value):
    with pytest.raises(InputError, match=field):
        FedPUB(**{field: value})
