"""DFedAvgM: cases worked out by hand."""

import pytest
import torch

import graft
from graft.errors import InputError
from graft.federation.topologies import Topology, spectral_gap
from graft.methods.dfedavgm import DFedAvgM
from graft.methods.dpsgd import DPSGD
from graft.methods.local import Local
from graft.tensors.trees import count_bytes, flatten
from tests.methods.line import line, places
from tests.toy import gap, run_rounds, same, toy_setup

COMPLETE, NOBODY = Topology("complete"), Topology("none")


def test_heavy_ball_by_hand():
    for epochs, wanted in ((1, 0.9), (2, 0.72), (3, 0.486)):
        finished = run_rounds(line(DFedAvgM(), [1.0], curvature=1.0, epochs=epochs), rounds=1)
        assert float(places(finished)) == pytest.approx(wanted, abs=1e-6)
    plain = run_rounds(line(DFedAvgM(momentum=0.0), [1.0], curvature=1.0, epochs=3), rounds=1)
    assert float(places(plain)) == pytest.approx(0.9**3, abs=1e-6)


def test_it_trains_by_default_and_not_at_the_rate_of_adam():
    settings = {"dataset": "synthetic:nodes=120,degree=6,classes=3,features=8", "clients": 3, "rounds": 30, "seed": 0}
    default, named, slow = (
        graft.run("dfedavgm", **settings, **more) for more in ({}, {"learning_rate": 0.1}, {"learning_rate": 0.001})
    )
    assert default.accuracy == named.accuracy
    assert default.rounds[-1]["loss"] < 0.7 * slow.rounds[-1]["loss"]


def test_ball_is_at_rest_again_in_every_round():
    finished = run_rounds(line(DFedAvgM(), [1.0], curvature=1.0, epochs=1), rounds=2)
    assert float(places(finished)) == pytest.approx(0.81, abs=1e-6)  # and not 0.72
    assert not finished.client(0).get("optimizer")


def test_one_step_without_momentum_on_a_complete_graph_is_a_step_of_all_data():
    finished = run_rounds(
        line(DFedAvgM(momentum=0.0), [0.0, 2.0, 4.0], [0.0, 1.0, 8.0], 1.0, topology=COMPLETE), rounds=1
    )
    torch.testing.assert_close(places(finished), torch.full((3,), 2.1))


def test_without_links_it_is_local_training_with_momentum():
    ours = run_rounds(toy_setup(DFedAvgM(), topology=NOBODY, dropout=0.5), rounds=3)
    settings = {"optimizer": "momentum", "optimizer_state": "reset", "dropout": 0.5}
    alone, adam = (
        run_rounds(toy_setup(Local(), **settings), rounds=3),
        run_rounds(toy_setup(Local(), dropout=0.5), rounds=3),
    )
    for peer in range(3):
        assert same(ours.client(peer).model, alone.client(peer).model)
        assert gap(ours.client(peer).model, adam.client(peer).model) > 1e-3


def test_peers_at_rest_keep_their_mean():
    starts = [0.0, 2.0, 4.0, -1.0, 7.0]
    finished = run_rounds(line(DFedAvgM(), starts), rounds=3)
    assert float(places(finished).mean()) == pytest.approx(2.4, abs=1e-6)
    assert (places(finished) - torch.tensor(starts)).abs().max() > 0.5


def test_without_momentum_it_is_dpsgd_with_sgd():
    settings = {"optimizer": "sgd", "learning_rate": 0.1}
    ours, wanted = run_rounds(toy_setup(DFedAvgM(momentum=0.0), **settings)), run_rounds(toy_setup(DPSGD(), **settings))
    assert gap(ours.client(0).model, wanted.client(0).model) < 1e-6
    assert gap(run_rounds(toy_setup(DFedAvgM(), **settings)).client(0).model, wanted.client(0).model) > 1e-4


def fleet_of_one(method):
    return toy_setup(method, clients=1).fleet([0])


def test_quantiser_by_hand():
    move, size = torch.tensor([[1.27, 0.014, -0.006, -2.0]]), torch.tensor([0.01])
    assert DFedAvgM(bits=8).in_steps(fleet_of_one(DFedAvgM()), move, size).tolist() == [[127, 1, -1, -127]]
    wide = DFedAvgM(bits=16).in_steps(fleet_of_one(DFedAvgM()), move, size)
    assert wide.tolist() == [[127, 1, -1, -200]]
    assert wide.dtype == torch.int16


def test_stochastic_rounding_is_right_on_average():
    move, size = torch.full((1, 20000), 0.3), torch.ones(1)
    steps = DFedAvgM(bits=8, rounding="stochastic").in_steps(fleet_of_one(DFedAvgM()), move, size).float()
    assert set(steps.unique().tolist()) == {0, 1}
    assert float(steps.mean()) == pytest.approx(0.3, abs=0.02)
    nearest = DFedAvgM(bits=8).in_steps(fleet_of_one(DFedAvgM()), move, size)
    assert not nearest.any()


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("bits", [8, 16])
def test_quantised_peers_that_start_together_go_where_others_go(bits, rounding):
    settings = {"clients": 4, "learning_rate": 0.1}
    plain = run_rounds(toy_setup(DFedAvgM(), **settings), rounds=1)
    ours = run_rounds(toy_setup(DFedAvgM(bits=bits, rounding=rounding), **settings), rounds=1)
    start = dict(flatten(run_rounds(toy_setup(DFedAvgM(), **settings), rounds=0).client(0).model))
    size = max(
        float((leaf - start[path]).abs().max())
        for peer in range(4)
        for path, leaf in flatten(plain.client(peer).trained)
    ) / (2 ** (bits - 1) - 1)
    for peer in range(4):
        assert 0 < gap(ours.client(peer).model, plain.client(peer).model) <= size


def test_quantised_peers_on_a_complete_graph_stay_together():
    settings = {"topology": COMPLETE, "learning_rate": 0.1}
    plain, ours = (run_rounds(toy_setup(DFedAvgM(bits=bits), **settings), rounds=5) for bits in (0, 16))
    assert gap(ours.client(0).model, plain.client(0).model) < 1e-3
    assert gap(ours.client(0).model, ours.client(1).model) < 1e-6
    assert gap(plain.client(0).trained, plain.client(0).model) > 1e-2


def test_quantised_peers_that_start_apart_stay_apart():
    assert places(run_rounds(line(DFedAvgM(), [0.0, 2.0]), rounds=3)).tolist() == [1, 1]
    assert places(run_rounds(line(DFedAvgM(bits=8), [0.0, 2.0]), rounds=3)).tolist() == [0, 2]


def test_quantised_messages_are_a_number_of_bits_for_each_weight_and_a_size():
    def sent(bits):
        return run_rounds(toy_setup(DFedAvgM(bits=bits), topology=COMPLETE), rounds=1)

    weights = count_bytes(sent(0).client(0).model) // 4
    assert sent(0).traffic.peer == 6 * 4 * weights
    assert sent(8).traffic.peer == 6 * (weights + 4)
    assert sent(16).traffic.peer == 6 * (2 * weights + 4)


def test_record_holds_the_spectral_gap():
    for name, wanted in (("ring", 0.127322), ("complete", 1.0)):
        topology = Topology(name, mixing="metropolis")
        assert spectral_gap(topology.links(1, list(range(10)), 10, 0)) == pytest.approx(wanted, abs=1e-6)
        finished = run_rounds(line(DFedAvgM(), [0.0] * 10, topology=Topology(name)), rounds=1)
        assert finished.records["spectral_gap"] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("momentum", [-0.1, 1.0])
def test_momentum_that_makes_no_sense_is_refused(momentum):
    with pytest.raises(InputError, match="momentum"):
        DFedAvgM(momentum=momentum)
