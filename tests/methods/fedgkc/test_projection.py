"""FedGKC with local models of other widths, and modules of one's own."""

import pytest
import torch
from torch import nn

from graft.engines.in_process import InProcess
from graft.errors import InputError
from graft.federation.fleet import initial_weights
from graft.methods.fedgkc import FedGKCPaper
from graft.models.gcn import GCN
from graft.models.sage import SAGE
from graft.tensors.trees import Tree, flatten
from tests.methods.fedgkc.cases import fleet_of, record_of, watched
from tests.toy import CLASSES, gap, run_rounds, toy_graph, toy_setup

WIDTHS = [GCN(6, CLASSES, width=8, dropout=0.0), SAGE(6, CLASSES, width=4, dropout=0.0), GCN(6, CLASSES, width=12)]


def test_embeddings_of_other_widths_are_refused_without_a_projection():
    with pytest.raises(InputError, match="width 4 with the copilot's 8: use one width, or set neigh_projection"):
        InProcess(toy_setup(FedGKCPaper(), models=WIDTHS))
    for settings in ({"beta": 0.0}, {"smkd": False}, {"mutual": False}):  # then nothing compares embeddings
        run_rounds(toy_setup(FedGKCPaper(**settings), models=WIDTHS), rounds=1)


def test_projection_is_trained_and_stays_at_its_client():
    setup = toy_setup(FedGKCPaper(neigh_projection=True), models=WIDTHS)
    engine, replies = watched(setup)
    finished = run_rounds(setup, rounds=2, engine=engine)
    for client, width in enumerate((8, 4, 12)):
        learnt = finished.client(client).projection.weight
        assert learnt.shape == (width, 8)
        assert (learnt - torch.eye(width, 8)).abs().max() > 1e-3
    fields_sent = {"copilot", "size", "strength", "clarity", "knowledge", "terms"}
    copilot = [path for path, _ in flatten(finished.server.state.copilot)]
    for reply in replies:
        assert all(reply[client].keys() == fields_sent for client in range(3))
        assert all([path for path, _ in flatten(reply[client].copilot)] == copilot for client in range(3))
    without = run_rounds(toy_setup(FedGKCPaper()), rounds=2)
    assert finished.traffic == without.traffic
    assert "projection" not in without.client(0)
    alone = run_rounds(setup, rounds=2, engine=InProcess(setup, alone=True))
    assert all(gap(finished.client(client), alone.client(client)) < 1e-5 for client in range(3))


def test_projection_that_changes_nothing_changes_no_loss():
    fleet, models = fleet_of(FedGKCPaper(), "sage")
    wide = FedGKCPaper(neigh_projection=True)
    for factor in (1, 2):
        weight = factor * torch.eye(8).expand(3, -1, -1)
        projected = Tree(copilot=models.copilot, model=Tree(model=models.model, projection=Tree(weight=weight)))
        for name in ("copilot_terms", "local_terms"):
            terms = []
            for method, held in ((FedGKCPaper(), models), (wide, projected)):
                fleet = fleet.for_call(1, "train")
                terms.append(getattr(method, name)(fleet, held))
            for term in terms[0]:
                close = torch.allclose(terms[0][term], terms[1][term], atol=1e-6)
                assert close == (factor == 1 or term != "neighbourhood")


class Own(nn.Module):
    """Keeps what it was shown."""

    def __init__(self, width=8, pair=True):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(6, width), nn.BatchNorm1d(width), nn.Linear(width, CLASSES)
        self.pair, self.shown = pair, []

    def forward(self, x, edge_index):
        self.shown.append((x, edge_index, self.training))
        summed = x.index_add(0, edge_index[0], x[edge_index[1]])
        hidden = self.norm(self.body(summed)).relu()
        return (hidden, self.head(hidden)) if self.pair else self.head(hidden)


def own(**settings):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Own(**settings)


def test_own_module_is_a_local_model_and_sees_the_views():
    module, graph = own(), toy_graph(12)
    setup = toy_setup(FedGKCPaper(), models=[module, "gcn"], graphs=[graph, toy_graph(9)], epochs=2)
    engine = InProcess(setup)
    module.shown.clear()
    finished = run_rounds(setup, rounds=1, engine=engine)
    x, edges = torch.from_numpy(graph.x), {tuple(edge) for edge in graph.edges.T.tolist()}
    # In each epoch: once to learn, once on the weak view, once on the strong one, and once to teach the copilot.
    assert [training for *_, training in module.shown] == [True, False, True, False] * 2
    thinned, masked = [], []
    for seen_x, seen_edges, _ in module.shown:
        pairs = {tuple(edge) for edge in seen_edges.T.tolist()}
        assert pairs <= edges
        assert {(b, a) for a, b in pairs} == pairs
        hidden = (seen_x == 0).all(0)
        assert torch.equal(seen_x, torch.where(hidden, 0, x))
        thinned.append(len(pairs) < len(edges))
        masked.append(bool(hidden.any()))
    assert thinned == [False, True, True, False] * 2
    assert any(masked[1::4])
    assert any(masked[2::4])
    assert not any(masked[0::4] + masked[3::4])
    assert gap(finished.client(0).model.body, initial_weights(setup.models[0], 0).body) > 1e-3
    assert record_of(finished)["local_self"][0] > 0


@pytest.mark.parametrize(("module", "width"), [(own(width=5), 5), (own(pair=False), CLASSES)], ids=["narrow", "logits"])
def test_own_module_of_another_width_needs_a_projection(module, width):
    graphs = [toy_graph(12), toy_graph(9)]
    with pytest.raises(InputError, match=f"width {width} with the copilot's 8"):
        InProcess(toy_setup(FedGKCPaper(), models=[module, "gcn"], graphs=graphs))
    finished = run_rounds(toy_setup(FedGKCPaper(neigh_projection=True), models=[module, "gcn"], graphs=graphs))
    assert finished.client(0).projection.weight.shape == (width, 8)
    held = {path for path, _ in flatten(finished.client(0).optimizer.model.first)}
    trained = {path for path, leaf in flatten(finished.client(0).model) if not path.startswith("norm/running")}
    trained -= {"norm/num_batches_tracked"}
    assert held == {f"model/{path}" for path in trained} | {"projection/weight"}  # nothing for buffers
    assert all(leaf.isfinite().all() for client in (0, 1) for _, leaf in flatten(finished.client(client)))
