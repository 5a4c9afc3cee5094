"""Nobody gets in who should not, and nobody speaks or listens for somebody else; each beside one who may."""

import socket
import time

import pytest

from graft.engines.wire import Absent, Patience
from tests.engines.zenoh_world import LONG, NAMESPACE, PARTIES, PATIENT, World, free_address, make_keys, until

zenoh = pytest.importorskip("zenoh")
pytest.importorskip("cryptography")
MODES = pytest.mark.parametrize("mode", ["peer", "client", "router"])


@pytest.fixture(scope="module")
def key_folder(tmp_path_factory):
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def world(key_folder):
    world = World(key_folder)
    yield world
    world.close()


class Asked(list):
    """A handler that keeps who asked what."""

    def __call__(self, sender, request):
        self.append((sender, request))
        return request


def instance_of(server):
    """The number that a node goes by, which outsiders may know."""
    (key,) = [key for key, sender in server._senders_by_key.items() if sender == "bank_a"]
    return key.split("/")[3]


def ask_as(session, server, sender):
    """Returns all that a stranger hears from a server when it asks under a name."""
    key = f"{NAMESPACE}/to/server/{instance_of(server)}/from/{sender}"
    return [reply.ok.payload.to_bytes() for reply in session.get(key, payload=b"forged", timeout=2) if reply.ok]


def enters(world, open_stranger, seconds=1.0):
    """Returns whether a stranger gets an answer of a server, or is seen by it, as bank_a."""
    asked = Asked()
    server = world.server(asked)
    try:
        session = open_stranger()
        token = session.liveliness().declare_token(f"{NAMESPACE}/alive/bank_a/0123")
    except zenoh.ZError:  # a client that cannot connect does not open
        return False
    entered, deadline = False, time.monotonic() + seconds
    while not entered and time.monotonic() < deadline:
        entered = bool(ask_as(session, server, "bank_a")) and "bank_a" in server.present()
    assert bool(asked) == entered
    token.undeclare()
    rightful = world.node("bank_b")
    until(lambda: "server" in rightful.present())
    assert rightful.ask({"server": b"1"}, PATIENT) == {"server": b"1"}  # the server is well
    return entered


def test_a_stranger_with_the_right_keys_would_enter(world):
    assert enters(world, lambda: world.stranger("bank_a"), LONG)


def test_plaintext_does_not_enter(world):
    assert not enters(world, lambda: world.stranger("bank_a", protocol="tcp"))


def test_somebody_without_a_certificate_does_not_enter(world):
    trust_only = {"root_ca_certificate": str(world.keys / "ca" / "ca.crt")}
    assert not enters(world, lambda: world.stranger("bank_a", tls=trust_only))


def test_a_foreign_ca_does_not_enter(world):
    files = world.keys / "foreign"
    credulous = {  # it trusts our server, but our server does not trust it
        "root_ca_certificate": str(world.keys / "ca" / "ca.crt"),
        "enable_mtls": True,
        "connect_certificate": str(files / "bank_a.crt"),
        "connect_private_key": str(files / "bank_a.key"),
    }
    assert not enters(world, lambda: world.stranger("bank_a", tls=credulous))


def test_an_expired_certificate_does_not_enter(world):
    assert not enters(world, lambda: world.stranger("bank_a", "expired"))


@MODES
def test_a_name_that_is_not_in_the_federation_does_not_enter(world, mode):
    assert not enters(world, lambda: world.stranger("mallory", mode=mode))


@MODES
def test_a_party_of_the_federation_does_not_enter_as_another(world, mode):
    assert not enters(world, lambda: world.stranger("bank_c", mode=mode))


def test_bytes_that_are_no_tls_do_no_harm(world):
    server = world.server()
    host, port = world.address.split(":")
    for content in (b"", b"GET / HTTP/1.0\r\n\r\n", bytes(range(256)) * 300):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(content)
    world.node("bank_a")
    until(lambda: server.present() == {"bank_a"})
    assert server.ask({"bank_a": b"1"}, PATIENT) == {"bank_a": b"1"}


def listening(session, *keys):
    """Let a stranger answer whatever reaches it under some keys, and keep what does."""
    heard = []

    def answer(query):
        heard.append(query.payload.to_bytes())
        query.reply(query.key_expr, b"forged")
        query.drop()

    return heard, [session.declare_queryable(key, answer) for key in keys]


@MODES
def test_a_party_neither_answers_for_another_nor_hears_what_it_is_asked(world, mode):
    server = world.server()
    stranger = world.stranger("bank_b", mode=mode)
    keys = [f"{NAMESPACE}/to/bank_a/*/from/server", f"{NAMESPACE}/to/*/*/from/*", f"{NAMESPACE}/**", "**"]
    heard, queryables = listening(stranger, *keys)
    alive = [f"{NAMESPACE}/alive/bank_a/0123", f"{NAMESPACE}/alive/*/0123", f"{NAMESPACE}/alive/bank_b/0123"]
    tokens = [stranger.liveliness().declare_token(key) for key in alive]
    own, own_queryable = listening(stranger, f"{NAMESPACE}/to/bank_b/0123/from/*")
    until(lambda: server.present() == {"bank_b"})  # so all that was declared before has arrived too
    assert server.ask({"bank_a": b"secret"}, PATIENT) == {"bank_a": Absent("is not connected")}
    world.node("bank_a", lambda *_: b"true")
    until(lambda: "bank_a" in server.present())
    assert server.ask({"bank_a": b"secret"}, PATIENT) == {"bank_a": b"true"}
    assert heard == []
    for queryable in queryables:
        queryable.undeclare()
    until(lambda: server.ask({"bank_b": b"yours"}, PATIENT) == {"bank_b": b"forged"})  # for itself it may
    assert b"yours" in own
    assert (len(tokens), len(own_queryable)) == (3, 1)


@MODES
def test_a_party_learns_nothing_of_others(world, mode):
    server, _ = world.server(), world.node("bank_a")
    stranger = world.stranger("bank_b", mode=mode)
    seen, heard = [], []
    listeners = [
        stranger.liveliness().declare_subscriber("**", lambda sample: seen.append(str(sample.key_expr)), history=True),
        stranger.liveliness().declare_subscriber(
            f"{NAMESPACE}/alive/*/*", lambda sample: seen.append(str(sample.key_expr)), history=True
        ),
        stranger.declare_subscriber("**", lambda sample: heard.append(str(sample.key_expr))),
    ]
    until(lambda: "bank_a" in server.present() and seen)
    assert server.ask({"bank_a": b"1"}, PATIENT) == {"bank_a": b"1"}
    found = [str(reply.ok.key_expr) for reply in stranger.liveliness().get("**", timeout=2) if reply.ok]
    admin = [reply for reply in stranger.get("@/**", timeout=2) if reply.ok]
    assert {key.split("/")[2] for key in [*seen, *found]} == {"server"}
    assert heard == []
    assert not [reply for reply in admin if str(reply.ok.key_expr).split("/")[1] != str(stranger.zid())]
    assert len(listeners) == 3


def test_a_party_cannot_send_to_another_through_the_server(world):
    asked = Asked()
    server, party = world.server(), world.node("bank_a", asked)
    until(lambda: server.present() == {"bank_a"} and party.present() == {"server"})
    for mode in ("peer", "client", "router"):
        stranger = world.stranger("bank_b", mode=mode)
        until(lambda stranger=stranger: ask_as(stranger, server, "bank_b") == [b"forged"])
        for sender in ("server", "bank_b", "*"):
            key = f"{NAMESPACE}/to/bank_a/{instance_of_party(party)}/from/{sender}"
            assert [reply for reply in stranger.get(key, payload=b"1", timeout=1) if reply.ok] == []
        stranger.close()
    assert asked == []
    assert server.ask({"bank_a": b"1"}, PATIENT) == {"bank_a": b"1"}
    assert asked == [("server", b"1")]


def instance_of_party(party):
    (key,) = party._senders_by_key
    return key.split("/")[3]


def test_a_party_is_not_taken_in_by_somebody_at_the_server_s_address(world):
    asked = Asked()
    party = world.node("bank_a", asked)
    impostor = world.stranger("bank_b", listen=[world.address], connect=[free_address()])
    until(lambda: list(impostor.info.links()))  # the party has called
    key = f"{NAMESPACE}/to/bank_a/{instance_of_party(party)}/from/server"
    assert [reply for reply in impostor.get(key, payload=b"1", timeout=2) if reply.ok] == []
    token = impostor.liveliness().declare_token(f"{NAMESPACE}/alive/server/0123")
    heard, queryables = listening(impostor, f"{NAMESPACE}/to/server/*/from/bank_a", "**")
    assert party.ask({"server": b"secret"}, Patience(1.0, comeback=1.0)) == {"server": Absent("is not connected")}
    assert heard == []
    assert len(queryables) == 2
    token.undeclare()
    impostor.close()
    server = world.server()
    until(lambda: server.present() == {"bank_a"} and party.present() == {"server"})
    assert server.ask({"bank_a": b"1"}, PATIENT) == {"bank_a": b"1"}
    assert asked == [("server", b"1")]


def test_whoever_answers_twice_has_not_answered(world):
    server, stranger = world.server(), world.stranger("bank_b")

    def answer(query):
        for _ in range(2 if query.payload.to_bytes() == b"twice" else 1):
            query.reply(query.key_expr, b"mine")
        query.drop()

    queryable = stranger.declare_queryable(f"{NAMESPACE}/to/bank_b/0123/from/server", answer)
    token = stranger.liveliness().declare_token(f"{NAMESPACE}/alive/bank_b/0123")
    until(lambda: server.present() == {"bank_b"})
    assert server.ask({"bank_b": b"twice"}, PATIENT) == {"bank_b": Absent("answered one request several times")}
    assert server.ask({"bank_b": b"once"}, PATIENT) == {"bank_b": b"mine"}
    queryable.undeclare()
    token.undeclare()


def test_marks_that_nobody_knows_and_other_keys_are_no_answers(world):
    server, stranger = world.server(), world.stranger("bank_b")

    def answer(query):
        kind = query.payload.to_bytes()
        if kind == b"mark":
            query.reply(query.key_expr, b"mine", attachment=b"x" * 100)
        elif kind == b"delete":
            query.reply_del(query.key_expr)
        else:
            query.reply_err(b"mine")
        query.drop()

    queryable = stranger.declare_queryable(f"{NAMESPACE}/to/bank_b/0123/from/server", answer)
    token = stranger.liveliness().declare_token(f"{NAMESPACE}/alive/bank_b/0123")
    until(lambda: server.present() == {"bank_b"})
    for kind in (b"mark", b"delete", b"error"):
        assert isinstance(server.ask({"bank_b": kind}, PATIENT)["bank_b"], Absent), kind
    queryable.undeclare()
    token.undeclare()


def test_taking_the_number_of_another_s_session_gives_none_of_its_rights(world):
    asked = Asked()
    server, party = world.server(asked), world.node("bank_a")
    until(lambda: server.present() == {"bank_a"} and party.present() == {"server"})
    double = world.stranger("bank_b", session_id=session_ids(party)[0])
    assert ask_as(double, server, "bank_a") == []
    assert asked == []
    assert server.ask({"bank_a": b"1"}, PATIENT) == {"bank_a": b"1"}
    assert set(PARTIES) > server.present() >= {"bank_a"}


def session_ids(node):
    return [str(session.zid()) for session in node._sessions]


@pytest.mark.parametrize("way", ["calls", "is called"])
def test_a_peer_with_the_number_of_another_s_session_neither_speaks_nor_hears_for_it(world, way):
    asked, addresses = Asked(), {name: free_address() for name in PARTIES}
    victim = world.node(
        "bank_a",
        asked,
        others=["bank_b", "bank_c"],
        listen=[addresses["bank_a"]],
        connect=[addresses["bank_b"], addresses["bank_c"]],
    )
    honest = world.node(
        "bank_b", others=["bank_a"], listen=[addresses["bank_b"]], connect=[addresses["bank_a"]], handler=Asked()
    )
    until(lambda: victim.present() == {"bank_b"} and honest.present() == {"bank_a"})
    content, instance = b"x" * 2**20, instance_of_party(honest)
    for session_id in session_ids(honest):
        place = {"calls": {"connect": [addresses["bank_a"]]}, "is called": {"listen": [addresses["bank_c"]]}}[way]
        double = world.stranger("bank_c", session_id=session_id, **{"connect": [free_address()], **place})
        heard, queryables = listening(double, f"{NAMESPACE}/to/bank_b/{instance}/from/bank_a")
        key = next(key for key, sender in victim._senders_by_key.items() if sender == "bank_b")
        for _ in range(12):
            assert [reply for reply in double.get(key, payload=b"forged", timeout=0.05) if reply.ok] == []
            assert victim.ask({"bank_b": content}, PATIENT) == {"bank_b": content}
            time.sleep(0.1)
        assert heard == []
        assert len(queryables) == 1
        double.close()
    assert asked == []
    assert honest.ask({"bank_a": b"1"}, PATIENT) == {"bank_a": b"1"}
    assert asked == [("bank_b", b"1")]
