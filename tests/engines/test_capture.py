"""Steps replayed as CUDA graphs equal steps run plainly; runs where there is a GPU."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from graft.engines.in_process import InProcess
from graft.exchange import Request
from graft.method import step
from graft.methods import METHODS
from graft.weights import map_tree
from tests.toy import gap, play, toy_setup

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("models", ["gcn", "gat", "sage", "gin", "sgc", "mlp", "gcn4"])
@pytest.mark.parametrize("sparse", [False, True])
def test_replayed_rounds_equal_plain_ones(models, sparse):
    setup = toy_setup(METHODS["fedavg"](), models=models, sparse=sparse, dropout=0.5)
    setup = replace(setup, device=torch.device("cuda"))
    replayed = play(setup, rounds=5)
    assert any(recorder.recordings for recorder in replayed.engine._recorders.values())
    plain = play(replace(setup, record=False), rounds=5)
    for client in range(3):
        assert gap(replayed.client(client), plain.client(client)) < 1e-5
    shorter = play(setup, rounds=4)
    assert gap(replayed.client(0), shorter.client(0)) > 1e-4


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_gives_on_the_gpu_what_it_gives_on_the_cpu(name):
    method = METHODS[name]()
    setup = toy_setup(method, models="gcn" if method.one_model else "gcn,sage,gat", dropout=0.5)
    there = play(replace(setup, device=torch.device("cuda")), rounds=4)
    here = play(setup, rounds=4)
    for client in here.engine.members():
        assert gap(here.client(client).model, map_tree(Tensor.cpu, there.client(client).model)) < 1e-4


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
