"""FedPPN: cases worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import graft
from graft.data.graphs import make_graph
from graft.engines.in_process import InProcess
from graft.errors import InputError
from graft.federation.remembered import remembered
from graft.methods.fedppn import FedPPN, heads, training_labels
from graft.methods.fedproto import FedProto
from graft.methods.local import Local
from graft.models import assign_models
from graft.models.gcn import GCN
from graft.tensors.trees import Tree, flatten, unflatten
from tests.methods.prototypes import hand_graph, known, mirror_setup
from tests.toy import gap, run_rounds, same, toy_graphs, toy_setup

HALF = 2**-0.5


def path_graph(classes=(0, 0, 1), train=(1, 0, 1)):
    """Nodes in a row, of which the first and the third train, on class 0 and on class 1."""
    ends = np.arange(len(classes) - 1)
    edges = np.stack([ends, ends + 1])
    train = np.asarray(train, bool)
    masks = {"train": train, "validation": ~train, "test": ~train}
    return make_graph("path", np.ones((len(classes), 2), np.float32), edges, np.asarray(classes), 2, masks)


def propagated(method, graph, prototypes=((1.0, 0.0), (0.0, 1.0)), present=None):
    fleet = mirror_setup(method, [graph]).fleet([0])
    return method.propagate(fleet, known([list(row) for row in prototypes], present))[0]


@pytest.mark.parametrize(
    ("norm", "steps", "wanted"),
    [
        ("none", 1, [(0.5, 0), (0.5, 0.5), (0, 0.5)]),
        ("none", 2, [(0.75, 0.25), (0.25, 0.25), (0.25, 0.75)]),
        ("sym", 1, [(0.5, 0), (HALF / 2, HALF / 2), (0, 0.5)]),
        ("sym", 2, [(0.625, 0.125), (HALF / 4, HALF / 4), (0.125, 0.625)]),
        ("sym", 0, [(1, 0), (0, 0), (0, 1)]),
    ],
)
def test_prototypes_on_a_path_by_hand(norm, steps, wanted):
    method = FedPPN(propagation_steps=steps, prop_norm=norm)
    torch.testing.assert_close(propagated(method, path_graph()), torch.tensor(wanted, dtype=torch.float32))


def test_a_node_that_masks_itself_keeps_what_came_back_from_its_neighbours():
    points = propagated(FedPPN(prop_norm="none", mask_self=True), path_graph())
    assert points.tolist() == [[0.25, 0.25], [0.25, 0.25], [0.25, 0.25]]
    assert propagated(FedPPN(propagation_steps=0, mask_self=True), path_graph()).tolist() == [[0, 0]] * 3


def test_training_nodes_of_a_class_without_prototype_begin_at_zero():
    points = propagated(FedPPN(prop_norm="none"), path_graph(), ((1, 0), (9, 9)), [True, False])
    assert points.tolist() == [[0.75, 0], [0.25, 0], [0.25, 0]]


def test_isolated_nodes_keep_their_share_and_nodes_far_away_get_nothing():
    far = path_graph(classes=(0, 0, 0, 0, 1), train=(1, 0, 0, 0, 0))
    assert propagated(FedPPN(), far)[3:].tolist() == [[0, 0], [0, 0]]
    assert propagated(FedPPN(), far)[2, 0] > 0
    lonely = hand_graph([(1, 1), (2, 2)], [0, 1], 2)
    assert propagated(FedPPN(propagation=0.3), lonely).tolist() == [
        [pytest.approx(0.7), 0],
        [0, pytest.approx(0.7)],
    ]


def larger(count):
    """A client of so many nodes of class 0."""
    return hand_graph([(0, 1), (0, 3), (0, 2)][:count], [0] * count, 3)


def test_prototypes_of_owners_are_averaged_whatever_their_numbers_of_nodes():
    graphs = [larger(3), hand_graph([(2, 2), (5, 5)], [0, 1], 3)]
    state = run_rounds(mirror_setup(FedPPN(), graphs), rounds=1).server.state.known
    assert state.prototypes.tolist() == [[1, 2], [5, 5], [0, 0]]
    assert state.present.tolist() == [True, True, False]


def test_class_that_nobody_sends_in_a_round_keeps_its_prototype():
    graphs = [hand_graph([(1, 1)], [0], 2), hand_graph([(3, 5)], [1], 2)]
    setup = replace(mirror_setup(FedPPN(), graphs), participation=0.5)
    assert run_rounds(setup, rounds=8).server.state.known.prototypes.tolist() == [[1, 1], [3, 5]]


@pytest.mark.parametrize("models", [["gcn"] * 3, ["gcn", "sage", "gat"]])
def test_order_of_clients_does_not_matter(models):
    graphs = toy_graphs()

    def after(order):
        picked = {"models": [models[client] for client in order], "graphs": [graphs[client] for client in order]}
        return run_rounds(toy_setup(FedPPN(), **picked), rounds=3).server.state.known

    assert gap(after([0, 1, 2]), after([2, 0, 1])) < 1e-5  # the first client may lack a class
    assert gap(after([0, 1, 2]), after([0, 1])) > 1e-4


def test_loss_of_one_node_by_hand():
    """The mirror's head gives any point the logits (0, -1), so all three losses are that of the label."""
    method = FedPPN(prototype_weight=2.0, ensemble_weight=0.5)
    fleet = mirror_setup(method, [hand_graph([(1, 1)], [1], 2)]).fleet([0])
    points, alone = torch.ones(1, 1, 2), float(torch.tensor([0.0, -1.0]).logsumexp(0) + 1)
    for heard, wanted in ((False, alone), (True, 3.5 * alone)):
        loss = method.loss(fleet, fleet.initial(), points, torch.tensor([heard]))
        assert float(loss) == pytest.approx(wanted)


def gradients(**settings):
    """What the losses of propagated prototypes, alone or with the ensemble's, change in every weight's gradient."""
    fleet = toy_setup(FedPPN(), models="gcn").fleet([0, 1, 2])
    points = fleet.at_train_nodes(torch.randn(3, fleet.graph.nodes, 8, generator=torch.Generator().manual_seed(0)))
    start = dict(flatten(fleet.initial()))

    def gradient(method, heard):
        leaves = {path: leaf.clone().requires_grad_() for path, leaf in start.items()}
        loss = method.loss(fleet, unflatten(leaves), points, torch.tensor([heard] * 3))
        return torch.autograd.grad(loss.sum(), list(leaves.values()))

    with_it, without = gradient(FedPPN(**settings), True), gradient(FedPPN(**settings), False)
    return {path: float((one - two).abs().max()) for path, one, two in zip(start, with_it, without, strict=True)}


def test_propagated_prototypes_train_the_head_alone_and_the_ensemble_the_encoder_too():
    taught = gradients(ensemble_weight=0.0)
    assert {path for path, size in taught.items() if size > 0} == {"head/weight", "head/bias"}
    assert all(size > 1e-4 for size in gradients(prototype_weight=0.0).values())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("models", ["gcn", "gcn,sage"])
def test_first_round_is_local_training(models, dropout):
    settings = {"models": models, "dropout": dropout}
    ours, local = (run_rounds(toy_setup(kind, **settings), rounds=1) for kind in (FedPPN(), Local()))
    assert all(gap(ours.client(client).model, local.client(client).model) == 0 for client in range(3))
    ours, local = (run_rounds(toy_setup(kind, **settings), rounds=2) for kind in (FedPPN(), Local()))
    assert all(gap(ours.client(client).model, local.client(client).model) > 1e-4 for client in range(3))


def test_without_the_two_further_losses_it_is_local_training_bit_for_bit():
    settings = {"models": "gcn,sage", "dropout": 0.5}
    method = FedPPN(prototype_weight=0.0, ensemble_weight=0.0, own_share=1.0)
    ours, local = (run_rounds(toy_setup(kind, **settings), rounds=3) for kind in (method, Local()))
    for client in range(3):
        assert same(ours.client(client).model, local.client(client).model)
    for mine, alone in zip(ours.engine.fleets, local.engine.fleets, strict=True):
        assert torch.equal(method.logits(mine), Local().logits(alone))
        assert not torch.equal(FedPPN().logits(mine), Local().logits(alone))


def prediction(inference, present=(True, True), **settings):
    """What a client says that maps points to logits as they are: its embedding is (1, 1) everywhere."""
    method = FedPPN(inference=inference, prop_norm="none", **settings)
    engine = InProcess(mirror_setup(method, [path_graph()]))
    fleet = engine.fleets[0]
    head = Tree(weight=torch.eye(2).unsqueeze(0), bias=torch.tensor([[0.0, 0.5]]))
    fleet.state.model = Tree(scale=torch.full((1, 1), 2.0), head=head)
    fleet.state.known = known([[1.0, 0.0], [0.0, 1.0]], list(present))
    return method.logits(fleet)[0]


def test_predictions_by_hand():
    own, arrived = torch.tensor([[2, 2.5]] * 3), torch.tensor([[0.75, 0.75], [0.25, 0.75], [0.25, 1.25]])
    torch.testing.assert_close(prediction("model"), own)
    torch.testing.assert_close(prediction("prototypes"), arrived)
    torch.testing.assert_close(prediction("ensemble"), (own + arrived) / 2)
    torch.testing.assert_close(prediction("ensemble", own_share=0.9), 0.9 * own + 0.1 * arrived)


@pytest.mark.parametrize("inference", ["ensemble", "prototypes"])
def test_client_that_has_heard_of_no_prototype_predicts_by_its_model(inference):
    assert torch.equal(prediction(inference, (False, False)), prediction("model"))
    assert not torch.equal(prediction(inference, (True, False)), prediction("model"))


def scored_after_training(change=None):
    """How often models are asked for predictions when a trained fleet is scored, and its logits, which are checked
    against those worked out anew."""
    finished = run_rounds(toy_setup(FedPPN(), models="gcn,sage", dropout=0.5), rounds=2)
    fleet = finished.engine.fleets[0]
    if change is not None:
        change(fleet.state)
    asked = []

    class Watched(type(fleet.model)):
        def __call__(self, *arguments):
            asked.append(self)
            return super().__call__(*arguments)

    fields = {name: getattr(fleet.model, name) for name in fleet.model.__dataclass_fields__}
    watched = replace(fleet, model=Watched(**fields))
    logits = FedPPN().logits(watched)
    assert gap(logits, FedPPN().logits(replace(fleet, caches=[{} for _ in fleet.clients]))) < 1e-6
    return len(asked)


def test_what_training_predicted_at_its_end_is_not_worked_out_again_for_scores():
    assert scored_after_training() == 0


@pytest.mark.parametrize("field", ["known", "model"])
def test_what_training_predicted_is_worked_out_again_after_any_change_of_the_state(field):
    def written_into(state):
        leaf = next(leaf for _, leaf in flatten(state[field]) if leaf.is_floating_point())
        leaf.mul_(1.5)

    def replaced(state):
        state[field] = unflatten({path: leaf.clone() for path, leaf in flatten(state[field])})

    assert scored_after_training(written_into) == scored_after_training(replaced) == 1


def test_predictions_on_training_data_do_not_stand_for_those_on_other_data():
    finished = run_rounds(toy_setup(FedPPN()), rounds=2)
    fleet = finished.engine.fleets[0]
    state = list(FedPPN().state_of_predictions(fleet))
    assert remembered(fleet, state) is not None
    other = toy_setup(FedPPN()).fleet([0, 1, 2])
    assert remembered(replace(fleet, data=other.data), state) is None
    assert remembered(replace(fleet, clients=[2, 1, 0]), state) is None


def test_inference_does_not_change_training():
    runs = [
        run_rounds(toy_setup(FedPPN(inference=inference), dropout=0.5), rounds=3)
        for inference in ("ensemble", "model", "prototypes")
    ]
    assert all(same(run.server.state, runs[0].server.state) for run in runs)
    assert [run.session.setup.method.model_alone() for run in runs] == [False, True, False]


def test_accuracies_of_both_parts_are_on_record():
    finished = run_rounds(toy_setup(FedPPN(), dropout=0.5), rounds=3)
    fleet, method = finished.engine.fleets[0], FedPPN()
    total = fleet.totals()[:, 0, 1]
    for part, inference in (("model", "model"), ("prototypes", "prototypes")):
        logits = replace(method, inference=inference).logits(fleet)
        recorded = torch.as_tensor(finished.records[f"accuracy_of_{part}"])
        torch.testing.assert_close(recorded, fleet.count_validated(logits) / total, check_dtype=False)


def test_heads_of_several_architectures_are_each_client_s_own():
    fleet = InProcess(toy_setup(FedPPN(), clients=5, models="architectures")).fleets[0]
    stacked = heads(fleet.model, fleet.state.model)
    for position, client in enumerate(fleet.clients):
        name = next(name for name, owners in fleet.model.kinds.items() if position in owners)
        own = fleet.state.model[name].head
        assert torch.equal(stacked.weight[position], own.weight[position - fleet.model.kinds[name].start]), client
    output = fleet.predict(fleet.state.model)
    torch.testing.assert_close(FedPPN().classify(fleet, fleet.state.model, output.embedding), output.logits)


def test_module_of_somebody_s_own_classifies_prototypes_by_its_head():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.head = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)

        def forward(self, x, edge_index):  # noqa: ARG002
            hidden = self.hidden(x).relu()
            return hidden, self.head(hidden)

    models = assign_models([Net(), "gcn"], 3, 6, 3, width=8, dropout=0.0)
    finished = run_rounds(toy_setup(FedPPN(), models=models), rounds=2)
    for fleet in finished.engine.fleets:
        output = fleet.predict(fleet.state.model)
        torch.testing.assert_close(FedPPN().classify(fleet, fleet.state.model, output.embedding), output.logits)


def test_models_without_a_linear_head_or_of_several_widths_are_refused():
    with pytest.raises(InputError, match="linear head"):
        run_rounds(toy_setup(FedPPN(), head="conv"))
    with pytest.raises(InputError, match="one width"):
        run_rounds(toy_setup(FedPPN(), models=[GCN(6, 3, width=8), GCN(6, 3, width=4), GCN(6, 3, width=8)]))


def test_predictions_begin_at_the_labels_that_clients_train_on():
    """Training data lack a label and have a wrong one, data to be scored on are as they were."""
    clean = path_graph(classes=(0, 0, 1, 1), train=(1, 1, 1, 0))
    perturbed = replace(clean, y=np.array([1, -1, 1, 1]), train=np.array([True, False, True, False]))
    setup = replace(mirror_setup(FedPPN(), [perturbed]), scoring=[clean])
    fleet = InProcess(setup).fleets[0]
    classes, labelled = training_labels(fleet.on(fleet.scoring))
    assert labelled.tolist() == [[True, False, True, False]]
    assert classes[labelled].tolist() == [1, 1]
    assert training_labels(InProcess(mirror_setup(FedPPN(), [clean])).fleets[0])[1].sum() == 3


def test_nodes_that_are_only_scored_are_reached_and_perturbed_labels_cannot_be_told_there():
    whole, seen = path_graph(classes=(0, 0, 1, 1), train=(1, 0, 1, 0)), path_graph()
    setup = replace(mirror_setup(FedPPN(), [seen]), scoring=[whole])
    fleet = InProcess(setup).fleets[0]
    points = FedPPN().propagate(fleet.on(fleet.scoring), known([[1.0, 0.0], [0.0, 1.0]]))
    assert points.shape == (1, 4, 2)
    assert points[0, 3, 1] > 0
    sparse = replace(seen, train=np.array([True, False, False]))
    with pytest.raises(InputError, match="unseen"):
        InProcess(replace(setup, graphs=[sparse]))


@pytest.mark.parametrize("settings", [{"label_noise": 0.7, "label_sparsity": 0.4}, {"inductive": True}])
def test_stored_models_predict_what_was_scored_where_scoring_has_other_labels_or_nodes(settings):
    small = {
        "width": 8,
        "rounds": 6,
        "epochs": 20,
        "learning_rate": 0.05,
        "dropout": 0.0,
        "settings": {"inference": "prototypes"},
        "device": "cpu",
        "threads": 1,
        "partition": "random",
        "clients": 3,
    }
    result = graft.run("fedppn", "synthetic:nodes=90,degree=5,classes=3,features=6", **small, **settings)
    graph = result.models.federation().clean.graph
    for client in range(3):
        predictions = result.client(client, at="last").predict()
        chosen = graph.test[predictions.ids]
        accuracy = (predictions.classes == graph.y[predictions.ids])[chosen].mean()
        recorded = result.rounds[-1]["per_client"]["test"][client]
        assert accuracy == pytest.approx(recorded, abs=1e-12)


def test_a_graph_without_labels_is_classified_by_the_model_alone():
    blank = path_graph(train=(0, 0, 0))
    for graph, alike in ((blank, True), (path_graph(), False)):
        fleet = InProcess(mirror_setup(FedPPN(), [graph])).fleets[0]
        fleet.state.known = known([[3.0, 0.0], [0.0, 3.0]])
        fleet.state.model.head.weight = torch.eye(2).unsqueeze(0)
        own = fleet.predict(fleet.state.model).logits
        assert torch.equal(FedPPN().logits(fleet), own) == alike


def test_messages_are_prototypes_and_which_classes_there_are():
    finished, proto = (run_rounds(toy_setup(method), rounds=2) for method in (FedPPN(), FedProto()))
    accuracies = 2 * 4
    assert finished.traffic.up == 2 * 3 * (4 * 3 * 8 + 3 + accuracies)
    assert finished.traffic.down == proto.traffic.down == 2 * 3 * (4 * 3 * 8 + 3)
