"""Dis-PFL: cases worked out by hand."""

import math

import pytest
import torch

from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.errors import InputError
from graft.federation.method import find_step
from graft.federation.topologies import Topology
from graft.methods.dis_pfl import DisPFL
from graft.methods.dis_pfl.masks import erk, ordered, top
from graft.methods.dpsgd import DPSGD
from graft.tensors.randomness import streams
from graft.tensors.trees import Tree, flatten
from tests.methods.line import Numbers
from tests.toy import gap, run_rounds, toy_setup

COMPLETE = Topology("complete")
CORA = {  # a GCN of width 64
    "layer0/weight": (1433, 64),
    "layer0/bias": (64,),
    "layer1/weight": (64, 64),
    "layer1/bias": (64,),
    "head/weight": (64, 7),
    "head/bias": (7,),
}


def matrix_engine(method, weights, masks, **settings):
    """Peers whose only weights are a matrix of one row."""
    setup = toy_setup(method, len(weights), Numbers((1, len(weights[0]))), **({"epochs": 0} | settings))
    engine = InProcess(setup)
    state = engine.fleets[0].state
    state.trained = state.model = Tree(x=torch.tensor(weights, dtype=torch.float32).unsqueeze(1))
    state.mask = Tree(x=torch.tensor(masks, dtype=torch.bool).unsqueeze(1))
    return setup, engine


def test_mean_over_those_that_have_a_weight_by_hand():
    masks = [[1, 1, 0], [1, 0, 1]]
    setup, engine = matrix_engine(DisPFL(density=0.7), [[2, 4, 0], [6, 0, 8]], masks, topology=COMPLETE)
    finished = run_rounds(setup, rounds=1, engine=engine)
    assert finished.client(0).model.x.tolist() == [[4, 4, 0]]
    assert finished.client(1).model.x.tolist() == [[4, 0, 8]]
    setup, engine = matrix_engine(DisPFL(density=0.7), [[2, 4, 0], [6, 0, 8]], masks, topology=Topology("none"))
    assert run_rounds(setup, rounds=1, engine=engine).client(0).model.x.tolist() == [[2, 4, 0]]


def test_weight_that_nobody_else_has_stays():
    weights, masks = [[2, 0, 0], [0, 5, 0], [0, 7, 0]], [[1, 0, 0], [0, 1, 0], [0, 1, 0]]
    setup, engine = matrix_engine(DisPFL(density=0.4), weights, masks, topology=COMPLETE)
    finished = run_rounds(setup, rounds=1, engine=engine)
    assert [finished.client(peer).model.x[0].tolist() for peer in range(3)] == [[2, 0, 0], [0, 6, 0], [0, 6, 0]]


def search(method, weights, masks, share, gradient=None):
    """One search for new masks; gives masks and weights after it."""

    class Given(type(method)):
        def dense_gradient(self, fleet):  # noqa: ARG002
            return {"x": torch.tensor(gradient, dtype=torch.float32).unsqueeze(1)}

    method = Given(**method.__dict__) if gradient else method
    _, engine = matrix_engine(method, weights, masks)
    fleet = engine.fleets[0]
    fleet = fleet.for_call(2, "search")
    find_step(method, "search")[0](fleet, Tree(share=torch.full((len(weights),), share)))
    return fleet.state.mask.x[:, 0].int().tolist(), fleet.state.trained.x[:, 0].tolist()


def test_smallest_weights_give_way_to_those_with_the_most_gradient():
    method = DisPFL(density=0.5, regrow="gradient")
    weights, masks = [[3.0, -0.1, 0.2, 0, 0, 0]], [[1, 1, 1, 0, 0, 0]]
    gradient = [[9.0, 9.0, 9.0, 0.1, -5.0, 1.0]]
    assert search(method, weights, masks, 0.3, gradient) == (
        [[1, 0, 1, 0, 1, 0]],
        [pytest.approx([3, 0, 0.2, 0, 0, 0])],
    )
    mask, kept = search(method, weights, masks, 0.5, gradient)  # half of three: two
    assert mask == [[1, 0, 0, 0, 1, 1]]
    assert kept == [[3, 0, 0, 0, 0, 0]]
    assert search(method, weights, masks, 0.0, gradient)[0] == masks


def test_others_come_at_random():
    method = DisPFL(density=0.5)
    masks = [[1, 1, 1, 0, 0, 0]] * 40
    found = torch.tensor(search(method, [[3.0, 0.1, 0.2, 0, 0, 0]] * 40, masks, 0.3)[0])
    assert found[:, :3].tolist() == [[1, 0, 1]] * 40
    assert found.sum(1).tolist() == [3] * 40
    assert (found.sum(0)[3:] > 3).all()


def test_equal_weights_give_way_at_random():
    found = torch.tensor(search(DisPFL(density=0.5), [[0.0] * 6] * 40, [[1, 1, 1, 0, 0, 0]] * 40, 0.3)[0])
    assert (found.sum(0) > 3).all()
    assert (found.sum(0)[:3] < 40).all()


def test_where_few_are_missing_no_more_are_exchanged():
    mask, _ = search(DisPFL(density=0.84, drop=0.5), [[1.0, 2, 3, 4, 5, 0]], [[1, 1, 1, 1, 1, 0]], 0.5)
    assert mask == [[0, 1, 1, 1, 1, 1]]


def test_small_matrices_are_denser_and_the_total_is_right():
    for density in (0.2, 0.5, 0.9, 1.0):
        setup = toy_setup(DisPFL(density=density))
        fleet = setup.fleet([0])
        setup.method.start_client(fleet)
        counts = setup.method.counts(fleet)
        sizes = {path: leaf[0].numel() for path, leaf in flatten(fleet.state.model)}
        vectors = sum(size for path, size in sizes.items() if path not in counts)
        assert set(sizes) - set(counts) == {"layer0/bias", "layer1/bias", "head/bias"}
        assert abs(sum(counts.values()) + vectors - density * sum(sizes.values())) <= len(counts)
        assert {path: int(mask.sum()) for path, mask in flatten(fleet.state.mask)} == counts
    found = erk(CORA, 0.5, 1.0)
    assert found["layer0/weight"] < found["layer1/weight"] < found["head/weight"] == 1.0
    ratio = (1497 / (1433 * 64)) / (128 / 4096)
    assert found["layer0/weight"] / found["layer1/weight"] == pytest.approx(ratio)
    total = sum(math.prod(shape) * found.get(path, 1.0) for path, shape in CORA.items())
    assert total == pytest.approx(0.5 * sum(math.prod(shape) for shape in CORA.values()))
    assert len(set(erk(CORA, 0.5, 0.0).values())) == 1
    assert set(erk(CORA, 1.0, 1.0).values()) == {1.0}
    with pytest.raises(InputError, match="density"):  # biases alone are more
        erk(CORA, 0.001, 1.0)


def test_fewer_and_fewer_weights_are_given_up():
    method = DisPFL(drop=0.4)
    assert method.drop_share(0, 100) == pytest.approx(0.4)
    assert method.drop_share(50, 100) == pytest.approx(0.2)
    assert method.drop_share(100, 100) == 0
    shares = [method.drop_share(round, 100) for round in range(101)]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("regrow", ["random", "gradient"])
@pytest.mark.parametrize("local", ["experiment", "author"])
def test_what_a_peer_does_not_have_is_exactly_nothing(regrow, local):
    setup = toy_setup(DisPFL(density=0.4, regrow=regrow, local=local), dropout=0.5)
    masks = []
    for rounds in range(1, 6):
        state = run_rounds(setup, rounds=rounds).client(1)
        kept = dict(flatten(state.mask))
        fields = [state.model, state.trained]
        if local == "experiment":
            fields += [state.optimizer.model.first, state.optimizer.model.second]
        for field in fields:
            for path, leaf in flatten(field):
                assert path not in kept or not leaf[~kept[path]].any()
        masks.append(torch.cat([mask.flatten() for mask in kept.values()]))
        counts = {path: int(mask.sum()) for path, mask in kept.items()}
        assert counts == {path: int(mask.sum()) for path, mask in flatten(run_rounds(setup, rounds=0).client(1).mask)}
    assert all(not torch.equal(one, masks[0]) for one in masks[1:])
    fixed = toy_setup(DisPFL(density=0.4, drop=0.0))
    assert gap(run_rounds(fixed, rounds=4).client(1).mask, run_rounds(fixed, rounds=0).client(1).mask) == 0


def test_mask_is_that_of_the_models_which_are_scored():
    state = run_rounds(toy_setup(DisPFL(density=0.4)), rounds=4).client(0)
    kept = dict(flatten(state.mask))
    assert any(leaf[kept[path]].any() for path, leaf in flatten(state.trained) if path in kept)
    before = run_rounds(toy_setup(DisPFL(density=0.4)), rounds=3).client(0)
    other = dict(flatten(before.mask))
    assert any(leaf[~other[path]].any() for path, leaf in flatten(state.trained) if path in other)


def test_whole_models_are_dpsgd_that_mixes_first():
    settings = {"clients": 5, "dropout": 0.5}
    ours = run_rounds(toy_setup(DisPFL(density=1.0), **settings), rounds=3)
    wanted = run_rounds(toy_setup(DPSGD("dispfl"), **settings), rounds=3)
    sparse = run_rounds(toy_setup(DisPFL(density=0.9), **settings), rounds=3)
    for peer in range(5):
        for field in ("model", "trained"):
            assert gap(ours.client(peer)[field], wanted.client(peer)[field]) < 1e-5
            assert gap(sparse.client(peer)[field], wanted.client(peer)[field]) > 1e-3


def test_masks_differ_unless_wished_otherwise():
    own, common = (run_rounds(toy_setup(DisPFL(same_start=same)), rounds=0) for same in (False, True))
    assert gap(own.client(0).mask, own.client(1).mask) == 1
    assert gap(common.client(0).mask, common.client(1).mask) == 0


def test_messages_are_the_weights_a_peer_has_and_a_bit_for_each():
    finished = run_rounds(toy_setup(DisPFL(density=0.5), topology=COMPLETE), rounds=2)
    kept = {path: int(mask.sum()) for path, mask in flatten(finished.client(0).mask)}
    assert set(kept) == {"layer0/weight", "layer1/weight", "head/weight"}  # 6 x 8, 8 x 8 and 8 x 3
    biases = 8 + 8 + 3
    size = 4 * (sum(kept.values()) + biases) + (48 + 64 + 24) // 8
    assert finished.traffic.peer == 2 * 6 * size
    assert size < 0.6 * 4 * (48 + 64 + 24 + biases)


def test_only_what_was_heard_counts():
    setup = toy_setup(DisPFL(regrow="gradient"), clients=5, dropout=0.5)
    here, engine = run_rounds(setup, rounds=3), Loopback(setup)
    try:
        there = run_rounds(setup, rounds=3, engine=engine)
        assert all(gap(here.client(peer), there.client(peer)) < 1e-5 for peer in range(5))
    finally:
        engine.close()


def test_order_is_that_of_sizes_and_the_greatest_are_found():
    random = streams(torch.device("cpu"), 0, [0])
    keys = ordered(torch.tensor([[0.5, -2.0, 0.0, 1e-30]]), random)
    assert keys.argsort(1).tolist() == [[2, 3, 0, 1]]
    assert top(keys, 2).tolist() == [[True, True, False, False]]
    assert top(keys, 2, torch.tensor([[1.0]])).tolist() == [[False, True, False, False]]


def test_authors_train_with_sgd_that_slows_down():
    setup = toy_setup(DisPFL(local="author"))
    fleet = setup.fleet([0]).for_call(3, "train")
    training = setup.method.training(fleet)
    assert (training.optimizer, training.epochs, training.weight_decay, training.clip_norm) == ("sgd", 5, 5e-4, 10.0)
    assert float(training.learning_rate) == pytest.approx(0.1 * 0.998**2)
    assert DisPFL().training(fleet) is fleet.training
