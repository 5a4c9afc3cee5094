"""Toy federations of organisations over any wire: a server with parties, or peers without one."""

import threading
from dataclasses import replace

from graft import keys
from graft.engines.parties import Parties
from graft.engines.party import Party, Terms
from graft.engines.peer import Peer
from graft.engines.policy import Policy
from graft.engines.rehearsal import Rehearsal, rehearse
from graft.engines.wire import Patience
from graft.engines.zenoh import ZenohNode
from graft.federation.peers import PeerMethod
from graft.federation.session import Session
from graft.methods import METHODS
from tests.contract import contract_method, usual_model
from tests.engines.zenoh_world import free_address, until
from tests.test_every_method import SETTINGS
from tests.toy import toy_setup

RUN = "banks-1"
SERVER = "coordinator"
NAMES = ("bank_a", "bank_b", "bank_c")
PEER_METHODS = sorted(name for name, kind in METHODS.items() if issubclass(kind, PeerMethod))
WITH_SERVER = sorted(set(METHODS) - {"centralised", "majority", *PEER_METHODS})
PATIENCE = Patience(60)
KNOWN = {}  # forms that were found out


def make_method(name):
    return SETTINGS.get(name) or contract_method(name)


def federation(method, **settings):
    """A federation of three clients, of different architectures where the method allows it."""
    models = "gcn,gat,sage" if method.heterogeneous else usual_model(method)
    return replace(toy_setup(method, models=models, dropout=0.5, **settings), minimum=1, names=NAMES)


def forms_of(setup):
    """The forms that a server knows of."""
    one = setup.method.one_model or setup.method.architecture or isinstance(setup.method, PeerMethod)
    key = repr((setup.method, setup.rounds, setup.training, setup.metrics))
    if key not in KNOWN:
        KNOWN[key] = rehearse(
            Rehearsal(
                setup.method,
                setup.name,
                len(setup.graphs),
                setup.features,
                setup.classes,
                models=(usual_model(setup.method),) if one else (),
                width=setup.width,
                dropout=setup.dropout,
                training=setup.training,
                rounds=setup.rounds,
                metrics=setup.metrics,
            )
        )
    return KNOWN[key]


def own_part(setup, client):
    """What a party knows: its own graph and its own model."""
    return replace(setup.part([client]), kinds=(setup.models[client],))


def make_parties(setup, folder=None, run=RUN):
    """The parties of a federation."""
    terms = Terms(SERVER, run, setup.rounds, forms_of(setup))
    parties = []
    for client, name in enumerate(NAMES):
        own = None if folder is None else folder / name
        if own is not None:
            own.mkdir(exist_ok=True)
        parties.append(Party(own_part(setup, client), terms, Policy(minimum_count=0, scores="all"), own))
    return parties


def serve(setup, node, run=RUN, **options):
    """The session of a server, which has no graph."""
    graphless = replace(setup, on_demand=True)
    engine = Parties(graphless, node, NAMES, PATIENCE, run=run, forms=forms_of(setup), **options)
    return Session(graphless, engine)


def make_peers(setup):
    """A session for every peer; each still needs a node."""
    forms = forms_of(setup)
    parts = [setup.part([number]) for number in range(len(NAMES))]
    return [
        Session(part, Peer(part, number, NAMES, PATIENCE, run=RUN, forms=forms)) for number, part in enumerate(parts)
    ]


def run_peers(sessions, rounds):
    """Runs rounds of all peers at once."""

    def run(session):
        for number in rounds:
            session.engine.begin(number)
            if session.engine.here[0] in session.participants(number):
                session.round(number, evaluate=False)
                session.absences = {**getattr(session, "absences", {}), **session.engine.absent}

    threads = [threading.Thread(target=run, args=(session,), daemon=True) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()


class Nodes:
    """Connected nodes whose handlers can be another one for every test."""

    def __init__(self):
        self.handlers, self.nodes = {}, {}

    def open(self, name, files, **settings):
        def handle(sender, data):
            return self.handlers[name](sender, data)

        self.nodes[name] = ZenohNode(name, files, handle, namespace="wire", **settings)

    def wait(self):
        for node in self.nodes.values():
            until(lambda node=node: node.present() == set(node._connections))

    def close(self):
        for node in self.nodes.values():
            node.close()


def make_key_files(folder):
    """Keys of a CA for everybody."""
    keys.make_ca(folder)
    return {name: keys.make_party_keys(name, folder, folder / name) for name in (SERVER, *NAMES)}


def open_star(key_files):
    """Nodes of a server and of parties that are connected to it."""
    nodes, address = Nodes(), free_address()
    nodes.open(SERVER, key_files[SERVER], others=NAMES, listen=[address])
    for name in NAMES:
        nodes.open(name, key_files[name], others=[SERVER], connect=[address])
    nodes.wait()
    return nodes


def open_mesh(key_files):
    """Nodes of peers that are all connected to each other."""
    nodes, addresses = Nodes(), [free_address() for _ in NAMES]
    for number, name in enumerate(NAMES):
        others = [other for other in NAMES if other != name]
        nodes.open(name, key_files[name], others=others, listen=[addresses[number]], connect=addresses[:number])
    nodes.wait()
    return nodes
