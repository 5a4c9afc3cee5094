"""A process, a port and a certificate for everybody: federations end where the same federation in one process ends."""

import pytest

import graft
from graft.experiments.run_directory import RunDirectory
from tests.federation_processes import PARTIES, SERVER, read_state, running
from tests.test_every_engine import with_optimisers
from tests.toy import gap

pytest.importorskip("zenoh")
pytest.importorskip("cryptography")

ROUNDS = 3
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("fedavg", "fedgkc", "fedtad", "dfed_sst")]


def run_processes(folder, method):
    """Where everybody has the record of a federation of real processes that has ended."""
    with running(folder, method, ROUNDS) as federation:
        federation.wait()
    return federation.out


def run_one_process(out, data, method, seed=0):
    """The record of the same federation with all graphs in one process."""
    graphs = {name: data / f"{name}.npz" for name in PARTIES}
    settings = {"rounds": ROUNDS, "width": 8, "split": "20/40/40", "seed": seed, "device": "cpu"}
    graft.run(method, graphs, out=out, **settings)
    return RunDirectory(out)


def kept_by(folder, name):
    """What a party or a peer keeps after the last round."""
    committed = folder / name / "party" / "state" / "committed"
    return read_state(committed) if committed.exists() else RunDirectory(folder / name).load().clients[0]


def distance(folder, here):
    """The largest difference of weights, and of scores, between real processes and one process."""
    checkpoint, records = here.load(), here.read_rounds()
    gaps = []
    for number, name in enumerate(PARTIES):
        expected, kept = checkpoint.clients[number], kept_by(folder, name)
        gaps.append(gap(with_optimisers(expected, kept), with_optimisers(kept, expected)))
        for record, own in zip(records, RunDirectory(folder / name).read_rounds(), strict=True):
            assert not own.get("absent")
            gaps.append(abs(record["per_client"]["test"][number] - own["per_client"]["test"][0]))
    if (folder / SERVER).exists():
        gaps.append(gap(checkpoint.server, RunDirectory(folder / SERVER).load().server))
    return max(gaps)


@pytest.mark.parametrize("method", ["fedomd", *SLOW])
def test_real_processes_end_where_one_process_ends(tmp_path, method):
    folder = run_processes(tmp_path / "real", method)
    data = folder / "data"
    assert distance(folder, run_one_process(tmp_path / "here", data, method)) < 1e-5
    assert distance(folder, run_one_process(tmp_path / "elsewhere", data, method, seed=1)) > 1e-3
