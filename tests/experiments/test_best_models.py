"""The models that were scored are the models that a person gets: kept, written, resumed and used to predict."""

import numpy as np
import pytest
import torch

import graft
from graft.data import datasets
from graft.methods import METHODS
from graft.tensors.trees import flatten
from tests.contract import contract_method

DATA = "synthetic:nodes=90,degree=5,classes=3,features=6"
SETTINGS = dict(dataset=DATA, clients=3, width=8, rounds=3, device="cpu", threads=1, partition="random")
# Methods whose defaults would take long, or that classify by more than a model only with other settings.
FIELDS = {
    "fedsage_plus": dict(hidden=1.0, slots=2, latent=8, encoder_width=8, rank=4, generator_epochs=6, shared_epochs=2),
    "fedtgp": dict(server_epochs=5, inference="prototype"),
    "fedproto": dict(inference="prototype"),
}


def accuracies(predictions, graph, mask):
    """Returns the share of a client's nodes in a mask whose class is right, by their numbers in the whole graph."""
    chosen = mask[predictions.ids]
    return float((predictions.classes == graph.y[predictions.ids])[chosen].mean())


def whole_graph(result):
    federation = result.models.federation()
    return (federation.clean or federation).graph


@pytest.mark.parametrize("name", sorted(METHODS))
def test_stored_models_of_the_best_round_score_what_was_scored(tmp_path, name):
    models = "gcn,gat,sage" if METHODS[name].heterogeneous else None
    graft.run(name, models=models, out=tmp_path / "run", settings=FIELDS.get(name, {}), **SETTINGS)
    opened = graft.load_result(tmp_path / "run")
    graph = whole_graph(opened)
    record = opened.rounds[opened.best_round - 1]
    for client in range(3):
        predictions = opened.client(client).predict()
        for kind in ("validation", "test"):
            score = accuracies(predictions, graph, getattr(graph, kind))
            assert score == pytest.approx(record["per_client"][kind][client], abs=1e-12), (name, client, kind)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_stored_global_model_scores_what_was_scored(tmp_path, name):
    result = graft.run(name, out=tmp_path / "run", settings=FIELDS.get(name, {}), **SETTINGS)
    opened = graft.load_result(tmp_path / "run")
    if "test_global" not in result.rounds[-1]:
        with pytest.raises(graft.InputError, match="has no global model"):
            opened.client(0, model="global")
        return
    graph = whole_graph(opened)
    scores = [accuracies(opened.client(c, model="global").predict(), graph, graph.test) for c in range(3)]
    assert np.mean(scores) == pytest.approx(result.accuracy["test_global"], abs=1e-12)
