"""Rounds and steps replayed as CUDA graphs equal those that are run plainly; runs where there is a GPU."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from graft import run
from graft.engines.in_process import InProcess
from graft.federation.exchange import Request
from graft.federation.method import step
from graft.methods import METHODS
from graft.tensors.trees import map_tree
from tests.toy import gap, play, toy_setup

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

# Methods whose rounds neither look at values nor at the number of the round.
WHOLE = (
    *(
        "fedavg",
        "fedprox",
        "local",
        "centralised",
        "loc_gcn",
        "fedgcn",
        "fedmlp",
        "moon",
        "feddc",
        "scaffold",
        "fedgta",
    ),
    *("fedgkc", "fedgkc_paper", "fml", "lg_fedavg", "fedproto", "fedtgp", "fedlit", "fedsage_plus"),
    *("fedomd", "fedomd_paper", "fedtad", "fedtad_paper", "fedtad_released"),
)


@pytest.mark.parametrize("models", ["gcn", "gat", "sage", "gin", "sgc", "mlp", "gcn4"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_replayed_rounds_equal_plain_ones(models, sparse, whole):
    setup = toy_setup(METHODS["fedavg"](), models=models, sparse=sparse, dropout=0.5)
    setup = replace(setup, device=torch.device("cuda"))
    replayed = play(setup, rounds=5, whole=whole)
    assert bool(replayed.engine.rounds.recordings) == whole
    assert any(recorder.recordings for recorder in replayed.engine._recorders.values()) != whole
    plain = play(replace(setup, record=False), rounds=5)
    for client in range(3):
        assert gap(replayed.client(client), plain.client(client)) < 1e-5
    assert gap(replayed.server.state, plain.server.state) < 1e-5
    shorter = play(setup, rounds=4, whole=whole)
    assert gap(replayed.client(0), shorter.client(0)) > 1e-4


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("whole", [False, True])
def test_every_method_gives_on_the_gpu_what_it_gives_on_the_cpu(name, whole):
    method = METHODS[name]()
    setup = toy_setup(method, models="gcn" if method.one_model else "gcn,sage,gat", dropout=0.5)
    there = play(replace(setup, device=torch.device("cuda")), rounds=5, whole=whole)
    here = play(setup, rounds=5)
    for client in here.engine.members():
        assert gap(here.client(client).model, map_tree(Tensor.cpu, there.client(client).model)) < 1e-4
    assert here.traffic == there.traffic
    if whole and name in WHOLE:
        assert there.engine.rounds.recordings


def test_a_run_is_the_same_recorded_and_not():
    """Scores, losses and what a method notes come out of recorded rounds as they do out of others."""
    shared = {"dataset": "synthetic:nodes=200,degree=6,classes=3,features=16", "clients": 4, "rounds": 9}
    for method, more in (("fedavg", {}), ("fedgkc", {"models": "gcn,sage"}), ("fedavg", {"evaluate_every": 2})):
        here, there = (run(method, device=device, **shared, **more) for device in ("cpu", "cuda"))
        for one, other in zip(here.rounds, there.rounds, strict=True):
            assert one.keys() == other.keys()
            assert one["loss"] == pytest.approx(other["loss"], abs=1e-3)
            assert one["details"].keys() == other["details"].keys()
            assert {key: one[key] for key in one if key.endswith("bytes")} == {
                key: other[key] for key in other if key.endswith("bytes")
            }
            if "test" in one:
                assert one["test"] == pytest.approx(other["test"], abs=0.03)
        assert here.rounds[-1]["loss"] != here.rounds[-2]["loss"]


def test_a_round_that_looks_at_values_is_not_recorded_as_a_whole_but_its_steps_are():
    class Looks(METHODS["fedavg"]):
        def round(self, server, clients):
            super().round(server, clients)
            if server.state.model.head.weight.sum() > 1e9:
                raise AssertionError

    setup = replace(toy_setup(Looks()), device=torch.device("cuda"))
    played, plain = play(setup, rounds=7), play(replace(setup, record=False), rounds=7)
    assert not played.engine.rounds.recordings
    assert any(recorder.recordings for recorder in played.engine._recorders.values())
    assert gap(played.client(0), plain.client(0)) < 1e-5


def test_a_server_that_looks_at_the_round_or_draws_is_right_when_replayed():
    class Schedules(METHODS["fedavg"]):
        def round(self, server, clients):
            super().round(server, clients)
            server.state.model.head.weight += 1e-3 * server.round

    class Draws(METHODS["fedavg"]):
        def round(self, server, clients):
            super().round(server, clients)
            server.state.model.head.bias = server.random("noise").normal(server.state.model.head.bias.numel())[0]

    for method, recorded in ((Schedules(), False), (Draws(), True)):
        setup = replace(toy_setup(method), device=torch.device("cuda"))
        played, plain = play(setup, rounds=6), play(replace(setup, record=False), rounds=6)
        assert bool(played.engine.rounds.recordings) == recorded
        assert gap(played.server.state, plain.server.state) < 1e-5


def test_a_round_that_cannot_be_recorded_is_played_all_the_same():
    class Shy(METHODS["fedavg"]):
        def round(self, server, clients):
            super().round(server, clients)
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError("not in front of everybody")

    setup = replace(toy_setup(Shy()), device=torch.device("cuda"))
    with pytest.warns(RuntimeWarning, match="not in front of everybody"):
        played = play(setup, rounds=7)
    plain = play(replace(setup, record=False), rounds=7)
    assert not played.engine.rounds.recordings
    assert gap(played.client(0), plain.client(0)) < 1e-5
    assert gap(played.server.state, plain.server.state) < 1e-5


def test_a_checkpoint_is_right_between_recorded_rounds():
    setup = replace(toy_setup(METHODS["fedavg"](), dropout=0.5), device=torch.device("cuda"))
    played = play(setup, rounds=5)
    kept = {client: map_tree(torch.clone, state) for client, state in played.engine.state().items()}
    server = map_tree(torch.clone, played.server.state)
    on = play(setup, rounds=3, engine=played.engine, first=6, state=played.server.state)
    played.engine.restore(kept)
    again = play(setup, rounds=3, engine=played.engine, first=6, state=server)
    fresh = InProcess(setup)
    fresh.restore(kept)
    other = play(setup, rounds=3, engine=fresh, first=6, state=server)
    assert gap(on.server.state, other.server.state) < 1e-5
    assert gap(again.client(0), other.client(0)) < 1e-5


@pytest.mark.parametrize("times", range(3))
def test_state_set_outside_a_recording_survives_fleets_that_run_side_by_side(times):
    """FedKD's clients receive outside recorded steps what the next recorded step reads, on other streams."""
    setup = toy_setup(METHODS["fedkd"](), clients=5, models="architectures", width=64, seed=times)
    there = play(replace(setup, device=torch.device("cuda")), rounds=8)
    here = play(setup, rounds=8)
    for client in here.engine.members():
        assert gap(here.client(client).mentee, map_tree(Tensor.cpu, there.client(client).mentee)) < 1e-2


def test_a_step_that_looks_at_the_round_is_not_recorded():
    class Looks(METHODS["fedavg"]):
        def loss(self, fleet, weights, received):
            return super().loss(fleet, weights, received) * (1 + fleet.round)

    setup = replace(toy_setup(Looks()), device=torch.device("cuda"))
    played = play(setup, rounds=5)
    assert not any(recorder.recordings for recorder in played.engine._recorders.values())


def test_state_that_moves_between_fields_is_replayed_in_order():
    class Remembers(METHODS["fedavg"]):
        def start_client(self, fleet):
            super().start_client(fleet)
            fleet.state.before = fleet.initial()

        @step
        def train(self, fleet, model):
            older = fleet.state.before
            fleet.state.before = fleet.state.model
            return super().train(fleet, model) | {"older": older}

    setup = replace(toy_setup(Remembers()), device=torch.device("cuda"))
    replayed, plain = play(setup, rounds=6), play(replace(setup, record=False), rounds=6)
    assert gap(replayed.client(0), plain.client(0)) < 1e-5
    assert gap(replayed.client(0).before, replayed.client(0).model) > 1e-4


def test_what_a_replay_returned_is_not_overwritten_by_the_next():
    setup = replace(toy_setup(METHODS["fedavg"]()), device=torch.device("cuda"))
    engine = InProcess(setup)
    model = play(setup, rounds=1).server.state.model
    kept = [engine.ask(Request("train", number, engine.members(), model)).model.head.weight for number in range(1, 6)]
    copies = [weight.clone() for weight in kept]
    torch.cuda.synchronize()
    assert all(torch.equal(one, other) for one, other in zip(kept, copies, strict=True))
    assert not torch.equal(kept[-1], kept[-2])
