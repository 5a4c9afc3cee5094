"""One method, many engines: three workers of a Ray cluster end where one process ends, for every method.

That messages survive as bytes between processes, `loopback`, is part of the contract that every method passes.
"""

import json
import subprocess
import sys

import pytest
import torch

from graft.engines.cluster import Cluster
from graft.methods import METHODS
from graft.tensors.trees import Tree, flatten, unflatten
from tests.contract import contract_method, usual_model
from tests.test_every_method import SETTINGS
from tests.toy import gap, run_rounds, toy_setup

ROUNDS = 3


def federation(name, participation, seed=0):
    """Seven clients, of four architectures where the method allows it, with dropout."""
    method = SETTINGS.get(name) or contract_method(name)
    models = "gcn,gat,sage,gin" if method.heterogeneous else usual_model(method)
    return toy_setup(method, clients=7, models=models, dropout=0.5, participation=participation, seed=seed)


def with_optimisers(state, other):
    """A client's state with an optimiser that has seen nothing where only the other engine has made one yet."""
    missing = {path: torch.zeros_like(leaf) for path, leaf in flatten(other) if path.startswith("optimizer/")}
    return unflatten(dict(sorted({**missing, **dict(flatten(state))}.items())))


def distance(here, there):
    """The largest difference between two finished federations: their clients, servers and records."""
    first, second = here.engine.state(), there.engine.state()
    pairs = [(with_optimisers(first[c], second[c]), with_optimisers(second[c], first[c])) for c in first]
    clients = [gap(*pair, relative=True) for pair in pairs]  # FedOMD's fifth moments reach thousands
    records = [
        Tree({name: value for name, value in finished.records.items() if isinstance(value, torch.Tensor)})
        for finished in (here, there)
    ]
    return max(*clients, gap(here.server.state, there.server.state), gap(*records))


@pytest.mark.parametrize("participation", [1.0, 0.3])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_three_ray_workers_end_where_one_process_ends(name, participation, ray_pool):
    setup = federation(name, participation)
    here = run_rounds(setup, ROUNDS)
    there = run_rounds(setup, ROUNDS, Cluster(setup, ray_pool))
    assert distance(here, there) < 1e-5
    assert here.traffic == there.traffic


class Disturbing:
    """Workers that hear every message a little wrong."""

    def __init__(self, pool):
        self.pool = pool

    def __len__(self):
        return len(self.pool)

    def __getattr__(self, name):
        return getattr(self.pool, name)

    def share(self, arrays):
        heard = {path: leaf + 1e-3 if hasattr(leaf, "dtype") else leaf for path, leaf in (arrays or {}).items()}
        return self.pool.share(heard if arrays else arrays)


@pytest.mark.parametrize("name", ["fedavg", "fedgkc", "dfed_sst"])
def test_another_message_or_another_seed_would_be_noticed(name, ray_pool):
    setup = federation(name, 1.0)
    here = run_rounds(setup, ROUNDS)
    assert distance(here, run_rounds(setup, ROUNDS, Cluster(setup, Disturbing(ray_pool)))) > 1e-4
    other = federation(name, 1.0, seed=1)
    assert distance(here, run_rounds(other, ROUNDS, Cluster(other, ray_pool))) > 1e-3


THREE_NODES = """
import json
from ray.cluster_utils import Cluster as Nodes
from graft.engines.cluster import Cluster
from graft.engines.ray import RayPool, Resources, connected
from tests.test_every_engine import distance, federation
from tests.toy import run_rounds

nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
for _ in range(2):
    nodes.add_node(num_cpus=1)
try:
    with connected(nodes.address, 3, Resources()) as ray:
        pool = RayPool(ray, 3, Resources())
        distances = {}
        for name in ("fedavg", "fedgkc", "dfed_sst"):
            setup = federation(name, 1.0)
            distances[name] = distance(run_rounds(setup, 3), run_rounds(setup, 3, Cluster(setup, pool)))
        print(json.dumps({"nodes": len(set(pool.nodes())), "distances": distances}))
        pool.close()
finally:
    nodes.shutdown()
"""


@pytest.mark.slow
def test_workers_on_three_nodes_end_where_one_process_ends():
    pytest.importorskip("ray")
    told = subprocess.run([sys.executable, "-c", THREE_NODES], capture_output=True, text=True, timeout=240, check=False)
    assert told.returncode == 0, told.stderr[-2000:]
    outcome = json.loads(told.stdout.splitlines()[-1])
    assert outcome["nodes"] == 3
    assert max(outcome["distances"].values()) < 1e-5
