"""Peers without a server: each runs the same rounds by itself, and all end where one process ends."""

import threading
from dataclasses import replace

import pytest
import torch

from graft.engines.envelopes import seal, unseal
from graft.engines.in_process import InProcess
from graft.engines.messages import pack
from graft.engines.peer import FETCHED, Fetch, Fetched, Outbox, Peer
from graft.engines.rehearsal import Rehearsal, rehearse
from graft.engines.wire import Patience
from graft.federation.peers import PeerMethod
from graft.federation.session import Session
from graft.methods import METHODS
from graft.methods.dpsgd import DPSGD
from graft.tensors.trees import map_tree
from tests.contract import contract_method
from tests.test_every_engine import with_optimisers
from tests.test_every_method import SETTINGS
from tests.toy import gap, toy_setup
from tests.wire import MemoryWire

ROUNDS = 3
NAMES = ("bank_a", "bank_b", "bank_c", "bank_d")
PEER_METHODS = sorted(name for name, kind in METHODS.items() if issubclass(kind, PeerMethod))


def federation(method, **settings):
    return replace(toy_setup(method, clients=4, dropout=0.5, **settings), names=NAMES)


PATIENCE = Patience(30)


def gather(setup, folder=None, patience=PATIENCE):
    """Every peer's own session."""
    wire = MemoryWire()
    shape = setup.features, setup.classes
    forms = rehearse(Rehearsal(setup.method, setup.name, 4, *shape, ("gcn",), setup.width, setup.dropout))
    sessions = []
    for number, name in enumerate(NAMES):
        own = None if folder is None else folder / name
        if own is not None:
            own.mkdir()
        peer = Peer(setup.part([number]), number, NAMES, patience, run="banks-1", forms=forms, folder=own)
        peer.node = wire.node(name, peer.handle)
        sessions.append(Session(setup.part([number]), peer))
    return wire, sessions


def run_rounds(session, rounds, stop=None):
    """The rounds of one peer, those in which it takes part; `stop` ends it before one of them."""
    absent = {}
    for number in rounds:
        if number == stop:
            session.engine.begin(number)  # so all others are done with the round before the last one
            session.engine.node.wire.away.add(session.engine.name)
            break
        session.engine.begin(number)
        if session.engine.here[0] in session.participants(number):
            session.round(number, evaluate=False)
            absent[number] = dict(session.engine.absent)
    session.absent = absent


def run_together(sessions, rounds=range(1, ROUNDS + 1), stops=None):
    threads = [
        threading.Thread(target=run_rounds, args=(session, rounds, (stops or {}).get(number)), daemon=True)
        for number, session in enumerate(sessions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()


def own_state(session):
    [state] = session.engine.state().values()
    return state


# With everybody in every round they go over a real wire in tests/test_every_wire.py.
@pytest.mark.parametrize("participation", [0.6])
@pytest.mark.parametrize("name", PEER_METHODS)
def test_peers_end_where_one_process_ends(name, participation):
    setup = federation(SETTINGS.get(name) or contract_method(name), participation=participation)
    here = Session(setup, InProcess(setup))
    for number in range(1, ROUNDS + 1):
        here.round(number, evaluate=False)
    _, sessions = gather(setup)
    run_together(sessions)
    expected = here.engine.state()
    for number, session in enumerate(sessions):
        assert not any(session.absent.values())
        own = own_state(session)
        assert gap(with_optimisers(expected[number], own), with_optimisers(own, expected[number])) < 1e-5


def test_another_seed_would_be_noticed():
    setup = federation(DPSGD())
    other = replace(setup, seed=1)
    here = Session(other, InProcess(other))
    here.round(1, evaluate=False)
    _, sessions = gather(setup)
    run_together(sessions, [1])
    assert gap(here.engine.state()[0], own_state(sessions[0])) > 1e-3


def test_a_peer_that_is_gone_is_not_heard_and_the_others_share_its_weight():
    setup = federation(DPSGD())
    _, sessions = gather(setup, patience=Patience(10))
    run_together(sessions, stops={3: 3})
    for session in sessions[:3]:
        assert set(session.absent[1]) == set()
        assert set(session.absent[3]) <= {"bank_d"}
        assert all(bool(leaf.isfinite().all()) for leaf in own_state(session).model.values() if torch.is_tensor(leaf))
    assert any(session.absent[3] for session in sessions[:3])


def test_nobody_but_peers_can_fetch_and_only_what_this_run_sends(tmp_path):
    setup = federation(DPSGD())
    _, sessions = gather(setup, tmp_path)
    run_together(sessions, [1])
    peer = sessions[0].engine
    good = Fetch("banks-1", 1, "mix.0", None, 0.1)

    def fetched(sender, request, body=b""):
        return unseal(peer.handle(sender, seal(request, body)), FETCHED)[0]

    assert fetched("bank_b", good).kind == "message"
    assert fetched("stranger", good).kind == "refused"
    assert fetched("bank_a", good).kind == "refused"
    assert fetched("bank_b", replace(good, run="banks-0")).kind == "refused"
    assert fetched("bank_b", replace(good, exchange="../state")).kind == "late"
    assert fetched("bank_b", replace(good, parts=[10**6])).kind == "refused"
    assert fetched("bank_b", good, b"more").kind == "refused"
    assert unseal(peer.handle("bank_b", b"garbage"), FETCHED)[0].kind == "refused"
    assert (tmp_path / "bank_a" / "sent.jsonl").read_text().count("bank_b") >= 1


def test_a_message_of_another_form_is_not_heard():
    setup = federation(DPSGD())
    wire, sessions = gather(setup)
    model = map_tree(lambda leaf: leaf[0], sessions[1].engine.engine.fleets[0].state.trained)
    bad = {
        "shape": map_tree(lambda leaf: leaf[:1], model),
        "finite": map_tree(lambda leaf: leaf * float("nan"), model),
    }
    for message in bad.values():
        forged = seal(Fetched("message", 1), pack({}, {"model": message}))
        wire.handlers["bank_b"] = lambda sender, data, forged=forged: forged  # noqa: ARG005
        others = [session for session in sessions if session.engine.name != "bank_b"]
        run_together(others, [1])
        heard = [session.absent[1] for session in others if session.absent[1]]
        assert heard
        assert all("refused" in reasons["bank_b"] for reasons in heard)


def test_an_outbox_is_on_the_disk_and_forgets_what_is_old(tmp_path):
    outbox = Outbox(tmp_path)
    for number in (1, 2, 3):
        outbox.begin(number)
        outbox.put(number, "mix.0", b"message %d" % number)
    again = Outbox(tmp_path)
    again.begin(3)
    assert again.wait_for(3, "mix.0", 0) == b"message 3"
    assert again.wait_for(2, "mix.0", 0) == b"message 2"
    assert again.wait_for(1, "mix.0", 0) is None
    assert again.wait_for(4, "mix.0", 0) is None


@pytest.mark.parametrize("left", [b"", b"\0" * 20, b"mess"])
def test_a_message_that_a_power_failure_damaged_is_not_handed_out(tmp_path, left, caplog):
    outbox = Outbox(tmp_path)
    outbox.put(1, "mix.0", b"message 1")
    outbox.put(1, "mix.1", b"message 2")
    outbox.settle()
    (tmp_path / "1-mix.0.message").write_bytes(left)
    again = Outbox(tmp_path)
    assert again.wait_for(1, "mix.0", 0) is None
    assert again.wait_for(1, "mix.1", 0) == b"message 2"
    assert "1-mix.0.message is damaged" in caplog.text
