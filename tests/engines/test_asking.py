"""How long answers are waited for, with a carrier that is a table."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from graft.engines.asking import LOST, NOT_CONNECTED, SEVERAL, Asking
from graft.engines.wire import Absent, Patience

LONG = 60.0


class Carrier:
    """Connections by name, and what was sent; tests say what comes back."""

    def __init__(self, *names):
        self.changed = threading.Condition()
        self.connections = dict.fromkeys(names, ((0, "first"), 1))
        self.sent = []

    def locate(self, name):
        return self.connections.get(name, NOT_CONNECTED)

    def send(self, name, request, seconds, attempt):
        assert 0 < seconds <= LONG
        self.sent.append((name, request, attempt))
        self.changed.notify_all()

    def ask(self, names, patience):
        requests = {name: name.encode() for name in names}
        return Asking(self.changed, self.locate, self.send, requests, patience).collect()

    def wait_for(self, count):
        """Returns the attempts once so many were made."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.sent) >= count, LONG)
        return [attempt for _, _, attempt in self.sent]

    def move(self, name, connection):
        with self.changed:
            if connection is None:
                self.connections.pop(name)
            else:
                self.connections[name] = connection
            self.changed.notify_all()


class Answering(Carrier):
    def send(self, name, request, seconds, attempt):
        super().send(name, request, seconds, attempt)
        attempt.receive(request.upper())
        attempt.end()


@pytest.fixture
def thread():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_everybody_who_answers_is_in_the_result_also_with_nothing():
    carrier = Answering("a", "")
    assert carrier.ask(["a", ""], Patience(LONG)) == {"a": b"A", "": b""}
    assert carrier.ask([], Patience(LONG)) == {}


def test_an_answer_counts_when_it_is_complete(thread):
    carrier = Carrier("a")
    asking = thread.submit(carrier.ask, ["a"], Patience(LONG))
    (attempt,) = carrier.wait_for(1)
    attempt.receive(b"1")
    assert not asking.done()
    attempt.end()
    assert asking.result() == {"a": b"1"}


def test_two_answers_are_none(thread):
    carrier = Carrier("a")
    asking = thread.submit(carrier.ask, ["a"], Patience(LONG))
    (attempt,) = carrier.wait_for(1)
    for answer in (b"1", b"1", b"2"):
        attempt.receive(answer)
    attempt.end()
    assert asking.result() == {"a": SEVERAL}


def test_the_deadline_ends_the_wait_and_later_answers_are_dropped():
    carrier = Carrier("a")
    assert carrier.ask(["a"], Patience(0.05)) == {"a": Absent("did not answer within 0.05 s")}
    (attempt,) = carrier.wait_for(1)
    attempt.receive(b"late")
    assert attempt.answer is None


def test_without_comeback_nobody_is_waited_for(thread):
    carrier = Carrier("a")
    assert carrier.ask(["b"], Patience(LONG)) == {"b": NOT_CONNECTED}
    asking = thread.submit(carrier.ask, ["a"], Patience(LONG))
    carrier.wait_for(1)
    carrier.move("a", None)
    assert asking.result() == {"a": LOST}


def test_with_comeback_the_same_is_asked_again_and_old_answers_are_dropped(thread):
    carrier = Carrier("a")
    asking = thread.submit(carrier.ask, ["a"], Patience(LONG, comeback=LONG))
    (first,) = carrier.wait_for(1)
    carrier.move("a", None)
    carrier.move("a", ((0, "second"), 2))
    _, second = carrier.wait_for(2)
    first.receive(b"old")
    first.end()
    second.receive(b"new")
    second.end()
    assert asking.result() == {"a": b"new"}
    assert [request for _, request, _ in carrier.sent] == [b"a", b"a"]


def test_a_request_that_ended_without_an_answer_is_not_sent_again_to_the_same_connection(thread):
    carrier = Carrier("a")
    asking = thread.submit(carrier.ask, ["a"], Patience(LONG, comeback=0.05))
    carrier.wait_for(1)[0].end()
    assert asking.result() == {"a": LOST}
    assert len(carrier.sent) == 1


def test_somebody_who_stays_away_is_given_up_before_the_deadline():
    assert Carrier().ask(["a"], Patience(LONG, comeback=0.05)) == {"a": NOT_CONNECTED}


def test_comeback_does_not_outlast_the_deadline():
    assert Carrier().ask(["a"], Patience(0.05, comeback=LONG)) == {"a": NOT_CONNECTED}


def test_a_quorum_leaves_the_others_their_grace(thread):
    carrier = Carrier("a", "b", "c")
    asking = thread.submit(carrier.ask, ["a", "b", "c"], Patience(LONG, quorum=2, grace=0.05))
    a, b, _ = carrier.wait_for(3)
    for attempt in (a, b):
        attempt.receive(b"1")
        attempt.end()
    assert asking.result() == {"a": b"1", "b": b"1", "c": Absent("did not answer within 0.05 s after 2 others")}


def test_whoever_answers_within_the_grace_counts(thread):
    carrier = Carrier("a", "b")
    asking = thread.submit(carrier.ask, ["a", "b"], Patience(LONG, quorum=1, grace=LONG))
    for attempt in carrier.wait_for(2):
        attempt.receive(b"1")
        attempt.end()
    assert asking.result() == {"a": b"1", "b": b"1"}


def test_an_absence_is_no_part_of_a_quorum(thread):
    carrier = Carrier("a", "b")
    asking = thread.submit(carrier.ask, ["a", "b"], Patience(LONG, quorum=1, grace=0.0))
    a, b = carrier.wait_for(2)
    a.receive(Absent("could not"))
    a.end()
    b.receive(b"1")
    b.end()
    assert asking.result() == {"a": Absent("could not"), "b": b"1"}
