from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from graft.data.splits import parse, split
from graft.errors import InputError


def counts(graph):
    """Nodes of each class in train, validation and test."""
    return [np.bincount(graph.y[mask], minlength=graph.classes).tolist() for mask in graph.masks.values()]


def totals(graph):
    return [int(mask.sum()) for mask in graph.masks.values()]


@pytest.fixture
def client(toy):
    def make(*sizes, unlabelled=0):
        labels = [label for label, size in enumerate(sizes) for _ in range(size)] + [-1] * unlabelled
        return toy(len(labels), [], labels=np.random.default_rng(0).permutation(labels), classes=len(sizes))

    return make


def test_two_classes_of_five_give_one_two_two_each(client):
    (graph,) = split([client(5, 5)], "20/40/40", seed=0)
    assert counts(graph) == [[1, 1], [2, 2], [2, 2]]


def test_one_train_node_of_classes_three_and_two_goes_to_the_larger(client):
    (graph,) = split([client(3, 2)], "20/40/40", seed=0)
    assert counts(graph)[0] == [1, 0]


def test_a_tie_goes_to_the_lower_class(client):
    (graph,) = split([client(1, 1, 1)], "20/40/40", seed=0)
    assert counts(graph) == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_one_per_cent_of_three_hundred_is_three_and_of_twenty_is_one(client):
    large, small = split([client(150, 150), client(10, 10)], "1/20/20", seed=0)
    assert totals(large) == [3, 60, 60]
    assert totals(small) == [1, 4, 4]


def test_a_half_is_rounded_up(client):
    (graph,) = split([client(250)], "1/20/20", seed=0)
    assert totals(graph) == [3, 50, 50]


@pytest.mark.parametrize("ratios", ["20/40/40", "60/20/20", "1/20/20", "98/1/1", "0.34-0.33-0.33"])
@pytest.mark.parametrize("stratify", [True, False])
def test_masks_are_disjoint_and_their_totals_are_the_rule(client, ratios, stratify):
    train, validation, test = parse(ratios)
    for sizes in [(7, 1, 3, 12), (40, 2, 2, 9, 30), (1, 1), (3,), (100, 5)]:
        (graph,) = split([client(*sizes, unlabelled=4)], ratios, seed=1, stratify=stratify)
        masks = np.array(list(graph.masks.values()))
        nodes = sum(sizes)
        assert masks.sum(axis=0).max() <= 1
        assert not masks[:, graph.y < 0].any()
        wanted_train = max(1, int(train * nodes + Fraction(1, 2)))
        wanted_validation = min(int(validation * nodes + Fraction(1, 2)), nodes - wanted_train)
        rest = nodes - wanted_train - wanted_validation
        wanted_test = rest if train + validation + test == 1 else min(rest, int(test * nodes + Fraction(1, 2)))
        assert totals(graph) == [wanted_train, wanted_validation, wanted_test]


def test_a_class_of_three_keeps_a_node_for_the_test_while_others_can_give(client):
    (graph,) = split([client(3, 60)], "50/45/5", seed=0)
    assert counts(graph)[2][0] >= 1


def test_stratified_classes_are_proportional_and_plain_ones_are_not(client):
    sizes = (50, 30, 20)
    (even,) = split([client(*sizes)], "20/40/40", seed=0)
    assert counts(even)[0] == [10, 6, 4]
    plain = [split([client(*sizes)], "20/40/40", seed=seed, stratify=False)[0] for seed in range(5)]
    assert any(counts(graph)[0] != [10, 6, 4] for graph in plain)


def test_floor_rounds_every_class_down_and_gives_the_rest_to_the_test(client):
    (graph,) = split([client(4, 9)], "20/40/40", seed=0, rounding="floor")
    assert counts(graph) == [[0, 1], [1, 3], [3, 5]]
    (other,) = split([client(4, 9)], "20/40/40", seed=0)
    assert counts(other)[0] == [1, 2]


def test_floor_is_not_fooled_by_floating_point(client):
    (graph,) = split([client(10)], (0.7, 0.1, 0.2), seed=0, rounding="floor")
    assert totals(graph) == [7, 1, 2]


def test_masks_depend_on_the_seed_and_the_place_only(client):
    graphs = [client(20, 10), client(5, 9), client(8, 8)]
    one, two = split(graphs, "20/40/40", seed=3), split(graphs, "20/40/40", seed=3)
    other = split(graphs, "20/40/40", seed=4)
    alone = split([graphs[2], graphs[0], graphs[2]], "20/40/40", seed=3)[2]
    assert all(np.array_equal(a.train, b.train) for a, b in zip(one, two, strict=True))
    assert np.array_equal(one[2].train, alone.train)
    assert any(not np.array_equal(a.train, b.train) for a, b in zip(one, other, strict=True))


def test_equal_clients_get_different_masks(client):
    one, two = split([client(50, 50), client(50, 50)], "20/40/40", seed=0)
    assert not np.array_equal(one.train, two.train)


@pytest.mark.parametrize("ratios", ["0.2-0.4-0.4", "20-40-40", " 20 / 40 / 40 ", (20, 40, 40), [0.2, 0.4, 0.4]])
def test_ratios_are_read_in_every_spelling(ratios):
    assert parse(ratios) == (Fraction(1, 5), Fraction(2, 5), Fraction(2, 5))


def test_thirds_sum_to_one():
    assert sum(parse((1 / 3, 1 / 3, 1 / 3))) == 1
    assert sum(parse("1/20/20")) == Fraction(41, 100)


@pytest.mark.parametrize("ratios", ["20/40", "20/40/40/0", "a/b/c", "0/50/50", "60/60/20", (0.5, -0.1, 0.6), 20, None])
def test_impossible_ratios_are_refused(client, ratios):
    with pytest.raises(InputError, match="20/40/40"):
        split([client(10)], ratios, seed=0)


def test_unknown_rounding_and_floor_of_partial_ratios_are_refused(client):
    with pytest.raises(InputError, match="largest_remainder, floor"):
        split([client(10)], "20/40/40", seed=0, rounding="up")
    with pytest.raises(InputError, match="largest_remainder"):
        split([client(1000)], "1/20/20", seed=0, rounding="floor")


def test_a_client_without_training_nodes_is_named(client):
    with pytest.raises(InputError, match="Client 1 of 'toy' has 7 nodes, 0 of them labelled"):
        split([client(5), replace(client(5, unlabelled=2), y=np.full(7, -1))], "20/40/40", seed=0)
    with pytest.raises(InputError, match=r"Client 0 .* 8 nodes.*largest_remainder"):
        split([client(4, 4)], "20/40/40", seed=0, rounding="floor")
    with pytest.raises(InputError, match="gets 3 training nodes where it needs 5"):
        split([client(3)], "20/40/40", seed=0, min_train=5)


def test_min_train_is_kept(client):
    (graph,) = split([client(10, 10)], "1/20/20", seed=0, min_train=4)
    assert counts(graph)[0] == [2, 2]


def test_own_masks_are_kept_for_labelled_nodes(toy):
    graph = toy(4, [], labels=[0, 1, -1, 1], train=[1, 0, 1, 0], validation=[0, 1, 0, 0], test=[0, 0, 0, 1])
    (kept,) = split([graph], "own", seed=0)
    assert kept.train.tolist() == [True, False, False, False]
    assert kept.test.tolist() == [False, False, False, True]


def test_own_masks_that_are_missing_overlapping_or_without_train_are_refused(toy):
    with pytest.raises(InputError, match="none for train and validation and test"):
        split([toy(2, [])], "own", seed=0)
    with pytest.raises(InputError, match="overlap"):
        split([toy(2, [], train=[1, 0], validation=[0, 1], test=[1, 0])], "own", seed=0)
    with pytest.raises(InputError, match="Client 0 of 'toy' has 2 nodes"):
        split([toy(2, [], train=[0, 0], validation=[0, 1], test=[1, 0])], "own", seed=0)
