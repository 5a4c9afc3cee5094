"""OSGP and SGP: cases worked out by hand."""

import numpy as np
import pytest
import torch

from graft.errors import InputError
from graft.federation.topologies import Topology, exponential
from graft.methods.fedavg import FedAvg
from graft.methods.local import Local
from graft.methods.osgp import OSGP
from graft.tensors.trees import count_bytes
from tests.methods.line import line, places
from tests.toy import gap, run_rounds, toy_setup

COMPLETE, NOBODY = Topology("complete"), Topology("none")
STARTS = [0.0, 2.0, 4.0, -1.0, 7.0]


@pytest.fixture
def one_way(tmp_path):
    """Peer 0 is heard by 1, peer 1 by 2, and peer 2 by both others."""
    file = tmp_path / "links.csv"
    file.write_text("to,from\n1,0\n2,1\n0,2\n1,2\n", encoding="utf-8")
    return Topology(str(file))


def held(finished, part):
    state = finished.engine.state()
    return torch.stack([state[peer].held[part] if part == "mass" else state[peer].held.sum.x for peer in state])


def totals(finished):
    """All that peers hold and all that is on its way to them: sums and masses."""
    found = torch.zeros(2)
    for state in finished.engine.state().values():
        found += torch.stack([state.held.sum.x, state.held.mass])
        if "coming" in state:
            found += torch.stack([state.coming.sum.x.sum(), state.coming.mass.sum()])
    return found


def test_push_by_hand(one_way):
    def after(rounds):
        return run_rounds(line(OSGP(delay=0), [3.0, 0.0, 6.0], topology=one_way), rounds=rounds)

    torch.testing.assert_close(held(after(1), "sum"), torch.tensor([3.5, 3.5, 2.0]))
    torch.testing.assert_close(held(after(1), "mass"), torch.tensor([5 / 6, 4 / 3, 5 / 6]))
    torch.testing.assert_close(places(after(1)), torch.tensor([4.2, 2.625, 2.4]))
    torch.testing.assert_close(places(after(2)), torch.tensor([3.48, 3.06122, 2.55882]))
    many = after(60)
    torch.testing.assert_close(places(many), torch.full((3,), 3.0))
    torch.testing.assert_close(held(many, "sum"), torch.tensor([2.0, 4.0, 3.0]))  # a mean of sums would be biased


def test_late_messages_by_hand():
    def after(rounds):
        return run_rounds(line(OSGP(delay=1), [0.0, 4.0]), rounds=rounds)

    assert held(after(1), "sum").tolist() == [0, 2]  # half stays, half is on its way
    assert held(after(1), "mass").tolist() == [0.5, 0.5]
    assert places(after(1)).tolist() == [0, 4]
    assert held(after(2), "sum").tolist() == [2, 1]
    assert held(after(2), "mass").tolist() == [0.75, 0.75]
    torch.testing.assert_close(places(after(2)), torch.tensor([8 / 3, 4 / 3]))
    assert places(run_rounds(line(OSGP(delay=0), [0.0, 4.0]), rounds=1)).tolist() == [2, 2]


@pytest.mark.parametrize("delay", [0, 1, 2, 3])
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_nothing_is_lost_on_the_way(delay, participation):
    for rounds in range(5):
        finished = run_rounds(line(OSGP(delay=delay), STARTS, participation=participation), rounds=rounds)
        torch.testing.assert_close(totals(finished), torch.tensor([12.0, 5.0]))
    assert delay == 0 or float(held(finished, "mass").sum()) < 4.5  # without what is on its way, mass would be missing


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_peers_at_rest_agree_on_the_mean_however_late_messages_are(delay):
    agreed = places(run_rounds(line(OSGP(delay=delay), STARTS), rounds=50 * (delay + 1)))
    torch.testing.assert_close(agreed, torch.full((5,), 2.4))


def test_sum_moves_along_in_proportion_to_the_mass():
    finished = run_rounds(line(OSGP(delay=1), [0.0, 4.0], [1.0, 1.0], 1.0), rounds=1)
    trained = torch.tensor([0.1, 3.7])
    torch.testing.assert_close(places(finished, "trained"), trained)
    torch.testing.assert_close(held(finished, "sum"), trained / 2)
    again = run_rounds(line(OSGP(delay=1), [0.0, 4.0], [1.0, 1.0], 1.0), rounds=2)
    # At 0.1 and 3.7 the gradients are -0.9 and 2.7; sums of half a mass move half as far.
    moved = trained / 2 + 0.5 * torch.tensor([0.09, -0.27])
    torch.testing.assert_close(held(again, "sum"), moved / 2 + trained.flip(0) / 2)


def test_model_is_the_sum_by_the_mass():
    finished = run_rounds(toy_setup(OSGP(), clients=5, dropout=0.5), rounds=4)
    for peer in range(5):
        state = finished.client(peer)
        assert 0 < float(state.held.mass) < 1
        assert gap({"x": state.held.sum.head.weight / state.held.mass}, {"x": state.model.head.weight}) < 1e-6


def test_complete_graph_without_delay_is_plain_federated_averaging():
    ours = run_rounds(toy_setup(OSGP(delay=0), topology=COMPLETE), rounds=1)
    server = run_rounds(toy_setup(FedAvg(), weight_by="uniform"), rounds=1).server.state.model
    assert all(gap(ours.client(peer).model, server) < 1e-6 for peer in range(3))
    late = run_rounds(toy_setup(OSGP(delay=1), topology=COMPLETE), rounds=1)
    assert gap(late.client(0).model, server) > 1e-3


@pytest.mark.parametrize("delay", [0, 1])
def test_without_links_it_is_local_training(delay):
    ours = run_rounds(toy_setup(OSGP(delay=delay), topology=NOBODY), rounds=3)
    alone = run_rounds(toy_setup(Local()), rounds=3)
    linked = run_rounds(toy_setup(OSGP(delay=delay)), rounds=3)
    for peer in range(3):
        assert gap(ours.client(peer).model, alone.client(peer).model) < 1e-5
        assert gap(linked.client(peer).model, alone.client(peer).model) > 1e-3


def test_peer_with_next_to_no_mass_keeps_its_model():
    finished = run_rounds(
        line(OSGP(delay=60), [1.0, 4.0]), rounds=40
    )  # nothing has arrived, and 40 halves were given away
    assert held(finished, "mass").tolist() == [2**-40] * 2
    assert places(finished).tolist() == [1, 4]


def test_peers_are_reached_in_steps_that_double():
    def reached(round, peers=10, k=1):
        return sorted(np.flatnonzero(exponential(peers, round, None, k)[:, 0]).tolist())

    assert [reached(round) for round in range(1, 6)] == [[1], [2], [4], [8], [1]]
    assert [reached(round, k=2) for round in range(1, 5)] == [[1, 2], [3, 6], [8, 9], [1, 2]]
    assert [reached(round, peers=2) for round in (1, 2)] == [[1], [1]]
    assert reached(1, peers=1) == []
    records = run_rounds(line(OSGP(fan_out=2), [0.0] * 10), rounds=1).records
    assert records["busiest_sender_bytes"] == 2 * 8


def test_messages_are_a_model_and_its_mass():
    finished = run_rounds(toy_setup(OSGP()), rounds=2)
    assert finished.traffic.peer == 2 * 3 * (count_bytes(finished.client(0).model) + 4)


@pytest.mark.parametrize("settings", [{"delay": -1}, {"fan_out": 0}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        OSGP(**settings)
