"""Very many damaged messages: each is refused as damaged or is a whole message, and takes little memory."""

import json
import resource
import tracemalloc
from collections import Counter
from contextlib import suppress
from random import Random

import pytest
import torch

from graft.engines.messages import MOST_HEAD, DamagedMessage, pack, unpack
from graft.tensors.trees import Tree, flatten
from tests.mutations import damage_bytes, damage_json

QUICK, LONG = 2_000, 100_000


def originals():
    """Messages as they are sent: a request, a reply of a model, a failure, a mail with numbers, and one of nothing."""
    draw = torch.Generator().manual_seed(0)
    model = Tree(
        first=Tree(weight=torch.randn(3, 4, generator=draw), bias=torch.zeros(3)),
        second=Tree(weight=torch.randn(2, 3, generator=draw).bfloat16(), steps=torch.tensor(7)),
    )
    return [
        pack({"do": "step", "step": "train", "round": 3, "turn": 0}, model),
        pack({"losses": {"train": 0.5, "match": float("nan")}}, Tree(model=model, weight=torch.tensor(12.0))),
        pack({"error": "mean has 64 features,\nhidden has 32"}),
        pack({"do": "step"}, Tree(sent=model, mask=torch.tensor([True, False]), rate=0.25, first=True, size=2**40)),
        pack({}, Tree(nothing=torch.empty(0, 5), zero=0)),
    ]


def split(data):
    """Returns the frame, the header of the tensors and their values."""
    length = int.from_bytes(data[:8], "little")
    text, body = data[8 : 8 + length], data[8 + length :]
    length = int.from_bytes(body[:8], "little")
    return text, body[8 : 8 + length], body[8 + length :]


def join(text, header, values):
    return len(text).to_bytes(8, "little") + text + len(header).to_bytes(8, "little") + header + values


def damaged(random, messages):
    """Returns a message with damage to its bytes, to what its frame or its header say, or of parts of two messages."""
    data = random.choice(messages)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        how = random.randrange(6)
        try:
            if how <= 1:
                data = damage_bytes(data, random)
            elif how <= 3:
                text, header, values = split(data)
                text = damage_json(text, random) if how == 2 else text
                header = damage_json(header, random) if how == 3 else header
                data = join(text, header, values)
            elif how == 4:
                parts = zip(split(data), split(random.choice(messages)), strict=True)
                data = join(*(random.choice(pair) for pair in parts))
            else:
                data = random.randbytes(random.choice((0, 7, 8, 9, 16, 100)))
        except (ValueError, IndexError, AttributeError, RecursionError, TypeError):  # it is damaged beyond its parts
            data = damage_bytes(data, random)
    return data


def read(data):
    """Returns how a message was taken: refused, or whole; anything else that is accepted or raised is a fault."""
    try:
        head, tree = unpack(data)
    except DamagedMessage:
        return "refused"
    assert type(head) is dict
    assert tree is None or type(tree) is Tree
    leaves = list(flatten({} if tree is None else tree))
    assert [path for path, _ in leaves] == json.loads(split(data)[0])["order"]
    for path, leaf in leaves:
        assert all(path.split("/"))
        assert isinstance(leaf, torch.Tensor | int | float)
    held = sum(leaf.nbytes for _, leaf in leaves if isinstance(leaf, torch.Tensor))
    assert held == len(split(data)[2])
    # What was accepted is a message like any other: it goes out again as it came.
    again_head, again = unpack(pack(head, tree))
    assert json.dumps(again_head) == json.dumps(head)
    assert [describe(leaf) for leaf in flatten(again or {})] == [describe(leaf) for leaf in leaves]
    return "whole"


def describe(entry):
    path, leaf = entry
    if not isinstance(leaf, torch.Tensor):
        return path, leaf
    return path, leaf.dtype, leaf.shape, leaf.reshape(-1).view(torch.uint8).tolist() if leaf.dim() else repr(leaf)


def fuzz(count, first=0):
    messages = originals()
    outcomes = Counter()
    for number in range(first, first + count):
        data = damaged(Random(f"message {number}"), messages)
        try:
            outcomes[read(data)] += 1
        except BaseException as error:
            raise AssertionError(f"case {number}, {len(data)} bytes: {error!r}") from error
    return outcomes


def test_the_originals_are_whole():
    assert [read(data) for data in originals()] == ["whole"] * 5


def test_damaged_messages_are_refused_or_whole():
    outcomes = fuzz(QUICK)
    assert outcomes["refused"] > 0.5 * QUICK
    assert outcomes["whole"] > 0.01 * QUICK  # damage to the values of a tensor is no damage that can be seen


@pytest.mark.slow
def test_a_hundred_thousand_damaged_messages_are_refused_or_whole_and_leave_nothing_behind():
    fuzz(QUICK)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = fuzz(LONG, first=QUICK)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert sum(outcomes.values()) == LONG
    assert grown < 64 * 2**20, f"the process grew by {grown} bytes"


def peak(data):
    """Returns the most bytes of memory that reading a message took."""
    tracemalloc.start()
    try:
        with suppress(DamagedMessage):
            unpack(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_damaged_message_takes_no_more_memory_than_a_multiple_of_its_bytes():
    messages = originals()
    for number in range(300):
        data = damaged(Random(f"memory {number}"), messages)
        assert peak(data) < 50 * len(data) + 200_000, number


def filled(unit, length):
    """A message whose frame is so long, of nothing but these."""
    start, end = b'{"head":{"x":[', b']},"numbers":{},"order":[],"empty":true}'
    count = (length - len(start) - len(end)) // len(unit)
    return join(start + (unit * count)[:-1] + end, b"{}", b"")


@pytest.mark.parametrize("unit", [b"[],", b"{},", b'{"":{}},', b"1e9,", b'"",', b"[[[[[[]]]]]],"])
def test_a_long_head_takes_no_more_memory_than_a_multiple_of_its_bytes(unit):
    data = filled(unit, 2**16)
    assert read(data) == "whole"
    assert peak(data) < 50 * len(data)


def test_the_longest_head_is_read_and_a_longer_one_is_not():
    unpack(filled(b'"",', MOST_HEAD))
    with pytest.raises(DamagedMessage, match=f"longer than {MOST_HEAD} bytes"):
        unpack(filled(b'"",', MOST_HEAD + 10))


def test_a_header_that_promises_much_takes_nothing():
    text = json.dumps({"head": {}, "numbers": {}, "order": ["a"], "empty": False}).encode()
    for shape, end in (([2**40], 2**42), ([2**20, 2**20], 0), ([0, 2**50], 0)):
        header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()
        assert peak(join(text, header, b"")) < 200_000
