"""What a server reads of replies: fields in client order, single clients, and means of what stayed elsewhere."""

import pytest
import torch

from graft.errors import RunError
from graft.federation.clients import HeldField, Replies
from graft.tensors.trees import Tree, weighted_mean
from tests.toy import same

WEIGHTS = torch.tensor([3, 1, 4])


def reply(values):
    count = torch.arange(len(values)) + int(values[0])
    return Tree(model=Tree(layer=torch.tensor(values), count=count), mean=torch.tensor(values) / 2)


def three_replies():
    """Returns the replies of clients 1, 4 and 6, which arrived in another order."""
    return Replies([([4], reply([5.0])), ([1, 6], reply([1.0, 9.0]))])


def held_replies():
    """Returns replies of which the model stayed where the clients are, and every weight that a mean was asked with."""
    asked = []

    def mean(weights):
        asked.append(weights)
        return Tree(layer=torch.tensor(7.0))

    parts = [([1, 4], Tree(weight=torch.tensor([2, 6])))]
    return Replies(parts, {"model": HeldField(mean, bytes=800)}), asked


def test_mean_of_a_field_is_the_weighted_mean_in_client_order_bit_for_bit():
    replies = three_replies()
    assert same(replies.mean("model", WEIGHTS), weighted_mean(replies.model, WEIGHTS))
    assert replies.mean("model", WEIGHTS).layer == (3 * 1 + 1 * 5 + 4 * 9) / 8
    assert not same(replies.mean("model", WEIGHTS), replies.mean("model", WEIGHTS.flip(0)))


def test_a_field_may_be_called_like_a_method():
    replies = three_replies()
    assert replies.mean("mean", WEIGHTS) == 44 / 16
    assert replies[4].mean == 2.5
    assert replies.stacked().mean.tolist() == [0.5, 2.5, 4.5]


def test_a_field_that_stayed_where_the_clients_are_has_a_mean():
    replies, asked = held_replies()
    assert replies.mean("model", replies.weight).layer == 7
    assert [weights.tolist() for weights in asked] == [[2, 6]]
    assert replies.mean("weight", torch.tensor([1.0, 0.0])) == 2  # another one is averaged here
    assert len(asked) == 1


@pytest.mark.parametrize(
    "read",
    [lambda replies: replies.model, lambda replies: replies.stacked(), lambda replies: replies[4]],
    ids=["field", "stacked", "client"],
)
def test_a_field_that_stayed_where_the_clients_are_cannot_be_read(read):
    with pytest.raises(RunError, match=r"declares 'model' in `averages`, .*`replies.mean\('model', weights\)`\.$"):
        read(held_replies()[0])
    read(three_replies())


def test_a_field_that_stayed_where_the_clients_are_is_counted_and_there():
    replies, _ = held_replies()
    assert replies.bytes() == 800 + 2 * 8
    assert "model" in replies
    assert "weight" in replies
    assert "control" not in replies
    assert replies.clients == [1, 4]
    assert len(replies) == 2
