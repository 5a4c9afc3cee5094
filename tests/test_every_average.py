"""Robust averages with every method: refused in one sentence, or a bad client of ten does little harm."""

from dataclasses import replace

import pytest
import torch

import graft
from graft.engines.cluster import Cluster
from graft.engines.loopback import Loopback
from graft.errors import GraftError, InputError
from graft.experiments.combinations import suited
from graft.federation.average_names import parse_average, takes_averages
from graft.methods import METHODS
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc import FedGKC
from graft.tensors.trees import flatten
from graft.testing.local_pool import LocalPool
from graft.testing.poisoning import ATTACKS, Poisoned
from tests.contract import usual_model
from tests.toy import gap, run_rounds, same, toy_setup

ABLE = METHODS.matching(takes_averages)
SMALL = {"fedsage_plus": {"hidden": 0.0}}
DATA = {"dataset": "synthetic:nodes=200", "clients": 5, "rounds": 1, "epochs": 1, "partition": "random"}


def setup_of(name, average, clients=5):
    method = METHODS[name](**SMALL.get(name, {}))
    return replace(toy_setup(method, clients, usual_model(method)), average=parse_average(average))


@pytest.mark.parametrize("name", sorted(set(METHODS) - set(ABLE)))
def test_a_method_that_does_more_than_averaging_refuses(name):
    with pytest.raises(InputError) as refusal:
        graft.run(name, average="median", **DATA)
    sentence = str(refusal.value)
    assert f"average is median, but method '{name}' does more" in sentence
    assert sentence.count("\n") == 0
    assert suited({"average": "median"}, METHODS[name]) == {"average": "mean"} | (
        suited({}, METHODS[name])  # what else it cannot do
    )


@pytest.mark.parametrize("average", ["median", "trimmed:0.2", "multi_krum:1"])
@pytest.mark.parametrize("name", ABLE)
def test_a_method_that_averages_stays_finite_with_a_bad_client(name, average):
    setup = setup_of(name, average)
    for attack in ("huge", "nan"):
        finished = run_rounds(setup, rounds=2, engine=Poisoned(setup, 1, ATTACKS[attack]))
        for path, leaf in flatten(finished.server.state):
            assert leaf.isfinite().all(), (attack, path)
            assert not leaf.is_floating_point() or leaf.abs().max() < 1e4, (attack, path)


@pytest.mark.parametrize("name", ABLE)
def test_the_plain_mean_does_not_stay_finite(name):
    setup = setup_of(name, "mean")
    try:
        finished = run_rounds(setup, rounds=1, engine=Poisoned(setup, 1, ATTACKS["nan"]))
    except GraftError:
        return  # it was noticed
    assert any(not leaf.isfinite().all() for _, leaf in flatten(finished.server.state) if leaf.is_floating_point())


@pytest.mark.parametrize("average", ["median", "trimmed:0.2", "krum:1", "multi_krum:1"])
def test_fedavg_stays_near_the_honest_clients(average):
    setup = setup_of("fedavg", average, clients=10)
    honest = run_rounds(setup, rounds=1)
    models = torch.stack(
        [torch.cat([leaf.flatten() for _, leaf in flatten(honest.client(k).model)]) for k in range(10)]
    )
    spread = (models - models.mean(0)).norm(dim=1).max()
    poisoned = run_rounds(setup, rounds=1, engine=Poisoned(setup, 3, ATTACKS["huge"]))
    moved = distance(poisoned.server.state.model, honest.server.state.model)
    assert moved <= spread
    plain = replace(setup, average=parse_average("mean"))
    moved = distance(
        run_rounds(plain, 1, Poisoned(plain, 3, ATTACKS["huge"])).server.state.model, honest.server.state.model
    )
    assert moved > 1000 * spread


def distance(first, second):
    others = dict(flatten(second))
    return sum((leaf - others[path]).square().sum() for path, leaf in flatten(first)).sqrt()


@pytest.mark.parametrize("attack", ["nan", "huge"])
def test_who_is_screened_out_has_not_taken_part(attack):
    setup = toy_setup(FedAvg(), clients=5)
    engine = Poisoned(setup, 2, ATTACKS[attack], screened=True, max_norm=10)
    screened = run_rounds(setup, rounds=1, engine=engine).server.state.model
    assert [set(out) for out in engine.left_out] == [{2}]
    honest = run_rounds(setup, rounds=1)
    models = {client: honest.client(client).model for client in (0, 1, 3, 4)}
    votes = torch.tensor([graph.nodes for k, graph in enumerate(setup.graphs) if k != 2]).double()
    for path, leaf in flatten(screened):
        rows = torch.stack([dict(flatten(models[client]))[path].double() for client in models])
        assert torch.allclose(leaf.double(), torch.tensordot(votes / votes.sum(), rows, dims=1), atol=1e-6)
    assert gap(screened, honest.server.state.model) > 1e-4


def test_messages_as_bytes_are_averaged_as_in_process():
    setup = setup_of("fedgkc", "trimmed:0.2")
    here = run_rounds(setup, rounds=2)
    engine = Loopback(setup)
    try:
        there = run_rounds(setup, rounds=2, engine=engine)
    finally:
        engine.close()
    assert gap(here.server.state, there.server.state) < 1e-5
    assert gap(here.server.state, run_rounds(setup_of("fedgkc", "mean"), rounds=2).server.state) > 1e-4


def test_workers_send_what_they_cannot_sum():
    setup = setup_of("fedavg", "median")
    there = run_rounds(setup, rounds=2, engine=Cluster(setup, LocalPool(2)))
    assert gap(run_rounds(setup, rounds=2).server.state, there.server.state) < 1e-5
    plain = replace(setup, average=parse_average("mean"))
    assert gap(there.server.state, run_rounds(plain, rounds=2, engine=Cluster(plain, LocalPool(2))).server.state) > 1e-4


def test_an_experiment_is_averaged_as_it_says():
    models = {
        average: graft.run("fedavg", average=average, width=8, seed=1, **DATA).server.model
        for average in ("mean", "median", "trimmed:0.2")
    }
    assert not same(models["mean"], models["median"])
    assert not same(models["median"], models["trimmed:0.2"])


def test_too_few_clients_are_refused_before_data_are_read():
    for settings, words in (
        ({"average": "krum:2"}, "needs at least 7 clients in a round, not 5"),
        ({"average": "trimmed:0.2", "participation": 0.5}, "cuts nobody of 2 clients in a round"),
        ({"average": "medium"}, "There is no average 'medium'"),
    ):
        with pytest.raises(InputError, match=words):
            graft.run("fedavg", **{**DATA, "dataset": "cora", **settings})


def test_a_plug_that_looks_at_every_model_refuses():
    with pytest.raises(InputError, match="does more"):
        graft.run("fedavg", plug="fedtad", average="median", **DATA)


def test_a_class_with_a_round_of_its_own_has_to_say_that_it_only_averages():
    class Silent(FedAvg):
        def round(self, server, clients):
            super().round(server, clients)

    class Declared(Silent):
        averages = ("train/model",)

    assert [takes_averages(kind) for kind in (FedAvg, FedGKC, Silent, Declared)] == [True, True, False, True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("average", ["median", "trimmed:0.2", "krum:1", "multi_krum:1"])
@pytest.mark.parametrize("name", ["fedavg", "fedgkc"])
def test_captured_rounds_average_as_plain_ones(name, average):
    setup = replace(setup_of(name, average), device=torch.device("cuda"))
    captured = run_rounds(setup, rounds=5)
    plain = run_rounds(replace(setup, capture=False), rounds=5)
    assert captured.engine.rounds.captured
    assert gap(captured.server.state, plain.server.state) < 1e-5
    mean = run_rounds(replace(setup, average=parse_average("mean")), rounds=5)
    assert gap(captured.server.state, mean.server.state) > 1e-4
