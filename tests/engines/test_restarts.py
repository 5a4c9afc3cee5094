"""What a party or a peer must keep, or wait for, so that being killed changes nothing."""

import threading

import pytest

from graft.engines.envelopes import ANSWER, EndRequest, StepRequest, seal, unseal
from graft.engines.messages import pack
from graft.engines.party import Party
from graft.engines.peer import BEGUN, FETCHED, Fetch, Fetched, Peer
from graft.engines.wire import Patience
from graft.errors import RunError
from graft.experiments.party_run import Reception
from graft.experiments.peering import PeerSession
from graft.methods.dpsgd import DPSGD
from graft.methods.fedavg import FedAvg
from tests.organisations import NAMES, RUN, SERVER, federation, make_parties, make_peers, own_part, serve
from tests.wire import MemoryWire


def told_of_a_round(folder, *, killed):
    """What a party tells of a round that counted, in which it may have been killed and started again."""
    setup, told = federation(FedAvg()), []
    folder.mkdir()
    party = make_parties(setup, folder)[0]
    model = serve(setup, MemoryWire().node(SERVER, None)).server.state.model
    request = StepRequest(RUN, 5, 1, 1, "5-0", 0, "train", 0)
    assert unseal(party.handle(SERVER, seal(request, pack({}, model))), ANSWER)[0].kind == "reply"
    if killed:
        party = Party(own_part(setup, 0), party.terms, party.policy, folder / NAMES[0])
    party._on_commit = lambda round, losses, traffic: told.append((round, dict(losses), traffic))
    assert unseal(party.handle(SERVER, seal(EndRequest(RUN, 5, 2, 1, ""))), ANSWER)[0].kind == "reply"
    return told


def test_the_losses_and_bytes_of_a_round_survive_a_kill_before_it_counts(tmp_path):
    [(round, losses, traffic)] = expected = told_of_a_round(tmp_path / "whole", killed=False)
    assert round == 1
    assert losses["train"] > 0
    assert min(traffic.up, traffic.down) > 0
    assert told_of_a_round(tmp_path / "killed", killed=True) == expected


def test_a_request_waits_for_a_party_that_gets_ready_and_ends_with_one_that_leaves():
    for handler, expected in ((lambda _, data: data[::-1], b"cba"), (None, RunError)):
        reception, heard = Reception(), []

        def ask(reception=reception, heard=heard):
            try:
                heard.append(reception.handle(SERVER, b"abc"))
            except RunError:
                heard.append(RunError)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(0.05)
        assert not heard
        reception.open(handler)
        asking.join(20)
        assert heard == [expected]


@pytest.fixture
def peers():
    """Engines of peers that are connected, and their wire."""
    wire = MemoryWire()
    engines = [session.engine for session in make_peers(federation(DPSGD()))]
    for engine in engines:
        engine.node, engine.patience = wire.node(engine.name, engine.handle), Patience(20)
    return engines, wire


def test_a_peer_begins_a_round_when_all_others_have_begun_the_one_before(peers):
    (first, second, third), _ = peers
    for engine in (first, second):
        engine.begin(1)
    beginning = threading.Thread(target=first.begin, args=(2,), daemon=True)
    beginning.start()
    beginning.join(0.1)
    assert first.outbox.round == 1
    third.begin(1)
    beginning.join(20)
    assert first.outbox.round == 2
    assert second.outbox.round == 1  # nobody waits for those who are a round behind


def test_two_peers_that_were_killed_do_not_wait_for_each_other():
    wire, setup = MemoryWire(), federation(DPSGD())
    done = {"bank_a": 8, "bank_b": 7, "bank_c": 8}
    engines = []
    for number, (name, after) in enumerate(done.items()):
        engine = Peer(setup.part([number]), number, NAMES, Patience(20), run=RUN, after=after)
        engine.node = wire.node(name, engine.handle)
        engines.append(engine)
    beginning = [
        threading.Thread(target=engine.begin, args=(done[engine.name] + 1,), daemon=True) for engine in engines
    ]
    for thread in beginning:
        thread.start()
    for thread in beginning:
        thread.join(10)
    assert [engine.outbox.round for engine in engines] == [9, 8, 9]


def test_a_peer_that_does_not_come_is_waited_for_once_and_again_when_it_was_seen(peers):
    (first, second, third), wire = peers
    wire.away.add(third.name)
    for engine in (first, second):
        engine.begin(1)
    first.begin(2)
    asked = len(wire.passed)
    assert first._left_behind == {third.name}
    second.begin(2)
    first.begin(3)
    assert all(to != third.name for _, to, _, _ in wire.passed[asked:])
    wire.away.clear()
    third.begin(1)
    third.see(first.name, 3)
    third.begin(2)
    first.handle(third.name, seal(Fetch(RUN, 2, "mix.0", None, 0.0)))
    assert not first._left_behind


def test_one_who_waits_to_begin_a_round_is_not_in_it_yet(peers):
    (first, second, third), _ = peers
    third.begin(1)
    for other in (first, second):
        third.handle(other.name, seal(Fetch(RUN, 2, BEGUN, None, 0.0)))
    assert third.newest == 2


def test_one_liar_does_not_make_a_peer_leave_rounds_out(peers):
    (first, _, third), wire = peers
    wire.handlers["bank_b"] = lambda sender, data: seal(Fetched("past", 10**9))  # noqa: ARG005
    third.begin(1)
    first.see(third.name, 1)
    first.begin(2)
    first._note_round("bank_b", seal(Fetched("past", 10**9)))
    assert first.newest == 1
    first._note_round(third.name, seal(Fetched("past", 7)))
    assert first.newest == 7  # most of them say so


def test_a_peer_that_was_away_runs_the_last_round_that_others_still_keep():
    sessions = make_peers(federation(DPSGD()))
    wire = MemoryWire()
    for session in sessions:
        session.engine.node = wire.node(session.engine.name, session.engine.handle)
    for other in sessions[1:]:
        wire.away.add(other.engine.name)
    peer = PeerSession(sessions[0].setup, sessions[0].engine)
    for name in NAMES[1:]:
        peer.engine.see(name, 4)
    assert [bool(peer.round(number, evaluate=False).facts.participants) for number in (1, 2, 3, 4)] == [
        False,
        False,
        True,
        True,
    ]


def test_who_asks_for_a_round_that_does_not_begin_is_told_so_in_time(peers):
    (first, *_), _ = peers
    first.patience = Patience(0.05)
    answer = unseal(first.handle("bank_b", seal(Fetch(RUN, 3, BEGUN, None, 1e9))), FETCHED)[0]
    assert answer == Fetched("late", 0)
