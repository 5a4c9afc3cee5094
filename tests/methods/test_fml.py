"""FML: cases worked out by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from graft.engines.in_process import InProcess
from graft.errors import InputError
from graft.experiments.make_method import make_method
from graft.federation.fleet import initial_weights
from graft.methods.fedavg import FedAvg
from graft.methods.fml import FML
from graft.methods.local import Local
from graft.tensors.trees import Tree, count_bytes, flatten, map_tree, stack
from tests.toy import CLASSES, gap, run_rounds, same, toy_graph, toy_setup, trained_tree

SURE = torch.tensor([0.75, 0.25]).log()
EVEN = torch.tensor([0.5, 0.5]).log()


def said(fleet, logits):
    """The same opinion on every node."""
    return logits.expand(len(fleet.clients), fleet.graph.nodes, len(logits))


def zero_labels(method, **settings):
    fleet = toy_setup(method, **settings).fleet([0, 1, 2])
    fleet.labels.classes.zero_()
    return fleet


@pytest.mark.parametrize("kd_nodes", ["train", "all"])
def test_both_losses_by_hand(kd_nodes):
    method = FML(kd_nodes=kd_nodes)
    fleet = zero_labels(method)
    local, meme = said(fleet, SURE), said(fleet, EVEN)
    torch.testing.assert_close(method.learn(fleet, local, meme, 0.5), torch.full((3,), 0.215762), atol=1e-6, rtol=0)
    torch.testing.assert_close(method.learn(fleet, meme, local, 0.5), torch.full((3,), 0.411980), atol=1e-6, rtol=0)
    assert float(method.learn(fleet, local, meme, 0.3)[0]) == pytest.approx(0.3 * 0.287682 + 0.7 * 0.143841, abs=1e-6)


def test_local_model_and_meme_are_each_given_their_own_share_of_the_labels():
    fleet = toy_setup(FML(), models="sage").fleet([0, 1, 2])
    pair = Tree(local=fleet.initial(), meme=fleet.initial(fleet.architecture("gcn")))
    local, meme = FML(alpha=1.0, beta=0.25).losses(fleet, pair)
    torch.testing.assert_close(local, fleet.cross_entropy(fleet.predict(pair.local).logits))
    labels, told = (FML(beta=share).losses(fleet, pair)[1] for share in (1.0, 0.0))
    torch.testing.assert_close(meme, 0.25 * labels + 0.75 * told)
    assert (told > 0).all()


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.usefixtures("asked_about_all")
def test_with_labels_alone_local_models_are_those_of_local_training_bit_for_bit(optimizer):
    settings = {"models": "gcn,sage", "optimizer": optimizer}
    wanted = run_rounds(toy_setup(Local(), **settings), rounds=3)
    deaf, listening = (run_rounds(toy_setup(FML(alpha=alpha), **settings), rounds=3) for alpha in (1.0, 0.5))
    for client in range(3):
        assert same(deaf.client(client).model, wanted.client(client).model)
        assert gap(listening.client(client).model, wanted.client(client).model) > 1e-4


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.usefixtures("asked_about_all")
def test_with_labels_alone_memes_are_fedavg_bit_for_bit(optimizer):
    settings = {"optimizer": optimizer, "weight_by": "uniform"}
    wanted = run_rounds(toy_setup(FedAvg(), models="gcn", **settings), rounds=3)
    deaf, listening = (
        run_rounds(toy_setup(FML(beta=beta), models="sage", **settings), rounds=3) for beta in (1.0, 0.5)
    )
    assert same(deaf.server.state.meme, wanted.server.state.model)
    assert gap(listening.server.state.meme, wanted.server.state.model) > 1e-4


def test_no_gradient_of_a_loss_reaches_the_other_model():
    method = FML()
    fleet = toy_setup(method, models="sage").fleet([0, 1, 2])
    local, mine = trained_tree(fleet.initial())
    meme, yours = trained_tree(fleet.initial(fleet.architecture("gcn")))
    losses = method.losses(fleet, Tree(local=local, meme=meme))
    for loss, own, other in ((losses[0], mine, yours), (losses[1], yours, mine)):
        strange = torch.autograd.grad(loss.sum(), other, allow_unused=True, retain_graph=True)
        assert all(gradient is None or not gradient.any() for gradient in strange)
        assert any(gradient.any() for gradient in torch.autograd.grad(loss.sum(), own, retain_graph=True))


def test_equal_models_have_nothing_to_teach_each_other():
    settings = {"optimizer": "sgd", "weight_decay": 0.0, "epochs": 1}
    alike = run_rounds(toy_setup(FML(alpha=0.25), models="gcn", learning_rate=0.2, **settings), rounds=1)
    quarter = run_rounds(toy_setup(Local(), models="gcn", learning_rate=0.05, **settings), rounds=1)
    whole = run_rounds(toy_setup(Local(), models="gcn", learning_rate=0.2, **settings), rounds=1)
    for client in range(3):
        assert gap(alike.client(client).model, quarter.client(client).model) < 1e-6
        assert gap(alike.client(client).model, whole.client(client).model) > 1e-4


def test_one_joint_training_is_two_optimisers_that_share_a_forward_pass():
    setup = toy_setup(FML(alpha=0.3, beta=0.6), clients=1, models="sage", epochs=4)
    finished = run_rounds(setup, rounds=1)
    fleet = setup.fleet([0])
    small = fleet.architecture("gcn")
    (local, mine), (meme, yours) = (trained_tree(fleet.initial(model)) for model in (fleet.model, small))
    optimizers = [torch.optim.Adam(part, lr=0.01, weight_decay=5e-4) for part in (mine, yours)]
    train, labels = fleet.labels.masks[0, 0], fleet.labels.classes[0]
    for _ in range(4):
        told, said = fleet.forward(local).logits[0][train], fleet.forward(meme, small).logits[0][train]
        losses = [
            share * functional.cross_entropy(student, labels[train])
            + (1 - share)
            * functional.kl_div(
                student.log_softmax(1), teacher.detach().log_softmax(1), reduction="batchmean", log_target=True
            )
            for student, teacher, share in ((told, said, 0.3), (said, told, 0.6))
        ]
        gradients = [torch.autograd.grad(loss, part) for loss, part in zip(losses, (mine, yours), strict=True)]
        for optimizer, part, found in zip(optimizers, (mine, yours), gradients, strict=True):
            for leaf, gradient in zip(part, found, strict=True):
                leaf.grad = gradient
            optimizer.step()
    local, meme = (map_tree(torch.Tensor.detach, tree) for tree in (local, meme))
    assert gap(stack([finished.client(0).model]), local) < 1e-5
    assert gap(stack([finished.server.state.meme]), meme) < 1e-5
    other = run_rounds(toy_setup(FML(alpha=0.6, beta=0.3), clients=1, models="sage", epochs=4), rounds=1)
    assert gap(stack([other.client(0).model]), local) > 1e-4


def test_where_and_how_softly_the_two_are_compared_matters():
    usual, everywhere, soft = (
        run_rounds(toy_setup(FML(**settings))).client(0) for settings in ({}, {"kd_nodes": "all"}, {"temperature": 3.0})
    )
    assert gap(usual, everywhere) > 1e-4
    assert gap(usual, soft) > 1e-5


def test_padding_nodes_teach_nothing():
    setup = toy_setup(FML(kd_nodes="all"), models="sage", dropout=0.5)
    fleet, alone = run_rounds(setup), run_rounds(setup, engine=InProcess(setup, alone=True))
    assert len(fleet.engine.fleets) == 1
    assert all(gap(fleet.client(client), alone.client(client)) < 1e-5 for client in range(3))
    other = run_rounds(toy_setup(FML(kd_nodes="all"), models="sage", dropout=0.5, seed=1))
    assert gap(fleet.client(0), other.client(0)) > 1e-3


def test_votes_are_equal_unless_told_otherwise():
    class Kept(InProcess):
        def ask(self, request):
            self.replies = super().ask(request)
            return self.replies

    def averaged(method, shares):
        setup = toy_setup(method, models="gcn,sage")
        engine = Kept(setup)
        meme = run_rounds(setup, rounds=1, engine=engine).server.state.meme.head.weight
        wanted = sum(share * engine.replies[client].meme.head.weight for client, share in enumerate(shares))
        return float((meme - wanted).abs().max())

    thirds, by_nodes = [1 / 3] * 3, [12 / 28, 9 / 28, 7 / 28]
    assert averaged(FML(), thirds) < 1e-6 < 1e-5 < averaged(FML(), by_nodes)
    assert averaged(FML(weighting="by_weight"), by_nodes) < 1e-6 < 1e-5 < averaged(FML(weighting="by_weight"), thirds)


def test_bytes_are_a_meme_each_way_and_a_vote_where_votes_differ():
    setup = toy_setup(FML(), models="sage")
    meme = count_bytes(initial_weights(setup.architecture("gcn"), 0))
    assert meme == 4 * (6 * 8 + 8 + 8 * 8 + 8 + 8 * 3 + 3)
    uniform, weighted = (run_rounds(toy_setup(FML(weighting=one), models="sage")) for one in ("uniform", "by_weight"))
    assert (uniform.traffic.down, uniform.traffic.up) == (2 * 3 * meme, 2 * 3 * meme)
    assert (weighted.traffic.down, weighted.traffic.up) == (2 * 3 * meme, 2 * 3 * (meme + 8))
    deep = run_rounds(toy_setup(FML(meme="gcn4"), models="sage"))
    assert deep.traffic.up == 2 * 3 * (meme + 2 * 4 * (8 * 8 + 8))


class Normed(nn.Module):
    """A user's module with buffers, which are kept but not trained."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x, edge_index):  # noqa: ARG002
        return self.head(self.norm(x))


def test_own_module_keeps_its_buffers_untrained():
    graphs = [toy_graph(12), toy_graph(9)]
    with torch.random.fork_rng():
        module = Normed()
    deaf, local = (run_rounds(toy_setup(method, models=module, graphs=graphs)) for method in (FML(alpha=1.0), Local()))
    listening = run_rounds(toy_setup(FML(), models=module, graphs=graphs))
    for client in range(2):
        assert same(deaf.client(client).model, local.client(client).model)
        assert int(deaf.client(client).model.norm.num_batches_tracked) == 2 * 3
        assert not any("running" in path for path, _ in flatten(deaf.client(client).optimizer))
        assert torch.equal(
            listening.client(client).model.norm.running_mean, local.client(client).model.norm.running_mean
        )
        assert not same(listening.client(client).model.head, local.client(client).model.head)


def test_senseless_settings_are_refused():
    for settings in ({"alpha": 1.1}, {"beta": -0.1}, {"alpha": float("nan")}, {"temperature": 0.0}):
        with pytest.raises(InputError, match=next(iter(settings))):
            FML(**settings)
    with pytest.raises(InputError, match="weighting"):
        make_method("fml", {"weighting": "loudest"})
    with pytest.raises(InputError, match="Unknown model 'gnc'"):
        run_rounds(toy_setup(FML(meme="gnc")))
