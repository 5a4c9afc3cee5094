"""Whole rounds of FedGKC, and how its defaults differ from the paper."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from graft.engines.in_process import InProcess
from graft.errors import InputError
from graft.federation.clients import Request
from graft.federation.fleet import initial_weights
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc import FedGKC, FedGKCPaper
from graft.methods.fedgkc.distillation import no_worse, sum_of_terms
from graft.methods.local import Local
from graft.models.architecture import Output
from graft.tensors.trees import Tree, flatten, map_tree, select_clients
from tests.methods.fedgkc.cases import ARCHITECTURES, record_of
from tests.toy import CLASSES, gap, run_rounds, same, toy_graph, toy_graphs, toy_setup, trained_tree

BARE = {"alpha": 1.0, "beta": 0.0, "self_distill": False, "kama": False}


@pytest.mark.parametrize("models", ["gcn", "gcn,sage,gat"])
def test_with_labels_alone_copilots_follow_fedavg_and_local_models_follow_local_training(models):
    def finished(method, models=models):
        setup = toy_setup(method, models=models)
        return run_rounds(setup, rounds=3, engine=InProcess(setup, alone=True))  # the same products

    def alike(first, second):
        return gap(first, second) < 1e-6

    ours, federated, local = finished(FedGKCPaper(**BARE)), finished(FedAvg(), "gcn"), finished(Local())
    assert alike(ours.server.state.copilot, federated.server.state.model)
    for client in range(3):
        assert alike(ours.client(client).model, local.client(client).model)
        assert alike(ours.client(client).optimizer.model, local.client(client).optimizer.model)
        assert alike(ours.client(client).optimizer.copilot, federated.client(client).optimizer.model)
    # Weights by knowledge move the copilots only, as nothing is learnt from them; views move the local models only.
    for settings, copilots, locals_ in (
        ({"kama": True}, False, True),
        ({"self_distill": True}, True, False),
        ({"alpha": 0.9}, False, False),
        ({"alpha": 0.9, "beta": 0.1}, False, False),
    ):
        other = finished(FedGKCPaper(**(BARE | settings)))
        assert alike(other.server.state.copilot, federated.server.state.model) == copilots
        assert alike(other.client(0).model, local.client(0).model) == locals_


@pytest.mark.parametrize("settings", [{}, {"neigh_projection": True}, {"smkd": False}], ids=str)
def test_block_and_copilot_first_are_the_same_bit_for_bit_for_one_epoch_only(settings):
    for epochs in (1, 3):
        block, copilot_first = (
            run_rounds(
                toy_setup(FedGKCPaper(schedule=schedule, **settings), models="gcn,sage", dropout=0.5, epochs=epochs)
            )
            for schedule in ("block", "copilot_first")
        )
        agree = same(block.server.state, copilot_first.server.state)
        assert agree == all(same(block.client(client), copilot_first.client(client)) for client in range(3))
        assert agree == (epochs == 1)


def test_the_block_schedule_trains_one_model_after_the_other():
    """Against the loop written out: first the copilot against the old local model, then the local model."""
    method = FedGKCPaper(schedule="block", copilot_epochs=2, self_distill=False)
    setup = toy_setup(method, models="sage", optimizer="sgd", learning_rate=0.1, weight_decay=0.0, epochs=3)
    finished = run_rounds(setup, rounds=1)
    fleet = setup.fleet([0, 1, 2])
    models = Tree(copilot=fleet.initial(fleet.architecture("gcn")), model=fleet.initial())
    for name, terms, epochs in (("copilot", method.copilot_terms, 2), ("model", method.local_terms, 3)):
        for _ in range(epochs):
            models[name], parameters = trained_tree(models[name])
            gradients = torch.autograd.grad(sum_of_terms(terms, Tree(), models, fleet).sum(), parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter -= 0.1 * gradient
    expected = map_tree(torch.Tensor.detach, models.model)
    assert all(gap(finished.client(client).model, select_clients(expected, client)) < 1e-6 for client in range(3))
    usual = run_rounds(replace(setup, method=replace(method, copilot_epochs=0)), rounds=1)
    assert gap(usual.client(0).model, finished.client(0).model) > 1e-6


def test_steps_are_taken_in_the_order_of_the_schedule():
    """Against the loop written out: who steps first teaches by what it has just become, and at once by what it was."""
    finished, copilots = {}, {}
    for schedule, order in (
        ("copilot_first", ["copilot", "model"]),
        ("local_first", ["model", "copilot"]),
        ("simultaneous", None),
    ):
        method = FedGKCPaper(schedule=schedule, self_distill=False)
        setup = toy_setup(method, models="sage", optimizer="sgd", learning_rate=0.1, weight_decay=0.0, epochs=2)
        after = run_rounds(setup, rounds=1)
        finished[schedule], copilots[schedule] = after.client(0).model, after.server.state.copilot
        fleet = setup.fleet([0, 1, 2])
        models = Tree(copilot=fleet.initial(fleet.architecture("gcn")), model=fleet.initial())
        terms = {"copilot": method.copilot_terms, "model": method.local_terms}
        for _ in range(2):
            before = map_tree(torch.clone, models)
            for name in order or terms:
                # At once: the other model is as it was before the epoch.
                seen = Tree({**(models if order else before)})
                seen[name], parameters = trained_tree(models[name])
                gradients = torch.autograd.grad(sum_of_terms(terms[name], Tree(), seen, fleet).sum(), parameters)
                with torch.no_grad():
                    for parameter, gradient in zip(parameters, gradients, strict=True):
                        parameter -= 0.1 * gradient
                models[name] = map_tree(torch.Tensor.detach, seen[name])
        assert gap(finished[schedule], select_clients(models.model, 0)) < 1e-6
    assert gap(finished["copilot_first"], finished["local_first"]) > 1e-5
    assert gap(finished["copilot_first"], finished["simultaneous"]) > 1e-5
    # In these two the local model learns from the same copilot, and only the copilot from another local model.
    assert gap(copilots["local_first"], copilots["simultaneous"]) > 1e-7


@pytest.mark.parametrize("schedule", ["local_first", "simultaneous", "block"])
def test_knowledge_is_that_of_the_copilot_that_is_sent(schedule):
    method = FedGKC(schedule=schedule)
    setup = toy_setup(method, models="gcn,sage")
    engine = InProcess(setup)
    start = initial_weights(setup.architecture(method.copilot), setup.seed)
    reply = engine.ask(Request("train", 1, [0, 1, 2], start))
    fleet = setup.fleet([0, 1, 2])
    logits = fleet.predict(reply.copilot, fleet.architecture(method.copilot)).logits
    strength, clarity, _ = method.knowledge(fleet, logits)
    assert gap(reply.strength, strength) < 1e-6
    assert gap(reply.clarity, clarity) < 1e-6


def test_without_feedback_the_copilot_learns_from_labels_alone():
    def copilot(models, **settings):
        return run_rounds(toy_setup(FedGKCPaper(**settings), models=models)).server.state.copilot

    assert same(copilot("gcn", feedback=0.0), copilot("gcn", mutual=False))
    assert gap(copilot("sage", feedback=0.0), copilot("gcn", feedback=0.0)) < 1e-6  # whatever the local model says
    assert gap(copilot("sage"), copilot("gcn")) > 1e-4
    deaf, plain = (
        run_rounds(toy_setup(FedGKCPaper(feedback=0.0, mutual=mutual))).client(0).model for mutual in (True, False)
    )
    assert gap(deaf, plain) > 1e-4  # the local model still learns from the copilot


def test_local_models_learn_from_the_others_through_the_copilot():
    graphs = toy_graphs()
    changed = [graphs[0], replace(graphs[1], x=-graphs[1].x), graphs[2]]
    for method, moves in ((FedGKCPaper(), True), (FedGKCPaper(mutual=False), False)):
        usual, other = (
            run_rounds(toy_setup(method, graphs=each), rounds=3).client(0).model for each in (graphs, changed)
        )
        assert (gap(usual, other) > 1e-4) == moves


def test_the_local_model_is_scored_and_never_overwritten():
    setup = toy_setup(FedGKCPaper(), epochs=0)
    finished = run_rounds(setup, rounds=2)
    start = initial_weights(setup.models[0], 0)
    assert all(same(finished.client(client).model, start) for client in range(3))
    assert FedGKCPaper().shared(finished.server) is None
    trained = run_rounds(toy_setup(FedGKCPaper()), rounds=2)
    fleet = trained.engine.fleets[0]
    correct = trained.engine.ask(Request("score", 2, [0, 1, 2])).correct
    assert torch.equal(correct, fleet.correct(fleet.state.model))


@pytest.mark.parametrize("copilot", ARCHITECTURES)
def test_any_architecture_may_travel(copilot):
    setup = toy_setup(FedGKCPaper(copilot=copilot), models="sage,gin", dropout=0.5)
    finished = run_rounds(setup)
    start = initial_weights(setup.architecture(copilot), 0)
    assert [path for path, _ in flatten(finished.server.state.copilot)] == [path for path, _ in flatten(start)]
    assert gap(finished.server.state.copilot, start) > 1e-3
    assert all(leaf.isfinite().all() for client in range(3) for _, leaf in flatten(finished.client(client)))
    alone = run_rounds(setup, engine=InProcess(setup, alone=True))
    assert gap(finished.server.state, alone.server.state) < 1e-5


def test_unknown_architecture_of_the_copilot_is_refused():
    with pytest.raises(InputError, match="Unknown model 'pilot'"):
        run_rounds(toy_setup(FedGKCPaper(copilot="pilot")), rounds=1)


def test_client_without_training_nodes_learns_from_its_copilot():
    graphs = toy_graphs()
    graphs[1] = replace(graphs[1], train=graphs[1].train & False)
    setup = toy_setup(FedGKCPaper(), graphs=graphs, weight_decay=0.0)
    finished = run_rounds(setup)
    record = record_of(finished)
    assert (record["copilot_labels"][1], record["local_labels"][1]) == (0, 0)
    assert min(record["copilot_labels"][0], record["local_predictions"][1], record["local_self"][1]) > 1e-5
    assert gap(finished.client(1).model, initial_weights(setup.models[0], 0)) > 1e-3
    assert all(leaf.isfinite().all() for client in range(3) for _, leaf in flatten(finished.client(client)))


@pytest.mark.parametrize("models", ARCHITECTURES)
def test_isolated_nodes_and_clients_without_edges_give_finite_numbers(models):
    graphs = [toy_graph(12), toy_graph(8, edgeless=True), toy_graph(9)]
    for held in (graphs, graphs[1:2]):  # among others, and alone: then there is no edge at all
        finished = run_rounds(toy_setup(FedGKCPaper(), models=models, graphs=held))
        assert all(leaf.isfinite().all() for client in finished.engine.state().values() for _, leaf in flatten(client))
        record = record_of(finished)
        assert all(np.isfinite(values).all() for values in record.values())
        assert min(record["local_self"]) > 0  # features are left out of a view even where there are no edges


# The defaults, which are not the paper's.


def validation_counts(fleet, teacher_right, pupil_right):
    """Outputs that get these validation nodes of each client right, by their place among them."""
    masks, classes = fleet.labels.masks[:, 1], fleet.labels.classes
    outputs = []
    for right in (teacher_right, pupil_right):
        answers = (classes + 1) % CLASSES
        for client, count in enumerate(right):
            nodes = masks[client].nonzero().flatten()[:count]
            answers[client, nodes] = classes[client, nodes]
        logits = functional.one_hot(answers, CLASSES).float()
        outputs.append(Output(logits, logits))
    return outputs


def test_a_model_teaches_only_where_it_is_no_worse_on_validation_nodes():
    fleet = toy_setup(FedGKC()).fleet([0, 1, 2])
    assert fleet.labels.masks[:, 1].sum(1).min() >= 1
    teacher, pupil = validation_counts(fleet, [1, 0, 1], [0, 1, 1])
    assert no_worse(fleet, teacher, pupil).tolist() == [1.0, 0.0, 1.0]
    assert no_worse(fleet, pupil, teacher).tolist() == [0.0, 1.0, 1.0]


def test_a_closed_gate_leaves_the_labels_alone(monkeypatch):
    monkeypatch.setattr("graft.methods.fedgkc.method.no_worse", lambda fleet, *_: torch.zeros(len(fleet.clients)))
    settings = {"models": "gcn,sage", "optimizer": "sgd", "weight_decay": 0.0}
    closed = run_rounds(toy_setup(FedGKC(self_weight=0.0), learning_rate=0.1, **settings), rounds=3)
    alone = run_rounds(toy_setup(Local(), learning_rate=0.06, **settings), rounds=3)  # labels weigh 0.6
    assert max(gap(closed.client(client).model, alone.client(client).model) for client in range(3)) < 1e-6
    other = run_rounds(toy_setup(Local(), learning_rate=0.1, **settings), rounds=3)
    assert gap(closed.client(0).model, other.client(0).model) > 1e-4


def test_an_open_gate_is_no_gate(monkeypatch):
    monkeypatch.setattr("graft.methods.fedgkc.method.no_worse", lambda fleet, *_: torch.ones(len(fleet.clients)))
    opened = run_rounds(toy_setup(FedGKC(feedback=0.5)), rounds=3)
    without = run_rounds(toy_setup(FedGKC(feedback=0.5, gate=False)), rounds=3)
    assert gap(opened.client(0), without.client(0)) < 1e-6
    monkeypatch.undo()
    gated = run_rounds(toy_setup(FedGKC(feedback=0.5)), rounds=6)
    without = run_rounds(toy_setup(FedGKC(feedback=0.5, gate=False)), rounds=6)
    assert max(gap(gated.client(client), without.client(client)) for client in range(3)) > 1e-4


def test_the_default_copilots_follow_fedavg():
    """Labels alone, whatever their weight: with plain SGD at a learning rate to match, exactly FedAvg's copilots."""
    method = FedGKC(kama=False, alpha=1.0)
    settings = {"optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.0}
    ours = run_rounds(toy_setup(method, models="gcn", **settings), rounds=3)
    average = run_rounds(toy_setup(FedAvg(), models=method.copilot, **settings), rounds=3)
    assert gap(ours.server.state.copilot, average.server.state.model) < 1e-6


def test_the_paper_is_one_name_away():
    usual, paper = FedGKC(), FedGKCPaper()
    differ = {field.name for field in fields(usual) if getattr(usual, field.name) != getattr(paper, field.name)}
    assert differ == {"copilot", "beta", "feedback", "gate", "schedule", "self_weight", "teacher", "answer"}
    assert (paper.alpha, paper.beta, paper.feedback, paper.gate, paper.self_weight) == (0.6, 0.2, 1.0, False, 1.0)
    assert (usual.copilot, paper.copilot) == ("tag", "gcn")
    assert (usual.schedule, paper.schedule) == ("copilot_first", "local_first")
    assert (usual.teacher, paper.teacher) == ("received", "copilot")
