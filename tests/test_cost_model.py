"""The model of what rounds on a cluster cost: it finds again what a made-up machine was given."""

import importlib.util
import json
import subprocess
import sys

import pytest

from tests.documents import ROOT

FILE = ROOT / "benchmarks" / "cost_model.py"
LATENCY, TURN, JOINING, BANDWIDTH, REST = 2e-3, 1e-3, 1e6, 1e8, 3e-3
STEPS = {"train": (0.02, 0.5), "score": (0.005, 0.1)}  # seconds of a call, and of all clients


@pytest.fixture(scope="module")
def model():
    spec = importlib.util.spec_from_file_location("cost_model", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["cost_model"] = module  # where a dataclass looks for its own module
    spec.loader.exec_module(module)
    return module


def timing(step, workers, working, clients=1000, size=0.0):
    seconds = working + LATENCY + TURN * workers + clients / JOINING + size / BANDWIDTH
    return {"step": step, "seconds": seconds, "working": working, "workers": workers, "sent": size, "received": 0}


def run_of(workers, slower=1.0):
    exchanges = [timing(step, workers, slower * (call + work / workers)) for step, (call, work) in STEPS.items()]
    return {"rounds": [REST + sum(entry["seconds"] for entry in exchanges)] * 3, "exchanges": [exchanges] * 3}


def results_of_machine(cores=2, call=TURN / 2):
    """Returns what `cluster.py` would have written on a machine that is as the model says."""
    runs = {f"100 nodes, {w} worker{'s'[: w - 1]}": run_of(w, max(1, w / cores)) for w in (1, 2, 4)}
    few = [{"exchanges": [[timing("train", 2, 0.01, size=size)]]} for size in (1e6, 4e6)]
    driver = {f"{count}": {"clients": count, "exchanges": [count / JOINING]} for count in (1000, 10_000)}
    calls = {"": {"few": 2, "many": 64, "few_s": [0.001], "many_s": [0.001 + 62 * call]}}
    return {"cores": cores, "overhead": runs, "bytes": dict(enumerate(few)), "driver": driver, "calls": calls}


def test_costs_are_found_again_and_a_run_that_was_not_seen_is_predicted(model):
    results = results_of_machine()
    costs = model.fit(results, 100)
    assert (costs.latency, costs.turn, costs.rest) == pytest.approx((LATENCY, TURN, REST))
    assert (costs.joining, costs.bandwidth) == pytest.approx((JOINING, BANDWIDTH))
    for exchange in costs.exchanges:
        assert (exchange.call, exchange.work) == pytest.approx(STEPS[exchange.step])
    measured = results["overhead"]["100 nodes, 4 workers"]["rounds"][0]
    assert costs.round(4, cores=2) == pytest.approx(measured)
    assert costs.round(4, cores=4) < 0.7 * measured  # with a core for each it would be faster


def test_a_worker_more_takes_at_least_a_call(model):
    assert model.fit(results_of_machine(call=2 * TURN), 100).turn == pytest.approx(2 * TURN)


def test_predictions_are_printed_beside_what_was_measured(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(results_of_machine()))
    words = [sys.executable, str(FILE), "--results", str(tmp_path / "results.json")]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "| 100 | 4 | " in printed
    assert "+0 % | predicted |" in printed
    assert "64 GPUs, a prediction" in printed
