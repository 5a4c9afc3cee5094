"""FedGCN, as FedOMD uses the name: FedAvg of a graph convolutional network."""

import pytest

from graft.methods.fedavg import FedAvg
from graft.methods.fedgcn import FedGCN
from graft.methods.loc_gcn import LocGCN
from tests.toy import gap, run_rounds, same, toy_setup


def test_it_is_fedavg_of_a_gcn_whatever_models_are_asked_for():
    ours = run_rounds(toy_setup(FedGCN(), models="sage", dropout=0.5))
    wanted = run_rounds(toy_setup(FedAvg(), models="gcn", dropout=0.5))
    assert same(ours.server.state, wanted.server.state)
    assert ours.traffic == wanted.traffic
    assert not same(ours.server.state, run_rounds(toy_setup(FedAvg(), models="sage", dropout=0.5)).server.state)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_one_client_is_loc_gcn(dropout):
    settings = {"clients": 1, "dropout": dropout}
    ours, wanted = run_rounds(toy_setup(FedGCN(), **settings)), run_rounds(toy_setup(LocGCN(), **settings))
    assert same(ours.client(0), wanted.client(0))
    assert same(ours.server.state.model, wanted.client(0).model)
    several = run_rounds(toy_setup(FedGCN(), clients=3, dropout=dropout))
    alone = run_rounds(toy_setup(LocGCN(), clients=3, dropout=dropout))
    assert gap(several.client(0).model, alone.client(0).model) > 1e-3
