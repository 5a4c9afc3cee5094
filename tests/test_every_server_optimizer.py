"""Server optimisers with every method: those that average step, the others refuse in one sentence."""

from dataclasses import replace

import pytest
import torch

import graft
from graft.engines.cluster import Cluster
from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.errors import InputError
from graft.experiments.combinations import suited
from graft.federation.average_names import parse_average
from graft.federation.plug import plugged, takes_plugs
from graft.federation.server_optimizer_names import ServerOptimizer, suiting_optimizer, takes_server_optimizer
from graft.federation.session import Session
from graft.methods import METHODS
from graft.methods.fedavg import FedAvg
from graft.methods.fedtad import Distillation
from graft.methods.lg_fedavg import LGFedAvg
from graft.methods.scaffold import SCAFFOLD
from graft.tensors.trees import flatten
from graft.testing.claim import contract_setup
from graft.testing.contract import through_bytes
from graft.testing.local_pool import LocalPool
from tests.contract import SETTINGS, contract_method
from tests.methods.normed import Normed
from tests.methods.quadratic import Parabolas, number_setup
from tests.toy import gap, run_rounds, run_session, same, toy_graph, toy_setup

ABLE = METHODS.matching(takes_server_optimizer)
DATA = {"dataset": "synthetic:nodes=200", "clients": 5, "rounds": 1, "epochs": 1, "partition": "random"}
STEPPING = ["momentum", "adam", "yogi", "adagrad"]


def after(name, optimizer, rounds=2):
    setup = contract_setup(contract_method(name), server_optimizer=optimizer)
    return run_rounds(setup, rounds)


@pytest.mark.parametrize("name", sorted(set(METHODS) - set(ABLE)))
def test_a_method_that_keeps_no_average_refuses(name):
    with pytest.raises(InputError) as refusal:
        graft.run(name, server_optimizer="adam", **DATA)
    sentence = str(refusal.value)
    assert f"server_optimizer is adam, but the server of method '{name}' keeps no average" in sentence
    assert "fedavg, " in sentence
    assert suited({"server_optimizer": "adam"}, METHODS[name])["server_optimizer"] == "none"


@pytest.mark.parametrize("name", ABLE)
def test_a_step_of_sgd_at_rate_one_is_the_plain_average_and_half_of_it_is_not(name):
    assert suited({"server_optimizer": "adam"}, METHODS[name])["server_optimizer"] == "adam"
    plain, whole, half = (after(name, how) for how in (None, ServerOptimizer("sgd"), ServerOptimizer("sgd", 0.5)))
    assert same(plain.server.state, whole.server.state)
    assert "server_optimizer" not in plain.server.state
    branch = METHODS[name].averaged
    assert gap(plain.server.state[branch], half.server.state[branch]) > 1e-5


@pytest.mark.parametrize("name", ABLE)
def test_a_run_with_moments_goes_on_bit_for_bit(name):
    setup = contract_setup(
        contract_method(name), clients=4, participation=0.5, server_optimizer=suiting_optimizer("yogi")
    )
    unbroken, half = run_rounds(setup, rounds=4), run_rounds(setup, rounds=2)
    session = Session(setup, InProcess(setup))
    assert {"direction", "square"} == set(session.server.state.server_optimizer)  # there from the start
    session.restore(through_bytes(half.session.state()))
    resumed = run_session(session, first=3, rounds=2)
    assert same(unbroken.server.state, resumed.server.state)
    session = Session(setup, InProcess(setup))
    forgotten = through_bytes(half.session.state())
    forgotten.server["server_optimizer"] = session.server.state.server_optimizer
    session.restore(forgotten)
    branch = METHODS[name].averaged
    assert gap(run_session(session, first=3, rounds=2).server.state[branch], unbroken.server.state[branch]) > 1e-6


def test_two_rounds_of_momentum_on_two_parabolas_by_hand():
    """A local step from x leads the mean to 0.8 x + 0.6: updates of 0.6, then of 0.6 - 0.2 * 0.3 = 0.54."""
    how = ServerOptimizer("momentum", rate=0.5, momentum=0.5)

    def reached(rounds):
        return run_rounds(number_setup(Parabolas(), epochs=1, server_optimizer=how), rounds).server.state

    assert float(reached(1).model.x) == pytest.approx(0.3)
    assert float(reached(2).model.x) == pytest.approx(0.3 + 0.5 * (0.5 * 0.6 + 0.54))
    assert float(reached(2).server_optimizer.velocity.x) == pytest.approx(0.84)


@pytest.mark.parametrize("name", STEPPING)
def test_fedavg_with_any_of_them_comes_to_where_the_average_stays(name):
    rate = 1.0 if name == "adagrad" else 0.1  # its steps become ever smaller
    setup = number_setup(Parabolas(), epochs=1, server_optimizer=suiting_optimizer(name)._replace(rate=rate))
    assert float(run_rounds(setup, rounds=400).server.state.model.x) == pytest.approx(3.0, abs=0.05)


@pytest.mark.parametrize("name", METHODS.matching(takes_plugs))
def test_a_plug_works_on_what_the_server_stepped_to(name):
    """A plug that only looks at the server's model sees half a step."""
    if not takes_server_optimizer(METHODS[name]):
        pytest.skip("its server keeps no average")

    class Looks(Distillation):
        def after_aggregation(self, server, clients, replies):  # noqa: ARG002
            server.record(seen=server.state.model)

    method = plugged(METHODS[name], Looks)(**SETTINGS.get(name, {}))
    setup = contract_setup(method, server_optimizer=ServerOptimizer("sgd", 0.5))
    finished = run_rounds(setup, rounds=1)
    assert same(finished.records["seen"], finished.server.state.model)
    host = contract_setup(contract_method(name), server_optimizer=ServerOptimizer("sgd", 0.5))
    assert gap(finished.server.state.model, run_rounds(host, rounds=1).server.state.model) < 1e-6
    plain = run_rounds(replace(setup, server_optimizer=None), rounds=1)
    assert gap(finished.server.state.model, plain.server.state.model) > 1e-5


def test_the_server_distils_after_its_step():
    method, half = contract_method("fedtad"), ServerOptimizer("sgd", 0.5)
    stepped = run_rounds(toy_setup(method, server_optimizer=half), 1).server.state
    plain = run_rounds(toy_setup(method), 1).server.state
    undistilled = run_rounds(toy_setup(FedAvg(), server_optimizer=half), 1).server.state
    assert gap(stepped.model, undistilled.model) > 1e-5
    assert gap(stepped.model, plain.model) > 1e-5


def test_half_a_step_after_scaffolds_own_is_a_quarter():
    settings = {"optimizer": "sgd", "learning_rate": 0.1}
    half, quarter = (
        run_rounds(toy_setup(SCAFFOLD(server_step=own), server_optimizer=how, **settings), rounds=3).server.state
        for own, how in ((0.5, ServerOptimizer("sgd", 0.5)), (0.25, None))
    )
    assert gap(half.model, quarter.model) < 1e-6
    assert gap(half.control, quarter.control) < 1e-5


def test_a_robust_average_is_what_is_stepped_to():
    def reached(average, rate):
        setup = toy_setup(FedAvg(), clients=5, server_optimizer=ServerOptimizer("sgd", rate))
        return run_rounds(replace(setup, average=parse_average(average)), rounds=1).server.state.model

    start, median, half = toy_setup(FedAvg(), clients=5), reached("median", 1.0), reached("median", 0.5)
    before = Session(start, InProcess(start)).server.state.model
    for path, leaf in flatten(half):
        middle = (dict(flatten(before))[path] + dict(flatten(median))[path]) / 2
        torch.testing.assert_close(leaf, middle)
    assert gap(median, reached("mean", 1.0)) > 1e-4


def two_workers(setup):
    return Cluster(setup, LocalPool(2))


@pytest.mark.parametrize("open_engine", [Loopback, two_workers])
def test_servers_of_other_engines_step_alike(open_engine):
    setup = toy_setup(FedAvg(), server_optimizer=suiting_optimizer("adam"))
    here, engine = run_rounds(setup, rounds=2), open_engine(setup)
    try:
        there = run_rounds(setup, rounds=2, engine=engine)
    finally:
        engine.close()
    assert gap(here.server.state, there.server.state) < 1e-5
    assert gap(here.server.state.model, run_rounds(toy_setup(FedAvg()), rounds=2).server.state.model) > 1e-4


def test_buffers_are_those_of_the_average():
    def after_a_round(how):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            graphs = [toy_graph(9), toy_graph(8)]
            setup = toy_setup(FedAvg(), 2, Normed(), graphs=graphs, optimizer="sgd", server_optimizer=how)
        return run_rounds(setup, rounds=1).server.state

    adam, plain = after_a_round(suiting_optimizer("adam")), after_a_round(None)
    assert torch.equal(adam.model.norm.running_mean, plain.model.norm.running_mean)
    assert "running_mean" not in adam.server_optimizer.square.norm
    assert gap(adam.model.head, plain.model.head) > 1e-4


def test_settings_that_leave_nothing_to_average_are_refused():
    with pytest.raises(InputError, match="with these settings LGFedAvg keeps no average"):
        Session(toy_setup(LGFedAvg(share="nothing"), server_optimizer=ServerOptimizer("sgd")), engine=None)


def test_a_class_with_a_round_of_its_own_has_to_say_what_it_averages():
    class Silent(FedAvg):
        def aggregate(self, server, clients, replies):
            super().aggregate(server, clients, replies)

    class Declared(Silent):
        averaged = "model"

    assert [kind.averaged for kind in (FedAvg, Silent, Declared)] == ["model", None, "model"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("optimizer", STEPPING)
@pytest.mark.parametrize("name", ["fedavg", "fedgkc", "scaffold", "feddyn", "fednova"])
def test_captured_rounds_step_as_plain_ones(name, optimizer):
    setup = contract_setup(contract_method(name), server_optimizer=suiting_optimizer(optimizer))
    setup = replace(setup, device=torch.device("cuda"))
    captured = run_rounds(setup, rounds=5)
    plain = run_rounds(replace(setup, capture=False), rounds=5)
    assert captured.engine.rounds.captured
    assert gap(captured.server.state, plain.server.state) < 1e-5
    none = run_rounds(replace(setup, server_optimizer=None), rounds=5)
    branch = METHODS[name].averaged
    assert gap(captured.server.state[branch], none.server.state[branch]) > 1e-4
