"""FedKD: cases worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.errors import InputError
from graft.federation.clients import Clients, Traffic
from graft.federation.fleet import initial_weights
from graft.methods.fedavg import FedAvg
from graft.methods.fedkd import FedKD
from graft.methods.fedkd.compression import apply_update, compress_leaf, factors, rebuild, rebuild_update
from graft.methods.local import Local
from graft.models.architecture import Output
from graft.tensors.trees import Tree, count_bytes, flatten, map_tree, stack
from tests.toy import CLASSES, gap, run_rounds, same, toy_graphs, toy_setup, trained_tree

SURE = torch.tensor([0.75, 0.25]).log()
EVEN = torch.tensor([0.5, 0.5]).log()
EXACT = {"energy_start": 1.0, "energy_end": 1.0}
ROUGH = {"energy_start": 0.6, "energy_end": 0.6}
MENTEE = 4 * (6 * 8 + 8 + 8 * 8 + 8 + 8 * 3 + 3)  # bytes of the toy's gcn


def everywhere(fleet, row):
    return torch.as_tensor(row).expand(len(fleet.clients), fleet.graph.nodes, len(row))


def compared(method, mentor, mentee, hidden=([0.0], [0.0]), projection=((1.0,),)):
    """Both losses where all nodes are of class 0 and say the same."""
    fleet = toy_setup(method).fleet([0, 1, 2])
    fleet.labels.classes.zero_()
    outputs = [
        Output(everywhere(fleet, h), everywhere(fleet, z)) for h, z in zip(hidden, (mentor, mentee), strict=True)
    ]
    losses = method.compare(fleet, *outputs, torch.tensor(projection).expand(3, -1, -1))
    assert all(torch.equal(loss, loss[:1].expand(3)) for loss in losses)
    return [float(loss[0]) for loss in losses]


@pytest.mark.parametrize("kd_nodes", ["train", "all"])
def test_both_losses_by_hand(kd_nodes):
    losses = compared(FedKD(hidden=0.0, kd_nodes=kd_nodes), SURE, EVEN, hidden=([1.0], [5.0]))
    assert losses == pytest.approx([0.434335, 0.826516], abs=1e-6)
    apart = compared(FedKD(hidden=0.0, distil=0.0), SURE, EVEN)
    assert apart == pytest.approx([0.287682, 0.693147], abs=1e-6)


def test_hidden_term_by_hand():
    # (1, 2) against 1 * (3, 1): ((1 - 3)^2 + (2 - 1)^2) / 2 = 2.5, divided by S = 0.980829.
    term = 2.5 / 0.980829
    losses = compared(FedKD(distil=0.0), SURE, EVEN, ([1.0, 2.0], [1.0]), ((3.0, 1.0),))
    assert losses == pytest.approx([0.287682 + term, 0.693147 + term], abs=1e-5)
    half = compared(FedKD(distil=0.0, hidden=0.5), SURE, EVEN, ([1.0, 2.0], [1.0]), ((3.0, 1.0),))
    assert half == pytest.approx([0.287682 + term / 2, 0.693147 + term / 2], abs=1e-5)


def losses_of_trained(method):
    fleet = toy_setup(method, models="sage").fleet([0, 1, 2])
    method.start_client(fleet)
    state = fleet.state
    tree, _ = trained_tree(Tree(mentor=state.model, mentee=state.mentee, projection=state.projection))
    return fleet, tree, method.losses(fleet, tree)


def moves(loss, branch):
    """Whether a loss has a gradient for anything in a branch."""
    found = torch.autograd.grad(loss.sum(), [leaf for _, leaf in flatten(branch)], allow_unused=True, retain_graph=True)
    return any(gradient is not None and bool(gradient.any()) for gradient in found)


def test_mentor_follows_its_loss_and_mentee_and_projection_theirs():
    _, tree, (to_mentor, to_mentee) = losses_of_trained(FedKD())
    projection = Tree(projection=tree.projection)
    assert (moves(to_mentor, tree.mentor), moves(to_mentor, tree.mentee), moves(to_mentor, projection)) == (1, 0, 0)
    assert (moves(to_mentee, tree.mentor), moves(to_mentee, tree.mentee), moves(to_mentee, projection)) == (0, 1, 1)
    _, tree, (_, plain) = losses_of_trained(FedKD(hidden=0.0))
    assert not moves(plain, Tree(projection=tree.projection))


def test_doubt_scales_distillation_but_is_not_trained():
    fleet, tree, (with_both, _) = losses_of_trained(FedKD(hidden=0.0))
    _, only_labels, (plain, other) = losses_of_trained(FedKD(hidden=0.0, distil=0.0))
    doubt = (plain + other).detach()
    mentor = [leaf for _, leaf in flatten(tree.mentor)]
    difference = [
        both - label
        for both, label in zip(
            torch.autograd.grad(with_both.sum(), mentor, retain_graph=True),
            torch.autograd.grad(plain.sum(), [leaf for _, leaf in flatten(only_labels.mentor)]),
            strict=True,
        )
    ]
    nodes = fleet.labels.masks[:, 0]
    logits = fleet.forward(tree.mentor).logits.log_softmax(2)
    target = fleet.predict(tree.mentee, fleet.architecture("gcn")).logits.softmax(2)
    divergence = ((target * (target.log() - logits)).sum(2) * nodes).sum(1) / nodes.sum(1)
    wanted = torch.autograd.grad((divergence / doubt).sum(), mentor)
    for one, two in zip(difference, wanted, strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-4)
    assert max(float(gradient.abs().max()) for gradient in wanted) > 1e-3


def test_client_without_labels_distils_at_its_plain_weight():
    graphs = toy_graphs()
    graphs[1] = replace(graphs[1], train=graphs[1].train & False)
    method = FedKD(kd_nodes="all")
    fleet = toy_setup(method, models="sage", graphs=graphs).fleet([0, 1, 2])
    method.start_client(fleet)
    state = fleet.state
    losses = method.losses(fleet, Tree(mentor=state.model, mentee=state.mentee, projection=state.projection))
    assert all(0 < float(loss[1]) < 10 for loss in losses)  # and not 1e6 times that
    finished = run_rounds(toy_setup(FedKD(), models="sage", graphs=graphs))
    assert all(leaf.isfinite().all() for _, leaf in flatten(finished.client(1)))


@pytest.mark.parametrize(("energy", "rank"), [(0.60, 1), (0.64, 1), (0.65, 2), (0.95, 2), (1.0, 2)])
def test_four_and_three_on_a_diagonal(energy, rank):
    matrix = torch.diag(torch.tensor([4.0, 3.0]))
    found = factors(matrix, energy)
    assert len(found.singular) == rank
    wanted = matrix if rank == 2 else torch.diag(torch.tensor([4.0, 0.0]))
    torch.testing.assert_close(rebuild(found), wanted, atol=1e-6, rtol=0)


def test_factors_are_those_of_a_singular_value_decomposition():
    matrix = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    found = factors(matrix, 1.0)
    torch.testing.assert_close(found.singular, torch.linalg.svdvals(matrix), atol=1e-5, rtol=1e-5)
    for vectors in (found.left, found.right.T):
        torch.testing.assert_close(vectors.T @ vectors, torch.eye(5), atol=1e-5, rtol=0)
    assert {path: tuple(leaf.shape) for path, leaf in flatten(found)} == {
        "left": (9, 5),
        "singular": (5,),
        "right": (5, 5),
    }


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (20, 20)])
@pytest.mark.parametrize("energy", [0.5, 0.9, 0.98])
def test_what_is_left_out_is_at_most_the_energy_not_asked_for(shape, energy):
    generator = torch.Generator().manual_seed(1)
    decay = 0.7 ** torch.arange(min(shape))
    matrix = (
        torch.randn(shape[0], min(shape), generator=generator)
        * decay
        @ torch.randn(min(shape), shape[1], generator=generator)
    )
    found = factors(matrix, energy)
    lost = (rebuild(found) - matrix).square().sum() / matrix.square().sum()
    assert 0 < lost <= (1 - energy) * (1 + 1e-5)
    fewer = Tree(left=found.left[:, :-1], singular=found.singular[:-1], right=found.right[:-1])
    assert (rebuild(fewer) - matrix).square().sum() / matrix.square().sum() > 1 - energy  # one less would not do


def test_what_factors_would_not_shorten_goes_as_it_is():
    generator = torch.Generator().manual_seed(2)
    low = torch.randn(20, 2, generator=generator) @ torch.randn(2, 30, generator=generator)
    assert isinstance(compress_leaf(low, 0.999999), dict)
    assert count_bytes(compress_leaf(low, 0.999999)) == 4 * 2 * (20 + 30 + 1)
    full, row, vector = (torch.randn(*shape, generator=generator) for shape in ((20, 30), (1, 30), (30,)))
    assert all(compress_leaf(leaf, 1.0) is leaf for leaf in (full, row, vector))
    # 61 singular values are shorter than a 1433 x 64 matrix and 62 are not.
    assert 61 * (1433 + 64 + 1) < 1433 * 64 < 62 * (1433 + 64 + 1)
    nothing = compress_leaf(torch.zeros(20, 30), 0.95)
    assert count_bytes(nothing) == 0
    assert torch.equal(rebuild(nothing), torch.zeros(20, 30))


def test_energy_rises_in_a_line_and_ends_in_the_last_round():
    energies = [FedKD().energy(number / 100) for number in (1, 50, 100, 200)]
    assert energies == pytest.approx([0.9503, 0.965, 0.98, 0.98])
    finished = run_rounds(toy_setup(FedKD()), rounds=3)
    assert finished.records == {"energy": pytest.approx(0.95 + 0.03 * 3 / 100)}


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_with_all_energy_it_is_as_if_nothing_were_compressed(optimizer):
    settings = {"models": "gcn,sage", "optimizer": optimizer, "learning_rate": 0.01 if optimizer == "adam" else 0.5}
    raw, exact, rough = (
        run_rounds(toy_setup(FedKD(**one), **settings), rounds=3) for one in ({"compress": False}, EXACT, ROUGH)
    )
    assert gap(raw.server.state.mentee, exact.server.state.mentee) < 1e-5
    assert gap(raw.client(1).model, exact.client(1).model) < 1e-5
    assert gap(raw.server.state.mentee, rough.server.state.mentee) > 1e-3
    assert (raw.traffic.up, raw.traffic.down) == (3 * 3 * MENTEE, 3 * 3 * (MENTEE + 8))


def test_without_distillation_mentees_are_fedavg_and_mentors_local():
    alone = FedKD(distil=0.0, hidden=0.0, **EXACT)
    ours = run_rounds(toy_setup(alone, models="sage"), rounds=3)
    averaged = run_rounds(toy_setup(FedAvg(), models="gcn", weight_by="uniform"), rounds=3)
    local = run_rounds(toy_setup(Local(), models="sage"), rounds=3)
    assert gap(ours.server.state.mentee, averaged.server.state.model) < 1e-5
    assert all(gap(ours.client(client).model, local.client(client).model) < 1e-6 for client in range(3))
    taught = run_rounds(toy_setup(FedKD(**EXACT), models="sage"), rounds=3)
    assert gap(taught.server.state.mentee, averaged.server.state.model) > 1e-3
    assert gap(taught.client(0).model, local.client(0).model) > 1e-3


def test_votes_are_equal_unless_told_otherwise():
    alone = {"distil": 0.0, "hidden": 0.0, **EXACT}
    uniform, weighted = (
        run_rounds(toy_setup(FedKD(weighting=one, **alone), models="sage"), rounds=2)
        for one in ("uniform", "by_weight")
    )
    averaged = run_rounds(toy_setup(FedAvg(), models="gcn"), rounds=2)  # by nodes
    assert gap(weighted.server.state.mentee, averaged.server.state.model) < 1e-5
    assert gap(uniform.server.state.mentee, averaged.server.state.model) > 1e-4
    assert weighted.traffic.up - uniform.traffic.up == 2 * 3 * 8


@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_after_every_round_participants_have_the_servers_mentee_bit_for_bit(participation):
    setup = toy_setup(FedKD(**ROUGH), models="gcn,sage", dropout=0.5, participation=participation)
    engine, state, seen = InProcess(setup), None, set()
    for number in range(1, 7):
        finished = run_rounds(setup, rounds=1, engine=engine, first=number, state=state)
        state = finished.server.state
        equal = [same(finished.client(client).mentee, state.mentee) for client in range(3)]
        assert equal == state.current.tolist()
        assert sum(equal) == (3 if participation == 1 else 2)
        seen |= {client for client in range(3) if equal[client]}
    assert seen == {0, 1, 2}


def test_client_that_missed_updates_is_sent_the_whole_mentee_first():
    setup = toy_setup(FedKD(compress=False), models="gcn,sage")
    engine = InProcess(setup)
    server = run_rounds(setup, rounds=1, engine=engine).server

    def bytes_down(number, members):
        traffic = Traffic()
        server.begin(number)
        setup.method.round(server, Clients(engine, number, members, traffic))
        return traffic.down

    usual = MENTEE + 8
    assert bytes_down(2, [0, 1]) == 2 * usual  # both were there in round 1
    assert bytes_down(3, [1, 2]) == 2 * usual + MENTEE  # client 2 was not in round 2
    assert bytes_down(4, [0, 1, 2]) == 3 * usual + MENTEE  # client 0 was not in round 3
    assert bytes_down(5, [0, 1, 2]) == 3 * usual


def bytes_by_hand(change, energy):
    """What an update needs, from NumPy's singular values alone."""
    total = 0
    for _, leaf in flatten(change):
        raw = leaf.numel()
        if leaf.dim() == 2 and min(leaf.shape) > 1:
            sums = np.cumsum(np.linalg.svd(leaf.double().numpy(), compute_uv=False) ** 2)
            rank = int(np.argmax(sums >= energy * sums[-1])) + 1
            raw = min(raw, rank * (leaf.shape[0] + leaf.shape[1] + 1))
        total += 4 * raw
    return total


@pytest.mark.parametrize("engine_of", [InProcess, Loopback])
def test_bytes_are_those_of_factors_or_of_the_matrix_whichever_is_less(engine_of):
    energy = 0.6
    setup = toy_setup(FedKD(**ROUGH), models="gcn,sage", dropout=0.5)
    engine = engine_of(setup)
    try:
        finished = run_rounds(setup, rounds=1, engine=engine)
        changes = [finished.client(client).change for client in range(3)]
    finally:
        engine.close()
    sizes = [bytes_by_hand(change, energy) for change in changes]
    assert finished.traffic.up == sum(sizes)
    assert len(set(sizes)) > 1  # clients differ in rank
    assert all(size < MENTEE for size in sizes)
    like = initial_weights(setup.architecture("gcn"), 0)
    sent = [rebuild_update(setup.method.packed(change, energy), like) for change in changes]
    mean = map_tree(lambda leaf: leaf.mean(0), stack(sent))
    assert finished.traffic.down == 3 * (bytes_by_hand(mean, energy) + 8)  # and the energy itself
    assert gap(apply_update(like, setup.method.packed(mean, energy)), finished.server.state.mentee) < 1e-6


def test_update_is_compressed_and_not_the_weights():
    still = run_rounds(toy_setup(FedKD(**ROUGH), optimizer="sgd", learning_rate=1e-12, weight_decay=0.0), rounds=2)
    start = initial_weights(toy_setup(FedKD()).architecture("gcn"), 0)
    assert gap(still.server.state.mentee, start) < 1e-6  # compressed weights would have lost 40 % of their energy


class Narrow(nn.Module):
    """A user's module with an embedding of five numbers and a normalisation with buffers."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES)

    def forward(self, x, edge_index):  # noqa: ARG002
        hidden = torch.relu(self.norm(self.first(x)))
        return hidden, self.head(hidden)


def test_mentor_may_be_a_module_of_another_width_and_keeps_its_buffers_untrained():
    with torch.random.fork_rng():
        module = Narrow()
    ours = run_rounds(toy_setup(FedKD(), models=["gcn", module]))
    local = run_rounds(toy_setup(Local(), models=["gcn", module]))
    assert ours.client(1).projection.shape == (8, 5)
    assert ours.client(0).projection.shape == (8, 8)
    assert int(ours.client(1).model.norm.num_batches_tracked) == 2 * 3
    assert gap(ours.client(1).model.first, local.client(1).model.first) > 1e-4
    assert not any("running" in path for path, _ in flatten(ours.client(1).optimizer))


def test_projections_are_private_from_the_start():
    engine = InProcess(toy_setup(FedKD(), models="sage"))
    first, second = (engine.state()[client].projection for client in (0, 1))
    assert not torch.equal(first, second)
    assert first.abs().max() <= 8**-0.5 < 1.2 * first.abs().max()


def test_unknown_architecture_of_the_mentee_is_refused():
    with pytest.raises(InputError, match="Unknown model 'gnc'"):
        run_rounds(toy_setup(FedKD(mentee="gnc")))
