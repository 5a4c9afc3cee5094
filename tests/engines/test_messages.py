"""Messages as bytes: what goes in comes out, and nothing else gets in."""

import ast
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

import graft
from graft.engines.messages import DamagedMessage, add_client_axis, drop_client_axis, pack, unpack
from graft.tensors.trees import Tree, flatten
from tests.toy import same


def make_tree():
    return Tree(
        model=Tree(
            head=Tree(weight=torch.randn(3, 2), bias=torch.randn(2)),
            body=Tree(weight=torch.randn(4, 3).to(torch.bfloat16)),
        ),
        count=torch.tensor([1, -(2**60)]),
        mask=torch.tensor([[True], [False]]),
        scalar=torch.tensor(0.25),
        nothing=torch.empty(0, 5),
    )


def test_nested_tree_comes_back_bit_for_bit_and_in_order():
    tree = make_tree()
    head, back = unpack(pack({"do": "step", "round": 3}, tree))
    assert head == {"do": "step", "round": 3}
    assert same(back, tree)
    assert [path for path, _ in flatten(back)] == [path for path, _ in flatten(tree)]
    other = make_tree()
    assert not same(back, other)


def test_order_is_that_of_the_sender_not_of_the_alphabet():
    tree = Tree(z=torch.ones(1), a=torch.ones(1), m=1.5)
    assert list(unpack(pack({}, tree))[1]) == ["z", "a", "m"]


def test_numbers_stay_numbers():
    tree = {"rate": 0.1, "size": 2**53 + 1, "infinite": float("inf"), "done": True}
    _, back = unpack(pack({}, tree))
    assert back == tree
    assert [type(value) for value in back.values()] == [float, int, float, bool]
    nan = unpack(pack({}, {"x": float("nan")}))[1].x
    assert nan != nan


def test_special_values_survive():
    values = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45])
    back = unpack(pack({}, {"x": values}))[1].x
    assert torch.equal(back.view(torch.int32), values.view(torch.int32))


def test_nothing_and_an_empty_tree_are_told_apart():
    assert unpack(pack({}))[1] is None
    assert unpack(pack({}, None))[1] is None
    empty = unpack(pack({}, Tree()))[1]
    assert empty == {}
    assert empty is not None


def test_layout_gradient_and_sharing_do_not_matter():
    whole = torch.randn(4, 6)
    tree = Tree(
        turned=whole.t(),
        slice=whole[:, 1::2],
        shared=whole[0].expand(5, 6),
        wanted=torch.ones(2, requires_grad=True),
        twice=whole,
        again=whole,
        overlapping=whole.flatten()[3:],
    )
    _, back = unpack(pack({}, tree))
    for path, leaf in flatten(tree):
        assert torch.equal(back[path], leaf), path
        assert not back[path].requires_grad


def test_names_may_hold_dots_spaces_and_letters_of_any_script():
    tree = Tree({"layer.0": torch.ones(1), "größe": 2, "two words": Tree(x=torch.zeros(1))})
    assert list(unpack(pack({"who": "é"}, tree))[1]) == list(tree)


def test_alone_and_together_take_the_client_axis_off_and_on():
    reply = Tree(model=Tree(weight=torch.randn(1, 3, 2)), size=torch.tensor([7]))
    travelling = drop_client_axis(reply)
    assert travelling.model.weight.shape == (3, 2)
    assert same(add_client_axis(travelling), reply)
    assert same(add_client_axis(unpack(pack({}, travelling))[1]), reply)


# Damage --------------------------------------------------------------------------------------------------------------


def test_every_truncation_is_noticed():
    data = pack({"do": "step"}, make_tree())
    for length in range(len(data)):
        with pytest.raises(DamagedMessage):
            unpack(data[:length])
    assert unpack(data)[0] == {"do": "step"}


def test_trailing_bytes_are_noticed():
    with pytest.raises(DamagedMessage):
        unpack(pack({}, make_tree()) + b"\0")


def frame(text, rest=b""):
    text = text if isinstance(text, bytes) else json.dumps(text).encode()
    return len(text).to_bytes(8, "little") + text + rest


PLAIN = {"head": {}, "numbers": {}, "order": [], "empty": False}
NO_TENSORS = safetensors.torch.save({})

FOREIGN = {
    "nothing": b"",
    "zeros": bytes(100),
    "words": b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "ones": b"\xff" * 64,
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x05hello\x94.",
    "not JSON": frame(b"{head: 1}"),
    "not UTF-8": frame(b'"\xff\xfe"'),
    "deeply nested JSON": frame(b"[" * 100_000),
    "a list": frame([1, 2]),
    "a number": frame(3),
    "no tensors": frame(PLAIN),
    "damaged tensors": frame(PLAIN, b"\x05\0\0\0\0\0\0\0hello"),
    "missing field": frame({"head": {}}, NO_TENSORS),
    "path to nowhere": frame(PLAIN | {"order": ["model/weight"]}, NO_TENSORS),
    "path that is a list": frame(PLAIN | {"order": [["a"]]}, NO_TENSORS),
    "leaf that is also a branch": frame(PLAIN | {"numbers": {"a": 1, "a/b": 2}, "order": ["a", "a/b"]}, NO_TENSORS),
    "numbers that are a list": frame(PLAIN | {"numbers": [1]}, NO_TENSORS),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_foreign_bytes_are_refused(case):
    with pytest.raises(DamagedMessage, match="not a Graft message"):
        unpack(FOREIGN[case])


def test_the_frame_of_these_tests_is_right():
    assert unpack(frame(PLAIN, NO_TENSORS)) == ({}, {})


def test_damage_before_the_values_raises_nothing_but_damaged_message():
    data = bytearray(pack({"do": "step"}, Tree(weight=torch.ones(2, 2), rate=0.5)))
    end = len(data) - 16  # beyond are the values, which any bytes could be
    noticed = 0
    for position in range(end):
        for flip in (0x01, 0x80):
            damaged = bytes(data[:position]) + bytes([data[position] ^ flip]) + bytes(data[position + 1 :])
            try:
                unpack(damaged)
            except DamagedMessage:
                noticed += 1
    assert noticed > end  # at least one of the two flips, on average


# No pickle -----------------------------------------------------------------------------------------------------------

PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
PLACES = [
    *sorted((Path(graft.__file__).parent / "engines").glob("*.py")),
    *(Path(graft.__file__).parent / "experiments").glob("*.py"),
]


def imports_and_calls(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "torch.save"):
            yield "pickle"
        elif isinstance(node, ast.Attribute) and node.attr in ("recv", "send") and "pipe" in ast.unparse(node).lower():
            yield "pickle"  # a connection pickles unless it sends bytes


@pytest.mark.parametrize("path", PLACES, ids=lambda path: path.name)
def test_no_engine_and_no_record_pickles(path):
    assert not PICKLES & set(imports_and_calls(path.read_text()))


def test_the_search_for_pickle_finds_it():
    for text in ("import pickle", "from pickle import loads", "torch.load(path)", "self.pipes[1].recv()"):
        assert PICKLES & set(imports_and_calls(text)), text
