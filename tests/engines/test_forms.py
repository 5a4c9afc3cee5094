"""Rehearsed forms accept what a method really says, in any federation like the one rehearsed, and nothing else."""

import json
from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from graft.engines.forms import (
    FieldForm,
    RefusedMessage,
    StepForm,
    check_message,
    check_tree,
    differences,
    fill_logged,
    from_json,
    leaving,
    most_bytes,
    split_logged,
    to_json,
)
from graft.engines.in_process import InProcess
from graft.engines.messages import drop_client_axis
from graft.engines.rehearsal import Rehearsal, rehearse
from graft.federation.session import Session
from graft.methods import METHODS
from graft.methods.fedgkc import FedGKC
from graft.tensors.trees import Tree, flatten, unflatten
from graft.testing.claim import contract_setup
from graft.testing.toy import CLASSES, declaring, join_graphs, toy_graphs, toy_setup
from tests.contract import contract_method

MOST_FREE = 1000
FEDERATED = sorted(set(METHODS) - {"centralised"})
SHORT = {"fedsage_plus": {"generator_epochs": 2, "shared_epochs": 2, "generator_learning_rate": 0.1, "rank": 4}}


def method_of(name):
    return METHODS[name](**SHORT[name]) if name in SHORT else contract_method(name)


def rehearsal_of(setup, **changes):
    """The rehearsal of a federation, of which it is told what an agreement holds."""
    method = setup.method
    known = {
        "method": method,
        "name": setup.name,
        "clients": len(setup.graphs),
        "features": setup.features,
        "classes": setup.classes,
        "models": () if method.architecture else tuple(dict.fromkeys(model.name for model in setup.models)),
        "width": setup.width,
        "dropout": setup.dropout,
        "head": method.experiment_defaults.get("head", "linear"),
        "training": setup.training,
        "rounds": setup.rounds,
        "topology": setup.topology,
        "metrics": setup.metrics,
    }
    return Rehearsal(**known | changes)


class Checks(InProcess):
    """An engine of clients each alone that checks all that is said to them and by them."""

    def __init__(self, setup, forms):
        super().__init__(setup, alone=True)
        self.forms, self.steps, self.replies = forms, set(), {}

    def ask(self, request):
        form = self.forms[request.step]
        self.steps.add(request.step)
        for position, client in enumerate(request.clients):
            message = request.message if request.each is None else request.each[client]
            if request.mail is not None:
                mail = request.mail
                message = Tree(sent=mail.sent, links=mail.links[position], senders=torch.tensor(mail.senders))
            check_message(message, form, f"the message to {request.step}", MOST_FREE)
        replies = super().ask(request)
        for clients, part in replies.parts:
            reply = drop_client_axis(part)
            check_tree(reply, form.reply, f"the reply of client {clients[0]} to {request.step}", MOST_FREE)
            self.replies.setdefault(request.step, []).append(reply)
        return replies


def run_checked(setup, forms, rounds=4):
    """Runs rounds with scores, as a run has them, and checks all messages."""
    engine = Checks(setup, forms)
    session = Session(setup, engine)
    session.count_nodes()
    for number in range(1, rounds + 1):
        session.round(number)
    return engine


@lru_cache
def rehearsed(name):
    """The setup of a small federation, and the forms of its messages."""
    setup = contract_setup(method_of(name), clients=4, dropout=0.5, epochs=2)
    return setup, rehearse(rehearsal_of(setup))


@pytest.mark.parametrize("name", FEDERATED)
def test_forms_accept_every_message_of_a_real_run(name):
    """Of clients of other numbers of nodes, with another seed and other participants than the rehearsal's."""
    setup, forms = rehearsed(name)
    parts = toy_graphs(4, sizes=(23, 9, 31, 12))
    other = contract_setup(setup.method, federation=join_graphs(parts), seed=3, dropout=0.5, epochs=2)
    steps = run_checked(other, forms, rounds=2).steps | run_checked(replace(other, participation=0.5), forms).steps
    assert steps <= forms.keys()


@pytest.mark.parametrize("name", FEDERATED)
def test_forms_refuse_what_is_missing_added_or_changed(name):
    setup, forms = rehearsed(name)
    replies = run_checked(setup, forms, rounds=1).replies
    tried = 0
    for asked, (reply, *_) in replies.items():
        fields, leaves = forms[asked].reply, dict(flatten(reply))
        for changed in other_replies(leaves, fields):
            with pytest.raises(RefusedMessage, match=r"^the reply: '"):
                check_tree(unflatten(changed), fields, "the reply", MOST_FREE)
            tried += 1
    assert tried > 5


def other_replies(leaves, fields):
    """Replies that differ from an accepted one in one field."""
    yield {**leaves, "more": torch.zeros(1)}
    for path, leaf in leaves.items():
        yield {**leaves, path: leaf.unsqueeze(0)}
        yield {**leaves, path: leaf.to(torch.complex64)}
        if fields[path].always:
            yield {other: kept for other, kept in leaves.items() if other != path}
        for axis, size in enumerate(fields[path].shape):
            if size is not None:
                yield {**leaves, path: torch.cat([leaf, leaf.narrow(axis, 0, 1)], axis)}
        if leaf.is_floating_point() and leaf.numel() and fields[path].finite:
            for bad in (torch.nan, -torch.inf):
                spoiled = leaf.clone()
                spoiled.view(-1)[-1] = bad
                yield {**leaves, path: spoiled}


FIELDS = {
    "model/head/weight": FieldForm((3, 2), "float32"),
    "rows": FieldForm((None, 2), "float32"),
    "share": FieldForm((), "plain float"),
    "late": FieldForm((), "int64", always=False),
    "value": FieldForm((), "float64", finite=False),
}


def message(**changes):
    whole = Tree(
        model=Tree(head=Tree(weight=torch.ones(3, 2))),
        rows=torch.ones(5, 2),
        share=0.5,
        value=torch.tensor(torch.nan, dtype=torch.float64),
    )
    return Tree({name: leaf for name, leaf in (whole | changes).items() if leaf is not None})


def test_a_message_as_its_form_says_is_accepted():
    for changes in ({}, {"late": torch.tensor(3)}, {"rows": torch.ones(0, 2)}, {"rows": torch.ones(9, 2)}):
        check_tree(message(**changes), FIELDS, "it", most_free=9)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": Tree(head=Tree(weight=torch.ones(2, 3)))}, "'model/head/weight' has the shape (2, 3), not (3, 2)"),
        ({"model": Tree(head=Tree(weight=torch.ones(6)))}, "'model/head/weight' has the shape (6,), not (3, 2)"),
        ({"model": Tree(head=torch.ones(3, 2))}, "'model/head' is not a field of it"),
        ({"model": Tree(head=Tree(weight=torch.ones(3, 2), bias=1.0))}, "'model/head/bias' is not a field of it"),
        ({"model": Tree()}, "'model' is empty"),
        ({"model": None}, "'model/head/weight' is missing"),
        ({"rows": torch.ones(10, 2)}, "'rows' has the shape (10, 2), and no size of it may be above 9"),
        ({"rows": torch.ones(5, 3)}, "'rows' has the shape (5, 3), not (any, 2)"),
        ({"rows": torch.ones(5, 2).double()}, "'rows' is float64, not float32"),
        ({"rows": torch.full((5, 2), torch.inf)}, "'rows' holds numbers that are not finite"),
        ({"rows": torch.ones(5, 2).to_sparse()}, "'rows' is a Tensor, neither a tensor nor a number"),
        ({"share": float("nan")}, "'share' holds numbers that are not finite"),
        ({"share": 1}, "'share' is plain int, not plain float"),
        ({"share": True}, "'share' is plain bool, not plain float"),
        ({"share": torch.tensor(0.5)}, "'share' is float32, not plain float"),
        ({"share": "0.5"}, "'share' is a str, neither a tensor nor a number"),
        ({"share": [0.5]}, "'share' is a list, neither a tensor nor a number"),
        ({"share": {}}, "'share' is not a field of it"),
        ({"other": torch.ones(1)}, "'other' is not a field of it"),
        ({"a/b": torch.ones(1)}, "'a/b' is not a field of it"),
        ({"x\n" * 99: 1.0}, "'" + "x\\n" * 40 + "...' is not a field of it"),
    ],
)
def test_a_message_of_another_form_is_refused_with_the_name_of_the_field(changes, sentence):
    with pytest.raises(RefusedMessage) as refused:
        check_tree(message(**changes), FIELDS, "it", most_free=9)
    assert str(refused.value) == f"it: {sentence}"


def test_what_is_no_tree_is_refused_and_nothing_is_searched_deeper_than_the_form():
    with pytest.raises(RefusedMessage, match="it is a bare int"):
        check_tree(3, FIELDS, "it", 9)
    deep = Tree(share=0.5)
    for _ in range(5000):
        deep = Tree(share=deep)
    with pytest.raises(RefusedMessage, match="'share' is not a field of it"):
        check_tree(deep, FIELDS, "it", 9)


def test_a_number_that_no_tensor_could_hold_is_refused():
    fields = {"count": FieldForm((), "plain int")}
    check_tree({"count": 7}, fields, "it", 9)
    with pytest.raises(RefusedMessage, match="'count' holds numbers that are not finite"):
        check_tree({"count": 10**400}, fields, "it", 9)


def test_a_field_may_stand_in_the_place_of_another_and_one_of_them_must_be_there():
    matrix, left = FieldForm((4, 3), "float32", unless="w/left"), FieldForm((4, None), "float32", unless="w")
    fields = {"w": matrix, "w/left": left}
    check_tree({"w": torch.ones(4, 3)}, fields, "it", 9)
    check_tree({"w": {"left": torch.ones(4, 1)}}, fields, "it", 9)
    with pytest.raises(RefusedMessage, match="'w' is missing"):
        check_tree({}, fields, "it", 9)


def test_sizes_that_go_together_are_checked_together():
    left, right = FieldForm((4, None), "float32"), FieldForm((None, 3), "float32", tied="left")
    check_tree({"right": torch.ones(2, 3), "left": torch.ones(4, 2)}, {"left": left, "right": right}, "it", 9)
    with pytest.raises(RefusedMessage, match="it: 'right' has 1 where 'left' has 2"):
        check_tree({"right": torch.ones(1, 3), "left": torch.ones(4, 2)}, {"left": left, "right": right}, "it", 9)


def test_a_step_is_asked_without_a_message_only_where_it_may_be():
    check_message(None, StepForm({}, {}), "it", 9)
    check_message(None, StepForm(FIELDS, {}, empty=True), "it", 9)
    with pytest.raises(RefusedMessage, match="it: there is no message"):
        check_message(None, StepForm(FIELDS, {}), "it", 9)


def test_bytes_follow_from_the_form():
    assert most_bytes(FIELDS, most_free=9) == 3 * 2 * 4 + 9 * 2 * 4 + 8 + 8 + 8
    assert most_bytes(FIELDS, most_free=0) == 3 * 2 * 4 + 8 + 8 + 8


def test_logged_fields_stay_and_the_server_reads_nan_in_their_place():
    setup = toy_setup(FedGKC())
    forms = rehearse(rehearsal_of(setup))
    fields, reply = forms["train"].reply, run_checked(setup, forms, rounds=1).replies["train"][0]
    sent, kept = split_logged(reply, fields)
    assert set(sent) == {"copilot", "size", "knowledge"}
    assert set(kept) == {"strength", "clarity", "terms"}
    check_tree(sent, leaving(fields), "the reply", MOST_FREE)
    with pytest.raises(RefusedMessage, match="'strength' is not a field of it"):
        check_tree(reply, leaving(fields), "the reply", MOST_FREE)
    filled = dict(flatten(fill_logged(sent, fields)))
    assert filled.keys() == dict(flatten(reply)).keys()
    assert filled["terms/local/labels"].isnan()
    assert torch.equal(filled["size"], reply.size)
    everything = declaring(FedGKC(), logged=())
    assert leaving(rehearse(Rehearsal(everything, "fedgkc", 3, 6, CLASSES))["train"].reply).keys() == fields.keys()


@pytest.mark.parametrize("name", ["fedgkc", "fedkd", "fedsage_plus", "dfed_sst"])
def test_forms_survive_a_file(name):
    forms = rehearse(Rehearsal(METHODS[name](), name, 4, 6, CLASSES))
    read = from_json(json.loads(json.dumps(to_json(forms))))
    assert read == forms
    assert differences(forms, read) == []
    assert to_json(rehearse(Rehearsal(METHODS[name](), name, 4, 6, CLASSES))) == to_json(forms)


@pytest.mark.parametrize(
    "content",
    [
        3,
        {"train": 3},
        {"train": {"message": {}}},
        {"train": {"message": {"x": {"shape": [-1], "dtype": "float32"}}, "reply": {}}},
        {"train": {"message": {"x": {"shape": [2], "dtype": "load"}}, "reply": {}}},
        {"train": {"message": {"x": {"shape": [2], "dtype": "int8", "more": 1}}, "reply": {}}},
    ],
)
def test_other_values_are_no_forms(content):
    if isinstance(content, dict) and isinstance(content["train"], dict):
        content["train"] |= {"empty": False, "audience": "server", "hears": ""} if "reply" in content["train"] else {}
    with pytest.raises(RefusedMessage, match="not forms of messages"):
        from_json(content)
