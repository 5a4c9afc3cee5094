"""A federation that is larger than what its driver may take: graphs are where the workers are."""

import json
import subprocess
import sys

import pytest

from graft.data.generated import Generated

LIMIT = 600 * 10**6  # bytes of data of the driver; PyTorch, Graft and Ray take about 480 million of them
CLIENTS = 40
MODEL = Generated(nodes=16_000, degree=5, features=256, spread=0.1)
DRIVER = """
import json, resource, sys
from contextlib import nullcontext
import graft
from graft.engines.ray import Resources, connected

engine, dataset, clients, limit = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with connected("", 2, Resources()) if engine == "ray" else nullcontext():  # Ray's own processes are not limited
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    result = graft.run("fedavg", dataset, clients=clients, rounds=1, width=16, engine=engine, workers=2, threads=1)
print(json.dumps({"rounds": len(result.rounds), "nodes": sum(row["nodes"] for row in result.summary["per_client"])}))
"""


def run_limited(engine):
    words = [sys.executable, "-c", DRIVER, engine, MODEL.name, str(CLIENTS), str(LIMIT)]
    return subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
def test_a_graph_that_is_larger_than_the_drivers_memory_is_trained_on_workers():
    pytest.importorskip("ray")
    finished = run_limited("ray")
    assert finished.returncode == 0, finished.stderr
    told = json.loads(finished.stdout.splitlines()[-1])
    assert told["rounds"] == 1
    assert 4 * told["nodes"] * MODEL.features > LIMIT  # of features alone


@pytest.mark.slow
def test_the_same_graph_does_not_fit_into_the_driver():
    failed = run_limited("in_process")
    assert failed.returncode != 0
    assert "The run needs more memory than there is" in failed.stderr
