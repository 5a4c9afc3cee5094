"""On a GPU: a method whose rounds are declared capturable is captured as a whole, and no other could be."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from torch import Tensor

from graft.engines.in_process import InProcess
from graft.errors import RunError
from graft.federation.method import Method
from graft.federation.setup import Setup
from graft.tensors.trees import Tree, map_tree
from graft.testing.claim import claim, contract_setup, require
from graft.testing.toy import FinishedRounds, declaring, gap, run_rounds

ROUNDS = 5  # plain, watched, captured, and twice replayed


@claim
def rounds_are_captured_as_declared(method: Method) -> None:
    """Rounds are captured as a whole where the method declares it, and could not be where it does not."""
    if method.capturable:
        require(captured(run_rounds(on_gpu(method), ROUNDS)), "rounds are declared capturable, but are not captured")
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # it says what keeps a round from being captured
            possible = captured(run_rounds(on_gpu(declaring(method, capturable=True)), ROUNDS))
    except RunError:
        return
    require(not possible, "rounds could be captured: declare capturable = True")


@claim
def a_gpu_gives_what_a_cpu_gives(method: Method) -> None:
    """Rounds that are captured, steps that are, and neither of them end where a CPU does."""
    setup = on_gpu(method)
    here = run_rounds(replace(setup, device=torch.device("cpu")), ROUNDS)
    runs = {
        "captured step by step": run_rounds(setup, ROUNDS, whole=False),
        "not captured": run_rounds(replace(setup, capture=False), ROUNDS),
    }
    if method.capturable:
        runs["captured as a whole"] = run_rounds(setup, ROUNDS)
    for kind, there in runs.items():
        difference = gap(personal_models(here), personal_models(there))
        require(difference < 1e-4, f"models of clients differ by {difference:.1e} between a CPU and a GPU, {kind}")
        require(here.traffic == there.traffic, f"{here.traffic} on a CPU, {there.traffic} on a GPU, {kind}")


def on_gpu(method: Method) -> Setup:
    """Returns a federation on the GPU, of several architectures where the method allows it."""
    models = {} if method.one_model or "models" in method.experiment_defaults else {"models": "gcn,sage,gat"}
    return replace(contract_setup(method, dropout=0.5, **models), device=torch.device("cuda"))


def personal_models(finished: FinishedRounds) -> Tree:
    """Returns the models that clients would use themselves, fleet by fleet, on the host."""
    method = finished.session.setup.method
    return Tree({str(fleet.clients): map_tree(Tensor.cpu, method.personal(fleet)) for fleet in finished.engine.fleets})


def captured(finished: FinishedRounds) -> bool:
    """Returns whether rounds were captured as a whole."""
    engine = finished.engine
    return isinstance(engine, InProcess) and engine.rounds is not None and bool(engine.rounds.captured)
