"""FedGKC's copilot: how it is trained, whether it travels, and which model answers."""

import pytest
import torch

from graft.engines.in_process import InProcess
from graft.methods.fedavg import FedAvg
from graft.methods.feddc import FedDC
from graft.methods.fedgkc import FedGKC, FedGKCAlone
from graft.methods.local import Local
from graft.tensors.trees import count_bytes
from tests.toy import gap, run_rounds, same, toy_setup

ANSWERS = ("local", "copilot", "mean", "best")
LABELS_ALONE = {"self_weight": 0.0, "alpha": 1.0, "beta": 0.0, "kama": False, "gate": False}
COPILOT = FedGKC().copilot  # its architecture, another than that of the clients' own models here


def finished(method, rounds=3, models="gcn", **settings):
    setup = toy_setup(method, models=models, **settings)
    return run_rounds(setup, rounds=rounds, engine=InProcess(setup, alone=True))


@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_with_labels_alone_a_corrected_copilot_is_feddcs_model(participation):
    settings = {"participation": participation, "dropout": 0.0}
    ours = finished(FedGKC(**LABELS_ALONE, pull=0.1), **settings)
    wanted = finished(FedDC(alpha=0.1, correction="off", average="votes"), models=COPILOT, **settings)
    assert gap(ours.server.state.copilot, wanted.server.state.model) < 1e-5
    assert gap(ours.server.state.drift, wanted.server.state.drift) < 1e-5
    assert gap(finished(FedGKC(**LABELS_ALONE), **settings).server.state.copilot, wanted.server.state.model) > 1e-3


def test_the_copilot_has_an_optimiser_of_its_own():
    own = {"copilot_optimizer": "momentum", "copilot_learning_rate": 0.05}
    ours = finished(FedGKC(**LABELS_ALONE, **own))
    momentum = finished(FedAvg(), models=COPILOT, optimizer="momentum", learning_rate=0.05)
    assert gap(ours.server.state.copilot, momentum.server.state.model) < 1e-5
    assert gap(ours.client(0).model, finished(Local()).client(0).model) < 1e-5  # Adam, as the experiment has it
    assert gap(finished(FedGKC(**LABELS_ALONE)).server.state.copilot, momentum.server.state.model) > 1e-3


def test_a_copilot_that_stays_trains_alone_and_is_not_sent():
    ours, local = finished(FedGKCAlone(**LABELS_ALONE)), finished(Local(), models=COPILOT)
    for client in range(3):
        assert gap(ours.client(client).copilot, local.client(client).model) < 1e-5
    assert ours.traffic.down == 0
    travelling = finished(FedGKC(**LABELS_ALONE, answer="copilot"))
    sent = count_bytes(travelling.server.state.copilot)
    assert travelling.traffic.up - ours.traffic.up == 3 * 3 * sent
    assert gap(travelling.client(0).copilot, local.client(0).model) > 1e-3


def test_nothing_more_is_kept_where_the_local_model_answers():
    assert set(finished(FedGKC(answer="local"), rounds=1).client(0)) == {"model", "optimizer"}
    assert set(finished(FedGKC(answer="best", pull=0.1), rounds=1).client(0)) == {
        *("model", "optimizer", "copilot", "received", "drift", "choice")
    }


def test_who_answers_changes_nothing_in_training():
    models = {
        answer: run_rounds(toy_setup(FedGKC(answer=answer), models="gcn"), rounds=2).client(0).model
        for answer in ANSWERS
    }
    assert all(same(model, models["local"]) for model in models.values())


@pytest.mark.parametrize("answer", ["local", "copilot", "mean"])
def test_models_answer_alone_or_together(answer):
    method = FedGKC(answer=answer)
    fleet = prepared(method)
    local = fleet.predict(fleet.state.model).logits.softmax(2)
    copilot = local
    if answer != "local":
        copilot = fleet.predict(fleet.state.copilot, fleet.architecture(method.copilot)).logits.softmax(2)
        assert not torch.allclose(local, copilot, atol=1e-3)
    expected = {"local": local, "copilot": copilot, "mean": (local + copilot) / 2}[answer]
    assert torch.allclose(method.logits(fleet).softmax(2), expected, atol=1e-6)


def prepared(method):
    """Returns all clients with the state that they have after two rounds."""
    finished = run_rounds(toy_setup(method, models="gcn"), rounds=2)
    (fleet,) = finished.engine.fleets
    return fleet


def test_the_best_is_chosen_client_by_client_on_validation_nodes_and_of_equals_the_first():
    fleet = toy_setup(FedGKC()).fleet([0, 1, 2])
    classes, validation = fleet.labels.classes, fleet.labels.masks[:, 1]
    right = torch.nn.functional.one_hot(classes, fleet.classes).float()
    # The second is right at client 1 alone, the third at clients 1 and 2; nobody is at client 0.
    wrong = right.roll(1, 2)
    only = {client: torch.arange(3).view(-1, 1, 1) == client for client in range(3)}
    second, third = torch.where(only[1], right, wrong), torch.where(only[1] | only[2], 2 * right, 2 * wrong)
    chosen = fleet.best_validated([wrong, second, third])
    assert validation.any(1).all()
    assert torch.equal(chosen[0], wrong[0])
    assert torch.equal(chosen[1], second[1])
    assert torch.equal(chosen[2], third[2])
