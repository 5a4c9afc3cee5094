"""Methods whose clients hold several models, of which each may answer by the one that its validation nodes prefer."""

import pytest
import torch

from graft.methods.fedgkc import FedGKC
from graft.methods.fedkd import FedKD
from graft.methods.fml import FML
from graft.training.losses import log_softmax, mean_prediction
from tests.toy import run_rounds, same, toy_setup

METHODS = {  # by name: who answers alone, and the method that chooses
    "fedgkc": (FedGKC(), FedGKC(answer="best")),
    "fml": (FML(), FML(answer="best")),
    "fedkd": (FedKD(), FedKD(answer="best")),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_best_model_is_right_on_validation_nodes_as_often_as_any_and_training_is_the_same(name):
    plain, best = (run_rounds(toy_setup(method, models="sage,gin"), rounds=3) for method in METHODS[name])
    assert all(same(plain.client(client).model, best.client(client).model) for client in range(3))
    chosen = [fleet.count_validated(METHODS[name][1].logits(fleet)) for fleet in best.engine.fleets]
    alone = [fleet.count_validated(METHODS[name][0].logits(fleet)) for fleet in best.engine.fleets]
    assert all((many >= few).all() for many, few in zip(chosen, alone, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_only_a_model_that_answers_alone_can_be_exported(name):
    plain, best = METHODS[name]
    assert plain.model_alone()
    assert not best.model_alone()


def test_the_mean_prediction_is_the_mean_of_probabilities():
    logits, others = (torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    wanted = (logits.softmax(2) + others.softmax(2)) / 2
    assert torch.allclose(mean_prediction(logits, others).exp(), wanted, atol=1e-6)
    assert torch.allclose(mean_prediction(logits, logits), log_softmax(logits), atol=1e-6)
