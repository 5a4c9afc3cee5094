"""Segmented gossip: cases worked out by hand."""

import pytest
import torch

from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.errors import InputError
from graft.federation.topologies import Topology
from graft.methods.fedavg import FedAvg
from graft.methods.gossip import Gossip
from graft.methods.local import Local
from graft.tensors.trees import Tree, count_bytes
from tests.methods.line import Numbers, line, places
from tests.toy import gap, run_rounds, same, toy_setup


def test_two_peers_of_two_segments_meet_in_the_middle():
    finished = run_rounds(line(Gossip(segments=2, sources=1), [[0.0] * 4, [2.0] * 4]), rounds=1)
    assert places(finished).tolist() == [[1.0] * 4] * 2


def test_votes_count():
    # Two peers of 12 and 9 nodes at 0 and 7.
    finished = run_rounds(line(Gossip(segments=1, sources=1), [[0.0], [7.0]], weight_by="nodes"), rounds=1)
    torch.testing.assert_close(places(finished), torch.full((2, 1), 3.0))
    assert places(run_rounds(line(Gossip(segments=1, sources=1), [[0.0], [7.0]]), rounds=1)).tolist() == [[3.5], [3.5]]


@pytest.mark.parametrize("segments", [1, 3, 10, 10**6])
def test_pulling_from_everybody_is_federated_averaging(segments):
    server = run_rounds(toy_setup(FedAvg()), rounds=1).server.state.model
    for sources in (2, 5):  # more than there are means all there are
        ours = run_rounds(toy_setup(Gossip(segments, sources)), rounds=1)
        assert all(gap(ours.client(peer).model, server) < 1e-6 for peer in range(3))
    fewer = run_rounds(toy_setup(Gossip(segments, 1)), rounds=1)
    assert gap(fewer.client(0).model, server) > 1e-3


def test_pulling_from_nobody_is_local_training_bit_for_bit():
    ours, alone = (run_rounds(toy_setup(method, dropout=0.5), rounds=3) for method in (Gossip(sources=0), Local()))
    linked = run_rounds(toy_setup(Gossip(), dropout=0.5), rounds=3)
    for peer in range(3):
        assert same(ours.client(peer).model, alone.client(peer).model)
        assert not same(linked.client(peer).model, alone.client(peer).model)
    assert ours.traffic.peer == 0


def test_nothing_changes_where_all_are_equal():
    starts = [[1.0, 2.0, 5.0, 7.0]] * 4
    torch.testing.assert_close(places(run_rounds(line(Gossip(3, 2), starts), rounds=3)), torch.tensor(starts))
    starts[1] = [2.0, 2.0, 5.0, 7.0]
    assert not torch.allclose(places(run_rounds(line(Gossip(3, 2), starts), rounds=3)), torch.tensor(starts))


def pulled(segments, seed=0, width=3000):
    """Where peer 0 gets, coordinate by coordinate, that is at 0 and pulls from one of 3, 6 and 9."""
    starts = [[value] * width for value in (0.0, 3.0, 6.0, 9.0)]
    return places(run_rounds(line(Gossip(segments, 1), starts, seed=seed), rounds=1))[0]


def test_segments_come_from_peers_of_their_own():
    assert pulled(1).unique().numel() == 1
    for values in pulled(10).view(10, 300):
        assert values.unique().numel() == 1
    assert set(pulled(3000).tolist()) == {1.5, 3, 4.5}
    assert float(pulled(3000).mean()) == pytest.approx(3.0, abs=0.1)
    # Whole models are right on average too, over runs: every source comes up.
    assert {float(pulled(1, seed, width=2)[0]) for seed in range(12)} == {1.5, 3, 4.5}


def test_links_are_drawn_anew_for_every_peer_round_and_segment():
    setup = toy_setup(Gossip(), clients=6)
    fleet = setup.fleet(list(range(6)))
    setup.method.start_client(fleet)

    def links(round):
        return setup.method.pull(fleet.for_call(round, "pull"))["links"]

    first = links(1)
    assert first.shape == (6, 10, 6)
    assert ((first > 0).sum(2) == 3).all()
    assert (first.diagonal(dim1=0, dim2=2) > 0).all()
    assert not torch.equal(first, links(2))
    assert torch.equal(first, links(1))
    assert not torch.equal(first[:, 0], first[:, 1])
    alone = setup.fleet([4])
    setup.method.start_client(alone)
    alone = alone.for_call(1, "pull")
    assert torch.equal(setup.method.pull(alone)["links"][0], first[4])


def test_every_peer_pulls_as_much_whatever_the_number_of_segments():
    weights = count_bytes(run_rounds(toy_setup(Gossip()), rounds=0).client(0).model) // 4
    assert weights == 155
    whole = run_rounds(toy_setup(Gossip(1, 2)), rounds=1)
    assert whole.traffic.peer == 3 * 2 * 4 * (155 + 1)  # with a vote
    cut = run_rounds(toy_setup(Gossip(10, 2)), rounds=1)
    assert cut.traffic.peer == 3 * 2 * 4 * (160 + 10)  # ten segments of 16, with a vote each
    assert whole.records["busiest_receiver_bytes"] == whole.traffic.peer // 3
    assert run_rounds(toy_setup(Gossip(10, 1), clients=6), rounds=1).records["busiest_sender_bytes"] > 4 * (160 + 10)


def test_only_what_was_pulled_arrives():
    setup = toy_setup(Gossip(segments=7, sources=1), clients=4, dropout=0.5)
    here, engine = run_rounds(setup), Loopback(setup)
    try:
        there = run_rounds(setup, engine=engine)
        assert all(gap(here.client(peer), there.client(peer)) < 1e-5 for peer in range(4))
    finally:
        engine.close()


def test_links_of_the_experiment_carry_whole_models():
    ours = run_rounds(toy_setup(Gossip(), clients=4, topology=Topology("ring")), rounds=1)
    assert ours.traffic.peer == 8 * 4 * (160 + 10)
    everyone = run_rounds(toy_setup(Gossip(), clients=4, topology=Topology("complete")), rounds=1)
    server = run_rounds(toy_setup(FedAvg(), clients=4), rounds=1).server.state.model
    assert gap(everyone.client(0).model, server) < 1e-6
    assert gap(ours.client(0).model, server) > 1e-3


def test_buffers_stay_with_their_owner():
    class Buffered(Numbers):
        frozen = frozenset({"seen"})

        def start(self, generator):
            return super().start(generator) | Tree(seen=torch.zeros(2), count=torch.tensor(0))

    setup = toy_setup(Gossip(), clients=2, models=Buffered((3,)), epochs=0, weight_by="uniform")
    engine = InProcess(setup)
    state = engine.fleets[0].state
    for field in (state.model, state.trained):
        field.x, field.seen, field["count"] = torch.tensor([[0.0] * 3, [4.0] * 3]), torch.eye(2), torch.tensor([3, 8])
    finished = run_rounds(setup, rounds=1, engine=engine)
    assert finished.client(0).model.x.tolist() == [2, 2, 2]
    assert [finished.client(peer).model.seen.tolist() for peer in (0, 1)] == [[1, 0], [0, 1]]
    assert [int(finished.client(peer).model["count"]) for peer in (0, 1)] == [3, 8]


@pytest.mark.parametrize("settings", [{"segments": 0}, {"sources": -1}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        Gossip(**settings)
