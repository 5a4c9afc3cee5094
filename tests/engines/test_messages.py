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
    tree = {"rate": 0.1, "size": 2**53 + 1, "least": -(2**63), "done": True}
    _, back = unpack(pack({}, tree))
    assert back == tree
    assert [type(value) for value in back.values()] == [float, int, int, bool]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 2**63, -(2**63) - 1, 1e400, "1", None, [1]])
def test_a_number_that_is_no_finite_one_of_64_bits_is_not_sent(number):
    with pytest.raises(ValueError, match="'rate' is"):
        pack({}, {"rate": number})


def test_a_loss_that_is_no_number_can_be_told_in_a_head():
    head, _ = unpack(pack({"losses": {"train": float("nan"), "match": float("inf")}}))
    assert head["losses"]["train"] != head["losses"]["train"]
    assert head["losses"]["match"] == float("inf")


def test_a_dtype_that_nobody_would_read_is_not_sent():
    with pytest.raises(TypeError, match=r"'x', whose dtype is torch\.complex64"):
        pack({}, {"x": torch.zeros(2, dtype=torch.complex64)})


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


def tensors(header, values=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + values


def described(dtype="F32", shape=(2,), place=(0, 8), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(place), **more}


def claiming(header, values=bytes(8), **others):
    """A message of these tensors, listed in its order."""
    paths = [path for path in header if path != "__metadata__"]
    return frame(PLAIN | {"order": paths} | others, tensors(header, values))


def deep(levels):
    value = 1
    for _ in range(levels):
        value = {"a": value}
    return value


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
    "head that is a list": frame(PLAIN | {"head": []}, NO_TENSORS),
    "head that is nothing": frame(PLAIN | {"head": None}, NO_TENSORS),
    "head that is a word": frame(PLAIN | {"head": "step"}, NO_TENSORS),
    "head that is nested too deeply": frame(PLAIN | {"head": deep(40)}, NO_TENSORS),
    "head with half a character": frame(json.dumps(PLAIN | {"head": {"a": "?"}}).replace("?", "\\ud800"), NO_TENSORS),
    "head with an endless number": frame(PLAIN | {"head": {"a": 10**400}}, NO_TENSORS),
    "head in UTF-16": frame(json.dumps(PLAIN).encode("utf-16"), NO_TENSORS),
    "head that is too long": frame(PLAIN | {"head": {"a": "x" * 2**20}}, NO_TENSORS),
    "head that is longer than the message": (2**63).to_bytes(8, "little") + b"{}",
    "order that is a table": frame(PLAIN | {"order": {}}, NO_TENSORS),
    "empty that is a number": frame(PLAIN | {"empty": 0}, NO_TENSORS),
    "empty with leaves": frame(PLAIN | {"empty": True, "numbers": {"a": 1}, "order": ["a"]}, NO_TENSORS),
    "field of the frame too many": frame(PLAIN | {"more": 1}, NO_TENSORS),
    "name twice in one table": frame(b'{"head":{"a":1,"a":2},"numbers":{},"order":[],"empty":false}', NO_TENSORS),
    "path twice": frame(PLAIN | {"numbers": {"a": 1}, "order": ["a", "a"]}, NO_TENSORS),
    "order that comes back to a branch": frame(
        PLAIN | {"numbers": {"a/x": 1, "b": 2, "a/y": 3}, "order": ["a/x", "b", "a/y"]}, NO_TENSORS
    ),
    "leaf that is not in the order": frame(PLAIN | {"numbers": {"a": 1, "b": 2}, "order": ["a"]}, NO_TENSORS),
    "tensor that is not in the order": frame(PLAIN, tensors({"a": described()}, bytes(8))),
    "tensor that is a number too": claiming({"a": described()}, numbers={"a": 1}),
    "name that is empty": frame(PLAIN | {"numbers": {"a//b": 1}, "order": ["a//b"]}, NO_TENSORS),
    "name that cannot be printed": frame(PLAIN | {"numbers": {"a\n": 1}, "order": ["a\n"]}, NO_TENSORS),
    "path that is too deep": frame(PLAIN | {"numbers": {"a/" * 40 + "b": 1}, "order": ["a/" * 40 + "b"]}, NO_TENSORS),
    "number that is a word": frame(PLAIN | {"numbers": {"a": "1"}, "order": ["a"]}, NO_TENSORS),
    "number that is nothing": frame(PLAIN | {"numbers": {"a": None}, "order": ["a"]}, NO_TENSORS),
    "number that is infinite": frame(b'{"head":{},"numbers":{"a":1e999},"order":["a"],"empty":false}', NO_TENSORS),
    "number that is none": frame(b'{"head":{},"numbers":{"a":NaN},"order":["a"],"empty":false}', NO_TENSORS),
    "number that is huge": frame(PLAIN | {"numbers": {"a": 2**64}, "order": ["a"]}, NO_TENSORS),
    "tensor of another length": claiming({"a": described(shape=[3])}),
    "tensor beyond the message": claiming({"a": described(shape=[4], place=[0, 16])}),
    "tensor that ends before it begins": claiming({"a": described(shape=[0], place=[8, 0])}),
    "tensors that overlap": claiming({"a": described(), "b": described()}),
    "tensors with a gap": claiming({"a": described(place=[8, 16])}, bytes(16)),
    "bytes of no tensor": claiming({"a": described()}, bytes(12)),
    "shape that multiplies to it round the clock": claiming({"a": described(shape=[2**32 + 1, 2**32])}),
    "shape that is empty and endless": claiming({"a": described(shape=[0, 2**62, 4], place=[0, 0])}, b""),
    "shape that is negative": claiming({"a": described(shape=[-1, -2])}),
    "shape that is a word": claiming({"a": described(shape="2")}),
    "shape of truths": claiming({"a": described(shape=[True, 2])}),
    "shape of too many axes": claiming({"a": described(shape=[1] * 60 + [2])}),
    "dtype that is none": claiming({"a": described(dtype="F7")}),
    "dtype that is a list": claiming({"a": described(dtype=["F32"])}),
    "tensor with more fields": claiming({"a": described(more=1)}),
    "tensors with a note": claiming({"a": described(), "__metadata__": {"pickle": "yes"}}),
    "boolean that is neither": claiming({"a": described(dtype="BOOL", shape=[8])}, bytes([0, 1, 2, 0, 0, 0, 0, 0])),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_foreign_bytes_are_refused(case):
    with pytest.raises(DamagedMessage, match="not a Graft message"):
        unpack(FOREIGN[case])


def test_the_frame_of_these_tests_is_right():
    assert unpack(frame(PLAIN, NO_TENSORS)) == ({}, {})
    assert same(unpack(claiming({"a": described()}))[1], Tree(a=torch.zeros(2)))
    assert unpack(frame(PLAIN | {"numbers": {"a/b": 1}, "order": ["a/b"]}, NO_TENSORS))[1] == {"a": {"b": 1}}
    assert unpack(frame(PLAIN | {"head": deep(20)}, NO_TENSORS))[0] == deep(20)


def test_more_bytes_than_are_taken_are_refused():
    data = pack({"do": "step"}, make_tree())
    assert unpack(data, most_bytes=len(data))[0] == {"do": "step"}
    with pytest.raises(DamagedMessage, match=f"{len(data)} bytes are more than the {len(data) - 1} that are taken"):
        unpack(data, most_bytes=len(data) - 1)


def test_what_a_stranger_wrote_does_not_fill_a_log():
    with pytest.raises(DamagedMessage) as refusal:
        unpack(frame(PLAIN | {"numbers": {"a" * 100_000: None}, "order": ["a" * 100_000]}, NO_TENSORS))
    assert len(str(refusal.value)) < 300


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
