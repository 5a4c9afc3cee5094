"""FedTAD's reliabilities as votes in a host's average, worked out by hand."""

import pytest
import torch

from graft.errors import InputError
from graft.federation.plug import plugged
from graft.methods.fedavg import FedAvg
from graft.methods.feddc import FedDC
from graft.methods.fedgta import FedGTA
from graft.methods.fedtad import Distillation, FedTAD
from graft.methods.fedtad.votes import by_client, with_reliable_head
from graft.methods.scaffold import SCAFFOLD
from graft.tensors.trees import Tree, flatten, map_tree, stack, weighted_mean
from tests.methods.fedtad.cases import reported_by
from tests.toy import gap, run_rounds, same, toy_graphs, toy_setup

RELIABILITY = torch.tensor([[1.0, 0.0, 6.0], [3.0, 0.0, 2.0]])  # of two clients; nobody has the second class


def test_vote_of_a_client_is_the_mean_of_its_shares():
    assert by_client(RELIABILITY, torch.tensor([5, 5])).tolist() == pytest.approx([(1 / 4 + 3 / 4) / 3] * 2)
    more = RELIABILITY + torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert by_client(more, torch.tensor([5, 5])).tolist() == pytest.approx([2 / 3, 1 / 3])
    assert by_client(more, torch.tensor([0, 5])).tolist() == pytest.approx([0, 1 / 3])  # it has nothing to train on
    assert by_client(torch.zeros(2, 3), torch.tensor([5, 7])).tolist() == [5, 7]  # nobody is reliable for anything


def test_last_layer_moves_from_the_mean_by_votes_to_that_by_reliability():
    heads = torch.tensor([[[8.0, 8.0, 8.0]], [[16.0, 16.0, 16.0]]])  # of two clients, [1, classes] each
    bodies = torch.tensor([[2.0], [4.0]])
    models = Tree(layer0=Tree(weight=bodies), head=Tree(weight=heads))
    votes = torch.tensor([1.0, 3.0])
    moved = with_reliable_head(weighted_mean(models, votes), models, votes, RELIABILITY)
    assert moved.head.weight.tolist() == [[0.25 * 8 + 0.75 * 16, 14, 0.75 * 8 + 0.25 * 16]]
    assert moved.layer0.weight.tolist() == [3.5]
    # What a host adds to the mean stays.
    higher = map_tree(lambda leaf: leaf + 100, weighted_mean(models, votes))
    assert with_reliable_head(higher, models, votes, RELIABILITY).head.weight.tolist() == [[114, 114, 110]]


def first_round(method, graphs):
    finished = run_rounds(toy_setup(method, graphs=graphs), rounds=1)
    return finished.server.state.model, stack([finished.client(client).model for client in range(len(graphs))])


def test_average_of_a_round_has_these_votes():
    graphs = toy_graphs()
    reliability = reported_by(graphs).reliability
    plain, models = first_round(FedAvg(), graphs)
    by_clients, _ = first_round(FedTAD(votes="client", iterations=0), graphs)
    shares = (reliability / reliability.sum(0)).mean(1)
    assert gap(by_clients, weighted_mean(models, shares)) < 1e-6
    assert gap(by_clients, plain) > 1e-4
    by_classes, _ = first_round(FedTAD(votes="class", iterations=0), graphs)
    columns = torch.einsum("kwc,kc->wc", models.head.weight, reliability / reliability.sum(0))
    torch.testing.assert_close(by_classes.head.weight, columns, atol=1e-6, rtol=1e-5)
    assert same(by_classes.layer0, plain.layer0)
    assert gap(by_classes.head, plain.head) > 1e-4


@pytest.mark.parametrize("host", [FedAvg, SCAFFOLD, FedDC])
@pytest.mark.parametrize("votes", ["client", "class"])
def test_without_distillation_and_votes_of_its_own_a_host_is_itself(host, votes):
    kind = plugged(host, Distillation)
    plain, off, weighed = (
        run_rounds(toy_setup(method, clients=4, participation=0.5), rounds=3).server.state
        for method in (host(), kind(iterations=0), kind(iterations=0, votes=votes))
    )
    assert same(plain.model, off.model)
    assert gap(plain.model, weighed.model) > 1e-5
    assert all(leaf.isfinite().all() for _, leaf in flatten(weighed.model))


def test_equal_reliabilities_give_every_client_one_vote():
    graphs = toy_graphs()
    equal, models = first_round(FedTAD(votes="client", reliability="equal", iterations=0), graphs)
    assert gap(equal, weighted_mean(models, torch.ones(len(graphs)))) < 1e-6
    both, _ = first_round(FedTAD(votes="client", reliability="equal"), graphs)
    assert gap(both, equal) > 1e-5  # distillation starts from there


def test_hosts_whose_average_has_no_votes_or_no_single_model_are_refused():
    kind = plugged(FedGTA, Distillation)
    with pytest.raises(Exception, match="averages by the votes"):
        run_rounds(toy_setup(kind(votes="client", iterations=0)), rounds=1)
    with pytest.raises(InputError, match="one model at the server"):
        run_rounds(toy_setup(kind(votes="class", iterations=0)), rounds=1)
