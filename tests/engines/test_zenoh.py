"""The wire between organisations: real TLS, on loopback addresses."""

import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from graft.engines.wire import Absent, Patience
from graft.engines.zenoh import MOST_PENDING
from graft.errors import InputError, RunError
from tests.engines.zenoh_world import LONG, PARTIES, PATIENT, World, free_address, make_keys, until

pytest.importorskip("zenoh")
pytest.importorskip("cryptography")


@pytest.fixture(scope="module")
def key_folder(tmp_path_factory):
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def world(key_folder):
    world = World(key_folder)
    yield world
    world.close()


def connected(server, *parties):
    until(lambda: server.present() >= set(parties))


def test_a_megabyte_comes_back_whole_in_both_directions(world):
    server, party = world.server(), world.node("bank_a", lambda _, request: request[::-1])
    connected(server, "bank_a")
    connected(party, "server")
    content = os.urandom(2**20)
    assert server.ask({"bank_a": content}, PATIENT) == {"bank_a": content[::-1]}
    assert party.ask({"server": content}, PATIENT) == {"server": content}
    assert server.ask({"bank_a": b""}, PATIENT) == {"bank_a": b""}


def test_a_handler_is_told_who_asks(world):
    server = world.server(lambda sender, _: sender.encode())
    parties = {name: world.node(name) for name in PARTIES}
    for name, party in parties.items():
        connected(party, "server")
        assert party.ask({"server": b""}, PATIENT) == {"server": name.encode()}
    assert server.present() == set(PARTIES)


def test_all_are_asked_at_once(world):
    server, meeting = world.server(), threading.Barrier(len(PARTIES))

    def meet(_, request):  # nobody answers before everybody was asked
        meeting.wait(LONG)
        return request

    for name in PARTIES:
        world.node(name, meet)
    connected(server, *PARTIES)
    requests = {name: name.encode() for name in PARTIES}
    assert server.ask(requests, PATIENT) == requests


def test_a_long_request_does_not_hold_up_another(world):
    server, release = world.server(), threading.Event()

    def wait(_, request):
        if request == b"long":
            release.wait(LONG)
        return request

    world.node("bank_a", wait)
    connected(server, "bank_a")
    with ThreadPoolExecutor(1) as thread:
        long = thread.submit(server.ask, {"bank_a": b"long"}, PATIENT)
        assert server.ask({"bank_a": b"short"}, PATIENT) == {"bank_a": b"short"}
        assert not long.done()
        release.set()
        assert long.result() == {"bank_a": b"long"}


def test_peers_reach_each_other_without_any_server(world):
    addresses = {name: free_address() for name in PARTIES}
    peers = {}
    for name in PARTIES:
        others = [other for other in PARTIES if other != name]
        connect = [addresses[other] for other in others]
        peers[name] = world.node(
            name,
            lambda sender, request, own=name: f"{own} to {sender}: ".encode() + request,
            others=others,
            listen=[addresses[name]],
            connect=connect,
        )
    for name, peer in peers.items():
        others = {other for other in PARTIES if other != name}
        connected(peer, *others)
        answers = peer.ask(dict.fromkeys(others, b"hello"), PATIENT)
        assert answers == {other: f"{other} to {name}: hello".encode() for other in others}


def test_parties_of_a_star_cannot_reach_each_other(world):
    server = world.server()
    asked = []
    curious = world.node("bank_a", others=["server", "bank_b"])
    other = world.node("bank_b", lambda sender, _: asked.append(sender) or b"", others=["server", "bank_a"])
    connected(server, "bank_a", "bank_b")
    connected(curious, "server")
    connected(other, "server")
    assert curious.ask({"bank_b": b"", "server": b"1"}, PATIENT) == {
        "bank_b": Absent("is not connected"),
        "server": b"1",
    }
    assert curious.present() == {"server"}
    assert asked == []


def test_a_handler_that_raises_gives_no_answer_and_the_next_request_is_answered(world, caplog):
    def answer(_, request):
        if request == b"bad":
            raise ValueError("secret detail")
        return request

    server, _ = world.server(), world.node("bank_a", answer)
    connected(server, "bank_a")
    absent = server.ask({"bank_a": b"bad"}, PATIENT)["bank_a"]
    assert absent == Absent("could not answer; its own log says why")
    assert "secret detail" in caplog.text
    assert server.ask({"bank_a": b"good"}, PATIENT) == {"bank_a": b"good"}


def test_what_is_too_large_is_neither_handed_on_nor_returned(world):
    asked = []

    def answer(_, request):
        asked.append(request)
        return b"x" * 3000 if request == b"more" else request

    server = world.server(most_bytes=2000)
    world.node("bank_a", answer, most_bytes=1000)
    world.node("bank_b", answer, most_bytes=5000)
    connected(server, "bank_a", "bank_b")
    assert isinstance(server.ask({"bank_a": b"x" * 1500}, PATIENT)["bank_a"], Absent)
    assert asked == []
    assert "3000 bytes, more than the 2000" in server.ask({"bank_b": b"more"}, PATIENT)["bank_b"].reason
    assert "larger than it allows" in server.ask({"bank_a": b"more"}, PATIENT)["bank_a"].reason
    with pytest.raises(RunError, match=r"2500 bytes, more than the 2000 allowed: most_bytes in \[limits\]"):
        server.ask({"bank_a": b"x" * 2500}, PATIENT)
    assert server.ask({"bank_a": b"x" * 1000}, PATIENT) == {"bank_a": b"x" * 1000}


def test_one_sender_cannot_make_requests_pile_up(world):
    server, release, asked = world.server(), threading.Event(), []

    def wait(_, request):
        asked.append(request)
        release.wait(LONG)
        return request

    world.node("bank_a", wait)
    connected(server, "bank_a")
    count = MOST_PENDING + 4
    with ThreadPoolExecutor(count) as threads:
        waiting = [threads.submit(server.ask, {"bank_a": b"1"}, PATIENT) for _ in range(count)]
        until(lambda: sum(future.done() for future in waiting) >= count - MOST_PENDING)
        release.set()
        answers = [future.result()["bank_a"] for future in waiting]
    assert answers.count(b"1") == MOST_PENDING
    assert sum(isinstance(answer, Absent) for answer in answers) == count - MOST_PENDING
    assert server.ask({"bank_a": b"2"}, PATIENT) == {"bank_a": b"2"}


def test_a_quorum_ends_the_wait_and_late_answers_are_dropped(world):
    server, release = world.server(), threading.Event()

    def late(_, request):
        if request == b"1":
            release.wait(LONG)
        return request

    for name in PARTIES:
        world.node(name, late if name == "bank_c" else lambda _, request: request)
    connected(server, *PARTIES)
    answers = server.ask(dict.fromkeys(PARTIES, b"1"), Patience(LONG, quorum=2, grace=0.2))
    assert answers == {"bank_a": b"1", "bank_b": b"1", "bank_c": Absent("did not answer within 0.2 s after 2 others")}
    release.set()
    assert server.ask(dict.fromkeys(PARTIES, b"2"), PATIENT) == dict.fromkeys(PARTIES, b"2")


def test_somebody_who_is_not_connected_is_waited_for_and_asked(world):
    server = world.server()
    assert server.ask({"bank_a": b"1"}, PATIENT) == {"bank_a": Absent("is not connected")}
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(server.ask, {"bank_a": b"1"}, Patience(LONG, comeback=LONG))
        world.node("bank_a")
        assert asking.result() == {"bank_a": b"1"}


def test_a_party_may_be_there_before_its_server(world):
    party = world.node("bank_a")
    assert party.present() == set()
    server = world.server()
    connected(server, "bank_a")
    connected(party, "server")
    assert server.ask({"bank_a": b"1"}, PATIENT) == {"bank_a": b"1"}


def test_a_killed_party_is_noticed_and_a_restarted_one_is_asked_the_same_again(world, tmp_path):
    server, mark = world.server(), tmp_path / "asked"
    first = world.process("bank_a", mark, "slow")
    connected(server, "bank_a")
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(server.ask, {"bank_a": b"1"}, Patience(2 * LONG, comeback=LONG))
        until(mark.exists)
        first.kill()
        until(lambda: not server.present())
        second = world.process("bank_a")
        assert asking.result() == {"bank_a": b"1"}
        mark.unlink()
        second.kill()
        until(lambda: not server.present())
        third = world.process("bank_a", mark, "slow")
        connected(server, "bank_a")
        asking = thread.submit(server.ask, {"bank_a": b"1"}, PATIENT)
        until(mark.exists)
        third.kill()
        assert asking.result() == {"bank_a": Absent("was lost while answering")}


def test_a_frozen_party_is_absent_after_the_deadline_and_answers_when_it_moves_again(world):
    server = world.server()
    world.node("bank_b")
    frozen = world.process("bank_a")
    connected(server, "bank_a", "bank_b")
    large = b"x" * 2**23  # more than the system keeps for somebody who does not read
    os.kill(frozen.pid, signal.SIGSTOP)
    for _ in range(2):
        answers = server.ask({"bank_a": large, "bank_b": large}, Patience(2.0))
        assert answers == {"bank_a": Absent("did not answer within 2 s"), "bank_b": large}
    os.kill(frozen.pid, signal.SIGCONT)
    assert server.ask({"bank_a": b"1"}, Patience(LONG, comeback=LONG)) == {"bank_a": b"1"}


def test_the_one_who_started_last_is_asked(world):
    server = world.server()
    world.node("bank_a", lambda *_: b"old")
    connected(server, "bank_a")
    assert server.ask({"bank_a": b""}, PATIENT) == {"bank_a": b"old"}
    world.node("bank_a", lambda *_: b"new")
    until(lambda: server.ask({"bank_a": b""}, PATIENT) == {"bank_a": b"new"})


def test_a_closed_node_leaves_neither_port_nor_threads_and_answers_nobody(world):
    server, party = world.server(), world.node("bank_a")
    connected(server, "bank_a")
    server.ask({"bank_a": b"1"}, PATIENT)
    party.close()
    until(lambda: not server.present())
    assert server.ask({"bank_a": b"1"}, PATIENT) == {"bank_a": Absent("is not connected")}
    server.close()
    server.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("server-", "bank_a-"))]
    with pytest.raises(RunError, match="closed"):
        server.ask({"bank_a": b"1"}, PATIENT)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        host, port = world.address.split(":")
        probe.bind((host, int(port)))
        probe.listen()


def test_closing_ends_an_ask_under_way(world):
    server, asked = world.server(), threading.Event()
    release = threading.Event()

    def wait(_, request):
        asked.set()
        release.wait(LONG)
        return request

    world.node("bank_a", wait)
    connected(server, "bank_a")
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(server.ask, {"bank_a": b"1"}, PATIENT)
        assert asked.wait(LONG)
        server.close()
        assert isinstance(asking.result()["bank_a"], Absent)
        release.set()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"listen": ["here"]}, "HOST:PORT"),
        ({"connect": ["127.0.0.1:1#verify_name_on_connect=false"]}, "HOST:PORT"),
        ({"connect": ["127.0.0.1:99999"]}, "HOST:PORT"),
        ({"connect": []}, "an address"),
        ({"others": []}, "needs others"),
        ({"others": ["bank_a"]}, "needs others"),
        ({"others": ["*"]}, "cannot be the name"),
    ],
)
def test_settings_that_make_no_sense_are_refused(world, settings, problem):
    with pytest.raises(InputError, match=problem):
        world.node("bank_a", **settings)


def test_a_port_that_is_taken_is_one_sentence(world):
    with socket.socket() as taken:
        host, port = world.address.split(":")
        taken.bind((host, int(port)))
        taken.listen()
        with pytest.raises(InputError, match=f"server cannot listen on {world.address}: "):
            world.server()


@pytest.mark.slow
def test_a_frozen_party_is_gone_after_its_lease(world):
    server = world.server()
    frozen = world.process("bank_a")
    connected(server, "bank_a")
    os.kill(frozen.pid, signal.SIGSTOP)
    assert server.ask({"bank_a": b"1"}, Patience(2 * LONG)) == {"bank_a": Absent("was lost while answering")}
    until(lambda: not server.present())
    os.kill(frozen.pid, signal.SIGCONT)
    assert server.ask({"bank_a": b"1"}, Patience(LONG, comeback=LONG)) == {"bank_a": b"1"}


@pytest.mark.slow
def test_parties_killed_at_random_moments_are_asked_again(world):
    server = world.server()
    parties = {name: world.process(name) for name in PARTIES}
    connected(server, *PARTIES)
    content = os.urandom(2**18)
    for turn in range(12):
        name = PARTIES[turn % 3]
        with ThreadPoolExecutor(1) as thread:
            asking = thread.submit(
                lambda: [server.ask(dict.fromkeys(PARTIES, content), Patience(LONG, comeback=LONG)) for _ in range(40)]
            )
            time.sleep(0.01 * turn)
            parties[name].kill()
            parties[name] = world.process(name)
            assert all(answers == dict.fromkeys(PARTIES, content) for answers in asking.result())
