"""The losses of self-mutual knowledge distillation, worked out by hand and edge by edge."""

import itertools

import pytest
import torch
from torch.nn import functional

from graft.graphs.fleet_graph import build_fleet_graph
from graft.methods.fedgkc import FedGKCPaper
from graft.methods.fedgkc.distillation import VIEWS, neighbourhood_loss, sum_of_terms
from graft.methods.fedgkc.knowledge import knowledge_of
from graft.models.architecture import Output
from graft.tensors.trees import Tree, map_tree
from tests.memory import crowded_graph, gather_rows, peak_of
from tests.methods.fedgkc.cases import BETA, CPU, REST, by_hand, edge_by_edge, every_loss, fleet_of, hand_graph
from tests.toy import toy_graph, toy_graphs, trained_tree

TEACHER = torch.tensor([[[0.75, 0.25], [0.5, 0.5]]]).log()
STUDENT = torch.tensor([[[0.5, 0.5], [0.75, 0.25]]]).log()


@pytest.mark.parametrize(("reduction", "expected"), [("sum", 0.137327), ("mean", 0.068663)])
def test_neighbourhood_of_two_nodes_is_the_one_worked_out_by_hand(reduction, expected):
    laid = build_fleet_graph([hand_graph([(0.5, 0.5)] * 2, [(0, 1)])], CPU)
    assert float(neighbourhood_loss(laid, TEACHER, STUDENT, reduction)) == pytest.approx(expected, abs=1e-6)
    swapped = float(neighbourhood_loss(laid, STUDENT, TEACHER.flip(1) + torch.tensor([0.1, 0]), reduction))
    assert abs(swapped - expected) > 1e-4
    apart = build_fleet_graph([hand_graph([(0.5, 0.5)] * 2)], CPU)  # without the edge only the node itself teaches
    alone = float(neighbourhood_loss(apart, TEACHER, STUDENT, reduction))
    assert alone == pytest.approx((0.130812 + 0.143841) / 2, abs=1e-6)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_neighbourhood_and_its_gradient_equal_those_edge_by_edge(reduction):
    graphs = [*toy_graphs(), toy_graph(8, edgeless=True)]
    generator = torch.Generator().manual_seed(0)
    teacher, student = (torch.randn(4, 12, 8, generator=generator).requires_grad_() for _ in range(2))
    ours = neighbourhood_loss(build_fleet_graph(graphs, CPU), teacher, student, reduction)
    expected = [
        edge_by_edge(graph, teacher[client, : graph.nodes].detach(), student[client, : graph.nodes], reduction)
        for client, graph in enumerate(graphs)
    ]
    torch.testing.assert_close(ours, torch.stack(expected), atol=1e-6, rtol=1e-6)
    (mine,) = torch.autograd.grad(ours.sum(), [student], retain_graph=True)
    (theirs,) = torch.autograd.grad(sum(expected), [student])
    torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)
    assert torch.autograd.grad(ours.sum(), [teacher], allow_unused=True) == (None,)
    other = "mean" if reduction == "sum" else "sum"
    assert not torch.allclose(neighbourhood_loss(build_fleet_graph(graphs, CPU), teacher, student, other), ours)


def test_equal_models_have_nothing_to_teach_on_a_graph_without_edges():
    for edgeless in (True, False):
        fleet, models = fleet_of(FedGKCPaper(), graphs=[toy_graph(9, edgeless=edgeless)])
        models.copilot = map_tree(torch.clone, models.model)
        for terms in (FedGKCPaper().copilot_terms(fleet, models), FedGKCPaper().local_terms(fleet, models)):
            assert float(terms.predictions) == pytest.approx(0, abs=1e-6)
            assert (abs(float(terms.neighbourhood)) < 1e-6) == edgeless  # with edges it compares different nodes


@by_hand
def test_the_teacher_comes_first_in_every_divergence():
    fleet, _ = fleet_of(FedGKCPaper(copilot="lookup"), "lookup", [hand_graph([(1.0, 1.0)] * 2)])
    certain, unsure = torch.tensor([0.75, 0.25]).log(), torch.tensor([0.5, 0.5]).log()
    for local, copilot in ((certain, unsure), (unsure, certain)):
        tables = (Tree(embedding=logits.expand(1, 2, 2), logits=logits.expand(1, 2, 2)) for logits in (copilot, local))
        models = Tree(zip(("copilot", "model"), tables, strict=True))
        method = FedGKCPaper(copilot="lookup")
        both = method.copilot_terms(fleet, models), method.local_terms(fleet, models)
        sizes = (0.130812, 0.143841) if local is certain else (0.143841, 0.130812)
        for terms, size in zip(both, sizes, strict=True):
            assert float(terms.predictions) == pytest.approx(REST * size, abs=1e-6)
            assert float(terms.neighbourhood) == pytest.approx(BETA * size, abs=1e-6)


def views_of(fleet, method):
    """The two views that the local model sees in the first epoch of a step."""
    fleet = fleet.for_call(1, "train")
    return [fleet.graph.perturbed(fleet.random, *rates) for rates in VIEWS[method.views]]


def unweighted(fleet, graphs, models, method):
    """Every term of both losses with PyTorch's own functions, client by client and edge by edge."""
    local, copilot = fleet.predict(models.model), fleet.predict(models.copilot, fleet.architecture(method.copilot))
    weak, strong = (fleet.predict(models.model, graph=view) for view in views_of(fleet, method))

    def cut(output, client):
        return output.embedding[client, : graphs[client].nodes], output.logits[client, : graphs[client].nodes]

    def divergence(teacher, student):
        return functional.kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean")

    found = {"copilot": [], "local": []}
    for client, graph in enumerate(graphs):
        (emb_l, log_l), (emb_c, log_c) = cut(local, client), cut(copilot, client)
        (emb_w, log_w), (emb_s, log_s) = cut(weak, client), cut(strong, client)
        train, y = torch.from_numpy(graph.train), torch.from_numpy(graph.y)
        squared = functional.mse_loss(emb_s, emb_w)
        if method.mse_reduction == "sum_dim":
            squared = squared * emb_s.shape[1]
        found["copilot"].append(
            {
                "labels": functional.cross_entropy(log_c[train], y[train]),
                "predictions": divergence(log_l, log_c),
                "neighbourhood": edge_by_edge(graph, emb_l, emb_c, method.neigh_reduction),
            }
        )
        found["local"].append(
            {
                "labels": functional.cross_entropy(log_l[train], y[train]),
                "predictions": divergence(log_c, log_l),
                "neighbourhood": edge_by_edge(graph, emb_c, emb_l, method.neigh_reduction),
                "self": squared + divergence(log_w, log_s),
            }
        )
    return {name: {term: torch.stack([one[term] for one in each]) for term in each[0]} for name, each in found.items()}


@every_loss
def test_losses_are_made_of_the_terms_of_their_settings(settings, copilot, local):
    method, graphs = FedGKCPaper(**settings), toy_graphs()
    fleet, models = fleet_of(method, "sage", graphs)
    sizes = unweighted(fleet, graphs, models, method)
    fleet = fleet.for_call(1, "train")
    for name, terms, shares in (("copilot", method.copilot_terms, copilot), ("local", method.local_terms, local)):
        noted = Tree()
        value = sum_of_terms(terms, noted, models, fleet)
        assert noted.keys() == shares.keys()
        for term, share in shares.items():
            torch.testing.assert_close(noted[term], share * sizes[name][term], atol=1e-5, rtol=1e-5)
            assert (noted[term] > 1e-4).all()
        torch.testing.assert_close(value, sum(noted.values()))


@pytest.mark.parametrize("settings", [{}, {"neigh_projection": True}, {"smkd": False}], ids=str)
def test_no_gradient_reaches_the_teacher(settings):
    method = FedGKCPaper(**settings)
    fleet, models = fleet_of(method, "sage")
    (copilot, of_copilot), (model, of_model) = trained_tree(models.copilot), trained_tree(models.model)
    of_projection = []
    if method.neigh_projection:
        projection, of_projection = trained_tree(Tree(weight=torch.eye(8).expand(3, -1, -1)))
        model = Tree(model=model, projection=projection)
    models = Tree(copilot=copilot, model=model)

    def gradients(terms, parameters):
        value = sum_of_terms(terms, Tree(), models, fleet).sum()
        return torch.autograd.grad(value, parameters, allow_unused=True)

    assert all(one is None for one in gradients(method.copilot_terms, of_model + of_projection))
    assert all(one is None for one in gradients(method.local_terms, of_copilot))
    assert all(one.any() for one in gradients(method.copilot_terms, of_copilot))
    assert all(one.any() for one in gradients(method.local_terms, of_model + of_projection))


@pytest.mark.parametrize("detach_weak", [True, False])
def test_the_weak_view_teaches_and_is_not_taught(detach_weak):
    method = FedGKCPaper(detach_weak=detach_weak)
    fleet, models = fleet_of(method, "sage", [toy_graph(12)])
    weights, parameters = trained_tree(models.model)
    fleet = fleet.for_call(1, "train")
    value = method.agreement(fleet, weights).sum()
    ours = torch.autograd.grad(value, parameters)

    def by_hand(taught):
        weak, strong = (fleet.model(weights, view) for view in views_of(fleet, method))
        target = weak if taught else map_detached(weak)
        loss = functional.mse_loss(strong.embedding, target.embedding)
        logs = [output.logits[0].log_softmax(1) for output in (strong, target)]
        return loss + functional.kl_div(*logs, reduction="batchmean", log_target=True)

    expected, other = (torch.autograd.grad(by_hand(taught), parameters) for taught in (not detach_weak, detach_weak))
    torch.testing.assert_close(value, by_hand(taught=False), atol=1e-6, rtol=1e-6)
    for mine, right, wrong in zip(ours, expected, other, strict=True):
        torch.testing.assert_close(mine, right, atol=1e-6, rtol=1e-5)
        assert not torch.allclose(mine, wrong, atol=1e-5)


def map_detached(output):
    return Output(output.embedding.detach(), output.logits.detach())


def test_views_that_leave_nothing_out_agree(monkeypatch):
    monkeypatch.setitem(VIEWS, "graft", ((0.0, 0.0), (0.0, 0.0)))
    fleet, models = fleet_of(FedGKCPaper(), "gat")
    assert not FedGKCPaper().agreement(fleet, models.model).any()
    assert (FedGKCPaper(views="light").agreement(fleet, models.model) > 1e-4).all()
    noisy, models = fleet_of(FedGKCPaper(), "gat", dropout=0.5)
    assert (FedGKCPaper().agreement(noisy, models.model) > 1e-4).all()


def test_views_are_drawn_anew_in_every_epoch_and_round():
    fleet, models = fleet_of(FedGKCPaper())
    first, second = (FedGKCPaper().agreement(fleet, models.model) for _ in range(2))
    fleet = fleet.for_call(2, "train")
    later = FedGKCPaper().agreement(fleet, models.model)
    fleet = fleet.for_call(1, "train")
    again = FedGKCPaper().agreement(fleet, models.model)
    assert torch.equal(first, again)
    assert not any(torch.equal(one, other) for one, other in itertools.combinations((first, second, later), 2))


def test_nothing_of_edges_by_width_is_ever_made():
    graph, width = crowded_graph(), 64
    laid = build_fleet_graph([graph], CPU)
    generator = torch.Generator().manual_seed(0)
    teacher, student = (torch.randn(1, graph.nodes, width, generator=generator).requires_grad_() for _ in range(2))

    def neighbourhood():
        neighbourhood_loss(laid, teacher, student).sum().backward()

    def similarity():
        sum(knowledge_of(FedGKCPaper(), laid, student.softmax(2))).sum().backward()

    too_much = graph.edges.shape[1] * width * 4
    assert too_much > 256e6
    neighbourhood()  # A + I is worked out once
    assert peak_of(neighbourhood) < too_much / 16
    assert peak_of(similarity) < too_much / 16
    assert peak_of(lambda: gather_rows(graph, width)) >= too_much
