"""FedDual: cases worked out by hand."""

import pytest
import torch

from graft.errors import InputError
from graft.federation.clients import Clients
from graft.federation.topologies import Topology
from graft.methods.fedavg import FedAvg
from graft.methods.feddual import FedDual
from graft.methods.local import Local
from graft.tensors.trees import count_bytes, flatten
from tests.methods.line import line, places
from tests.toy import gap, run_rounds, same, toy_setup

NOBODY = Topology("none")
NOISY = {"clip": 1e3, "epsilon": 1e30}  # noise of a scale that no float notices


def test_two_peers_are_federated_averaging():
    ours, server = (run_rounds(toy_setup(method, clients=2), rounds=1) for method in (FedDual(), FedAvg()))
    assert all(gap(ours.client(peer).model, server.server.state.model) < 1e-6 for peer in (0, 1))
    plain = run_rounds(toy_setup(FedAvg(), clients=2, weight_by="uniform"), rounds=1)
    assert gap(ours.client(0).model, plain.server.state.model) > 1e-4


@pytest.mark.parametrize("hierarchical", [False, True])
def test_peer_without_a_partner_trains_alone_bit_for_bit(hierarchical):
    method = FedDual(hierarchical=hierarchical)
    for settings in ({"clients": 3, "topology": NOBODY}, {"clients": 1}):
        ours, alone = (run_rounds(toy_setup(kind, dropout=0.5, **settings), rounds=3) for kind in (method, Local()))
        assert same(ours.client(0).model, alone.client(0).model)
    linked = run_rounds(toy_setup(method, clients=2, dropout=0.5), rounds=3)
    assert not same(linked.client(0).model, alone.client(0).model)


@pytest.mark.parametrize("weight_by", ["nodes", "uniform"])
def test_pairs_keep_the_mean_by_votes(weight_by):
    starts, votes = [0.0, 2.0, 4.0, -1.0, 7.0], torch.tensor([12.0, 9, 7, 12, 9])
    votes = votes if weight_by == "nodes" else torch.ones(5)
    finished = run_rounds(line(FedDual(), starts, weight_by=weight_by), rounds=1)
    assert float((votes * places(finished)).sum()) == pytest.approx(
        float((votes * torch.tensor(starts)).sum()), abs=1e-4
    )
    assert len(set(places(finished).tolist())) == 3  # two pairs, and one that rests
    assert (places(finished) == torch.tensor(starts)).sum() == 1


def rests(round, peers):
    links = Topology("matching").links(round, list(range(peers)), peers, 0)
    return (links.diagonal() == 1).nonzero().flatten().tolist()


def test_odd_one_out_changes_from_round_to_round():
    assert sorted(peer for round in range(1, 6) for peer in rests(round, 5)) == [0, 1, 2, 3, 4]
    assert rests(1, 6) == []


@pytest.mark.parametrize("peers", [2, 4, 8])
@pytest.mark.parametrize("weight_by", ["nodes", "uniform"])
def test_tournament_brings_all_together(peers, weight_by):
    starts = [float(peer * peer) for peer in range(peers)]
    votes = torch.tensor([(12.0, 9.0, 7.0)[peer % 3] for peer in range(peers)])
    votes = votes if weight_by == "nodes" else torch.ones(peers)
    wanted = (votes * torch.tensor(starts)).sum() / votes.sum()
    finished = run_rounds(line(FedDual(hierarchical=True), starts, weight_by=weight_by), rounds=1)
    torch.testing.assert_close(places(finished), wanted.expand(peers))
    pairs = run_rounds(line(FedDual(), starts, weight_by=weight_by), rounds=1)
    assert peers == 2 or len(set(places(pairs).tolist())) == peers // 2
    assert finished.traffic.peer == pairs.traffic.peer * (peers - 1).bit_length()


def test_tournament_of_three_leaves_one_of_the_first_pair_behind():
    met = places(run_rounds(line(FedDual(hierarchical=True), [0.0, 3.0, 9.0]), rounds=1)).tolist()
    assert sum(abs(place - 4) < 1e-5 for place in met) == 2  # the mean of all, groups counted by their members
    assert min(met, key=lambda place: -abs(place - 4)) in (1.5, 4.5, 6)  # the mean of one pair


def test_levels_of_a_tournament_are_one_draw():
    peers = list(range(8))
    levels = [Topology("tournament", {"level": level}).links(3, peers, 8, 0) for level in range(3)]
    torch.testing.assert_close(levels[2] @ levels[1] @ levels[0], torch.full((8, 8), 1 / 8, dtype=torch.float64))
    other = Topology("tournament", {"level": 0}).links(4, peers, 8, 0)
    assert not torch.equal(levels[0], other)


def test_record_has_the_links_of_every_level():
    setup = line(FedDual(hierarchical=True), [0.0, 1.0, 2.0, 3.0])
    finished = run_rounds(setup, rounds=0)
    links = setup.method.conduct(finished.server, Clients(finished.engine, 2, [0, 1, 2, 3]))
    assert list(links) == ["merge", "merge 2"]


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_noise_too_small_to_notice_changes_nothing(noise):
    ours, plain = (run_rounds(toy_setup(FedDual(**settings)), rounds=2) for settings in ({"noise": noise} | NOISY, {}))
    loud = run_rounds(toy_setup(FedDual(noise=noise, clip=1e3, epsilon=1e4)), rounds=2)
    for peer in range(3):
        assert gap(ours.client(peer).model, plain.client(peer).model) < 1e-5
        assert gap(loud.client(peer).model, plain.client(peer).model) > 1e-3


def test_training_goes_no_further_than_the_clip():
    def length(clip):
        method = FedDual(noise="gaussian", clip=clip, epsilon=1e30)
        setup = toy_setup(method, topology=NOBODY)
        before, after = run_rounds(setup, rounds=0), run_rounds(setup, rounds=1)
        start = dict(flatten(before.client(0).model))
        moved, trained = (
            sum(float((leaf - start[path]).square().sum()) for path, leaf in flatten(after.client(0)[field])) ** 0.5
            for field in ("model", "trained")
        )
        return moved, trained

    assert length(0.1)[0] == pytest.approx(0.1, abs=1e-4)
    assert length(0.1)[1] > 0.2  # what was trained is still there, but nobody sees it
    assert length(1e3)[0] == pytest.approx(length(1e3)[1], abs=1e-4)


@pytest.mark.parametrize(("noise", "deviation"), [("gaussian", 1.0), ("laplace", 2**0.5)])
def test_scale_of_the_noise_is_clip_by_epsilon(noise, deviation):
    finished = run_rounds(line(FedDual(noise=noise, clip=3.0, epsilon=2.0), [[0.0] * 20000], topology=NOBODY), rounds=1)
    drawn = places(finished)[0]
    assert float(drawn.mean()) == pytest.approx(0, abs=0.05)
    assert float(drawn.std()) == pytest.approx(1.5 * deviation, rel=0.03)
    wanted = 1.5 * (2 / torch.pi) ** 0.5 if noise == "gaussian" else 1.5
    assert float(drawn.abs().mean()) == pytest.approx(wanted, rel=0.03)


def test_a_model_and_a_vote_go_each_way():
    finished = run_rounds(toy_setup(FedDual(), clients=4), rounds=2)
    assert finished.traffic.peer == 2 * 4 * (count_bytes(finished.client(0).model) + 4)
    odd = run_rounds(toy_setup(FedDual(), clients=5), rounds=2)
    assert odd.traffic.peer == finished.traffic.peer


@pytest.mark.parametrize("settings", [{"clip": 0.0}, {"epsilon": 0.0}, {"epsilon": -1.0}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        FedDual(**settings)
