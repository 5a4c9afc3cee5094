"""Averages over clients, worked out by hand, and what one bad client can do to each."""

from dataclasses import replace

import pytest
import torch

from graft.errors import InputError
from graft.federation.average_names import AVERAGES, Average, count_cut, parse_average, takes_averages
from graft.federation.averaging import average
from graft.federation.clients import Clients, HeldField, Replies
from graft.methods import METHODS
from graft.methods.fedavg import FedAvg
from graft.tensors.trees import Tree, map_tree, weighted_mean
from tests.toy import run_rounds, same, toy_setup

VOTES = torch.tensor([3, 1, 4, 1, 5])
ROBUST = [parse_average(text) for text in ("median", "trimmed:0.2", "krum:1", "multi_krum:1")]
by_name = pytest.mark.parametrize("how", ROBUST, ids=lambda how: how.kind)


def stacked(*values, **others):
    return Tree(layer=torch.tensor(values), **others)


def averaged(text, values, votes=None):
    votes = torch.ones(len(values)) if votes is None else torch.tensor(votes)
    return average(stacked(*values), votes, parse_average(text)).layer.tolist()


def test_mean_is_the_weighted_mean_bit_for_bit():
    models = Tree(layer=torch.randn(5, 3, 2))
    assert same(average(models, VOTES), weighted_mean(models, VOTES))
    assert not same(average(models, VOTES), average(models, VOTES, parse_average("median")))


def test_median_is_the_middle_one_number_by_number():
    values = [[1.0, 30.0], [2.0, 10.0], [9.0, 20.0]]
    assert averaged("median", values) == [2, 20]
    assert averaged("median", [*values, [4.0, -1e9]]) == [3, 15]  # of two middle ones the mean
    assert averaged("mean", values) == [4, 20]


def test_trimmed_mean_cuts_its_share_at_each_end():
    values = [-1e6, 1.0, 2.0, 6.0, 1e6]
    assert averaged("trimmed:0.2", values) == 3
    assert averaged("trimmed:0.4", values) == 2
    assert averaged("trimmed:0.1", values) == pytest.approx(9 / 5)  # a tenth of five clients is nobody
    assert [count_cut(0.2, clients) for clients in (1, 4, 5, 9, 10, 15)] == [0, 0, 1, 1, 2, 3]
    assert count_cut(0.499, 3) == 1  # one is always left


def test_krum_takes_the_one_that_is_closest_to_the_others():
    # With five clients of which one may be bad, two neighbours count: 0 is 1 + 4 away from its, 1 is 1 + 1, 2 is 1 + 4,
    # 6 is 16 + 25, and 100 is far from everybody.
    values = [[2.0], [100.0], [0.0], [6.0], [1.0]]
    assert averaged("krum:1", values) == [1]


def test_multi_krum_is_the_mean_without_the_farthest():
    values = [[2.0], [100.0], [0.0], [6.0], [1.0]]
    assert averaged("multi_krum:1", values) == [(2 + 0 + 6 + 1) / 4]
    assert averaged("multi_krum:2", values) == [1]


def test_krum_looks_at_all_leaves_of_a_model_together():
    # The points (0, 9), (1, 1), (2, 1), (1, 2) and (0, 1): the second is 1 from three of the others.
    models = Tree(near=torch.tensor([0.0, 1, 2, 1, 0]), far=Tree(weight=torch.tensor([9.0, 1, 1, 2, 1])))
    chosen = average(models, torch.ones(5), parse_average("krum:1"))
    assert (chosen.near, chosen.far.weight) == (1, 1)
    assert average(Tree(near=models.near), torch.ones(5), parse_average("krum:1")).near == 0


@by_name
def test_votes_do_not_weigh_but_a_client_without_one_does_not_count(how):
    values = torch.tensor([[1.0], [2.0], [3.0], [5.0], [8.0]])
    alike = average(Tree(x=values), VOTES, how)
    assert same(alike, average(Tree(x=values), torch.ones(5), how))
    padded = Tree(x=torch.cat([values[:2], torch.tensor([[1e9], [2e9]]), values[2:]]))
    votes = torch.tensor([3, 1, 0, 0, 4, 1, 5])
    assert torch.allclose(average(padded, votes, how).x, alike.x)
    assert not torch.allclose(average(padded, torch.ones(7), how).x, alike.x)
    assert same(average(Tree(x=values), torch.zeros(5), how), alike)  # where nobody has a vote, all count


@by_name
def test_integer_leaves_are_the_first_clients(how):
    models = Tree(steps=torch.tensor([7, 1, 1, 1, 1]), weight=torch.zeros(5, 2))
    assert average(models, VOTES, how).steps == 7
    only = average(Tree(steps=torch.tensor([7, 1, 1, 1, 1])), VOTES, how)
    assert only.steps == 7


@pytest.mark.parametrize("value", [1e30, -1e30, float("nan"), float("inf"), -float("inf")])
@by_name
def test_one_bad_client_of_five_moves_nothing_beyond_the_honest_ones(how, value):
    honest = torch.tensor([[1.0, 4.0], [2.0, 3.0], [3.0, 2.0], [4.0, 1.0]])
    for place in range(5):
        rows = torch.cat([honest[:place], torch.full((1, 2), value), honest[place:]])
        result = average(Tree(x=rows), torch.ones(5), how).x
        assert (result.ge(1) & result.le(4)).all(), (place, result)
    poisoned = average(Tree(x=rows), torch.ones(5)).x
    assert not (poisoned.ge(1) & poisoned.le(4)).any()


@by_name
def test_the_order_of_clients_does_not_matter(how):
    values, order = torch.randn(7, 4), torch.randperm(7)
    assert torch.allclose(
        average(Tree(x=values), torch.ones(7), how).x, average(Tree(x=values[order]), torch.ones(7), how).x
    )


@by_name
def test_dtype_and_shape_are_kept_and_one_client_is_its_own_average(how):
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        models = Tree(x=torch.randn(5, 3, 2).to(dtype))
        result = average(models, VOTES, how).x
        assert (result.dtype, result.shape) == (dtype, (3, 2))
    alone = Tree(x=torch.randn(1, 3))
    assert same(average(alone, torch.ones(1), how), map_tree(lambda leaf: leaf[0], alone))


@by_name
def test_no_value_is_read_from_a_device(how):
    models = Tree(x=torch.randn(5, 3, 2, device="meta"), steps=torch.ones(5, dtype=torch.int64, device="meta"))
    votes = VOTES.to("meta")  # tensors without values: to read one is an error
    assert average(models, votes, how).x.shape == (3, 2)
    with pytest.raises(RuntimeError, match="meta"):
        bool(votes.sum() > 0)


# Names ---------------------------------------------------------------------------------------------------------------

READ = {
    "mean": Average("mean"),
    "median": Average("median"),
    "trimmed": Average("trimmed", 0.2),
    "trimmed:0.35": Average("trimmed", 0.35),
    "krum": Average("krum", 1),
    "krum:3": Average("krum", 3),
    "multi_krum:2": Average("multi_krum", 2),
}
REFUSED = {
    "medain": "There is no average 'medain' (did you mean 'median'?)",
    "": "There is no average ''",
    "median:2": "average is 'median:2', but median takes nothing after it.",
    "trimmed:0.5": "average is 'trimmed:0.5'; after trimmed comes a share above 0 and below 0.5, as trimmed:0.2.",
    "trimmed:": "after trimmed comes a share",
    "trimmed:nan": "after trimmed comes a share",
    "krum:0": "average is 'krum:0'; after krum comes a number of clients of at least 1, as krum:1.",
    "krum:1.5": "after krum comes a number of clients",
    "krum:-1": "after krum comes a number of clients",
}


@pytest.mark.parametrize("text", READ)
def test_an_average_is_read(text):
    assert parse_average(text) == READ[text]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_average_is_refused_in_one_sentence(text):
    with pytest.raises(InputError) as refusal:
        parse_average(text)
    assert REFUSED[text].split(" (did")[0] in str(refusal.value)


def test_an_average_that_can_leave_out_nobody_is_refused():
    for text, clients in (("trimmed:0.2", 4), ("krum:1", 4), ("multi_krum:2", 6)):
        with pytest.raises(InputError, match="clients in a round"):
            parse_average(text).check(clients)
    for text, clients in (("trimmed:0.2", 5), ("krum:1", 5), ("multi_krum:2", 7), ("median", 1), ("mean", 1)):
        parse_average(text).check(clients)


def test_methods_that_only_take_means_take_other_averages():
    able = METHODS.matching(takes_averages)
    assert {"fedavg", "fedprox", "scaffold", "fedgkc", "fedomd", "lg_fedavg", "fml", "trust"} <= set(able)
    others = {"fedgta", "fedkd", "fedlit", "fedproto", "fedtad", "gossip", "dfed_sst", "local", "majority"}
    assert not others & set(able)


def test_every_average_is_explained():
    assert all(kind.words for kind in AVERAGES.values())


# Replies -------------------------------------------------------------------------------------------------------------


def test_replies_take_the_average_that_was_asked_for():
    parts = [([0, 1, 2], Tree(model=Tree(x=torch.tensor([1.0, 2.0, 100.0]))))]
    assert Replies(parts).averaged_by(parse_average("median")).mean("model", torch.ones(3)).x == 2
    assert Replies(parts).mean("model", torch.tensor([1, 1, 0])).x == 1.5


def test_a_sum_that_was_made_elsewhere_is_no_median():
    replies = Replies([([0, 1], Tree())], {"model": HeldField(lambda weights: weights, bytes=8)})
    assert replies.mean("model", VOTES) is VOTES
    with pytest.raises(Exception, match="averages"):
        replies.averaged_by(parse_average("median")).mean("model", VOTES)


class Echo:
    """An engine whose clients reply with what they have."""

    def __init__(self, values):
        self.values = values

    def members(self):
        return list(range(len(self.values)))

    def ask(self, request):
        return Replies([(list(request.clients), Tree(x=torch.tensor([self.values[k] for k in request.clients])))])


def test_some_or_all_clients_are_averaged_in_the_same_way():
    clients = Clients(Echo([1.0, 2.0, 90.0, 4.0]), 1, [0, 1, 2], average=parse_average("median"))

    def tell():
        """A step."""

    assert clients.ask(tell).mean("x", torch.ones(3)) == 2
    assert clients.everyone.ask(tell).mean("x", torch.ones(4)) == 3
    assert clients.only([1, 2]).ask(tell).mean("x", torch.ones(2)) == 46


def test_a_session_averages_as_its_setup_says():
    setup = toy_setup(FedAvg(), clients=5)
    plain = run_rounds(setup, rounds=1)
    middle = run_rounds(replace(setup, average=parse_average("median")), rounds=1)
    models = map_tree(
        lambda *leaves: torch.stack(leaves).median(0).values, *(plain.client(client).model for client in range(5))
    )
    assert same(middle.server.state.model, models)
    assert not same(plain.server.state.model, models)
