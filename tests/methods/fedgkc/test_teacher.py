"""Which copilot teaches a client's own model, and how softly."""

import pytest
import torch
from torch.nn import functional

from graft.engines.in_process import InProcess
from graft.methods.fedgkc import FedGKC, FedGKCAlone, FedGKCPaper
from graft.methods.fedgkc.distillation import best_or_mean
from graft.models.architecture import Output
from graft.tensors.trees import Tree
from graft.testing import claims
from graft.training.losses import mean_prediction
from tests.methods.fedgkc.cases import fleet_of, watched
from tests.toy import gap, random_weights, run_rounds, same, toy_graphs, toy_setup, trained_tree, unbroken_and_resumed

TEACHERS = ("copilot", "received", "mean", "best")
SCHEDULES = ("copilot_first", "local_first", "simultaneous", "block")
every_other_teacher = pytest.mark.parametrize("teacher", TEACHERS[1:])
OPEN = {"gate": False}
COPILOT = FedGKC().copilot  # its architecture, another than that of the clients' own models here


def model_after(method, rounds=1, **settings):
    return run_rounds(toy_setup(method, **{"models": "gcn", **settings}), rounds=rounds).client(0).model


def received_by(fleet):
    """What a copilot of other weights than the one in training predicts, with dropout off."""
    copilot = random_weights(fleet.architecture(COPILOT), len(fleet.clients), seed=3)
    return copilot, fleet.predict(copilot, fleet.architecture(COPILOT))


@pytest.mark.parametrize("teacher", TEACHERS)
def test_the_local_model_learns_from_the_teacher_that_is_named(teacher):
    method = FedGKC(teacher=teacher, beta=0.1, **OPEN)
    fleet, models = fleet_of(method, "gcn", dropout=0.5)
    before = None if teacher == "copilot" else received_by(fleet)[1]
    trained = fleet.predict(models.copilot, fleet.architecture(COPILOT))
    expected = {"copilot": trained, "received": before}.get(teacher)
    expected = expected or best_or_mean(fleet, trained, before, best=teacher == "best")
    fleet = fleet.for_call(1, "train")
    terms = method.local_terms(fleet, models, before)
    fleet = fleet.for_call(1, "train")
    student = fleet.forward(models.model)
    wanted = method.mutual_terms(fleet, expected, student)
    torch.testing.assert_close(terms.predictions, wanted.predictions)
    torch.testing.assert_close(terms.neighbourhood, wanted.neighbourhood)
    if teacher != "copilot":
        usual = method.mutual_terms(fleet, trained, student)
        assert not torch.allclose(terms.predictions, usual.predictions, atol=1e-3)
        assert not torch.allclose(terms.neighbourhood, usual.neighbourhood, atol=1e-3)


@every_other_teacher
def test_no_gradient_reaches_any_teacher(teacher):
    method = FedGKC(teacher=teacher, beta=0.1, **OPEN)
    fleet, models = fleet_of(method, "gcn")
    received, of_received = trained_tree(received_by(fleet)[0])
    copilot, of_copilot = trained_tree(models.copilot)
    model, of_model = trained_tree(models.model)
    before = method.before_training(fleet, received)
    terms = method.local_terms(fleet, Tree(copilot=copilot, model=model), before)
    loss = (terms.predictions + terms.neighbourhood).sum()
    assert all(one is None for one in torch.autograd.grad(loss, of_received, allow_unused=True, retain_graph=True))
    assert all(one is None for one in torch.autograd.grad(loss, of_copilot, allow_unused=True, retain_graph=True))
    assert all(one.any() for one in torch.autograd.grad(loss, of_model))


def test_the_mean_teacher_is_the_mean_of_probabilities_and_of_embeddings():
    fleet, models = fleet_of(FedGKC(), "gcn")
    first, second = fleet.predict(models.copilot, fleet.architecture(COPILOT)), received_by(fleet)[1]
    mean = best_or_mean(fleet, first, second, best=False)
    torch.testing.assert_close(mean.logits.softmax(2), (first.logits.softmax(2) + second.logits.softmax(2)) / 2)
    torch.testing.assert_close(mean.embedding, (first.embedding + second.embedding) / 2)


def test_the_best_teacher_is_chosen_client_by_client_and_of_equals_the_mean():
    fleet = toy_setup(FedGKC()).fleet([0, 1, 2])
    right = 4 * functional.one_hot(fleet.labels.classes, fleet.classes).float()
    wrong = right.roll(1, 2) * 2  # the mean goes where it goes
    client = torch.arange(3).view(-1, 1, 1)
    trained = torch.where(client == 1, right, wrong)
    received = torch.where(client == 2, right, wrong)
    outputs = [Output(logits + place, logits) for place, logits in enumerate((trained, received))]
    chosen = best_or_mean(fleet, *outputs, best=True)
    mean = mean_prediction(trained, received)
    assert torch.equal(chosen.logits[0], mean[0])
    assert torch.equal(chosen.logits[1], right[1])
    assert torch.equal(chosen.logits[2], right[2])
    assert torch.equal(chosen.embedding[1], outputs[0].embedding[1])
    assert torch.equal(chosen.embedding[2], outputs[1].embedding[2])
    # No other nodes than those that it may judge by count.
    elsewhere = torch.where(fleet.labels.judged.unsqueeze(2), wrong, right)
    outputs = [Output(elsewhere, elsewhere), Output(wrong, wrong)]
    assert torch.equal(
        best_or_mean(fleet, *outputs, best=True).logits, best_or_mean(fleet, *outputs, best=False).logits
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_was_received_teaches_whatever_its_own_copilot_becomes(schedule):
    """Without feedback, only a copilot in training can make the local model depend on the copilot's optimiser."""

    def learnt(teacher, rate):
        return model_after(
            FedGKC(
                teacher=teacher,
                schedule=schedule,
                copilot_optimizer="momentum",
                copilot_learning_rate=rate,
                alpha=0.5,
                **OPEN,
            )
        )

    assert same(learnt("received", 0.1), learnt("received", 0.5))
    for teacher in ("copilot", "mean"):
        assert gap(learnt(teacher, 0.1), learnt(teacher, 0.5)) > 1e-4


def test_before_the_copilot_has_taken_a_step_all_teachers_are_one():
    for epochs, alike in ((1, True), (3, False)):
        usual = model_after(FedGKC(schedule="local_first", teacher="copilot", **OPEN), epochs=epochs)
        for teacher in TEACHERS[1:]:
            other = model_after(FedGKC(schedule="local_first", teacher=teacher, **OPEN), epochs=epochs)
            assert (gap(usual, other) < 1e-6) == alike


@every_other_teacher
def test_a_gate_listens_to_the_teacher_that_is_named(teacher, monkeypatch):
    heard, method = [], FedGKC(teacher=teacher)
    fleet, models = fleet_of(method, "gcn")
    before = received_by(fleet)[1]
    monkeypatch.setattr(
        "graft.methods.fedgkc.method.no_worse",
        lambda fleet, teacher, student: heard.append(teacher) or torch.zeros(len(fleet.clients)),  # noqa: ARG005
    )
    terms = method.local_terms(fleet, models, before)
    trained = fleet.predict(models.copilot, fleet.architecture(COPILOT))
    wanted = before if teacher == "received" else best_or_mean(fleet, trained, before, best=teacher == "best")
    torch.testing.assert_close(heard[0].logits, wanted.logits)
    assert not torch.allclose(heard[0].logits, trained.logits)
    assert not terms.predictions.any()


@every_other_teacher
def test_in_batches_a_received_copilot_teaches_what_it_predicts_on_the_whole_graph(teacher):
    method = FedGKC(teacher=teacher, **OPEN)
    fleet, models = fleet_of(method, "gcn", graphs=toy_graphs(sizes=(41, 30, 23)), batches=3)
    received, before = received_by(fleet)
    batch = fleet.on(fleet.cut_batches()[0])
    taught = method.teaching(batch, models.copilot, before)
    there = Output(*map(batch.at_nodes, before))
    trained = batch.predict(models.copilot, batch.architecture(COPILOT))
    wanted = there if teacher == "received" else best_or_mean(batch, trained, there, best=teacher == "best")
    assert taught.logits.shape[:2] == batch.graph.real.shape
    torch.testing.assert_close(taught.logits, wanted.logits)
    cut = batch.predict(received, batch.architecture(COPILOT)).logits  # where edges between batches are missing
    real = batch.graph.real
    assert not torch.allclose(there.logits[real], cut[real], atol=1e-4)


@pytest.mark.parametrize("schedule", SCHEDULES)
@every_other_teacher
def test_knowledge_is_that_of_the_copilot_that_is_sent_whoever_teaches(teacher, schedule):
    method = FedGKC(teacher=teacher, schedule=schedule)
    engine, replies = watched(toy_setup(method, models="gcn"))
    run_rounds(toy_setup(method, models="gcn"), rounds=1, engine=engine)
    fleet = engine.fleets[0]
    logits = fleet.predict(replies[0].copilot, fleet.architecture(COPILOT)).logits
    strength, clarity, _ = method.knowledge(fleet, logits)
    assert gap(replies[0].strength, strength) < 1e-6
    assert gap(replies[0].clarity, clarity) < 1e-6


@pytest.mark.parametrize("method", [FedGKC, FedGKCPaper, FedGKCAlone])
@every_other_teacher
def test_other_teachers_teach_something_else_in_every_variant(method, teacher):
    usual = model_after(method(teacher="copilot"), rounds=3)
    assert gap(usual, model_after(method(teacher=teacher), rounds=3)) > 1e-4
    silent = {"mutual": False}  # then nobody teaches
    assert same(model_after(method(**silent), rounds=2), model_after(method(teacher=teacher, **silent), rounds=2))


@pytest.mark.parametrize("claim", [pytest.param(claim, id=claim.__name__) for _, claim in claims(gpu=False)])
def test_a_method_with_the_best_teacher_and_all_that_goes_with_it_keeps_the_contract(claim):
    claim(FedGKC(teacher="best", temperature=2.0, neigh_projection=True, beta=0.1, feedback=0.3, pull=0.05))


@every_other_teacher
def test_in_batches_a_fleet_equals_its_clients_and_a_session_can_be_resumed(teacher):
    method = FedGKC(teacher=teacher, beta=0.1)
    setup = toy_setup(method, models="gcn,gat", sizes=(41, 30, 23), batches=2, dropout=0.5)
    unbroken, resumed = unbroken_and_resumed(setup)
    alone = run_rounds(setup, rounds=4, engine=InProcess(setup, alone=True))
    for client in unbroken.engine.members():
        assert same(unbroken.client(client), resumed.client(client))
        assert gap(unbroken.client(client), alone.client(client)) < 1e-4
    usual = run_rounds(
        toy_setup(FedGKC(teacher="copilot", beta=0.1), models="gcn,gat", sizes=(41, 30, 23), batches=2, dropout=0.5),
        4,
    )
    assert gap(usual.client(0), unbroken.client(0)) > 1e-4


def test_a_temperature_softens_both_and_keeps_the_size_of_the_gradient():
    method = FedGKC(temperature=2.0, feedback=1.0, alpha=0.5, **OPEN)
    fleet, models = fleet_of(method, "gcn")
    local, copilot = (fleet.predict(models.model), fleet.predict(models.copilot, fleet.architecture(COPILOT)))
    for terms, teacher, student in (
        (method.local_terms, copilot, local),
        (method.copilot_terms, local, copilot),
    ):
        soft = functional.kl_div(
            (student.logits / 2).log_softmax(2), (teacher.logits / 2).log_softmax(2), log_target=True, reduction="none"
        )
        each = (soft.sum(2) * fleet.graph.real).sum(1) / fleet.graph.sizes
        torch.testing.assert_close(terms(fleet, models).predictions, 0.5 * 4 * each)
    assert gap(model_after(method, rounds=2), model_after(FedGKC(feedback=1.0, alpha=0.5, **OPEN), rounds=2)) > 1e-4
