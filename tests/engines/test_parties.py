"""Organisations behind a wire: every method ends where one process ends, and nothing bad is taken."""

import json
from dataclasses import replace

import pytest
import torch

from graft.engines.envelopes import ANSWER, Answer, EndRequest, StateRequest, StepRequest, seal, unseal
from graft.engines.in_process import InProcess
from graft.engines.messages import pack, unpack
from graft.engines.parties import Parties
from graft.engines.party import Party, Terms
from graft.engines.policy import Policy
from graft.engines.wire import Patience
from graft.federation.session import Session
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc import FedGKC
from graft.methods.fedomd import FedOMD
from graft.tensors.trees import Tree, map_tree, strip_architectures
from tests.organisations import NAMES, federation, forms_of, make_method, own_part
from tests.toy import gap
from tests.wire import MemoryWire

ROUNDS = 3


def gather(setup, folder=None, policy=None, **options):
    """Parties of a federation, and a session of its server."""
    wire = MemoryWire()
    server_forms = forms_of(setup)
    parties = []
    for client, name in enumerate(NAMES):
        terms = Terms("coordinator", "banks-1", setup.rounds, server_forms)
        own = None if folder is None else folder / name
        if own is not None:
            own.mkdir(exist_ok=True)
        party = Party(own_part(setup, client), terms, policy or Policy(minimum_count=0, scores="all"), own)
        parties.append(party)
        wire.node(name, party.handle)
    node = wire.node("coordinator", lambda sender, data: b"")  # noqa: ARG005
    graphless = replace(setup, on_demand=True)
    engine = Parties(graphless, node, NAMES, Patience(60), run="banks-1", forms=server_forms, **options)
    return wire, parties, Session(graphless, engine)


def states(parties):
    return {client: map_tree(lambda leaf: leaf[0], party.fleet.state) for client, party in enumerate(parties)}


# Every method goes over a real wire in tests/test_every_wire.py.
@pytest.mark.parametrize("name", ["fedavg", "fedgkc", "fedomd", "fedgta", "fedproto"])
def test_organisations_end_where_one_process_ends(name):
    setup = federation(make_method(name))
    _, parties, session = gather(setup)
    here = Session(setup, InProcess(setup))
    for number in range(1, ROUNDS + 1):
        there = session.round(number)
        expected = here.round(number)
        assert not there.facts.absent
        assert torch.equal(there.tensors.correct.own, expected.tensors.correct.own)
    assert gap(here.server.state, session.server.state) < 1e-5
    in_process = here.engine.state()
    for client, state in states(parties).items():
        assert gap(strip_architectures(in_process[client]), state) < 1e-5


def test_another_graph_would_be_noticed():
    setup = federation(FedAvg())
    _, _, session = gather(setup)
    other = replace(setup, seed=setup.seed + 1)
    here = Session(other, InProcess(other))
    session.round(1)
    here.round(1)
    assert gap(here.server.state, session.server.state) > 1e-3


def test_what_is_only_logged_stays_with_its_owner_and_training_losses_too(tmp_path):
    setup = federation(FedGKC())
    wire, _, session = gather(setup, tmp_path)
    outcome = session.round(1)
    assert outcome.losses.owners == []
    assert bool(outcome.details["strength"].isnan().all())
    assert bool(outcome.details["knowledge"].isfinite().all())
    [reply] = [unpack(unseal(answer, ANSWER)[1])[1] for _, to, _, answer in wire.passed[:3] if to == "bank_a"]
    assert set(reply) == {"copilot", "size", "knowledge"}
    [line] = (tmp_path / "bank_a" / "private.jsonl").read_text().splitlines()[:1]
    assert {"terms/copilot/labels", "strength", "clarity"} <= set(json.loads(line)["stays"])
    assert json.loads(line)["losses"]


def test_a_party_keeps_a_log_of_what_it_sent(tmp_path):
    _, _, session = gather(federation(FedAvg()), tmp_path)
    for number in (1, 2):
        session.round(number)
    lines = [json.loads(line) for line in (tmp_path / "bank_b" / "sent.jsonl").read_text().splitlines()]
    every_round = ["train", "score", "score_shared"]
    assert [line["step"] for line in lines] == [*every_round, "count", *every_round]  # how many nodes is told once
    fields = {field["field"]: field for field in lines[0]["fields"]}
    assert [field for field in fields if not field.startswith("model/")] == ["weight"]
    assert len(fields) > 1
    assert all(len(field["sha256"]) == 64 and field["bytes"] > 0 for field in fields.values())


def step_request(**changes):
    values = {"run": "banks-1", "start": 5, "number": 1, "round": 1, "attempt": "5-0", "after": 0, "step": "train"}
    return StepRequest(**{**values, "turn": 0, **changes})


def told(party, sender, request, message=None):
    answer, body = unseal(party.handle(sender, seal(request, pack({}, message))), ANSWER)
    return answer, unpack(body)[1] if body else None


@pytest.fixture
def party():
    setup = federation(FedAvg())
    _, parties, session = gather(setup)
    return parties[0], session.server.state.model


def test_only_its_own_server_may_ask_and_only_what_was_approved(party):
    party, model = party
    refused = {
        "is not the server": ("bank_b", step_request(), model),
        "another federation": ("coordinator", step_request(run="banks-0"), model),
        "step 'measure_everything' was not approved": ("coordinator", step_request(step="measure_everything"), model),
        "round 101 was not approved": ("coordinator", step_request(round=101), model),
        "stays with it": ("coordinator", StateRequest(all_fields=True), None),
        "is missing": ("coordinator", step_request(), Tree(head=model.head)),
        "is not a field": ("coordinator", step_request(), Tree(**model, more=torch.ones(2))),
        "has the shape": ("coordinator", step_request(), map_tree(lambda leaf: leaf.unsqueeze(0), model)),
        "not finite": ("coordinator", step_request(), map_tree(lambda leaf: leaf * float("nan"), model)),
    }
    for number, (words, (sender, request, message)) in enumerate(refused.items(), 1):
        if isinstance(request, StepRequest):
            request = replace(request, number=number)
        answer, reply = told(party, sender, request, message)
        assert (answer.kind, reply) == ("refused", None), words
        assert words in answer.reason
    assert told(party, "coordinator", step_request(number=100), model)[0].kind == "reply"


def test_a_replayed_and_an_old_request_are_refused_and_a_repeated_one_is_answered_once(party):
    party, model = party
    first = seal(step_request(), pack({}, model))
    answer = party.handle("coordinator", first)
    trained = map_tree(torch.clone, party.fleet.state.model)
    assert party.handle("coordinator", first) == answer  # the answer was lost on its way
    assert gap(party.fleet.state.model, trained) == 0
    assert told(party, "coordinator", step_request(number=2, turn=1), model)[0].kind == "reply"
    assert gap(party.fleet.state.model, trained) > 0
    assert "is not after request 2" in unseal(party.handle("coordinator", first), ANSWER)[0].reason
    old = step_request(number=9, start=4)
    assert "earlier process" in told(party, "coordinator", old, model)[0].reason


def test_a_round_that_did_not_count_is_forgotten_and_one_that_did_is_kept(party):
    party, model = party
    before = map_tree(torch.clone, party.fleet.state.model)
    told(party, "coordinator", step_request(), model)
    trained = map_tree(torch.clone, party.fleet.state)
    told(party, "coordinator", step_request(number=2, attempt="5-1"), model)  # the round is done again
    assert gap(party.fleet.state, trained) == 0
    answer, _ = told(party, "coordinator", EndRequest("banks-1", 5, 3, 0, ""))
    assert answer.kind == "reply"
    assert gap(party.fleet.state.model, before) == 0
    told(party, "coordinator", step_request(number=4), model)
    told(party, "coordinator", EndRequest("banks-1", 5, 5, 1, ""))
    assert gap(party.fleet.state, trained) == 0
    assert party.state.committed == 1


def test_a_party_that_was_stopped_goes_on_from_its_own_disk(tmp_path):
    setup = federation(FedOMD())
    _, unbroken, whole = gather(setup)
    for number in range(1, 4):
        whole.round(number)
    (tmp_path / "a").mkdir()
    wire, parties, session = gather(setup, tmp_path / "a")
    terms, policy = parties[1].terms, parties[1].policy
    asked = 0

    def restarts(sender, data):
        nonlocal asked
        asked += 1
        if asked % 2 == 0:  # every second request finds another process, and some are asked twice
            again = Party(own_part(setup, 1), terms, policy, tmp_path / "a" / "bank_b")
            again._start, again._number = parties[1]._start, parties[1]._number
            parties[1] = again
        answer = parties[1].handle(sender, data)
        return parties[1].handle(sender, data) if asked % 3 == 0 else answer

    wire.handlers["bank_b"] = restarts
    for number in range(1, 4):
        assert not session.round(number).facts.absent
    assert asked > 12
    assert gap(session.server.state, whole.server.state) < 1e-6
    for client, state in states(parties).items():
        assert gap(state, states(unbroken)[client]) < 1e-6


BAD = {
    "NaN": lambda reply: map_tree(lambda leaf: leaf * float("nan") if leaf.is_floating_point() else leaf, reply),
    "a huge weight": lambda reply: Tree(reply, weight=torch.tensor(10**12)),
    "a negative weight": lambda reply: Tree(reply, weight=torch.tensor(-(10**9))),
    "another shape": lambda reply: Tree(reply, model=map_tree(lambda leaf: leaf[:1], reply.model)),
    "another dtype": lambda reply: Tree(reply, weight=torch.tensor(7.0)),
    "a missing field": lambda reply: Tree(model=reply.model),
    "one more field": lambda reply: Tree(reply, more=torch.ones(3)),
}


def with_reply(change):
    def altered(sender, data):
        answer, body = unseal(data, ANSWER)
        reply = unpack(body)[1] if body else None
        if sender != "bank_b" or not reply or "model" not in reply:
            return data
        return seal(answer, pack({}, change(reply)))

    return altered


@pytest.mark.parametrize("what", BAD)
def test_a_party_that_sends_what_it_may_not_is_left_out_of_the_round(what):
    setup = federation(FedAvg())
    _, _, session = gather(setup)
    session.engine.node.change = with_reply(BAD[what])
    outcome = session.round(1)
    assert list(outcome.facts.absent) == [1]
    assert outcome.facts.participants == [0, 2]
    alone = Session(setup, InProcess(setup))
    alone.participants = lambda number: [0, 2]  # noqa: ARG005
    alone.round(1)
    assert gap(session.server.state, alone.server.state) < 1e-6


def test_an_update_far_from_the_others_is_left_out_with_max_norm():
    def shout(reply):
        return Tree(reply, model=map_tree(lambda leaf: 1000 * leaf, reply.model))

    for max_norm, absent in ((10.0, [1]), (None, [])):
        _, _, session = gather(federation(FedAvg()), max_norm=max_norm)
        session.engine.node.change = with_reply(shout)
        assert list(session.round(1).facts.absent) == absent


def test_garbage_doubled_and_foreign_answers_are_left_out():
    kept = {}

    def replay(sender, data):
        """The first answer of a party, for ever."""
        return kept.setdefault(sender, data) if sender == "bank_b" else data

    garbage = {
        "garbage": lambda sender, data: b"\\x00" * 40 if sender == "bank_b" else data,
        "twice": lambda sender, data: data + data if sender == "bank_b" else data,
        "cut": lambda sender, data: data[: len(data) // 2] if sender == "bank_b" else data,
        "answer": lambda sender, data: seal(Answer("reply"), pack({})) if sender == "bank_b" else data,
    }
    for change in garbage.values():
        _, _, session = gather(federation(FedAvg()))
        session.engine.node.change = change
        assert list(session.round(1).facts.absent) == [1]
    _, _, session = gather(federation(FedAvg()))
    session.engine.node.change = replay
    session.round(1, evaluate=False)
    assert session.round(2, evaluate=False).facts.absent == {1: "answered another request"}


def test_a_server_that_was_stopped_in_a_round_does_it_again():
    setup = federation(FedOMD())
    _, unbroken, whole = gather(setup)
    for number in range(1, 4):
        whole.round(number)
    _, parties, session = gather(setup)
    session.round(1)
    kept = map_tree(torch.clone, session.server.state)
    node = session.engine.node
    asked = []

    def stops(sender, data):
        asked.append(sender)
        if len(asked) > 4:  # in the second exchange of the second round
            raise KeyboardInterrupt
        return data

    node.change = stops
    with pytest.raises(KeyboardInterrupt):
        session.round(2)
    node.change = lambda sender, data: data  # noqa: ARG005
    forms = session.engine._forms
    engine = Parties(
        session.setup, node, NAMES, Patience(60), run="banks-1", forms=forms, after=dict.fromkeys(range(3), 1)
    )
    again = Session(session.setup, engine)
    again.server.state = kept
    for number in (2, 3):
        assert not again.round(number).facts.absent
    assert gap(again.server.state, whole.server.state) < 1e-6
    for client, state in states(parties).items():
        assert gap(state, states(unbroken)[client]) < 1e-6


@pytest.mark.parametrize("metrics", [("accuracy",), ("f1", "accuracy")])
def test_scores_that_a_policy_keeps_are_left_out_and_the_round_counts(metrics):
    setup = replace(federation(FedAvg()), metrics=metrics)
    _, parties, session = gather(setup)
    parties[2]._gate.policy = Policy(scores="never")
    outcome = session.round(1)
    assert outcome.facts.participants == [0, 1, 2]
    assert outcome.facts.scored == [0, 1]
    assert not outcome.facts.absent
    for party in parties:
        party._gate.policy = Policy(scores="own", minimum_count=0)
    outcome = session.round(2)
    assert outcome.facts.scored == [0, 1, 2]
    assert set(outcome.tensors.correct) == {"own"}  # nobody scores what the server sends, and all what they hold
    for party in parties:
        party._gate.policy = Policy(scores="never")
    outcome = session.round(3)
    assert outcome.facts.participants == [0, 1, 2]
    assert outcome.facts.scored == []
    assert not outcome.measured
