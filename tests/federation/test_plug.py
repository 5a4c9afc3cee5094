"""Plugs: a method with one has the fields, the state and the steps of both, and nothing in it was edited."""

import json
import pickle
from dataclasses import asdict, dataclass, fields, replace

import pytest
import torch
from typer.testing import CliRunner

import graft
import graft.methods.fedtad.distillation
from graft.cli import app
from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.errors import InputError
from graft.experiments.make_method import make_method, name_of
from graft.federation.clients import Clients
from graft.federation.method import Method
from graft.federation.plug import Plug, aggregated, name_clashes, plugged, replace_aggregated, takes_plugs
from graft.methods import METHODS, PLUGS
from graft.methods.fedavg import FedAvg
from graft.methods.fedprox import FedProx
from graft.methods.fedtad import (
    Distillation,
    FedTAD,
    FedTADPaper,
    FedTADReleased,
    PaperDistillation,
    ReleasedDistillation,
)
from graft.methods.fedtad.synthetic_graph import stacked_logits
from graft.tensors.trees import flatten, map_tree
from tests.toy import gap, run_rounds, same, toy_setup

HOSTS = sorted(name for name, kind in METHODS.items() if takes_plugs(kind))
every_host = pytest.mark.parametrize("host", HOSTS)
DATASET = "synthetic:nodes=120,degree=6,classes=3,features=8"
SMALL = {"dataset": DATASET, "clients": 3, "rounds": 2, "device": "cpu"}


def host_setup(host, plug="", **settings):
    method = make_method(host, settings, plug)
    return toy_setup(method, models=method.architecture or "gcn", dropout=0.5)


def played_or_skipped(setup, **options):
    """A host without a model at the server says so at its start."""
    try:
        return run_rounds(setup, **options)
    except InputError as error:
        if "A plug needs a method whose server keeps" not in str(error):
            raise
        pytest.skip("keeps no model at the server that a plug could change")


@dataclass(frozen=True)
class Halving(Plug):
    """The simplest plug: it makes all weights smaller."""

    factor: float = 0.5  # of every weight

    def after_aggregation(self, server, clients, replies):  # noqa: ARG002
        models = aggregated(server, replies.clients)
        replace_aggregated(server, replies.clients, map_tree(lambda leaf: self.factor * leaf, models))


def test_the_hosts_of_the_paper_take_plugs():
    assert {"fedavg", "fedprox", "scaffold", "moon", "feddc", "fedgta"} <= set(HOSTS)


@every_host
@pytest.mark.parametrize("plug", sorted(PLUGS))
def test_no_name_means_two_things(host, plug):
    assert name_clashes(METHODS[host], PLUGS[plug]) == []


@every_host
def test_without_distillation_every_host_is_itself_bit_for_bit(host):
    plain, idle = host_setup(host), host_setup(host, "fedtad", iterations=0)
    with_plug = played_or_skipped(idle)
    alone = run_rounds(plain)
    kept = {name: value for name, value in with_plug.server.state.items() if name != "distillation"}
    assert same(kept, alone.server.state)
    assert all(same(with_plug.client(client), alone.client(client)) for client in range(3))
    assert with_plug.traffic == alone.traffic


@every_host
def test_the_server_phase_changes_what_every_host_sends_next(host):
    setup = host_setup(host, "fedtad_paper", pseudo_nodes=12)
    with_plug, alone = played_or_skipped(setup), run_rounds(host_setup(host))
    field = "models" if "models" in alone.server.state else "model"
    assert gap(with_plug.server.state[field], alone.server.state[field]) > 1e-4
    assert gap(with_plug.client(0).model, alone.client(0).model) > 1e-5
    assert all(leaf.isfinite().all() for _, leaf in flatten(with_plug.server.state))


def test_fedtad_is_the_plug_on_fedavg():
    pairs = ((FedTAD(), Distillation), (FedTADPaper(), PaperDistillation), (FedTADReleased(), ReleasedDistillation))
    for method, plug in pairs:
        whole, composed = (run_rounds(toy_setup(one, dropout=0.5)) for one in (method, plugged(FedAvg, plug)()))
        assert same(whole.server.state, composed.server.state)
        assert all(same(whole.client(client), composed.client(client)) for client in range(3))


def test_fields_of_both_are_settings_and_others_are_refused():
    method = make_method("fedprox", {"mu": 0.5, "iterations": 2}, "fedtad")
    assert (method.mu, method.iterations) == (0.5, 2)
    assert [one.name for one in fields(method)] == [one.name for one in (*fields(FedProx), *fields(FedTAD))]
    with pytest.raises(InputError, match=r"Unknown setting 'iteratoins' .did you mean 'iterations'.*adversarial.*mu"):
        make_method("fedprox", {"iteratoins": 2}, "fedtad")
    with pytest.raises(InputError, match="iterations"):
        make_method("fedprox", {"iterations": "many"}, "fedtad")
    with pytest.raises(InputError, match="iterations is -1"):
        make_method("fedprox", {"iterations": -1}, "fedtad")
    with pytest.raises(InputError, match="server_step is 0"):  # the host's own checks still hold
        make_method("scaffold", {"server_step": 0.0}, "fedtad")
    with pytest.raises(InputError, match="Unknown setting 'mu'"):
        make_method("fedavg", {"mu": 0.5}, "fedtad")


def test_unknown_plugs_and_unfit_hosts_are_refused_with_what_there_is():
    with pytest.raises(
        InputError, match=r"Unknown plug 'fedtda' .did you mean 'fedtad'.*: there are fedtad, fedtad_pa"
    ):
        make_method("fedavg", {}, "fedtda")
    for host in ("local", "centralised", "fedgkc", "dpsgd", "fedtad"):
        with pytest.raises(InputError, match=r"cannot be added to .*: it needs a server .*fedavg"):
            make_method(host, {}, "fedtad")


def test_a_plugged_method_is_one_class_has_a_name_and_survives_pickling():
    method = make_method("fedprox", {"mu": 0.25, "noise_width": 8}, "fedtad")
    assert type(method) is plugged(FedProx, Distillation)
    assert name_of(method) == "fedprox+fedtad"
    again = pickle.loads(pickle.dumps(method))
    assert again == method
    assert type(again) is type(method)
    assert pickle.loads(pickle.dumps(FedTAD(iterations=3))) == FedTAD(iterations=3)
    assert name_of(FedTAD()) == "fedtad"
    assert isinstance(method, FedProx)


def test_a_plug_and_a_host_must_not_share_a_name():
    @dataclass(frozen=True)
    class Other(FedAvg):
        factor: float = 1.0

    with pytest.raises(InputError, match="Halving cannot be added to Other: both have factor"):
        plugged(Other, Halving)


@pytest.mark.parametrize("host", ["fedavg", "fedgta"])
def test_a_plug_of_your_own_sees_the_uploads_and_changes_what_the_server_made(host):
    kind = plugged(METHODS[host], Halving)
    ours, plain = (
        run_rounds(toy_setup(kind()), rounds=1).server.state,
        run_rounds(toy_setup(METHODS[host]()), rounds=1).server.state,
    )
    field = "models" if "models" in plain else "model"
    assert same(ours[field], map_tree(lambda leaf: 0.5 * leaf, plain[field]))


def test_a_host_that_aggregates_nothing_is_refused():
    class Silent(FedAvg):
        def round(self, server, clients):
            """Nobody is asked."""

    with pytest.raises(InputError, match="calls no `aggregate`"):
        run_rounds(toy_setup(plugged(Silent, Halving)()), rounds=1)


def test_all_some_and_more_clients_can_be_asked():
    setup = toy_setup(FedAvg())
    clients = Clients(InProcess(setup), 1, [0, 2])
    asked = [who.ask(setup.method.count) for who in (clients, clients.only([2]), clients.everyone)]
    assert [replies.clients for replies in asked] == [[0, 2], [2], [0, 1, 2]]
    assert "totals" in asked[0]
    assert "model" not in asked[0]


@pytest.mark.parametrize("host", ["scaffold", "fedgta"])
def test_processes_with_messages_as_bytes_give_the_same_result(host):
    setup = host_setup(host, "fedtad", pseudo_nodes=12)
    here, engine = run_rounds(setup), Loopback(setup)
    try:
        there = run_rounds(setup, engine=engine)
        assert gap(here.server.state, there.server.state) < 1e-5
        assert here.traffic == there.traffic
    finally:
        engine.close()


@pytest.mark.parametrize("host", ["fedprox", "fedgta"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_resumed_equals_unbroken(host, participation):
    method = make_method(host, {"pseudo_nodes": 12}, "fedtad")
    setup = toy_setup(method, clients=4, dropout=0.5, participation=participation)
    unbroken, half = run_rounds(setup, rounds=4), run_rounds(setup, rounds=2)
    engine = InProcess(setup)
    engine.restore(half.engine.state())
    rest = run_rounds(setup, rounds=2, engine=engine, first=3, state=half.server.state)
    assert same(unbroken.server.state, rest.server.state)


def test_run_takes_names_and_instances():
    by_name = graft.run(method="fedprox", plug="fedtad", settings={"mu": 0.5, "pseudo_nodes": 12}, **SMALL)
    assert by_name.summary["method"] == "fedprox+fedtad"
    given = graft.run(method=FedProx(mu=0.5), plug="fedtad", settings={"pseudo_nodes": 12}, **SMALL)
    assert same(by_name.server, given.server)
    with_default = graft.run(method=FedProx(), plug="fedtad", settings={"pseudo_nodes": 12}, **SMALL)
    assert not same(by_name.server, with_default.server)


def test_a_method_of_your_own_takes_a_plug():
    @dataclass(frozen=True)
    class Mine(FedAvg):
        bonus: float = 0.0

        def loss(self, fleet, weights, received):
            return super().loss(fleet, weights, received) + self.bonus

    result = graft.run(method=Mine(), plug="fedtad", settings={"pseudo_nodes": 12}, **SMALL)
    assert result.summary["method"] == "mine+fedtad"
    same_as = graft.run(method="fedtad", settings={"pseudo_nodes": 12}, **SMALL)
    assert same(result.server, same_as.server)


def test_the_plug_is_on_record_and_a_run_goes_on_with_it(tmp_path):
    settings = {"mu": 0.5, "pseudo_nodes": 12}
    common = {**SMALL, "settings": settings, "method": "fedprox", "plug": "fedtad", "rounds": 4, "checkpoint_every": 1}
    whole = graft.run(**common)
    with pytest.raises(ZeroDivisionError):
        graft.run(**common, out=tmp_path / "run", callbacks=[lambda record: 1 / (3 - record["round"])])
    kept = (tmp_path / "run" / "experiment.toml").read_text()
    assert 'method = "fedprox"\nplug = "fedtad"\n' in kept
    assert "mu = 0.5" in kept
    assert "pseudo_nodes = 12" in kept
    resumed = graft.resume(tmp_path / "run")
    assert same(resumed.server, whole.server)
    assert resumed.summary["method"] == "fedprox+fedtad"


def test_the_command_line_takes_a_plug_and_its_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        return CliRunner().invoke(app, ["run", "--dataset", DATASET, "--clients", "3", "--rounds", "2", *arguments])

    done = call("--method", "fedprox", "--plug", "fedtad", "--set", "mu=0.25", "--set", "pseudo_nodes=12")
    assert done.exit_code == 0, done.output
    (place,) = (tmp_path / "runs").iterdir()
    assert place.name.startswith("fedprox+fedtad-")
    assert json.loads((place / "result.json").read_text())["method"] == "fedprox+fedtad"
    compared = call(
        "--plug", "fedtad", "--method", "fedavg", "--set", "pseudo_nodes=12", "--against", "fedavg", "--out", "b"
    )
    assert compared.exit_code == 0, compared.output
    assert {file.parent.name for file in (tmp_path / "b").rglob("result.json")} == {
        "fedavg",
        "fedavg+fedtad",
        "majority",
    }
    listed = CliRunner().invoke(app, ["list", "plugs"]).output
    assert all(name in listed for name in PLUGS)
    for wrong, said in (
        (("--method", "fedprox", "--plug", "nothing"), "there are fedtad"),
        (("--method", "local", "--plug", "fedtad"), "cannot be added to Local"),
        (("--method", "fedprox", "--plug", "fedtad", "--set", "nu=1"), "Unknown setting 'nu'"),
    ):
        failed = call(*wrong)
        assert failed.exit_code == 2
        assert said in failed.output.replace("\n", " ")


def test_a_plugged_method_keeps_its_hosts_answers():
    method = make_method("fedprox", {}, "fedtad")
    assert method.one_model
    assert type(method).loss is FedProx.loss
    assert type(method).shared is FedAvg.shared
    assert isinstance(method, Method)
    assert replace(method, mu=1.0).mu == 1.0
    assert asdict(method)["walk_length"] == 5


def test_models_of_some_clients_are_replaced_and_others_left():
    setup = toy_setup(METHODS["fedgta"](), clients=4)
    state = run_rounds(setup, rounds=1).server
    before = map_tree(torch.clone, state.state.models)
    chosen = aggregated(state, [1, 3])
    assert len(chosen.head.bias) == 2
    replace_aggregated(state, [1, 3], map_tree(torch.zeros_like, chosen))
    after = state.state.models
    assert all((leaf[[1, 3]] == 0).all() for _, leaf in flatten(after))
    assert all(torch.equal(leaf[[0, 2]], dict(flatten(before))[path][[0, 2]]) for path, leaf in flatten(after))


def test_the_server_distils_with_the_architecture_that_clients_train(monkeypatch):
    """FedOMD configures its network by its own fields, and what a plug evaluates must be that very network."""
    seen = []

    def logits(model, *rest):
        seen.append(model)
        return stacked_logits(model, *rest)

    monkeypatch.setattr(graft.methods.fedtad.distillation, "stacked_logits", logits)
    method = plugged(METHODS["fedomd"], Distillation)(hybrid=0.9, pseudo_nodes=12)
    finished = run_rounds(toy_setup(method, models="ortho_gcn", head="conv"), rounds=1)
    (fleet,) = finished.engine.fleets
    assert fleet.model.hybrid == 0.9
    assert finished.server.model == fleet.model
    assert set(seen) == {fleet.model}


def test_records_name_the_network_that_is_trained():
    result = graft.run("fedlit", clients=2, rounds=1, width=8, device="cpu")
    assert [row["model"] for row in result.summary["per_client"]] == ["channels", "channels"]
