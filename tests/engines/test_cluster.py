"""The cluster engine: clients shared out over workers, which are plain objects of this process here."""

import os
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from graft.engines.arrays import stack_alike, to_arrays, to_tree, unstack
from graft.engines.cluster import Cluster
from graft.engines.failures import StepFailed
from graft.engines.in_process import InProcess
from graft.federation.clients import Request
from graft.federation.method import Method, step
from graft.methods.dfed_sst import DFedSST
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc import FedGKC
from graft.methods.fedgta import FedGTA
from graft.methods.local import Local
from graft.tensors.trees import Tree, flatten
from graft.testing.local_pool import LocalPool
from tests.toy import gap, run_rounds, toy_setup


@dataclass(frozen=True)
class Probe(Method):
    """Steps that show what reaches a client, and how they fail."""

    averages = ("hold/model",)

    def start_client(self, fleet):
        super().start_client(fleet)
        fleet.state.asked = torch.zeros(len(fleet.clients), dtype=torch.int64)

    @step
    def tell(self, fleet, message):
        fleet.state.asked = fleet.state.asked + 1
        return Tree(number=fleet.client_ids, heard=message.value, asked=fleet.state.asked)

    @step
    def hold(self, fleet):
        numbers = fleet.client_ids
        return Tree(model=Tree(value=numbers.float(), counter=numbers + 10), number=numbers)

    @step
    def fail(self, fleet):
        if 3 in fleet.clients:
            raise ValueError("mean has 64 features, hidden has 32")
        return Tree()

    @step(fleet=False)
    def ragged(self, fleet):
        return Tree(rows=torch.ones(1, 1 + fleet.clients[0]))


@pytest.fixture
def cluster():
    return Cluster(toy_setup(Probe(), clients=5), LocalPool(3))


def ask(engine, name, message=None, each=None, clients=None):
    return engine.ask(Request(name, 12, engine.members() if clients is None else clients, message, each))


def test_every_client_is_reached_and_replies_come_in_client_order(cluster):
    replies = ask(cluster, "tell", Tree(value=torch.tensor(7.0)))
    assert replies.number.tolist() == [0, 1, 2, 3, 4]
    assert replies.heard.tolist() == [7.0] * 5
    assert ask(cluster, "tell", Tree(value=torch.tensor(7.0)), clients=[1, 4]).asked.tolist() == [2, 2]


def test_each_client_gets_its_own_message(cluster):
    each = {client: Tree(value=torch.tensor(float(client))) for client in range(5)}
    assert ask(cluster, "tell", each=each).heard.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_what_is_only_averaged_stays_at_the_workers_and_its_mean_is_right(cluster):
    replies = ask(cluster, "hold")
    weights = torch.tensor([1.0, 2.0, 0.0, 0.0, 1.0])
    mean = replies.mean("model", weights)
    assert mean.value.item() == pytest.approx((0 * 1 + 1 * 2 + 4 * 1) / 4)
    assert mean.counter.item() == 10  # of the first client, as in process
    assert replies.number.tolist() == [0, 1, 2, 3, 4]
    in_process = InProcess(toy_setup(Probe(), clients=5))
    assert replies.bytes() == ask(in_process, "hold").bytes()
    with pytest.raises(Exception, match="averages"):
        _ = replies.model


def test_a_mean_is_of_the_replies_that_it_was_asked_of_even_if_the_step_ran_again(cluster):
    first = ask(cluster, "hold", clients=[0, 1, 2])
    second = cluster.ask(Request("hold", 12, [3, 4], turn=1))
    assert first.mean("model", torch.ones(3)).value.item() == 1.0
    assert second.mean("model", torch.ones(2)).value.item() == 3.5


def test_sums_come_with_the_answers_once_it_is_known_what_weighs_them():
    setup = toy_setup(FedAvg(), clients=5, dropout=0.5)
    cluster = Cluster(setup, LocalPool(3))
    finished = run_rounds(setup, 3, cluster)
    assert [timing.step for timing in cluster.timings] == ["train", "train/model", "train", "train"]
    assert all(timing.seconds >= timing.working > 0 for timing in cluster.timings)
    assert gap(finished.server.state, run_rounds(setup, 3).server.state) < 1e-6


def test_a_sum_that_came_with_an_answer_is_the_one_that_is_asked_for(cluster):
    first = ask(cluster, "hold")
    by_trip = first.mean("model", first.number)
    came_with_it = ask(cluster, "hold")
    trips = len(cluster.timings)
    assert torch.equal(came_with_it.mean("model", came_with_it.number).value, by_trip.value)
    assert len(cluster.timings) == trips
    other = came_with_it.mean("model", torch.tensor([1, 0, 0, 0, 1]))
    assert other.value.item() == 2.0  # workers were asked again
    assert len(cluster.timings) == trips + 1


def test_all_count_the_same_where_nobody_has_a_vote(cluster):
    assert ask(cluster, "hold").mean("model", torch.zeros(5)).value.item() == 2.0


def test_a_failure_says_who_failed_in_which_step_and_round(cluster):
    with pytest.raises(StepFailed, match=r"Clients? .*3.* failed in step 'fail' of probe, round 12: mean has 64"):
        ask(cluster, "fail")
    assert ask(cluster, "tell", Tree(value=torch.tensor(1.0))).asked.tolist() == [1] * 5  # and the engine goes on


def test_only_steps_can_be_asked_for(cluster):
    for name in ("start_client", "__class__", "nothing"):
        with pytest.raises(ValueError, match="is not a step"):
            ask(cluster, name)


def test_replies_of_different_sizes_arrive(cluster):
    replies = ask(cluster, "ragged")
    assert [replies[client].rows.shape[0] for client in range(5)] == [1, 2, 3, 4, 5]


def test_a_message_is_shared_once_whatever_the_number_of_workers_and_clients():
    pool = LocalPool(3)
    setup = toy_setup(FedAvg(), clients=6)
    run_rounds(setup, 1, Cluster(setup, pool))
    model_bytes = sum(leaf.nbytes for _, leaf in flatten(run_rounds(setup, 1).server.state.model))
    assert [size for size in pool.shared_bytes if size] == [model_bytes]


@pytest.mark.parametrize("method", [FedAvg(), FedGTA(), FedGKC(), DFedSST(), Local()])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_gives_what_one_process_gives(method, workers):
    models = "gcn,sage,gin" if method.heterogeneous else "gcn"
    setup = toy_setup(method, clients=5, models=models, dropout=0.5)
    here, there = run_rounds(setup, 3), run_rounds(setup, 3, Cluster(setup, LocalPool(workers)))
    assert gap(here.engine.state(), there.engine.state()) < 1e-5
    assert gap(here.server.state, there.server.state) < 1e-5
    assert here.traffic == there.traffic
    other = toy_setup(method, clients=5, models=models, dropout=0.5, seed=1)
    assert gap(here.engine.state(), run_rounds(other, 3, Cluster(other, LocalPool(workers))).engine.state()) > 1e-3


def test_restored_workers_go_on_as_if_nothing_had_happened():
    setup = toy_setup(FedGKC(), clients=5, models="gcn,gin", dropout=0.5)
    unbroken = run_rounds(setup, 4, Cluster(setup, LocalPool(3)))
    half = run_rounds(setup, 2, Cluster(setup, LocalPool(3)))
    fresh = Cluster(setup, LocalPool(3))
    fresh.restore(half.engine.state())
    resumed = run_rounds(setup, 2, fresh, first=3, state=half.server.state)
    assert gap(unbroken.engine.state(), resumed.engine.state()) == 0
    assert gap(unbroken.engine.state(), half.engine.state()) > 1e-3


def test_a_copy_of_states_stays_what_it_was_and_is_dropped_with_its_owner():
    pool = LocalPool(2)
    setup = toy_setup(FedAvg(), clients=4)
    finished = run_rounds(setup, 1, Cluster(setup, pool))
    copied = finished.engine.copy_state(["model"])
    before = finished.engine.state()
    run_rounds(setup, 1, finished.engine, first=2, state=finished.server.state)
    assert gap({c: tree["model"] for c, tree in copied.items()}, {c: tree["model"] for c, tree in before.items()}) == 0
    assert gap(before, finished.engine.state()) > 1e-4
    assert all(worker._copies for worker in pool.workers)
    del copied
    assert not any(worker._copies for worker in pool.workers)


def test_arrays_on_their_way_are_those_that_were_sent():
    tree = Tree(model=Tree(weight=torch.randn(2, 3), steps=torch.tensor(3)), rate=0.5, flags=torch.tensor([True]))
    arrays = to_arrays(tree)
    assert all(isinstance(leaf, np.ndarray | float) for leaf in arrays.values())
    back = to_tree(arrays)
    assert gap(tree.model, back.model) == 0
    assert back.model.steps.shape == ()  # without a client axis, as it was
    assert (back.rate, back.flags.tolist()) == (0.5, [True])
    assert list(dict(flatten(back))) == list(dict(flatten(tree)))
    assert back.model.weight.untyped_storage().data_ptr() != tree.model.weight.untyped_storage().data_ptr()
    assert to_tree(to_arrays(None)) is None
    assert to_tree(to_arrays(Tree())) == Tree()


def test_states_of_different_forms_are_stacked_apart():
    states = {4: Tree(a=torch.ones(2)), 1: Tree(a=torch.zeros(3)), 2: Tree(a=torch.full((2,), 5.0)), 7: Tree()}
    rows = stack_alike(states)
    assert [clients for clients, _ in rows] == [[4, 2], [1], [7]]
    assert gap(unstack(rows), states) == 0


def test_workers_know_their_process_and_memory():
    (told, _) = Cluster(toy_setup(FedAvg()), LocalPool(2)).describe_workers()
    assert told["process"] == os.getpid()
    assert told["budget"] > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", [FedAvg(), FedGKC(), DFedSST()])
def test_workers_on_a_gpu_capture_their_steps_and_give_what_one_process_gives(method):
    models = "gcn,sage,gin" if method.heterogeneous else "gcn"
    setup = toy_setup(method, clients=5, models=models, dropout=0.5)
    pool = LocalPool(2, device="cuda")
    here, there = run_rounds(setup, 5), run_rounds(setup, 5, Cluster(setup, pool))
    assert gap(here.engine.state(), there.engine.state()) < 1e-4
    captured = [steps.captured for worker in pool.workers for steps in worker.engine._steps.values()]
    assert captured
    assert all(captured)
    assert gap(here.engine.state(), run_rounds(setup, 4).engine.state()) > 1e-3
