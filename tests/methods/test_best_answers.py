"""Methods whose clients hold several models, of which each may answer by the one that its validation nodes prefer."""

import pytest
import torch

import graft
from graft.federation.fleet import Fleet
from graft.methods.fedgkc import FedGKC
from graft.methods.fedkd import FedKD
from graft.methods.fml import FML
from graft.training.losses import log_softmax, mean_prediction
from tests.experiments.export.test_networks import SETTINGS, unseen_graph
from tests.toy import run_rounds, same, toy_setup

METHODS = {  # by name: who answers alone, and the method that chooses
    "fedgkc": (FedGKC(answer="local"), FedGKC(answer="best")),
    "fml": (FML(), FML(answer="best")),
    "fedkd": (FedKD(), FedKD(answer="best")),
}

ALONE = {"fedgkc": "local", "fml": "local", "fedkd": "mentor"}


@pytest.mark.parametrize("name", METHODS)
def test_the_best_model_is_right_on_validation_nodes_as_often_as_any_and_training_is_the_same(name):
    plain, best = (run_rounds(toy_setup(method, models="sage,gin"), rounds=3) for method in METHODS[name])
    assert all(same(plain.client(client).model, best.client(client).model) for client in range(3))
    chosen = [fleet.count_validated(METHODS[name][1].logits(fleet)) for fleet in best.engine.fleets]
    alone = [fleet.count_validated(METHODS[name][0].logits(fleet)) for fleet in best.engine.fleets]
    assert all((many >= few).all() for many, few in zip(chosen, alone, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_scores_after_training_need_no_further_predictions(name, monkeypatch):
    finished = run_rounds(toy_setup(METHODS[name][1], models="sage"), rounds=2)
    (fleet,) = finished.engine.fleets
    scored = METHODS[name][1].logits(fleet)
    if name != "fedkd":  # which chooses client by client
        monkeypatch.setattr(type(fleet), "predict", None)
    assert torch.equal(METHODS[name][1].logits(fleet), scored)


CHOICES = [(name, place) for name, (_, best) in METHODS.items() for place in range(len(best.candidates()))]


@pytest.mark.parametrize(("name", "place"), CHOICES)
def test_a_client_keeps_to_its_choice_for_new_data_and_can_be_exported(name, place, monkeypatch):
    monkeypatch.setattr(
        Fleet, "best_place", lambda fleet, _: torch.full((len(fleet.clients),), place, dtype=torch.int64)
    )
    run = graft.run(name, models="sage,gin", settings={"answer": "best"}, feature_norm=0, **SETTINGS)
    graph, (x, edge_index, _) = unseen_graph()
    probabilities = []
    for client in range(2):
        model = run.client(client, at="last")
        predicted = torch.from_numpy(model.predict(graph).probabilities)
        with torch.no_grad():
            assert torch.allclose(model.module()(x, edge_index).softmax(1), predicted, atol=1e-5)
        probabilities.append(predicted)
    alone = graft.run(name, models="sage,gin", feature_norm=0, settings={"answer": ALONE[name]}, **SETTINGS)
    own = [torch.from_numpy(alone.client(k, at="last").predict(graph).probabilities) for k in range(2)]
    pairs = zip(probabilities, own, strict=True)
    assert all(torch.allclose(mine, other, atol=1e-6) == (place == 0) for mine, other in pairs)


@pytest.mark.parametrize("name", METHODS)
def test_only_a_model_that_answers_alone_is_kept_alone(name):
    plain, best = METHODS[name]
    assert plain.model_alone()
    assert not best.model_alone()


def test_the_mean_prediction_is_the_mean_of_probabilities():
    logits, others = (torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    wanted = (logits.softmax(2) + others.softmax(2)) / 2
    assert torch.allclose(mean_prediction(logits, others).exp(), wanted, atol=1e-6)
    assert torch.allclose(mean_prediction(logits, logits), log_softmax(logits), atol=1e-6)
