"""LocGCN: a graph convolutional network for every client, and nobody to talk to."""

from graft.methods.centralised import Centralised
from graft.methods.loc_gcn import LocGCN
from graft.methods.local import Local
from tests.toy import gap, run_rounds, same, toy_setup


def test_it_is_local_training_of_a_gcn_whatever_models_are_asked_for():
    ours = run_rounds(toy_setup(LocGCN(), models="gcn,sage", dropout=0.5))
    wanted = run_rounds(toy_setup(Local(), models="gcn", dropout=0.5))
    mixed = run_rounds(toy_setup(Local(), models="gcn,sage", dropout=0.5))
    assert all(same(ours.client(client), wanted.client(client)) for client in range(3))
    assert ours.client(1).model.keys() == mixed.client(1).model.keys()
    assert ours.client(1).model.layer0.keys() != mixed.client(1).model.layer0.keys()
    assert (ours.traffic.up, ours.traffic.down) == (0, 0)


def test_one_client_is_centralised_training():
    settings = {"clients": 1, "dropout": 0.5}
    ours, wanted = run_rounds(toy_setup(LocGCN(), **settings)), run_rounds(toy_setup(Centralised(), **settings))
    assert gap(ours.client(0).model, wanted.client(0).model) < 1e-6
    several = run_rounds(toy_setup(Centralised(), clients=3, dropout=0.5))
    assert gap(ours.client(0).model, several.client(0).model) > 1e-3
