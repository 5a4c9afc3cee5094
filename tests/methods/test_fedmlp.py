"""FedMLP: FedAvg of a network that does not see the graph."""

from dataclasses import replace

import numpy as np
import pytest

import graft
from graft.methods.fedavg import FedAvg
from graft.methods.fedmlp import FedMLP
from graft.methods.fedprox import FedProx
from graft.methods.scaffold import SCAFFOLD
from tests.toy import gap, run_rounds, same, toy_graphs, toy_setup

DATASET = "synthetic:nodes=120,degree=6,classes=3,features=8"


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_it_is_fedavg_of_an_mlp_whatever_models_are_asked_for(dropout):
    ours = run_rounds(toy_setup(FedMLP(), models="gat", dropout=dropout))
    wanted = run_rounds(toy_setup(FedAvg(), models="mlp", dropout=dropout))
    assert same(ours.server.state, wanted.server.state)
    assert all(same(ours.client(client), wanted.client(client)) for client in range(3))
    other = run_rounds(toy_setup(FedAvg(), models="gcn", dropout=dropout))
    assert not same(ours.server.state, other.server.state)


def test_without_its_edges_it_learns_and_says_the_same():
    graphs = toy_graphs()
    bare = [replace(graph, edges=np.empty((2, 0), np.int64)) for graph in graphs]

    def after(method, graphs):
        finished = run_rounds(toy_setup(method, graphs=graphs, dropout=0.5), rounds=3)
        fleet = finished.engine.fleets[0]
        return finished.server.state, fleet.predict(fleet.state.model).logits

    (state, logits), (bare_state, bare_logits) = after(FedMLP(), graphs), after(FedMLP(), bare)
    assert same(state, bare_state)
    assert (logits == bare_logits).all()
    with_edges, without = after(FedAvg(), graphs), after(FedAvg(), bare)
    assert gap(with_edges[0], without[0]) > 1e-3


def test_fedprox_and_scaffold_run_on_the_same_mlp():
    wanted = run_rounds(toy_setup(FedMLP(), dropout=0.5))
    ours = run_rounds(toy_setup(FedProx(mu=0.0), models="mlp", dropout=0.5))
    assert same(ours.server.state, wanted.server.state)
    pulled = run_rounds(toy_setup(FedProx(mu=1.0), models="mlp", dropout=0.5))
    assert gap(pulled.server.state, wanted.server.state) > 1e-4
    corrected = run_rounds(toy_setup(SCAFFOLD(), models="mlp", dropout=0.5))
    assert gap(corrected.server.state.model, wanted.server.state.model) > 1e-4


def test_run_keeps_a_record_of_the_model_that_was_trained(tmp_path):
    result = graft.run("fedmlp", DATASET, clients=3, rounds=1, models="gat", out=tmp_path / "run")
    assert {client["model"] for client in result.summary["per_client"]} == {"mlp"}
    assert 'models = "mlp"' in (tmp_path / "run" / "experiment.toml").read_text()
    assert result.accuracy["test_global"] is not None
    free = graft.run("fedavg", DATASET, clients=3, rounds=1, models="gat")
    assert {client["model"] for client in free.summary["per_client"]} == {"gat"}
