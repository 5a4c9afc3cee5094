"""The contract that every method in the table passes; a new method is tested here by being in the table."""

import ast
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

import graft.methods
from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.errors import InputError
from graft.experiments.experiment import make_method
from graft.methods import METHODS
from graft.tensors.trees import check_message, flatten
from tests.toy import gap, play, same, toy_setup, unbroken_and_resumed

every_method = pytest.mark.parametrize("name", sorted(METHODS))
SECRETS_DECLARED: dict[str, set[str]] = {}  # methods whose paper sends raw data, and what


def setup_of(name, **settings):
    method = METHODS[name]()
    settings.setdefault("models", "gcn" if method.one_model else "gcn,sage")
    return toy_setup(method, **settings)


class Watched(InProcess):
    """An engine that keeps every message."""

    def __init__(self, setup):
        super().__init__(setup)
        self.down, self.up = [], []

    def ask(self, request):
        replies = super().ask(request)
        self.down += [request.message] if request.each is None else list(request.each.values())
        self.up += [(client, replies[client]) for client in replies.clients]
        return replies


@every_method
def test_two_rounds_change_every_clients_model(name):
    setup = setup_of(name)
    before = InProcess(setup).state()
    after = play(setup, rounds=2).engine.state()
    for client in after:
        changed = [
            path for path, leaf in flatten(before[client]) if not torch.equal(leaf, dict(flatten(after[client]))[path])
        ]
        assert changed


@every_method
def test_same_seed_gives_the_same_weights_and_another_seed_does_not(name):
    first, second = (play(setup_of(name, dropout=0.5), rounds=2) for _ in range(2))
    assert same(first.engine.state()[0], second.engine.state()[0])
    assert same(first.server.state, second.server.state)
    other = play(setup_of(name, dropout=0.5, seed=1), rounds=2)
    assert not same(first.engine.state()[0], other.engine.state()[0])


@every_method
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_fleet_equals_its_clients_one_by_one(name, dropout):
    # With seed 0 two made-up nodes of fedtad_released are so equally near that rounding chooses the neighbour.
    setup = setup_of(name, dropout=dropout, seed=1)
    together, alone = play(setup, rounds=3), play(setup, rounds=3, engine=InProcess(setup, alone=True))
    for client in together.engine.members():
        assert gap(together.client(client), alone.client(client)) < 1e-5
    other = replace(setup, training=replace(setup.training, learning_rate=0.02))
    assert gap(together.client(0), play(other, rounds=3).client(0)) > 1e-3


@every_method
def test_processes_with_messages_as_bytes_give_the_same_result(name):
    setup = setup_of(name, dropout=0.5)
    here = play(setup, rounds=2)
    engine = Loopback(setup)
    try:
        there = play(setup, rounds=2, engine=engine)
        assert gap(here.server.state, there.server.state) < 1e-5 if here.server.state else not there.server.state
        states = engine.state()
    finally:
        engine.close()
    for client, state in here.engine.state().items():
        assert gap(state, states[client]) < 1e-5
    assert here.traffic == there.traffic


@every_method
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_resumed_equals_unbroken(name, participation):
    setup = setup_of(name, clients=4, dropout=0.5, participation=participation)
    unbroken, rest = unbroken_and_resumed(setup)
    assert same(unbroken.server.state, rest.server.state)
    for client in rest.engine.members():
        assert same(unbroken.client(client), rest.client(client))
    without = play(setup, rounds=2, first=3)  # the negative control: a run that forgot its first two rounds
    assert not same(unbroken.client(0), without.client(0)) or not same(unbroken.client(1), without.client(1))


@every_method
def test_clients_that_are_not_asked_keep_their_state(name):
    setup = setup_of(name, clients=4, participation=0.25)
    engine = InProcess(setup)
    before = engine.state()
    before = {client: {path: leaf.clone() for path, leaf in flatten(tree)} for client, tree in before.items()}
    played = play(setup, rounds=1, engine=engine)
    touched = [
        client
        for client, tree in played.engine.state().items()
        if any(path in before[client] and not torch.equal(leaf, before[client][path]) for path, leaf in flatten(tree))
    ]
    assert len(touched) == 1


@every_method
def test_messages_are_trees_of_tensors_and_numbers_without_raw_data(name):
    setup = setup_of(name)
    engine = Watched(setup)
    play(setup, rounds=2, engine=engine)
    for message in engine.down:
        if message is not None:
            check_message(message, name)
    for client, reply in engine.up:
        check_message(reply, name)
        graph = setup.graphs[client]
        raw = {
            "features": torch.as_tensor(graph.x),
            "edges": torch.as_tensor(graph.edges),
            "labels": torch.as_tensor(graph.y),
        }
        for secret, values in raw.items():
            if secret not in SECRETS_DECLARED.get(name, set()):
                for _, leaf in flatten(reply):
                    assert leaf.shape != values.shape or not torch.equal(leaf.to(values), values)


@every_method
def test_no_field_of_state_appears_after_the_first_round(name):
    setup = setup_of(name)
    one, three = play(setup, rounds=1), play(setup, rounds=3)
    for few, many in ((one.server.state, three.server.state), (one.client(0), three.client(0))):
        assert [path for path, _ in flatten(few)] == [path for path, _ in flatten(many)]


@every_method
def test_unknown_settings_are_refused_and_known_ones_are_typed(name):
    with pytest.raises(InputError, match="Unknown setting 'no_such_field'"):
        make_method(name, {"no_such_field": 1})
    for field in fields(METHODS[name]):
        with pytest.raises(InputError, match=field.name):
            make_method(name, {field.name: object()})


@every_method
def test_a_federation_of_one_trains(name):
    play(setup_of(name, clients=1), rounds=2)


@every_method
def test_a_client_without_edges_does_not_break_the_round(name):
    from tests.toy import toy_graph

    if METHODS[name].pooled:
        pytest.skip("all graphs are pooled into one")
    graphs = [toy_graph(9), toy_graph(8, edgeless=True)]
    played = play(setup_of(name, graphs=graphs), rounds=2)
    assert all(leaf.isfinite().all() for client in (0, 1) for _, leaf in flatten(played.client(client)))


def test_methods_look_only_at_top_level_files():
    folder = Path(graft.methods.__file__).parent
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom | ast.Import):
                modules = (
                    [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
                )
                for module in modules:
                    assert not module.startswith(("graft.engines", "graft.data", "graft.experiments")), file.name


def test_every_file_and_folder_of_methods_is_in_the_table():
    folder = Path(graft.methods.__file__).parent
    files = {file.stem for file in folder.glob("*.py")} - {"__init__"}
    folders = {file.parent.name for file in folder.glob("*/__init__.py")}
    assert files | folders == {kind.__module__.split(".")[2] for kind in METHODS.values()}
