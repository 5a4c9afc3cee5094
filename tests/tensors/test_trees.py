"""Arithmetic on trees, by hand."""

import numpy as np
import pytest
import torch

from graft.tensors.trees import (
    Tree,
    add_sums,
    broadcast_tree,
    check_message,
    count_bytes,
    flatten,
    inner_product,
    map_tree,
    select_clients,
    squared_distance,
    stack,
    trainable,
    unflatten,
    vote_shares,
    weighted_mean,
    weighted_sum,
)
from tests.toy import same

CPU = torch.device("cpu")


def make_model(value):
    return Tree(layer=Tree(weight=torch.full((2, 2), value), bias=torch.full((2,), value)), scale=torch.tensor(value))


def test_mean_of_one_and_five_with_weights_three_and_one_is_two():
    averaged = weighted_mean(stack([make_model(1.0), make_model(5.0)]), torch.tensor([3, 1]))
    assert same(averaged, make_model(2.0))
    other = weighted_mean(stack([make_model(1.0), make_model(5.0)]), torch.tensor([1, 3]))
    assert same(other, make_model(4.0))


def test_only_the_ratio_of_weights_counts():
    models = stack([make_model(1.0), make_model(5.0)])
    assert same(weighted_mean(models, torch.tensor([300, 100])), weighted_mean(models, torch.tensor([0.75, 0.25])))


def test_mean_over_one_client_is_that_client_bit_for_bit():
    model = Tree(weight=torch.randn(5, 3))
    assert same(weighted_mean(stack([model]), torch.tensor([7])), model)


def test_weight_zero_is_no_vote():
    averaged = weighted_mean(stack([make_model(1.0), make_model(5.0)]), torch.tensor([0, 1]))
    assert same(averaged, make_model(5.0))


def test_whole_numbers_come_from_the_first_client():
    models = Tree(count=torch.tensor([3, 9]), on=torch.tensor([True, False]), rate=torch.tensor([3.0, 9.0]))
    averaged = weighted_mean(models, torch.tensor([1, 1]))
    assert same(averaged, Tree(count=torch.tensor(3), on=torch.tensor(True), rate=torch.tensor(6.0)))


def test_sums_of_some_clients_add_up_to_the_mean_of_all():
    models = Tree(rate=torch.tensor([1.0, 5.0, 9.0]), count=torch.tensor([3, 4, 5]))
    shares = vote_shares(torch.tensor([1, 2, 1]))
    parts = [weighted_sum(select_clients(models, own), shares[own]) for own in (slice(0, 2), slice(2, 3))]
    assert [part.rate.item() for part in parts] == [2.75, 2.25]
    assert same(add_sums(parts), Tree(rate=torch.tensor(5.0), count=torch.tensor(3)))
    assert same(add_sums(parts), weighted_mean(models, torch.tensor([1, 2, 1])))
    shares_of_their_own = [vote_shares(torch.tensor([1, 2])), vote_shares(torch.tensor([1]))]
    other = [weighted_sum(select_clients(models, slice(0, 2)), shares_of_their_own[0]), parts[1]]
    assert not same(add_sums(other), add_sums(parts))


def test_sums_are_added_in_the_order_given():
    large, small = Tree(rate=torch.tensor(1e8)), Tree(rate=torch.tensor(1.0))
    negative = Tree(rate=torch.tensor(-1e8))
    assert add_sums([large, negative, small]).rate == 1
    assert add_sums([large, small, negative]).rate == 0  # 1 is below the rounding of 1e8


def test_a_bare_leaf_is_summed_too():
    assert weighted_sum(torch.tensor([2.0, 4.0]), torch.tensor([0.5, 0.25])) == 2
    assert add_sums([torch.tensor(1.0), torch.tensor(2.0)]) == 3


def test_mean_is_a_copy():
    models = stack([make_model(1.0)]) | {"count": torch.tensor([3])}
    averaged = weighted_mean(models, torch.tensor([1]))
    for _, leaf in flatten(models):
        leaf.zero_()
    assert averaged["count"] == 3
    assert averaged.scale == 1


def test_squared_distance_is_one_number_a_client():
    first = stack([make_model(1.0), make_model(5.0)])
    second = stack([make_model(0.0), make_model(2.0)])
    assert squared_distance(first, second).tolist() == [7.0, 63.0]  # 4 + 2 + 1 entries, 1 or 3 apart
    skipped = squared_distance(first, second, skip=frozenset({"layer/weight", "scale"}))
    assert skipped.tolist() == [2.0, 18.0]
    assert squared_distance(first, first).tolist() == [0.0, 0.0]


def test_squared_distance_does_not_mind_the_order_of_fields():
    first = Tree(a=torch.ones(1, 2), b=torch.zeros(1, 2))
    second = Tree(b=torch.zeros(1, 2), a=torch.ones(1, 2))
    assert squared_distance(first, second) == 0


def test_bytes_are_counted_at_the_width_of_each_leaf():
    message = Tree(
        half=torch.zeros(3, dtype=torch.bfloat16),
        model=Tree(weight=torch.zeros(2, 5), count=torch.tensor(1)),
        mask=torch.ones(7, dtype=torch.bool),
        loss=0.5,
        size=3,
    )
    assert count_bytes(message) == 3 * 2 + 10 * 4 + 8 + 7 + 8 + 8
    assert count_bytes(Tree()) == 0
    assert count_bytes(Tree(weight=torch.zeros(1).expand(100, 10))) == 4000  # as it would travel


BARE = [torch.ones(1), 3, [torch.ones(1)], None, "model"]


@pytest.mark.parametrize("message", BARE, ids=lambda message: type(message).__name__)
def test_bare_values_are_no_message(message):
    with pytest.raises(TypeError, match=f"the message is a bare {type(message).__name__}; .* tree with named fields"):
        check_message(message, "the message")


REFUSED = {
    "text": ({"model": {"kind": "gcn"}}, "holds a str at 'model/kind'"),
    "nothing": ({"model": None}, "holds a NoneType at 'model'"),
    "list": ({"models": [torch.ones(1)]}, "holds a list at 'models'"),
    "array": ({"model": np.ones(1)}, "holds a ndarray at 'model'"),
    "object": ({"model": torch.nn.Linear(1, 1)}, "holds a Linear at 'model'"),
    "complex": ({"model": 1j}, "holds a complex at 'model'"),
    "no name": ({"": torch.ones(1)}, "unusable field name ''"),
    "slash": ({"a": {"b/c": torch.ones(1)}}, "unusable field name 'b/c'"),
    "number as name": ({3: torch.ones(1)}, "unusable field name 3"),
    "line break": ({"a\nb": torch.ones(1)}, "unusable field name"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_cross_a_network_is_refused(case):
    message, words = REFUSED[case]
    with pytest.raises(TypeError, match=words):
        check_message(message, "the reply")


def test_trees_of_tensors_and_numbers_are_messages():
    check_message({}, "the message")
    check_message(Tree(model=make_model(1.0), loss=0.5, size=3, done=True, empty=Tree()), "the message")


def test_grow_undoes_leaves():
    tree = Tree(b=Tree(y=torch.ones(1), x=Tree(z=torch.zeros(2))), a=torch.tensor(3))
    pairs = dict(flatten(tree))
    assert list(pairs) == ["b/y", "b/x/z", "a"]
    assert same(unflatten(pairs), tree)
    assert list(unflatten(dict(reversed(pairs.items())))) == ["a", "b"]  # order is part of a tree
    assert unflatten({}) == {}


def test_stack_then_take_gives_each_client_back():
    models = [make_model(1.0), make_model(5.0)]
    stacked = stack(models)
    assert stacked.layer.weight.shape == (2, 2, 2)
    assert same(select_clients(stacked, 1), models[1])
    assert not same(select_clients(stacked, 0), models[1])
    assert same(select_clients(stacked, torch.tensor([1, 0])), stack(models[::-1]))
    assert stack([{"size": 3}, {"size": 4}]).size.tolist() == [3, 4]


def test_spread_gives_everyone_the_same_without_a_copy():
    model = make_model(2.0)
    shared = broadcast_tree(model, 1000, CPU)
    assert shared.layer.weight.shape == (1000, 2, 2)
    assert shared.layer.weight.data_ptr() == model.layer.weight.data_ptr()
    assert shared.layer.weight.untyped_storage().nbytes() == 16
    assert broadcast_tree({"rate": 0.5, "size": 3}, 2, CPU).size.tolist() == [3, 3]


def test_map_tree_walks_several_trees_together():
    total = map_tree(lambda a, b: a + b, make_model(1.0), make_model(2.0))
    assert same(total, make_model(3.0))
    with pytest.raises(KeyError):
        map_tree(lambda a, b: a + b, make_model(1.0), {"layer": {}})


def test_fields_can_be_read_and_written_as_attributes():
    tree = Tree(a=1)
    tree.b = 2
    assert tree == {"a": 1, "b": 2}
    with pytest.raises(AttributeError, match="no field 'c'; there are: a, b"):
        _ = tree.c


def test_only_fractions_that_are_not_frozen_are_trainable():
    model = unflatten({"norm/seen": torch.tensor(3), "norm/mean": torch.ones(2), "head/weight": torch.ones(2, 2)})
    assert [path for path, _ in flatten(trainable(model, frozenset({"norm/mean"})))] == ["head/weight"]
    assert [path for path, _ in flatten(trainable(model, frozenset()))] == ["norm/mean", "head/weight"]


def test_inner_product_is_taken_client_by_client_over_the_paths_of_the_second():
    first = unflatten({"a/x": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "b": torch.tensor([10.0, 20.0])})
    assert inner_product(first, unflatten({"a/x": torch.tensor([[1.0, 1.0], [0.0, 2.0]])})).tolist() == [3.0, 8.0]
    assert inner_product(first, first).tolist() == [105.0, 425.0]
