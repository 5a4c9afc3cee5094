"""FedOMD on features of any size, and what its published version does differently."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import graft
from graft.experiments.experiment import make_experiment
from graft.methods.fedomd import FedOMD, FedOMDPaper, central_moments
from tests.methods.prototypes import hand_graph, mirror_setup
from tests.methods.test_fedomd import ortho_setup, watch
from tests.toy import run_rounds, same

PREPARED = ("raw", "row", "l2", "standard")
CLASSES, WORDS = 4, 400
SPLIT = "30/40/30"


def documents(homophily, nodes=320):
    """A graph of documents that have 18 of 400 words, half of them from those of their class."""
    random = np.random.default_rng(0)
    classes = random.permutation(np.arange(nodes) % CLASSES)
    words = np.where(
        random.random((nodes, 18)) < 0.5,
        classes[:, None] + CLASSES * random.integers(0, 100, (nodes, 18)),
        random.integers(0, WORDS, (nodes, 18)),
    )
    x = np.zeros((nodes, WORDS), np.float32)
    np.put_along_axis(x, words, 1, axis=1)
    sources = np.repeat(np.arange(nodes), 2)
    wanted = classes[sources] ^ (random.random(len(sources)) >= homophily)  # else of its partner: 0 of 1, 2 of 3
    targets = np.array([random.choice(np.flatnonzero(classes == kind)) for kind in wanted])
    return Data(torch.from_numpy(x), torch.from_numpy(np.stack([sources, targets])), y=torch.from_numpy(classes))


def global_accuracy(homophily, features, scale_free=True, **optimizer):
    """Validation accuracy of the global model after a few rounds of a federation whose classes are of one size."""
    result = graft.run(
        FedOMD(scale_free=scale_free),
        documents(homophily),
        features=features,
        clients=2,
        split=SPLIT,
        partition="random",
        rounds=15,
        evaluate_every=15,
        device="cpu",
        threads=1,
        **optimizer,
    )
    return result.rounds[-1]["validation_global"]


@pytest.mark.parametrize("homophily", [0.8, 0.1])
@pytest.mark.parametrize("features", PREPARED)
def test_no_preparation_of_features_ends_at_the_majority_class(homophily, features):
    assert global_accuracy(homophily, features) > 0.4  # a class has 0.25


def test_without_a_scale_of_its_own_small_features_end_at_the_majority_class():
    steps = {"optimizer": "momentum", "learning_rate": 0.1, "server_optimizer": "none", "feature_norm": 0}
    assert global_accuracy(0.8, "row", scale_free=False, **steps) < 0.4 < global_accuracy(0.8, "row", **steps)
    assert global_accuracy(0.8, "raw", scale_free=False, **steps) > 0.4


# As published --------------------------------------------------------------------------------------------------------


def test_the_published_version_is_in_its_defaults():
    printed = dict(beta=10.0, moment_nodes="train", span_from="fixed", span=1.0, scale_free=False)
    assert FedOMDPaper() == FedOMDPaper(**printed, newton_bound="frobenius", propagated=False)
    settings = printed | dict(newton_bound="frobenius", propagated=False)
    ours, papers = (run_rounds(ortho_setup(method), rounds=2) for method in (FedOMD(**settings), FedOMDPaper()))
    assert same(ours.server.state, papers.server.state)
    for name in settings.keys() - {"span"}:
        other = run_rounds(ortho_setup(FedOMDPaper(**{name: getattr(FedOMD(), name)})), rounds=2)
        assert not same(other.server.state, papers.server.state), name


def test_paper_steps_by_its_own_optimiser_unless_told_otherwise():
    paper, ours = (make_experiment({"method": name}) for name in ("fedomd_paper", "fedomd"))
    assert (paper.optimizer, paper.learning_rate, paper.server_optimizer) == ("momentum", 0.1, "none")
    assert (ours.optimizer, ours.server_optimizer) == ("sgd", "adam")
    named = make_experiment({"method": "fedomd", "optimizer": "adam", "server_optimizer": "none"})
    assert (named.optimizer, named.server_optimizer) == ("adam", "none")


def test_moments_of_training_nodes_by_hand():
    """{0, 1, 9} of which {0, 1} train and {1, 1, 4, 7} of which {1, 1, 4} do: the moments of {0, 1, 1, 1, 4}."""
    graphs = [
        hand_graph([(0,), (1,), (9,)], [0, 1, 0], 2, [True, True, False]),
        hand_graph([(1,), (1,), (4,), (7,)], [0, 1, 0, 1], 2, [True, True, True, False]),
    ]
    method = FedOMD(moment_nodes="train")
    finished, engine = watch(mirror_setup(method, graphs))
    (_, means), (center, _), (target, _) = engine.seen
    assert means.stacked().mean.flatten().tolist() == [0.5, 2.0]
    assert means.size.tolist() == [2, 3]
    assert means.stacked().high.flatten().tolist() == [1, 4]
    found = torch.cat([center.message.mean.flatten(), target.message.moments.flatten()])
    torch.testing.assert_close(found, torch.tensor([1.4, 1.84, 2.928, 9.9232, 22.68096]))
    torch.testing.assert_close(finished.records["discrepancy"], torch.tensor([0.430793, 0.202209]))
    _, other = watch(mirror_setup(replace(method, moment_nodes="all"), graphs))
    assert other.seen[0][1].size.tolist() == [3, 4]
    assert float(other.seen[1][0].message.mean) == pytest.approx(23 / 7)


def test_client_without_a_training_node_has_no_part_in_their_moments():
    features = torch.tensor([[[1.0], [3.0]], [[5.0], [7.0]]])
    counted = torch.tensor([[True, True], [False, False]])
    moments = central_moments(features, counted, 3).squeeze(2)
    assert moments.tolist() == [[2, 1, 0], [0, 0, 0]]
    assert central_moments(features, torch.ones(2, 2).bool(), 3).squeeze(2).tolist() == [[2, 1, 0], [6, 1, 0]]
