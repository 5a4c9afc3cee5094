"""Methods without a server: who hears what, what is made of it, what it costs, and what is on record."""

import json
import signal
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import graft
from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.engines.remote import inbox_of
from graft.errors import InputError
from graft.federation.clients import Clients, Mail
from graft.federation.method import step
from graft.federation.peers import PeerMethod, disagreement, heard_mask, mix_models
from graft.federation.server import Server
from graft.federation.topologies import Topology
from graft.methods import METHODS
from graft.methods.fedavg import FedAvg
from graft.methods.local import Local
from graft.tensors.trees import Tree, flatten, map_tree, stack
from tests.toy import gap, random_weights, run_rounds, same, toy_setup

SMALL = {"dataset": "synthetic:nodes=120,degree=6,classes=3,features=8", "clients": 3, "width": 8, "rounds": 6}


@dataclass(frozen=True)
class Train(PeerMethod):
    """Train, then mix along a topology."""

    topology: str = "complete"
    mixing: str = "uniform"

    def round(self, peers):
        peers.do(self.train)
        self.exchange(peers)

    def exchange(self, peers):
        peers.exchange(self.share, self.mix, along=Topology(self.topology, mixing=self.mixing))


@dataclass(frozen=True)
class MixTwice(Train):
    """Train, then mix, and mix once more what came of it."""

    def exchange(self, peers):
        super().exchange(peers)
        peers.exchange(self.share_again, self.mix, along=Topology("matching"))

    @step
    def share_again(self, fleet):
        return {"model": fleet.state.model}


@dataclass(frozen=True)
class OnlyMix(Train):
    """Mix without training."""

    def round(self, peers):
        self.exchange(peers)
        peers.do(self.train)

    @step
    def train(self, fleet):
        fleet.state.trained = fleet.state.model
        return {}


@dataclass(frozen=True)
class Choosy(PeerMethod):
    """Every peer hears itself and the two after it, with weights 0.2, 0.3 and 0.5; the last one wants nobody."""

    trains: bool = False

    def round(self, peers):
        if self.trains:
            peers.do(self.train)
        peers.exchange(self.share, self.mix, along=self.wish)

    @step
    def wish(self, fleet):
        links = torch.zeros(len(fleet.clients), fleet.federation, device=fleet.device)
        for row, client in enumerate(fleet.clients):
            for ahead, weight in enumerate((0.2, 0.3, 0.5)):
                links[row, (client + ahead) % fleet.federation] = weight if client != fleet.federation - 1 else 0
        return {"links": links}


@dataclass(frozen=True)
class InParts(PeerMethod):
    """Two halves of a vector, each pulled from somebody else, and some whole thing told to all."""

    def start_client(self, fleet):
        super().start_client(fleet)
        fleet.state.vector = fleet.client_ids.float().unsqueeze(1) + torch.arange(6, device=fleet.device) * 10.0
        fleet.state.told = torch.zeros(len(fleet.clients), device=fleet.device)

    def round(self, peers):
        peers.do(self.train)
        peers.exchange(self.tell, self.hear)
        peers.exchange(self.cut, self.assemble, along=self.pull)

    @step
    def tell(self, fleet):
        return {"size": fleet.size.float()}

    @step
    def hear(self, fleet, inbox):
        fleet.state.told = (inbox.sent.size * heard_mask(fleet, inbox)).sum(1)
        return {"told": fleet.state.told}

    @step
    def cut(self, fleet):
        return {"vector": fleet.state.vector.view(-1, 2, 3), "whole": fleet.client_ids.unsqueeze(1).expand(-1, 2)}

    @step
    def pull(self, fleet):
        draw = fleet.random.uniform(2 * fleet.federation).view(-1, 2, fleet.federation)
        return {"links": draw / draw.sum(2, keepdim=True) * (draw > 0.4)}

    @step
    def assemble(self, fleet, inbox):
        fleet.state.vector = mix_models({"vector": inbox.sent.vector}, inbox.links).vector.flatten(1)
        return {}


def with_models(setup, values, engine=None):
    """An engine whose peers hold models that are one number throughout."""
    engine = engine or InProcess(setup)
    state = engine.state()
    for client, value in enumerate(values):
        for name in ("model", "trained"):
            state[client][name] = map_tree(lambda leaf, value=value: torch.full_like(leaf, value), state[client][name])
    engine.restore(state)
    return engine


def numbers(engine):
    """The one number that each peer's model consists of."""
    found = []
    for state in engine.state().values():
        values = torch.cat([leaf.flatten() for _, leaf in flatten(state.model)])
        assert torch.allclose(values, values[0], atol=1e-6)
        found.append(float(values[0]))
    return found


def mixed_numbers(method, values, **settings):
    setup = toy_setup(method, clients=len(values), **settings)
    engine = with_models(setup, values)
    run_rounds(setup, rounds=1, engine=engine)
    return numbers(engine)


def one_round(setup, engine, members):
    server, clients = Server.of(setup), Clients(engine, 1, members)
    return setup.method.conduct(server, clients), clients.traffic, server


def everyones(finished, name="model"):
    return stack([finished.client(client)[name] for client in finished.engine.members()])


# What mixing does.


def test_a_complete_graph_with_equal_weights_is_unweighted_fedavg():
    peers = run_rounds(toy_setup(Train(), dropout=0.5), rounds=1)
    server = run_rounds(toy_setup(FedAvg(), dropout=0.5, weight_by="uniform"), rounds=1).server
    for client in range(3):
        assert gap(peers.client(client).model, server.state.model) < 1e-6
        assert same(peers.client(client).model, peers.client(0).model)
        assert not same(peers.client(client).trained, peers.client(client).model)
    weighted = run_rounds(toy_setup(FedAvg(), dropout=0.5, weight_by="nodes"), rounds=1).server
    assert gap(peers.client(0).model, weighted.state.model) > 1e-4


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_without_links_peers_train_alone_bit_for_bit(participation):
    settings = dict(clients=4, dropout=0.5, participation=participation)
    silent, alone = (run_rounds(toy_setup(method, **settings), rounds=4) for method in (Train("none"), Local()))
    for client in range(4):
        assert same(silent.client(client).model, alone.client(client).model)
        assert same(silent.client(client).trained, alone.client(client).model)
    assert silent.traffic.peer == 0
    linked = run_rounds(toy_setup(Train("complete"), **settings), rounds=4)
    assert not same(linked.client(3).model, alone.client(3).model)


def test_two_peers_meet_in_the_middle():
    for topology in ("ring", "complete"):
        for mixing in ("uniform", "metropolis", "push"):
            assert mixed_numbers(OnlyMix(topology, mixing), [0, 2]) == pytest.approx([1, 1])
    assert mixed_numbers(OnlyMix("none"), [0, 2]) == [0, 2]


def test_all_read_the_same_snapshot():
    """In place, peer 1 would already see the new value of peer 0."""
    assert mixed_numbers(OnlyMix("ring"), [0, 3, 6, 9]) == pytest.approx([4, 3, 6, 5])
    push = mixed_numbers(OnlyMix("star", "push"), [6, 2, 4])
    assert push == pytest.approx([6 / 3 + 2 / 2 + 4 / 2, 6 / 3 + 2 / 2, 6 / 3 + 4 / 2])


def test_the_mean_over_peers_is_kept_where_columns_sum_to_one():
    def drift(topology, mixing):
        setup = toy_setup(OnlyMix(topology, mixing), clients=7)
        engine = InProcess(setup)
        state = engine.state()
        for client in state:
            state[client].trained = map_tree(lambda leaf: leaf[0], random_weights(setup.models[0], seed=client))
        engine.restore(state)
        before = map_tree(lambda leaf: leaf.mean(0), stack([state[client].trained for client in state]))
        finished = run_rounds(setup, rounds=3, engine=engine)
        return gap(before, map_tree(lambda leaf: leaf.mean(0), everyones(finished)))

    for topology in ("ring", "star", "regular", "random-undirected", "random", "matching", "exponential"):
        assert drift(topology, "metropolis") < 1e-6
        assert drift(topology, "push") < 1e-6
    assert drift("star", "uniform") > 1e-2
    assert drift("random", "uniform") > 1e-3


def test_mixing_brings_peers_together():
    setup = toy_setup(OnlyMix("ring", "metropolis"), clients=4)
    engine = with_models(setup, [0, 4, 8, 12])
    distances = []
    for number in range(1, 4):
        distances.append(float(run_rounds(setup, rounds=1, engine=engine, first=number).records["disagreement"]))
    assert distances[0] > distances[1] > distances[2] > 0


def test_disagreement_by_hand():
    models = Tree(a=torch.tensor([[0.0, 0.0], [2.0, 2.0]]), b=torch.tensor([[1.0], [1.0]]), steps=torch.tensor([3, 9]))
    assert float(disagreement(models)) == pytest.approx(2**0.5)


def test_a_peer_that_hears_nothing_keeps_its_model():
    idle = mixed_numbers(OnlyMix("matching"), [1, 2, 3])  # peer 1 rests in round 1
    assert idle[1] == 2
    assert idle[0] == idle[2] == 2
    values = [10, 20, 30, 40]
    wished = mixed_numbers(Choosy(), values)
    assert wished == pytest.approx([2 + 6 + 15, 4 + 9 + 20, 6 + 12 + 5, 40])


def test_counters_are_taken_from_the_loudest():
    sent = Tree(steps=torch.tensor([5, 6, 7]).expand(2, 3), w=torch.tensor([1.0, 2.0, 4.0]).expand(2, 3))
    found = mix_models(sent, torch.tensor([[0.2, 0.1, 0.7], [0.5, 0.5, 0.0]]))
    assert found.steps.tolist() == [7, 5]
    assert found.w.tolist() == pytest.approx([0.2 + 0.2 + 2.8, 1.5])
    parts = Tree(
        steps=torch.tensor([[5, 50], [6, 60]]).expand(1, 2, 2), w=torch.tensor([[1.0, 2.0], [3.0, 5.0]]).expand(1, 2, 2)
    )
    found = mix_models(parts, torch.tensor([[[1.0, 0.0], [0.25, 0.75]]]))
    assert found.steps.tolist() == [[5, 60]]
    assert found.w.tolist() == [[1.0, 4.25]]


@pytest.mark.parametrize("method", [Train("random"), Choosy(trains=True), InParts(), MixTwice()])
@pytest.mark.parametrize("participation", [1.0, 0.7])
def test_fleets_of_different_sizes_equal_peers_one_by_one(method, participation):
    setup = toy_setup(method, clients=5, sizes=(30, 9, 7, 25, 8), participation=participation)
    together, alone = run_rounds(setup, rounds=3), run_rounds(setup, rounds=3, engine=InProcess(setup, alone=True))
    assert len(together.engine.fleets) == 2
    for client in range(5):
        assert gap(together.client(client), alone.client(client)) < 1e-5
    assert together.traffic == alone.traffic


# Who is there.


def test_absent_peers_neither_send_nor_hear():
    setup = toy_setup(OnlyMix("complete"), clients=4, participation=0.5)
    engine = with_models(setup, [1, 10, 100, 1000])
    finished = run_rounds(setup, rounds=1, engine=engine)
    values = torch.tensor([1.0, 10, 100, 1000])
    there = torch.tensor(numbers(engine)) != values
    assert there.sum() == 2
    assert torch.tensor(numbers(engine))[there].tolist() == pytest.approx([float(values[there].mean())] * 2)
    model = sum(leaf.nbytes for _, leaf in flatten(finished.client(0).model))
    assert finished.traffic.peer == 2 * model


def test_wishes_are_rescaled_to_those_who_are_there():
    setup = toy_setup(Choosy(), clients=4)
    engine = with_models(setup, [10, 20, 30, 40])
    links, _, _ = one_round(setup, engine, [0, 2, 3])
    assert numbers(engine) == pytest.approx([(2 + 15) / 0.7, 20, 6 + 12 + 5, 40])
    found = {(to, sender): weight for to, sender, weight in links["mix"]}
    wanted = {(0, 0): 0.2 / 0.7, (0, 2): 0.5 / 0.7, (2, 2): 0.2, (2, 3): 0.3, (2, 0): 0.5, (3, 3): 1}
    assert found == pytest.approx(wanted)


def test_a_federation_of_one_trains_alone():
    for method in (Train("ring"), Train("random", "push"), InParts(), Choosy()):
        finished = run_rounds(toy_setup(method, clients=1), rounds=2)
        assert finished.traffic.peer == 0
        assert all(leaf.isfinite().all() for _, leaf in flatten(finished.client(0)))


# What it costs.


def test_bytes_are_counted_for_every_directed_transfer():
    for topology, transfers, most_sent, most_received in [
        ("complete", 12, 3, 3),
        ("ring", 8, 2, 2),
        ("star", 6, 3, 3),
        ("exponential", 4, 1, 1),
        ("matching", 4, 1, 1),
        ("none", 0, 0, 0),
    ]:
        finished = run_rounds(toy_setup(Train(topology), clients=4), rounds=2)
        model = sum(leaf.nbytes for _, leaf in flatten(finished.client(0).model))
        assert (finished.traffic.up, finished.traffic.down) == (0, 0)
        assert finished.traffic.peer == 2 * transfers * model
        assert finished.records["busiest_sender_bytes"] == most_sent * model
        assert finished.records["busiest_receiver_bytes"] == most_received * model


def test_a_pull_loads_senders_unequally():
    setup = toy_setup(Train("random"), clients=9)
    finished = run_rounds(setup, rounds=1)
    model = sum(leaf.nbytes for _, leaf in flatten(finished.client(0).model))
    assert finished.records["busiest_receiver_bytes"] == 4 * model
    assert finished.records["busiest_sender_bytes"] > 4 * model


def test_two_exchanges_with_one_step_are_recorded_apart():
    setup = toy_setup(MixTwice(), clients=4)
    links, traffic, _ = one_round(setup, InProcess(setup), [0, 1, 2, 3])
    assert [len(links[name]) for name in ("mix", "mix 2")] == [16, 8]
    model = sum(leaf.nbytes for _, leaf in flatten(InProcess(setup).state()[0].model))
    assert traffic.peer == (12 + 4) * model


def test_parts_are_counted_apart():
    setup = toy_setup(InParts(), clients=4)
    links, traffic, server = one_round(setup, InProcess(setup), [0, 1, 2, 3])
    assert set(links) == {"assemble"}  # what is told to everybody needs no record
    travelled = [(to, sender) for to, sender, _, _ in links["assemble"] if to != sender]
    part = 3 * 4 + 8  # half a vector in float32, and a whole number with it
    assert traffic.peer == len(travelled) * part + 4 * 3 * 4  # and everybody told three others its size
    sent = [sum(sender == peer for _, sender in travelled) for peer in range(4)]
    heard = [sum(to == peer for to, _ in travelled) for peer in range(4)]
    assert server.records["busiest_sender_bytes"] == max(sent) * part + 3 * 4
    assert server.records["busiest_receiver_bytes"] == max(heard) * part + 3 * 4
    assert {int(link[3]) for link in links["assemble"]} == {0, 1}


@pytest.mark.parametrize(
    "method", [Train("random"), Train("exponential", "push"), Choosy(trains=True), InParts(), MixTwice()]
)
def test_separate_processes_give_the_same_models_and_bytes(method):
    setup = toy_setup(method, clients=4, dropout=0.5, participation=0.8)
    here = run_rounds(setup, rounds=2)
    engine = Loopback(setup)
    try:
        there = run_rounds(setup, rounds=2, engine=engine)
        states = engine.state()
    finally:
        engine.close()
    for client, state in here.engine.state().items():
        assert gap(state, states[client]) < 1e-5
    assert here.traffic == there.traffic
    assert here.traffic.peer > 0


def test_only_what_is_heard_is_delivered():
    mail = Mail([0, 2, 5], Tree(w=torch.tensor([1.0, 2.0, 3.0])), torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.0, 1.0]]))
    first, second = inbox_of(mail, 0, 0), inbox_of(mail, 1, 2)
    assert first["senders"].tolist() == [0, 5]
    assert first["sent"].w.tolist() == [1, 3]
    assert first["links"].tolist() == [0.5, 0.5]
    assert second["senders"].tolist() == [2, 5]  # the own message is always there, whatever its weight
    assert second["links"].tolist() == [0, 1]


def test_parts_that_are_not_heard_are_not_delivered():
    links = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    mail = Mail([0, 1, 2], Tree(w=torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])), links)
    found = inbox_of(mail, 0, 0)
    assert found["senders"].tolist() == [0, 1]
    assert found["sent"].w.tolist() == [[1, 2], [0, 4]]


# What people and methods can get wrong.


@dataclass(frozen=True)
class Wrong(Choosy):
    """An exchange whose message or links are not what they should be."""

    empty: bool = False
    parts: int = 1
    more: int = 0

    @step
    def share(self, fleet):
        return {} if self.empty else super().share(fleet)

    @step
    def wish(self, fleet):
        links = torch.ones(len(fleet.clients), self.parts, fleet.federation + self.more)
        return {"links": links if self.parts > 1 else links[:, 0]}


def test_an_exchange_that_does_not_fit_says_so():
    with pytest.raises(InputError, match=r"'mix' are for messages of 3 parts, but 'model/.*' .* has the shape"):
        run_rounds(toy_setup(Wrong(parts=3)), rounds=1)
    with pytest.raises(TypeError, match="must hold something"):
        run_rounds(toy_setup(Wrong(empty=True)), rounds=1)
    with pytest.raises(TypeError, match=r"step 'wish' gives links \(4,\); there must be one for each of 3 peers"):
        run_rounds(toy_setup(Wrong(more=1)), rounds=1)


# A topology from outside.


def test_a_topology_from_outside_replaces_the_links_and_keeps_how_they_are_weighted():
    settings = dict(clients=5, dropout=0.5)
    for method, mixing in ((Train("complete", "metropolis"), "metropolis"), (Train("complete", "push"), "push")):
        given = run_rounds(toy_setup(method, topology=Topology("star"), **settings), rounds=2)
        own = run_rounds(toy_setup(Train("star", mixing), **settings), rounds=2)
        other = run_rounds(toy_setup(Train("star", "uniform"), **settings), rounds=2)
        assert same(given.client(1), own.client(1))
        assert not same(given.client(1), other.client(1))
    setup = toy_setup(Choosy(), clients=4, topology=Topology("complete"))
    engine = with_models(setup, [10, 20, 30, 40])
    run_rounds(setup, rounds=1, engine=engine)
    assert numbers(engine) == pytest.approx([25] * 4)


# Through a run.


def timeless(record):
    return {name: value for name, value in record.items() if name != "seconds"}


def test_a_run_records_links_costs_and_both_scores():
    result = graft.run(Train("ring"), **SMALL)
    for record in result.rounds:
        weights = {}
        for to, sender, weight in record["links"]["mix"]:
            weights.setdefault(to, {})[sender] = weight
        assert weights == {peer: pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 1 / 3}) for peer in range(3)}
        assert record["peer_bytes"] == 3 * record["details"]["busiest_sender_bytes"] > 0
        assert record["up_bytes"] == record["down_bytes"] == 0
        assert record["details"]["disagreement"] > 0
    trained = [record["validation_trained"] for record in result.rounds]
    best = result.rounds[trained.index(max(trained))]
    assert result.accuracy["test_trained"] == best["test_trained"]
    assert result.accuracy["test_trained_node_weighted"] == best["test_trained_node_weighted"]
    assert result.accuracy["test_global"] is None
    assert any(record["test_trained"] != record["test"] for record in result.rounds)
    assert "topology" not in result.summary


@pytest.mark.parametrize(
    "method", [Train("random"), Train("exponential", "push"), Choosy(trains=True), InParts(), MixTwice()]
)
@pytest.mark.parametrize("participation", [1.0, 0.7])
def test_a_recorded_run_can_be_replayed(method, participation, tmp_path):
    settings = SMALL | {"clients": 6, "rounds": 3, "participation": participation}
    first = graft.run(method, out=tmp_path / "first", **settings)
    record = str(tmp_path / "first" / "rounds.jsonl")
    again = graft.run(method, topology=record, **settings)
    for client, state in first.clients.items():
        assert same(state, again.clients[client])
    assert [timeless(one) for one in first.rounds] == [timeless(one) for one in again.rounds]
    assert again.summary["topology"] == record
    # The negative control: a record that says something else is followed too.
    lines = [json.loads(line) for line in (tmp_path / "first" / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        for links in line["links"].values():
            for link in links:
                link[1] = link[0]  # everybody hears itself alone
    (tmp_path / "alone.jsonl").write_text("\n".join(map(json.dumps, lines)))
    silent = graft.run(method, topology=str(tmp_path / "alone.jsonl"), **settings)
    assert not all(same(first.clients[client], silent.clients[client]) for client in first.clients)


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if issubclass(kind, PeerMethod)])
def test_every_method_without_a_server_can_be_replayed_and_takes_a_topology(name, tmp_path):
    settings = SMALL | {"clients": 5, "rounds": 4, "participation": 0.8}
    first = graft.run(name, out=tmp_path / "first", **settings)
    again = graft.run(name, topology=str(tmp_path / "first" / "rounds.jsonl"), **settings)
    assert all(same(state, again.clients[client]) for client, state in first.clients.items())
    silent = graft.run(name, topology="none", **settings)
    assert silent.summary["communication"]["peer_bytes"] < first.summary["communication"]["peer_bytes"]
    assert not all(same(state, silent.clients[client]) for client, state in first.clients.items())


def test_a_replay_may_overwrite_the_run_it_replays(tmp_path):
    first = graft.run(Train("random"), out=tmp_path / "run", **SMALL)
    settings = SMALL | {"topology": str(tmp_path / "run" / "rounds.jsonl")}
    again = graft.run(Train("random"), out=tmp_path / "run", overwrite=True, **settings)
    assert all(same(first.clients[client], again.clients[client]) for client in first.clients)


@pytest.mark.parametrize("method", [Train("random"), InParts()])
def test_a_run_that_was_stopped_and_resumed_equals_the_unbroken_one(method, tmp_path):
    settings = SMALL | {
        "clients": 4,
        "rounds": 7,
        "participation": 0.8,
        "topology": "" if method == InParts() else "ring",
    }
    unbroken = graft.run(method, out=tmp_path / "whole", **settings)

    def interrupt(record):
        if record["round"] == 3:
            signal.raise_signal(signal.SIGINT)

    half = graft.run(method, out=tmp_path / "half", callbacks=[interrupt], **settings)
    assert not half.finished
    resumed = graft.resume(tmp_path / "half", method=method)
    assert all(same(resumed.clients[client], unbroken.clients[client]) for client in unbroken.clients)
    assert [timeless(record) for record in resumed.rounds] == [timeless(record) for record in unbroken.rounds]
    for name in ("accuracy", "per_client", "communication", "best_round"):
        assert resumed.summary[name] == unbroken.summary[name]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", [Train("random"), Train("exponential", "push"), InParts(), MixTwice("ring")])
def test_exchanges_are_captured_on_the_gpu_and_give_what_they_give_on_the_cpu(method):
    setup = toy_setup(method, clients=4, dropout=0.5)
    there = run_rounds(replace(setup, device=torch.device("cuda")), rounds=5)
    assert any(capture.captured for capture in there.engine._steps.values())
    here = run_rounds(setup, rounds=5)
    for client in range(4):
        assert gap(here.client(client), map_tree(Tensor.cpu, there.client(client))) < 1e-4
    assert here.traffic == there.traffic
    assert here.records.keys() == there.records.keys()
