"""Tunings on a Ray cluster: the trials of one process, also where workers die."""

from textwrap import dedent

import pytest

import graft
from graft.engines.tasks import RETRIES
from graft.experiments import cluster_runs
from tests.experiments.test_cluster_runs import write_graph
from tests.experiments.tuning.test_tune import FRAGILE, SMALL, rows

ONE = {**SMALL, "threads": 1, "jobs": 1}
MORTAL = """\
    import os
    from dataclasses import dataclass
    from pathlib import Path

    from graft.methods.fedprox import FedProx


    @dataclass(frozen=True)
    class Mortal(FedProx):
        \"\"\"Ends its process twice, in rounds of which a score was told and of which none was.\"\"\"

        folder: str = "."

        def round(self, server, clients):
            if self.folder:
                rounds = Path(self.folder, "rounds")
                with rounds.open("a") as file:
                    file.write(".")
                if rounds.stat().st_size in (3, 9):
                    os._exit(3)
            super().round(server, clients)
"""


@pytest.mark.usefixtures("ray_cluster")
def test_a_tuning_on_a_cluster_is_that_of_one_process_and_a_second_call_runs_nothing(tmp_path, monkeypatch):
    here = graft.tune("fedprox", **ONE, trials=7)
    there = graft.tune("fedprox", **ONE, trials=7, engine="ray", out=tmp_path / "out")
    assert rows(there) == rows(here)
    assert {row["state"] for row in rows(here)} == {"complete", "pruned"}
    assert there.summary["methods"]["fedprox"]["test"] == here.summary["methods"]["fedprox"]["test"]
    assert len({str(row["params"]) for row in rows(there)}) == 7
    monkeypatch.setattr(cluster_runs, "cluster_for_tasks", None)
    heard = []
    again = graft.tune("fedprox", **ONE, trials=7, engine="ray", out=tmp_path / "out", report=heard.append)
    assert (rows(again), heard) == (rows(here), [])


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_trials_whose_worker_dies_are_run_again(tmp_path):
    (tmp_path / "mortal.py").write_text(dedent(MORTAL))
    method = f"{tmp_path / 'mortal.py'}:Mortal"
    values = {**ONE, "final_seeds": 0, "trials": 3}
    here = graft.tune(method, **values, settings={"folder": ""})
    there = graft.tune(method, **values, settings={"folder": str(tmp_path)}, engine="ray")
    assert rows(there, "mortal") == rows(here, "mortal")
    assert (tmp_path / "rounds").stat().st_size > 3 * SMALL["rounds"]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_trial_whose_worker_always_dies_fails_and_the_others_do_not(tmp_path):
    (tmp_path / "fragile.py").write_text(dedent(FRAGILE).replace("os._exit(3)", DEATH.format(tmp_path / "deaths")))
    method, values = f"{tmp_path / 'fragile.py'}:Fragile", {**ONE, "final_seeds": 0, "search": ["share"]}
    tuning = graft.tune(
        method, **values, trials=2, settings={"deadly": True}, engine="ray", space={"share": "0.4..0.5"}
    )
    first, second = rows(tuning, "fragile")
    assert (first["state"], second["state"]) == ("complete", "failed")
    assert "process died" in second["reason"]
    assert (tmp_path / "deaths").stat().st_size == RETRIES + 1


DEATH = 'open("{}", "a").write("."); os._exit(3)'


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_data_of_a_path_are_sent(tmp_path):
    path = write_graph(tmp_path / "graph.npz")
    values = {**{name: value for name, value in ONE.items() if name != "dataset"}, "trials": 2, "final_seeds": 1}
    here, there = (graft.tune("fedprox", path, **values, **engine) for engine in ({}, {"engine": "ray"}))
    assert rows(there) == rows(here)
    assert there.summary["methods"]["fedprox"]["test"] == here.summary["methods"]["fedprox"]["test"]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_ctrl_c_ends_a_tuning_and_it_goes_on(tmp_path):
    def interrupt(_):
        raise KeyboardInterrupt

    values = {**ONE, "trials": 3, "final_seeds": 0, "out": tmp_path / "out", "engine": "ray"}
    stopped = graft.tune("fedprox", **values, report=interrupt)
    assert stopped.stopped
    assert len(rows(stopped)) == 1
    assert rows(graft.tune("fedprox", **values)) == rows(graft.tune("fedprox", **{**ONE, "final_seeds": 0}, trials=3))
