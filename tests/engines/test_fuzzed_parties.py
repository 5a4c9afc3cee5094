"""Very many damaged requests at a live party, and damaged answers at a live server: nothing bad is ever taken."""

import json
import resource
from collections import Counter
from dataclasses import asdict
from random import Random

import pytest
import torch

from graft.engines.envelopes import ANSWER, REQUEST, Answer, EndRequest, StateRequest, StepRequest, seal, unseal
from graft.engines.messages import DamagedMessage, pack, unpack
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc import FedGKC
from graft.tensors.trees import flatten
from tests.engines.test_fuzzed_messages import damaged
from tests.mutations import damage_bytes, damage_json
from tests.organisations import (
    NAMES,
    PATIENCE,
    RUN,
    SERVER,
    federation,
    make_key_files,
    make_parties,
    open_star,
    serve,
)
from tests.toy import gap
from tests.wire import MemoryWire

QUICK, LONG, OVER_TLS = 400, 10_000, 150
BATCH = 500  # damaged requests to one party
LATEST = 2**62  # the largest time that a process of a server can have begun at


def recorded(method, rounds=2):
    """The parties of a run, and who was sent what in it and answered what."""
    setup = federation(method)
    parties, wire = make_parties(setup), MemoryWire()
    for name, party in zip(NAMES, parties, strict=True):
        wire.node(name, party.handle)
    session = serve(setup, wire.node(SERVER, lambda sender, data: b""))  # noqa: ARG005
    for number in range(1, rounds + 1):
        session.round(number)
    return setup, wire.passed


def split(data):
    """Returns the envelope and the message of a request or an answer."""
    length = int.from_bytes(data[:4], "little")
    return data[4 : 4 + length], data[4 + length :]


def join(envelope, body):
    return len(envelope).to_bytes(4, "little") + envelope + body


def damage(data, random, others):
    """Returns a request or an answer with damage to its envelope, its message or both, or with another's message."""
    try:
        envelope, body = split(data)
        how = random.randrange(6)
        if how <= 1:
            return join(damage_json(envelope, random), body)
        if how == 2 and body:
            return join(envelope, damaged(random, [body]))
        if how == 3:
            return join(envelope, split(random.choice(others))[1])
        if how == 4 and body:
            return join(envelope, odd_values(body, random))
    except (ValueError, IndexError, RecursionError, UnicodeDecodeError):
        pass
    return damage_bytes(data, random)


def odd_values(body, random):
    """Returns a message of the right form with values in it that nobody should take."""
    head, tree = unpack(body)
    leaves = [leaf for _, leaf in flatten(tree or {}) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    if leaves:
        random.choice(leaves).fill_(random.choice((float("nan"), float("inf"), -float("inf"))))
    return pack(head, tree)


def shape_of(body):
    """Returns what a message is made of; None where it cannot be read or a value in it is not finite."""
    try:
        tree = unpack(body)[1] if body else None
    except DamagedMessage:
        return None
    leaves = list(flatten({} if tree is None else tree))
    if not all(bool(torch.as_tensor(leaf).isfinite().all()) for _, leaf in leaves):
        return None
    # In whatever order: fields are known by their names.
    return {path: (getattr(leaf, "shape", None), getattr(leaf, "dtype", type(leaf))) for path, leaf in leaves}


class Requests:
    """Requests as a server sends them, and what may be answered of them."""

    def __init__(self, method):
        self.setup, passed = recorded(method)
        self.asked = [data for _, to, data, _ in passed if to == NAMES[0]]
        self.good = self.asked[0]
        end = EndRequest(RUN, unseal(self.good, REQUEST)[0].start, 2**61, 1, "")
        self.all = [*self.asked, seal(end), seal(StateRequest(all_fields=True))]
        self.shapes = {}  # of the messages to each step
        for data in self.asked:
            request, body = unseal(data, REQUEST)
            self.shapes.setdefault(request.step, []).append(shape_of(body))

    def new_party(self):
        party = make_parties(self.setup)[0]
        assert self.answer_of(party.handle(SERVER, self.good))[0].kind == "reply"
        return party

    def answer_of(self, data):
        return unseal(data, ANSWER)

    def may_be_answered(self, data):
        """Returns whether a request is one that a server can send in this run, whatever finite values are in it."""
        try:
            envelope = json.loads(split(data)[0])
        except (ValueError, RecursionError):
            return False
        fields = set(asdict(StepRequest("", 0, 0, 0, "", 0, "", 0)))
        if not isinstance(envelope, dict) or envelope.get("run") != RUN:
            return False
        if envelope.get("do", "step" if "step" in envelope else "end") == "end":
            return set(envelope) <= {"run", "start", "number", "after", "reason", "do"}
        body = split(data)[1]
        known = envelope.get("step") in self.shapes and 0 <= envelope["round"] <= self.setup.rounds
        return set(envelope) <= fields and known and shape_of(body) in self.shapes[envelope["step"]]

    def still_works(self, party):
        """Fails unless a party answers a good request still; returns nothing else."""
        request, body = unseal(self.good, REQUEST)
        values = {**asdict(request), "start": LATEST, "number": LATEST, "attempt": "last"}
        values |= {"after": party.state.committed, "round": party.state.committed + 1}
        answer, _ = self.answer_of(party.handle(SERVER, seal(StepRequest(**values), body)))
        assert answer.kind == "reply", answer


def fuzz_party(requests, count, first=0, ask=None):
    """Returns what became of so many damaged requests."""
    outcomes, party = Counter(), None
    for number in range(first, first + count):
        if party is None or number % BATCH == 0:
            party = requests.new_party()
        random = Random(f"request {number}")
        data = damage(random.choice(requests.all), random, requests.all)
        answer, body = requests.answer_of(ask(party, data) if ask else party.handle(SERVER, data))
        assert answer.kind in ("reply", "refused", "behind"), f"case {number}: {answer}"
        assert answer.kind != "reply" or requests.may_be_answered(data), f"case {number}: {data[:300]}"
        assert answer.kind == "reply" or not body
        outcomes[answer.kind] += 1
        if number % BATCH == BATCH - 1 or number == first + count - 1:
            requests.still_works(party)
    return outcomes


@pytest.mark.parametrize("method", [FedAvg(), FedGKC()], ids=["fedavg", "fedgkc"])
def test_damaged_requests_are_refused_by_a_party_that_goes_on(method):
    requests = Requests(method)
    assert all(requests.may_be_answered(data) for data in requests.asked)
    outcomes = fuzz_party(requests, QUICK)
    assert outcomes["refused"] > 0.5 * QUICK


@pytest.mark.slow
def test_ten_thousand_damaged_requests_are_refused_by_a_party_and_leave_nothing_behind():
    requests = Requests(FedAvg())
    fuzz_party(requests, QUICK)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = fuzz_party(requests, LONG, first=QUICK)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert sum(outcomes.values()) == LONG
    assert grown < 64 * 2**20, f"the process grew by {grown} bytes"


class Answering:
    """A node behind which parties answer what they answered before, and one of them something damaged."""

    name = SERVER

    def __init__(self, passed):
        self.replies = {}  # by party and step
        for _, to, data, answer in passed:
            self.replies.setdefault((to, unseal(data, REQUEST)[0].step), split(answer)[1])
        self.all = [answer for *_, answer in passed]
        self.random, self.last = None, b""

    def present(self):
        return set(NAMES)

    def ask(self, requests, patience):  # noqa: ARG002
        return {name: self.answer(name, data) for name, data in requests.items()}

    def answer(self, name, data):
        request, _ = unseal(data, REQUEST)
        self.honest = answer = seal(Answer("reply", request.run, request.number), self.replies[name, request.step])
        if name == "bank_b" and self.random is not None:
            answer = self.last = damage(answer, self.random, self.all)
            self.asked = request
        return answer

    def may_be_taken(self):
        """Returns whether the last damaged answer is of the right form, whatever finite values are in it."""
        try:
            answer, body = unseal(self.last, ANSWER)
        except DamagedMessage:
            return False
        right = (answer.kind, answer.run, answer.number) == ("reply", self.asked.run, self.asked.number)
        return right and shape_of(body) == shape_of(self.replies["bank_b", self.asked.step])

    def close(self):
        pass


def fuzz_server(session, node, count, first=0):
    """Returns in how many rounds a damaged answer was taken, and in how many it was left out."""
    outcomes = Counter()
    for number in range(first + 1, first + count + 1):
        node.random = Random(f"answer {number}")
        outcome = session.round(number, evaluate=False)
        assert set(outcome.facts.absent) <= {1}, f"case {number}"
        assert 1 in outcome.facts.absent or node.may_be_taken(), f"case {number}: {node.last[:300]}"
        outcomes["absent" if outcome.facts.absent else "taken"] += 1
    assert all(bool(leaf.isfinite().all()) for _, leaf in flatten(session.server.state))
    return outcomes


@pytest.fixture(scope="module")
def answers():
    return recorded(FedAvg())


def begin(answers):
    setup, passed = answers
    node = Answering(passed)
    return serve(setup, node, max_norm=10.0), node


def clean_round(answers, session, node, number):
    """Fails unless a round with no damage ends where it ends at a server that never saw any."""
    node.random = None
    assert not session.round(number, evaluate=False).facts.absent
    fresh, _ = begin(answers)
    fresh.round(1, evaluate=False)
    assert gap(session.server.state, fresh.server.state) < 1e-6


def test_damaged_answers_are_left_out_by_a_server_that_goes_on(answers):
    session, node = begin(answers)
    outcomes = fuzz_server(session, node, QUICK)
    assert outcomes["absent"] > 0.5 * QUICK
    clean_round(answers, session, node, QUICK + 1)


@pytest.mark.slow
def test_ten_thousand_damaged_answers_are_left_out_and_leave_nothing_behind(answers):
    session, node = begin(answers)
    fuzz_server(session, node, QUICK)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fuzz_server(session, node, LONG, first=QUICK)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    clean_round(answers, session, node, QUICK + LONG + 1)
    assert grown < 64 * 2**20, f"the process grew by {grown} bytes"


def test_damaged_requests_and_answers_over_tls_are_refused_as_well(answers, tmp_path):
    pytest.importorskip("zenoh")
    pytest.importorskip("cryptography")
    nodes = open_star(make_key_files(tmp_path))
    try:

        def ask(party, data):
            nodes.handlers["bank_a"] = party.handle
            return nodes.nodes[SERVER].ask({"bank_a": data}, PATIENCE)["bank_a"]

        assert fuzz_party(Requests(FedAvg()), OVER_TLS, ask=ask)["refused"] > 0.5 * OVER_TLS
        setup, passed = answers
        stand_in = Answering(passed)
        nodes.handlers = {
            name: lambda sender, data, name=name: stand_in.answer(name, data)  # noqa: ARG005
            for name in NAMES
        }
        session = serve(setup, nodes.nodes[SERVER], max_norm=10.0)
        assert fuzz_server(session, stand_in, OVER_TLS)["absent"] > 0.5 * OVER_TLS
        clean_round(answers, session, stand_in, OVER_TLS + 1)
    finally:
        nodes.close()


def test_requests_of_yesterdays_run_are_refused_by_todays_party(answers):
    setup, passed = answers
    today = make_parties(setup, run="banks-2")[0]
    before = {path: leaf.clone() for path, leaf in flatten(today.fleet.state)}
    yesterday = [data for _, to, data, _ in passed if to == NAMES[0]]
    assert len(yesterday) > 5
    for data in yesterday:
        answer, body = unseal(today.handle(SERVER, data), ANSWER)
        assert (answer.kind, body) == ("refused", b"")
        assert "another federation or of an earlier run" in answer.reason
    assert all(torch.equal(leaf, before[path]) for path, leaf in flatten(today.fleet.state))
    in_its_run = make_parties(setup)[0]
    assert unseal(in_its_run.handle(SERVER, yesterday[0]), ANSWER)[0].kind == "reply"


class Replaying(Answering):
    """A node behind which one party answers each step, word by word, what it answered before."""

    def __init__(self, passed):
        super().__init__(passed)
        self.before = {(to, unseal(data, REQUEST)[0].step): answer for _, to, data, answer in reversed(passed)}

    def answer(self, name, data):
        answer = super().answer(name, data)
        return self.before[name, unseal(data, REQUEST)[0].step] if name == "bank_b" else answer


@pytest.mark.parametrize("run", ["banks-2", RUN])
def test_answers_of_yesterdays_run_or_of_an_earlier_process_are_refused_by_the_server(answers, run):
    setup, passed = answers
    session = serve(setup, Replaying(passed), run=run)
    assert session.round(1, evaluate=False).facts.absent == {1: "answered another request"}
    honest = serve(setup, Answering(passed), run=run)
    assert not honest.round(1, evaluate=False).facts.absent
