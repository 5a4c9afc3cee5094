"""What FedGKC sends and records, and what its step costs."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from graft.engines.in_process import InProcess
from graft.errors import InputError
from graft.federation.clients import Request
from graft.federation.fleet import initial_weights
from graft.federation.session import Session
from graft.methods.fedgkc import FedGKCPaper
from graft.methods.fedgkc.method import TERMS
from graft.tensors.trees import Tree, count_bytes
from tests.methods.fedgkc.cases import ARCHITECTURES, LOSSES, record_of
from tests.toy import SIZES, gap, run_rounds, toy_setup

RECORDED = ["copilot_labels", "copilot_predictions", "copilot_neighbourhood"]
RECORDED += ["local_labels", "local_predictions", "local_neighbourhood", "local_self"]


def test_bytes_are_the_copilot_down_and_the_copilot_and_eleven_numbers_up():
    setup = toy_setup(FedGKCPaper(), models="gat,sage,gin")
    copilot = count_bytes(initial_weights(setup.architecture("gcn"), 0))
    assert copilot == 4 * (6 * 8 + 8 + 8 * 8 + 8 + 8 * 3 + 3)
    finished = run_rounds(setup, rounds=2)
    beside = 8 + 3 * 4 + 7 * 4  # nodes; strength, clarity and knowledge; the terms of the losses
    assert (finished.traffic.down, finished.traffic.up) == (2 * 3 * copilot, 2 * 3 * (copilot + beside))
    half = run_rounds(toy_setup(FedGKCPaper(), participation=0.34), rounds=2)
    assert (half.traffic.down, half.traffic.up) == (2 * copilot, 2 * (copilot + beside))


def test_the_round_is_recorded_client_by_client():
    setup = toy_setup(FedGKCPaper(), models="gcn,sage", dropout=0.5)
    finished, alone = run_rounds(setup), run_rounds(setup, engine=InProcess(setup, alone=True))
    record, other = record_of(finished), record_of(alone)
    assert {"strength", "clarity", "knowledge", "volume_weight", "weight", *RECORDED} <= record.keys()
    for name, values in record.items():
        assert values == pytest.approx(other[name], abs=1e-5)
    both = [sum(pair) for pair in zip(record["strength"], record["clarity"], strict=True)]
    assert record["knowledge"] == pytest.approx(both, abs=1e-6)
    shares = [share / sum(both) for share in both]
    halves = [(volume + share) / 2 for volume, share in zip(record["volume_weight"], shares, strict=True)]
    assert record["weight"] == pytest.approx(halves, abs=1e-6)
    assert record["volume_weight"] == pytest.approx([size / 28 for size in SIZES])


@pytest.mark.parametrize("schedule", ["copilot_first", "local_first", "simultaneous", "block"])
def test_recorded_terms_add_up_to_the_last_losses(schedule):
    switches = {"smkd": False}, {"self_distill": False}, {"mutual": False}, {"feedback": 0.0}
    for settings, copilot, local in [case for case in LOSSES if case[0] in ({}, *switches)]:
        setup = toy_setup(FedGKCPaper(schedule=schedule, **settings), dropout=0.5)
        outcome = Session(setup, InProcess(setup)).round(1, evaluate=False)
        losses = dict(zip(outcome.losses.owners, outcome.losses.values.tolist(), strict=True))
        for name, step, shares in (("copilot", "train/copilot", copilot), ("local", "train", local)):
            terms = {term: outcome.details[f"{name}_{term}"] for term in TERMS[name]}
            expected = [losses[step, client] for client in range(3)]
            assert sum(terms.values()).tolist() == pytest.approx(expected, rel=1e-5)
            assert {term for term, sizes in terms.items() if sizes.any()} == shares.keys()


def test_recorded_terms_of_a_single_epoch_are_those_of_the_start():
    method = FedGKCPaper(schedule="block")
    setup = toy_setup(method, models="sage", epochs=1)
    record = record_of(run_rounds(setup, rounds=1))
    fleet = setup.fleet([0, 1, 2])
    fleet = fleet.for_call(1, "train")
    start = Tree(copilot=fleet.initial(fleet.architecture("gcn")), model=fleet.initial())
    for term, size in method.copilot_terms(fleet, start).items():
        assert record[f"copilot_{term}"] == pytest.approx(size.tolist(), abs=1e-6)
    assert record["local_labels"] == pytest.approx(method.local_terms(fleet, start).labels.tolist(), abs=1e-6)


def test_a_round_without_training_records_terms_of_zero():
    record = record_of(run_rounds(toy_setup(FedGKCPaper(), epochs=0), rounds=1))
    assert all(record[name] == [0, 0, 0] for name in RECORDED)
    assert min(record["weight"]) > 0


def test_labels_and_neighbourhoods_cannot_weigh_more_than_all():
    with pytest.raises(InputError, match="add up to at most 1"):
        FedGKCPaper(alpha=0.9, beta=0.2)
    FedGKCPaper(alpha=0.8, beta=0.2)


class Reads(TorchDispatchMode):
    """Notes every operation that reads a value back to the host, or whose result has a size that depends on values."""

    WATCHED = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "bincount", "is_nonzero", "equal")

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if function.overloadpacket.__name__ in self.WATCHED:
            self.found.append(function.overloadpacket.__name__)
        return function(*arguments, **(named or {}))


@pytest.mark.parametrize("settings", [{}, {"schedule": "block", "neigh_projection": True}], ids=str)
@pytest.mark.parametrize("models", ARCHITECTURES)
def test_a_step_reads_nothing_back_once_its_graphs_are_prepared(models, settings, monkeypatch):
    setup = toy_setup(FedGKCPaper(copilot="gat", **settings), models=models, optimizer="sgd", dropout=0.5)
    engine = InProcess(setup)
    copilot = initial_weights(setup.architecture("gat"), 0)
    lists, whole = [], torch.Tensor.tolist

    def watched_list(tensor):
        lists.append(tensor)
        return whole(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", watched_list)
    for number, reads in ((1, True), (2, False)):
        lists.clear()
        with Reads() as seen:
            engine.ask(Request("train", number, [0, 1, 2], copilot))
        assert bool(seen.found + lists) == reads


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("models", ARCHITECTURES)
def test_replayed_rounds_and_their_records_equal_plain_ones(models):
    for settings in ({}, {"schedule": "block", "neigh_projection": True}):
        setup = toy_setup(FedGKCPaper(copilot="gat", **settings), models=models, dropout=0.5)
        setup = replace(setup, device=torch.device("cuda"))
        replayed, plain = run_rounds(setup, rounds=5), run_rounds(replace(setup, capture=False), rounds=5)
        assert replayed.engine.rounds.captured
        assert all(gap(replayed.client(client), plain.client(client)) < 1e-4 for client in range(3))
        record, expected = record_of(replayed), record_of(plain)
        earlier = record_of(run_rounds(setup, rounds=4))
        for name in ("knowledge", "weight", *RECORDED):
            assert record[name] == pytest.approx(expected[name], abs=1e-4)
            assert record[name] != pytest.approx(earlier[name], abs=1e-6)
