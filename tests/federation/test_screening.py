"""Who is left out of a round, worked out by hand."""

import pytest
import torch

from graft.engines.in_process import InProcess
from graft.federation.clients import Clients
from graft.federation.screening import LARGEST_VOTE, screen, screen_step, update_norm
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc import FedGKC
from graft.methods.fedproto import FedProto
from graft.tensors.trees import Tree, map_tree
from tests.toy import run_rounds, toy_setup

SENT = Tree(layer=Tree(weight=torch.tensor([3.0, 0.0]), steps=torch.tensor(5)))


def reply(first, second=0.0, weight=10.0):
    """A reply to `SENT`, whose update is [first, second]."""
    layer = Tree(weight=SENT.layer.weight + torch.tensor([first, second]), steps=torch.tensor(900))
    return Tree(model=Tree(layer=layer), weight=torch.tensor(weight))


def screened(*replies, max_norm=None, **more):
    replies = dict(enumerate(replies))
    options = {"votes": ["weight"], "models": ["model"], **more}
    return screen(replies, dict.fromkeys(replies, SENT), max_norm=max_norm, **options)


def test_honest_clients_stay():
    assert screened(reply(1.0), reply(2.0, weight=400.0), reply(0.0, 3.0, weight=0.0), max_norm=3) == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_who_sends_no_number_is_out(value):
    out = screened(reply(1.0), reply(value), reply(1.0, weight=value))
    assert out == {
        1: "sent numbers that are not finite ('model/layer/weight')",
        2: "sent numbers that are not finite ('weight')",
    }


@pytest.mark.parametrize("vote", [-1e9, -1.0, 1e12, float(2**37)])
def test_a_vote_that_cannot_be_is_out_even_of_one(vote):
    assert screened(reply(1.0, weight=vote)) == {0: f"claims a vote of {vote:.6g} ('weight')"}
    assert screened(reply(1.0, weight=float(LARGEST_VOTE))) == {}


def test_a_vote_that_would_drown_the_others_is_out():
    votes = [10.0, 20.0, 1e6]  # the median of the others of the third is 15
    assert screened(*(reply(1.0, weight=vote) for vote in votes)) == {
        2: "claims a vote of 1e+06, 6.67e+04 times the median of the others"
    }
    assert screened(*(reply(1.0, weight=vote) for vote in (10.0, 20.0, 15_000.0))) == {}
    assert screened(*(reply(1.0, weight=vote) for vote in (10.0, 1e6))) == {}  # of two nobody can say which is wrong
    # Who has nothing to train on says 0, and says nothing about what is usual.
    assert screened(*(reply(1.0, weight=vote) for vote in (0.0, 0.0, 10.0, 20.0, 9000.0))) == {}


def test_an_update_that_is_far_longer_than_the_median_is_out():
    replies = [reply(1.0), reply(0.0, 2.0), reply(3.0, 4.0), reply(-2.0), reply(12.0, 16.0)]  # 1, 2, 5, 2 and 20 long
    assert screened(*replies, max_norm=3) == {
        4: "sent an update 10 times as long as the median one, and 3 times is the most"
    }
    assert screened(*replies, max_norm=10) == {}
    assert set(screened(*replies, max_norm=2)) == {2, 4}
    assert screened(*replies) == {}


def test_who_is_out_already_does_not_shift_the_median():
    bad = reply(float("nan"))
    replies = [reply(1.0), reply(1.0), reply(1.0), reply(9.0), bad, bad, bad, bad]
    assert set(screened(*replies, max_norm=3)) == {3, 4, 5, 6, 7}


def test_clients_that_did_not_train_do_not_shift_the_median():
    still = [reply(0.0, weight=0.0)] * 5
    assert screened(*still, reply(1.0), reply(1.0), reply(2.0), max_norm=3) == {}
    assert set(screened(*still, reply(1.0), reply(1.0), reply(4.0), max_norm=3)) == {7}


def test_of_two_updates_nobody_can_say_which_is_wrong():
    assert screened(reply(1.0), reply(1000.0), max_norm=3) == {}


def test_an_update_is_what_changed_of_what_was_sent_and_else_the_reply_itself():
    model = reply(4.0, 3.0)
    assert update_norm(model, SENT, ["weight"], ["model"]) == 5
    assert update_norm(model, Tree(other=torch.ones(2), model=SENT), ["weight"], ["model"]) == 5
    zeros = Tree(layer=Tree(weight=torch.zeros(2), steps=torch.tensor(0)))
    assert update_norm(model, Tree(first=zeros, model=SENT), ["weight"], ["model"]) == 5  # by its name
    assert update_norm(model, Tree(first=zeros, second=SENT), ["weight"], ["model"]) == pytest.approx((49 + 9) ** 0.5)
    assert update_norm(model, None, ["weight"], ["model"]) == pytest.approx((49 + 9) ** 0.5)
    wider = Tree(layer=Tree(weight=torch.zeros(3), steps=torch.tensor(0)))
    assert update_norm(model, wider, ["weight"], ["model"]) == pytest.approx((49 + 9) ** 0.5)


def test_without_a_model_all_that_is_no_vote_is_measured():
    replies = {
        client: Tree(prototypes=torch.tensor([length, 0.0]), counts=torch.tensor([1, 2]), weight=torch.tensor(1e3))
        for client, length in enumerate((1.0, 1.0, 2.0, 50.0))
    }
    out = screen(replies, {}, ["weight"], max_norm=10)
    assert set(out) == {3}
    assert set(screen(replies, {}, max_norm=10)) == set()  # the weight is part of it then, and the same for all


def test_a_method_says_which_fields_are_votes_and_models():
    out = screen_step(
        FedAvg(),
        "train",
        dict(enumerate([reply(1.0), reply(1.0, weight=-5.0), reply(1.0), reply(2.0), reply(80.0)])),
        dict.fromkeys(range(5), SENT),
        max_norm=5,
    )
    assert set(out) == {1, 4}
    assert "vote" in out[1]
    assert "update" in out[4]


def test_what_is_only_logged_may_be_no_number():
    replies = {
        client: Tree(copilot=Tree(x=torch.ones(2)), size=torch.tensor(9), knowledge=torch.tensor(0.5), **logged)
        for client, logged in enumerate(
            [{}, {"terms": Tree(labels=torch.tensor(float("nan")))}, {"strength": torch.tensor(float("inf"))}]
        )
    }
    assert screen_step(FedGKC(), "train", replies, {}, max_norm=3) == {}
    replies[2].knowledge = torch.tensor(float("nan"))
    assert set(screen_step(FedGKC(), "train", replies, {}, max_norm=3)) == {2}


@pytest.mark.parametrize("method", [FedAvg(), FedGKC(), FedProto()], ids=lambda method: type(method).__name__)
def test_clients_of_real_rounds_stay_and_a_scaled_one_does_not(method):
    setup = toy_setup(method, clients=5)
    finished = run_rounds(setup, rounds=1)
    state = finished.server.state
    sent = {"FedAvg": state.get("model"), "FedGKC": state.get("copilot"), "FedProto": Tree(state.get("known", {}))}
    message = sent[type(method).__name__]
    replies = Clients(InProcess(setup), 2, range(5)).ask(method.train, message)
    trees = {client: replies[client] for client in range(5)}
    told = dict.fromkeys(trees, message)
    assert screen_step(method, "train", trees, told, max_norm=10) == {}
    trees[3] = Tree({name: scale(branch) if name != "weight" else branch for name, branch in trees[3].items()})
    assert set(screen_step(method, "train", trees, told, max_norm=10)) == {3}


def scale(branch):
    return map_tree(lambda leaf: 1000 * leaf if leaf.is_floating_point() else leaf, branch)
