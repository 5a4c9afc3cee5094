"""A recorded pass gives what the user's module gives, and a module that cannot be recorded is run itself."""

import pickle
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_geometric.nn import GCNConv, TransformerConv

from graft.methods.fedavg import FedAvg
from graft.models.build import build_model
from graft.models.own import OwnModel
from graft.models.own_inputs import inputs_of
from graft.models.own_random import drawing, host_bits, stream_dropout
from graft.models.recording import leaves, name_of
from graft.tensors.randomness import Stream
from graft.tensors.trees import flatten, map_tree
from tests.toy import CLASSES, gap, run_rounds, same, toy_graph, toy_setup, trained_tree

PYG = ("pyg:GCN", "pyg:GAT", "pyg:GraphSAGE", "pyg:GIN", "pyg:PNA")


class Net(nn.Module):
    """What modules do beside layers of PyG: attention, norms, residuals, writing into tensors, dropout of all kinds."""

    def __init__(self, features, dropout=0.5):
        super().__init__()
        self.attention = TransformerConv(features, 4, heads=2, dropout=dropout)
        self.norm = nn.BatchNorm1d(8)
        self.conv = GCNConv(8, 8)
        self.head = nn.Linear(8, CLASSES)
        self.dropout = dropout

    def forward(self, x, edge_index):
        hidden = functional.elu(self.norm(self.attention(x, edge_index)))
        hidden = functional.dropout(hidden, self.dropout, self.training)
        hidden = hidden + torch.relu(self.conv(hidden, edge_index))
        gate = torch.zeros(len(x), 1)
        gate[: len(x) // 2] = hidden[: len(x) // 2].mean(1, keepdim=True)
        degree = torch.bincount(edge_index[0], minlength=len(x)).unsqueeze(1)
        hidden = hidden / degree.clamp(min=1).sqrt() + gate
        return hidden, self.head(functional.dropout(hidden, 0.3, self.training))


def make_model(name, features):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return OwnModel(Net(features)) if name == "net" else build_model(name, features, CLASSES, width=8, dropout=0.5)


def make_fleet(model, *, sparse=False):
    return toy_setup(FedAvg(), models=model, graphs=[toy_graph(12, sparse=sparse)]).fleet([0])


def recordings(fleet):
    return inputs_of(fleet.graph).recordings


def unrecorded(model):
    plain = OwnModel(model.module)
    plain.not_recordable = "a test says so"
    return plain


def outputs_and_gradients(model, fleet, weights, random):
    weights = map_tree(torch.clone, weights)
    tree, trained = trained_tree(weights)
    for path, leaf in flatten(tree):
        leaf.requires_grad_(leaf.is_floating_point() and path not in model.frozen)
    trained = [leaf for leaf in trained if leaf.requires_grad]
    output = model(tree, fleet.graph, random)
    gradients = torch.autograd.grad(output.logits.square().sum(), trained, allow_unused=True)
    buffers = [leaf for path, leaf in flatten(tree) if path in model.frozen]
    return [*output, *buffers, *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", [*PYG, "net"])
def test_recorded_pass_gives_outputs_gradients_and_buffers_of_the_module(name, sparse):
    model = make_model(name, 24 if sparse else 6)
    fleet = make_fleet(model, sparse=sparse)
    weights = fleet.initial()
    for key in (None, torch.tensor([7])):
        randoms = [None if key is None else Stream(key) for _ in range(4)]
        outputs_and_gradients(model, fleet, weights, randoms[0])  # recorded
        ours, plain = (
            outputs_and_gradients(which, fleet, weights, random)
            for which, random in zip((model, unrecorded(model)), randoms[1:], strict=False)
        )
        for given, wanted in zip(ours, plain, strict=True):
            torch.testing.assert_close(given, wanted, atol=1e-5, rtol=1e-4)
        doubled = map_tree(lambda leaf: 2 * leaf, weights)
        other = outputs_and_gradients(model, fleet, doubled, randoms[3])
        assert (other[1] - ours[1]).abs().max() > 1e-3
    assert model.not_recordable == ""
    assert len(recordings(fleet)) == 2


@pytest.mark.parametrize("name", ["pyg:GCN", "net"])
def test_runs_are_the_same_recorded_and_not(name):
    model = make_model(name, 24)
    finished = [
        run_rounds(  # Adam would make steps of rounding errors, where a gradient is zero
            toy_setup(FedAvg(), models=which, sparse=True, batches=batches, optimizer="sgd", epochs=2), rounds=3
        )
        for which in (model, unrecorded(model))
        for batches in (1, 2)
    ]
    for batches in (0, 1):
        assert gap(finished[batches].server.state, finished[batches + 2].server.state) < 1e-5
        assert gap(finished[batches].client(1), finished[batches + 2].client(1)) < 1e-5
    assert gap(finished[0].server.state, finished[1].server.state) > 1e-3
    assert model.not_recordable == ""


def test_what_depends_on_the_graph_alone_is_not_computed_again():
    fleet = make_fleet(make_model("pyg:GCN", 24), sparse=True)
    fleet.predict(fleet.initial())
    (recording,) = recordings(fleet).values()
    names = [name_of(step.function) for step in recording.steps]
    assert names == ["multiply_linear", "multiply", "add", "relu", "dropout", "linear", "multiply", "add"]


def dense_constants(fleet):
    held = [leaf for recording in recordings(fleet).values() for step in recording.steps for leaf in leaves(step[1:3])]
    return [leaf for leaf in held if isinstance(leaf, torch.Tensor) and leaf.shape == (12, 24)]


class DropsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GCNConv(24, CLASSES)

    def forward(self, x, edge_index):
        return self.conv(functional.dropout(x, 0.5, self.training), edge_index)


def test_sparse_features_are_kept_dense_only_where_a_module_needs_them():
    for model, needed in ((make_model("pyg:GCN", 24), False), (OwnModel(DropsInput()), True)):
        fleet = make_fleet(model, sparse=True)
        fleet.forward(fleet.initial())
        assert model.not_recordable == ""
        assert bool(dense_constants(fleet)) == needed
        assert "x" not in inputs_of(fleet.graph).__dict__


def test_perturbed_view_is_the_module_on_the_edges_and_columns_that_are_left():
    model = make_model("pyg:GCN", 24)
    fleet = make_fleet(model, sparse=True)
    view = fleet.graph.perturbed(Stream(torch.tensor([1])), 0.5, 0.5)
    model.module.eval()
    edges = inputs_of(view).edge_index
    assert 0 < edges.shape[1] < fleet.graph.neighbours.entries
    dense = fleet.graph.features.dense()[0] * view.features.columns
    whole = inputs_of(fleet.graph).edge_index
    assert torch.equal(edges, whole[:, view.neighbours.values > 0])
    given = fleet.predict(fleet.initial(), graph=view).logits[0]
    torch.testing.assert_close(given, model.module(dense, edges))
    assert not torch.allclose(given, fleet.predict(fleet.initial()).logits[0])
    assert not inputs_of(view).recordings


class Odd(nn.Module):
    """A module whose forward pass is not the same operations every time."""

    def __init__(self, kind):
        super().__init__()
        self.conv, self.kind, self.passes = GCNConv(6, CLASSES), kind, 0

    def forward(self, x, edge_index):
        logits = self.conv(x, edge_index)
        if self.kind == "branch" and logits.sum() > 0:
            return 2 * logits
        if self.kind == "counter":
            self.passes += 1
            return logits * self.passes
        if self.kind == "noise":
            return logits + torch.rand(len(x), 1)
        if self.kind == "subset":
            return logits - logits[logits > 0].size(0)
        if self.kind == "where":
            return logits * len(torch.where(logits > 0)[0])
        if self.kind == "foreign":
            return logits + torch.from_numpy(x.numpy()).sum()
        return logits


@pytest.mark.parametrize("kind", ["branch", "counter", "noise", "subset", "where", "foreign"])
def test_module_that_does_not_always_do_the_same_is_run_itself(kind):
    def run_it(which):
        torch.manual_seed(4)
        model = OwnModel(Odd(kind))
        if which == "plain":
            model.not_recordable = "a test says so"
        return model, run_rounds(toy_setup(FedAvg(), models=model), rounds=2).server.state

    (model, recorded), (_, plain) = run_it("ours"), run_it("plain")
    assert model.not_recordable
    if kind != "counter":  # a try counts, too
        assert gap(recorded, plain) < 1e-6
    steady = OwnModel(Odd("steady"))
    run_rounds(toy_setup(FedAvg(), models=steady), rounds=1)
    assert steady.not_recordable == ""


def test_module_that_fails_says_so_as_if_it_were_not_recorded():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5, 3))

        def forward(self, x, edge_index):  # noqa: ARG002
            return x @ self.weight

    fleet = make_fleet(OwnModel(Broken()))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        fleet.predict(fleet.initial())


def test_module_with_recordings_can_be_sent_to_another_process():
    model = make_model("pyg:GCN", 6)
    fleet = make_fleet(model)
    wanted = fleet.predict(fleet.initial()).logits
    sent = pickle.loads(pickle.dumps(model))
    assert torch.equal(make_fleet(sent).predict(fleet.initial(), model=sent).logits, wanted)


def test_seed_in_python_is_the_seed_that_the_stream_draws():
    for key in (0, 5, -7, 2**62, -(2**63)):
        tensors, numbers = Stream(torch.tensor([key])), Stream(torch.tensor([key]))
        for _ in range(3):
            assert int(tensors.bits(1)) == host_bits(numbers)


def test_dropout_is_drawn_from_the_stream_only_while_a_module_runs():
    original, values = functional.dropout, torch.ones(50, 40)
    with drawing(stream_dropout(Stream(torch.tensor([3])))):
        first, half = functional.dropout(values), functional.dropout(values, 0.5, training=False)
        elsewhere = []
        torch.manual_seed(1)
        thread = threading.Thread(target=lambda: elsewhere.append(functional.dropout(values)))
        thread.start()
        thread.join()
    torch.manual_seed(1)
    assert torch.equal(elsewhere[0], functional.dropout(values))
    assert functional.dropout is original
    assert torch.equal(half, values)
    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert abs(float(first.mean()) - 1) < 0.1
    assert torch.equal(first, Stream(torch.tensor([3])).dropout(values[None], 0.5)[0])


def test_inputs_of_a_graph_are_made_once():
    fleet = make_fleet(make_model("pyg:GCN", 6))
    assert inputs_of(fleet.graph) is inputs_of(fleet.graph)
    assert inputs_of(fleet.graph).edge_index is inputs_of(fleet.graph).edge_index
    other = make_fleet(make_model("pyg:GCN", 6))
    assert inputs_of(other.graph) is not inputs_of(fleet.graph)


def test_module_itself_is_not_changed_by_a_recording():
    model = make_model("net", 6)
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    fleet = make_fleet(model)
    fleet.forward(map_tree(torch.clone, fleet.initial()))
    assert same(before, dict(model.module.state_dict()))
