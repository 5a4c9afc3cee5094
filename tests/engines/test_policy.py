"""A party's policy: constant models return exact class counts, and the default lets no such score out."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from graft.engines.in_process import InProcess
from graft.engines.policy import Policy, ScoreGate, read_policy, scoring_steps
from graft.errors import InputError
from graft.federation.clients import Clients
from graft.federation.method import step
from graft.federation.reveals import SCORES
from graft.federation.server import Server
from graft.methods import METHODS
from graft.methods.fedavg import FedAvg
from graft.tensors.trees import flatten, map_tree
from tests.toy import CLASSES, toy_graphs, toy_setup

PLENTY = (100, 100, 100)


def constant_model(setup, label, strength=1.0):
    """Weights that make every node a node of one class."""
    model = map_tree(torch.zeros_like, Server.of(setup).initial())
    (bias,) = [leaf for path, leaf in flatten(model) if path.endswith("bias") and leaf.shape[-1] == CLASSES]
    bias[..., label] = strength
    return model


def class_counts(label):
    """How many nodes of a class each client has in each of its masks."""
    graphs = toy_graphs()
    return [[int(((graph.y == label) & mask).sum()) for mask in graph.masks.values()] for graph in graphs]


def clients_of(setup):
    """The clients of a federation, whatever they are asked."""
    engine = InProcess(setup)
    return Clients(engine, 1, engine.members())


def test_constant_models_that_are_scored_return_the_class_counts_of_every_mask():
    """The attack that a policy is for: all that `score_shared` needs is a model that the server made up."""
    method = FedAvg()
    setup = toy_setup(method, graphs=toy_graphs())
    clients = clients_of(setup)
    for label in range(CLASSES):
        correct = clients.ask(method.score_shared, constant_model(setup, label)).correct
        assert correct.squeeze(1).tolist() == class_counts(label)
    assert class_counts(0) != class_counts(1)


def test_the_default_policy_scores_no_model_that_a_party_is_sent():
    gate = ScoreGate(Policy(), FedAvg(), PLENTY)
    assert gate.allows("score_shared", 1) == "its policy scores no model but its own"
    assert gate.allows("measure_shared", 1) == "its policy scores no model but its own"
    assert gate.allows("score", 1) is None
    assert gate.allows("count", 0) is None
    assert ScoreGate(Policy(scores="all"), FedAvg(), PLENTY).allows("score_shared", 1) is None


def test_the_own_model_can_be_steered_where_training_starts_from_what_the_server_sends():
    """What the default does not stop, as the docstring of `Policy` says: weights so large that training leaves them."""
    method = FedAvg()
    setup = toy_setup(method, graphs=toy_graphs())
    clients = clients_of(setup)
    clients.ask(method.train, constant_model(setup, 1, strength=1e6))
    assert clients.ask(method.score).correct.squeeze(1).tolist() == class_counts(1)
    clients.ask(method.train, Server.of(setup).initial())
    assert clients.ask(method.score).correct.squeeze(1).tolist() != class_counts(1)
    assert ScoreGate(Policy(scores="never"), method, PLENTY).allows("score", 1) == "its policy lets no score out"


def test_no_score_leaves_where_a_mask_has_few_nodes():
    for policy in (Policy(), Policy(scores="all")):
        assert "fewer than the 20 nodes" in ScoreGate(policy, FedAvg(), (100, 19, 100)).allows("score", 1)
        assert "fewer than the 20 nodes" in ScoreGate(policy, FedAvg(), (100, 19, 100)).allows("count", 0)
        assert ScoreGate(policy, FedAvg(), (20, 20, 20)).allows("score", 1) is None
    assert ScoreGate(Policy(minimum_count=5), FedAvg(), (100, 19, 100)).allows("score", 1) is None


def test_scores_leave_once_a_round_and_a_restart_does_not_change_that():
    gate = ScoreGate(Policy(), FedAvg(), PLENTY)
    gate.answered("score", 1)
    again = ScoreGate(Policy(), FedAvg(), PLENTY)
    again.restore(gate.state())
    for kept in (gate, again):
        assert kept.allows("score", 1) == "its policy lets scores out 1 times a round"
        assert kept.allows("measure", 1) is None  # other metrics, of which there is one answer as well
        assert kept.allows("score", 0) == "round 0 is over"
        assert kept.allows("score", 2) is None
    gate.answered("score", 2)
    assert gate.allows("score", 1) == "round 1 is over"
    assert ScoreGate(Policy(), FedAvg(), PLENTY).allows("score", 1) is None


def test_steps_that_training_needs_are_none_of_a_policy_s_business():
    gate = ScoreGate(Policy(scores="never", scores_per_round=0), FedAvg(), PLENTY)
    for _ in range(3):
        assert gate.allows("train", 1) is None
        gate.answered("train", 1)
    assert gate.state() == {"round": 0, "answered": {}}


def test_numbers_of_nodes_leave_only_where_scores_do():
    assert (
        ScoreGate(Policy(counts=False), FedAvg(), PLENTY).allows("count", 0) == "its policy lets no number of nodes out"
    )
    assert ScoreGate(Policy(scores="never"), FedAvg(), PLENTY).allows("count", 0) == "its policy lets no score out"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_the_scoring_steps_of_its_kind(name):
    kinds = scoring_steps(METHODS[name]())
    expected = {"score": "own", "measure": "own", "score_shared": "sent", "measure_shared": "sent", "count": "counts"}
    assert expected.items() <= kinds.items()
    assert set(kinds) - set(expected) <= {"score_trained", "measure_trained"}


def test_scores_of_an_own_method_are_known_by_their_declaration():
    @dataclass(frozen=True)
    class Curious(FedAvg):
        reveals: ClassVar = {"judge/right": SCORES, "look/right": SCORES}

        @step
        def judge(self, fleet, model):
            return {"right": fleet.correct(model)}

        @step
        def look(self, fleet):
            return {"right": fleet.correct(fleet.state.model)}

    kinds = scoring_steps(Curious())
    assert (kinds["judge"], kinds["look"], kinds.get("train")) == ("sent", "own", None)


def test_a_policy_file_is_read_and_flags_come_on_top(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text('scores = "all"\nminimum_count = 5\n')
    assert read_policy(path) == Policy("all", 5)
    assert read_policy(path, scores="never", minimum_count=None) == Policy("never", 5)
    assert read_policy() == Policy()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('score = "all"', "has no 'score' .did you mean 'scores'"),
        ('scores = "some"', "must be never, own or all"),
        ("minimum_count = -1", "at least 0"),
        ("minimum_count = true", "whole number"),
        ("minimum_count = 1.5", "whole number"),
        ("counts = 1", "true or false"),
        ("scores_per_round = ", "not a readable TOML"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_in_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=sentence) as refusal:
        read_policy(path)
    assert str(refusal.value).startswith(str(path))
    with pytest.raises(InputError, match="no policy file"):
        read_policy(tmp_path / "none.toml")


def test_toy_masks_are_those_that_scores_are_of():
    """A control of the attack's figures: the three masks of a client hold all of its nodes."""
    counts = np.sum([class_counts(label) for label in range(CLASSES)], axis=(0, 2))
    assert counts.tolist() == [graph.nodes for graph in toy_graphs()]
