"""PENS: cases worked out by hand."""

from dataclasses import replace

import pytest
import torch

from graft.engines.loopback import Loopback
from graft.errors import InputError
from graft.federation.topologies import Topology
from graft.methods.fedavg import FedAvg
from graft.methods.local import Local
from graft.methods.pens import PENS
from graft.tensors.trees import count_bytes
from tests.methods.line import line, places
from tests.toy import gap, run_rounds, same, toy_graph, toy_graphs, toy_setup


class Judged(PENS):
    """Judges models by how far they are from 0."""

    def judged(self, fleet, model):  # noqa: ARG002
        return model.x.abs()


def counted(finished, field):
    state = finished.engine.state()
    return torch.stack([state[peer][field] for peer in state])


def test_best_model_by_hand():
    finished = run_rounds(line(Judged(chosen=1), [4.0, 3.0, 1.0, 1.0]), rounds=1)
    # Peers 2 and 3 are equally good: the lower number is taken, and nobody takes itself.
    assert places(finished).tolist() == [2.5, 2, 1, 1]
    assert counted(finished, "taken").tolist() == [[0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    assert counted(finished, "tried").tolist() == [[0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]]


def test_several_models_and_the_own_count_alike():
    finished = run_rounds(line(Judged(chosen=2), [9.0, 3.0, 0.0, 6.0]), rounds=1)
    assert places(finished).tolist() == [4, 3, 3, 3]  # (9 + 0 + 3) / 3, (3 + 0 + 6) / 3, (0 + 3 + 6) / 3 twice


def labelled(classes):
    """One graph for each entry, all of whose nodes are of that class."""
    graphs = [toy_graph(12, seed=place) for place in range(len(classes))]
    return [replace(graph, y=graph.y * 0 + label) for graph, label in zip(graphs, classes, strict=True)]


def test_peers_find_those_of_their_own_kind():
    classes = [0, 1, 0, 1, 0, 1]
    finished = run_rounds(toy_setup(PENS(), graphs=labelled(classes)), rounds=6)
    good = PENS().good(finished.engine.fleets[0])
    same_kind = torch.tensor(classes).unsqueeze(1) == torch.tensor(classes)
    assert good.any(1).all()
    assert not (good & ~same_kind).any()
    assert not good.diagonal().any()


@pytest.mark.parametrize("method", [PENS(chosen=0), PENS(sampled=0), PENS(chosen=0, first_phase=0.0)], ids=repr)
def test_taking_nobody_is_local_training_bit_for_bit(method):
    ours = run_rounds(toy_setup(method, dropout=0.5), rounds=3)
    alone, linked = (
        run_rounds(toy_setup(Local(), dropout=0.5), rounds=3),
        run_rounds(toy_setup(PENS(), dropout=0.5), rounds=3),
    )
    for peer in range(3):
        assert same(ours.client(peer).model, alone.client(peer).model)
        assert not same(linked.client(peer).model, alone.client(peer).model)


def test_taking_everybody_is_plain_federated_averaging():
    server = run_rounds(toy_setup(FedAvg(), clients=4, weight_by="uniform"), rounds=1).server.state.model
    ours, fewer = (run_rounds(toy_setup(PENS(chosen=chosen), clients=4), rounds=1) for chosen in (3, 2))
    assert all(gap(ours.client(peer).model, server) < 1e-6 for peer in range(4))
    assert gap(fewer.client(0).model, server) > 1e-4


def test_counts_of_the_first_phase_add_up():
    finished = run_rounds(toy_setup(PENS(sampled=3, chosen=2), clients=5), rounds=4)
    tried, taken = counted(finished, "tried"), counted(finished, "taken")
    assert tried.sum(1).tolist() == [12] * 5
    assert taken.sum(1).tolist() == [8] * 5
    assert (taken <= tried).all()
    assert not tried.diagonal().any()


def test_second_phase_mixes_with_good_peers_only():
    setup = toy_setup(PENS(chosen=2, first_phase=0.04), graphs=labelled([0, 0, 0, 1, 1, 1]))  # of 100 rounds: four
    first, later = run_rounds(setup, rounds=4), run_rounds(setup, rounds=9)
    assert same({"x": counted(first, "taken")}, {"x": counted(later, "taken")})
    fleet = later.engine.fleets[0]
    fleet = fleet.for_call(7, "choose")
    links = setup.method.choose(fleet)["links"]
    good = setup.method.good(fleet)
    assert good.any(1).all()
    assert ((links > 0) == (good | torch.eye(6).bool())).all()  # none has more than two to choose from
    torch.testing.assert_close(links.sum(1), torch.ones(6))
    model = count_bytes(first.client(0).model)
    assert first.traffic.peer == 4 * 6 * 5 * model
    assert later.traffic.peer == first.traffic.peer + 5 * int(good.sum()) * model


def test_peer_that_found_nobody_draws_from_all():
    setup = toy_setup(PENS(chosen=2, first_phase=0.0), clients=6)
    fleet = setup.fleet(list(range(6)))
    setup.method.start_client(fleet)
    seen = torch.zeros(6, 6)
    for round in range(1, 30):
        fleet = fleet.for_call(round, "choose")
        links = setup.method.choose(fleet)["links"]
        assert ((links > 0).sum(1) == 3).all()
        seen += links
    assert (seen > 0).all()


@pytest.mark.parametrize(("judge", "nodes"), [("train", "train"), ("val", "validation")])
def test_models_are_judged_by_the_loss_on_nodes_of_the_own(judge, nodes):
    graphs = toy_graphs()
    fleet = toy_setup(PENS(), graphs=graphs, dropout=0.5).fleet([0, 1, 2])
    model = fleet.initial()
    found = PENS(judge=judge).judged(fleet, model)
    for client, graph in enumerate(graphs):
        wanted = torch.from_numpy(getattr(graph, nodes))
        logits = fleet.predict(model).logits[client, : graph.nodes][wanted]
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(graph.y)[wanted])
        assert float(found[client]) == pytest.approx(float(loss), abs=1e-6)


def test_only_models_that_were_heard_are_judged():
    setup = toy_setup(PENS(sampled=1, chosen=1), clients=4, dropout=0.5)
    here, engine = run_rounds(setup, rounds=3), Loopback(setup)
    try:
        there = run_rounds(setup, rounds=3, engine=engine)
        assert all(gap(here.client(peer), there.client(peer)) < 1e-5 for peer in range(4))
    finally:
        engine.close()
    assert counted(here, "tried").sum(1).tolist() == [3] * 4
    assert torch.equal(counted(here, "tried"), counted(here, "taken"))


def test_no_more_than_wished_are_tried_of_what_the_experiment_brings():
    finished = run_rounds(
        line(Judged(sampled=2, chosen=1), [4.0, 3.0, 2.0, 1.0], topology=Topology("complete")), rounds=1
    )
    assert counted(finished, "tried").sum(1).tolist() == [2] * 4
    assert places(finished).tolist() == [3, 2.5, 2.5, 2]  # peer 3 is tried by nobody: the lower numbers come first


@pytest.mark.parametrize("settings", [{"sampled": -1}, {"chosen": -1}, {"first_phase": 1.5}, {"first_phase": -0.1}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        PENS(**settings)
