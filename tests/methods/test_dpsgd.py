"""D-PSGD: cases worked out by hand, and those that all methods without a server share."""

import pytest
import torch

from graft.federation.topologies import Topology
from graft.methods.dpsgd import DPSGD
from graft.methods.fedavg import FedAvg
from graft.methods.local import Local
from graft.tensors.trees import count_bytes, map_tree
from tests.methods.line import line, places
from tests.toy import gap, run_rounds, same, toy_setup

COMPLETE, NOBODY = Topology("complete"), Topology("none")
HILLS = {"starts": [0.0, 2.0, 4.0], "minima": [0.0, 1.0, 8.0], "curvature": 1.0}  # gradients 0, 1 and -4


def test_original_goes_from_the_mean_along_the_gradient_taken_before():
    finished = run_rounds(line(DPSGD("original"), **HILLS, topology=COMPLETE), rounds=1)
    torch.testing.assert_close(places(finished), torch.tensor([2.0, 1.9, 2.4]))
    # Gradients taken after mixing, at 2, would have led to 1.8, 1.9 and 2.6.
    torch.testing.assert_close(places(finished, "trained"), torch.tensor([0.0, 1.9, 4.4]))


def test_training_first_puts_all_peers_of_a_complete_graph_at_one_place():
    finished = run_rounds(line(DPSGD(), **HILLS, topology=COMPLETE), rounds=1)
    torch.testing.assert_close(places(finished), torch.full((3,), 2.1))


@pytest.mark.parametrize("mode", ["fl", "original"])
def test_mean_over_peers_moves_by_the_mean_gradient(mode):
    starts, minima = [0.0, 2.0, 4.0, -1.0, 7.0], [0.0, 1.0, 8.0, 3.0, -2.0]
    for rounds in range(4):
        before = places(run_rounds(line(DPSGD(mode), starts, minima, 1.0), rounds=rounds))
        after = places(run_rounds(line(DPSGD(mode), starts, minima, 1.0), rounds=rounds + 1))
        wanted = before.mean() - 0.1 * (before - torch.tensor(minima)).mean()
        assert float(after.mean()) == pytest.approx(float(wanted), abs=1e-6)
        assert float(after.mean()) != pytest.approx(float(before.mean()), abs=1e-3)


def test_plain_mean_over_drawn_peers_does_not_keep_the_mean():
    starts = [0.0, 2.0, 4.0, -1.0, 7.0]
    mutual, drawn = (places(run_rounds(line(DPSGD(mode), starts), rounds=1)).mean() for mode in ("fl", "dispfl"))
    assert float(mutual) == pytest.approx(2.4, abs=1e-6)
    assert float(drawn) != pytest.approx(2.4, abs=1e-2)


@pytest.mark.parametrize("mode", ["fl", "original"])
def test_ring_of_three_is_a_complete_graph(mode):
    def after(topology):
        return places(run_rounds(line(DPSGD(mode), **HILLS, topology=Topology(topology)), rounds=3))

    torch.testing.assert_close(after("ring"), after("complete"))
    assert not torch.allclose(after("ring"), after("star"))


@pytest.mark.parametrize("mode", ["fl", "original", "dispfl"])
def test_peers_at_rest_agree_on_the_mean_in_the_end(mode):
    starts = [0.0, 2.0, 4.0, -1.0, 7.0, 0.0]
    agreed = places(run_rounds(line(DPSGD(mode), starts, topology=Topology("ring")), rounds=60))
    torch.testing.assert_close(agreed, torch.full((6,), 2.0))
    assert (places(run_rounds(line(DPSGD(mode), starts, topology=Topology("ring")), rounds=3)) - 2).abs().max() > 1e-2


def test_two_peers_meet_in_the_middle():
    assert places(run_rounds(line(DPSGD(), [0.0, 2.0]), rounds=1)).tolist() == [1, 1]


def test_complete_graph_is_plain_federated_averaging():
    ours = run_rounds(toy_setup(DPSGD(), topology=COMPLETE), rounds=1)
    server = run_rounds(toy_setup(FedAvg(), weight_by="uniform"), rounds=1).server.state.model
    assert all(gap(ours.client(peer).model, server) < 1e-6 for peer in range(3))
    assert gap(ours.client(0).trained, server) > 1e-3


@pytest.mark.parametrize(("mode", "field"), [("fl", "model"), ("fl", "trained"), ("dispfl", "trained")])
def test_without_links_it_is_local_training_bit_for_bit(mode, field):
    ours = run_rounds(toy_setup(DPSGD(mode), dropout=0.5, topology=NOBODY), rounds=3)
    alone = run_rounds(toy_setup(Local(), dropout=0.5), rounds=3)
    linked = run_rounds(toy_setup(DPSGD(mode), dropout=0.5), rounds=3)
    for peer in range(3):
        assert same(ours.client(peer)[field], alone.client(peer).model)
        assert not same(linked.client(peer)[field], alone.client(peer).model)


def test_mixing_first_means_what_was_trained_in_the_round_before():
    one, two = (run_rounds(toy_setup(DPSGD("dispfl"), topology=COMPLETE), rounds=rounds) for rounds in (1, 2))
    trained = [one.client(peer).trained for peer in range(3)]
    mean = map_tree(lambda *parts: sum(parts) / 3, *trained)
    assert all(gap(two.client(peer).model, mean) < 1e-6 for peer in range(3))
    assert gap(two.client(0).trained, mean) > 1e-3


def test_original_takes_one_step_of_sgd_whatever_the_experiment_says():
    usual = run_rounds(toy_setup(DPSGD("original"), epochs=3, optimizer="adam"), rounds=2)
    plain = run_rounds(toy_setup(DPSGD("original"), epochs=1, optimizer="sgd"), rounds=2)
    assert same(usual.client(0), plain.client(0))
    assert gap(run_rounds(toy_setup(DPSGD(), epochs=3), rounds=2).client(0).model, plain.client(0).model) > 1e-3


def test_a_model_goes_along_every_link():
    for topology, links in ((COMPLETE, 6), (Topology("ring"), 6), (Topology("star"), 4), (NOBODY, 0)):
        finished = run_rounds(toy_setup(DPSGD(), topology=topology), rounds=2)
        assert finished.traffic.peer == 2 * links * count_bytes(finished.client(0).model)
        assert (finished.traffic.up, finished.traffic.down) == (0, 0)


def test_record_says_how_far_peers_are_apart():
    records = run_rounds(line(DPSGD(), [0.0, 2.0, 4.0], topology=COMPLETE), rounds=1).records
    assert float(records["disagreement"]) == pytest.approx(4 / 3)
    assert records["spectral_gap"] == pytest.approx(1.0)
