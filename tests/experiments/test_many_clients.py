"""Runs that read, score and keep their participants alone, out of however many clients there are."""

import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext

import pytest

import graft
from graft.cli.run_state import RunState
from graft.engines.cluster import Cluster, CopiedStates
from graft.errors import InputError
from graft.experiments import engines
from graft.experiments.best_models import BestModels
from graft.experiments.comparison.comparison import Comparison
from graft.experiments.comparison.finished_runs import find_runs
from graft.experiments.engines import Host
from graft.experiments.following import FollowedRun
from graft.experiments.record_files import RoundRecord, check_record
from graft.experiments.reports.comparison_clients import gains_of_clients
from graft.experiments.reports.report import write_report
from graft.experiments.run_directory import RunDirectory
from graft.experiments.trackers.tracker import numbers_of
from graft.federation.session import Session
from graft.methods.fedavg import FedAvg
from graft.testing.local_pool import LocalPool
from tests.damage import essence
from tests.engines.test_on_demand import CountedGraphs, some_of
from tests.experiments.test_recovery import FragilePool
from tests.toy import same

SETTINGS = dict(
    dataset="generated:nodes=40,degree=2,classes=3,features=6,signal=4",
    clients=24,
    participation=4 / 24,
    width=4,
    rounds=4,
    checkpoint_every=1,
    device="cpu",
)
SOME = SETTINGS | dict(evaluate_clients="participants")


def mean(values):
    scored = [value for value in values if value is not None]
    return sum(scored) / len(scored)


def stop_after(number):
    def stop(record):
        if record["round"] == number:
            raise ZeroDivisionError

    return stop


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    """A run of participants in a directory."""
    place = tmp_path_factory.mktemp("runs") / "some"
    return graft.run("fedavg", out=place, metric="accuracy,macro_f1", **SOME), place


def test_scores_are_those_of_a_run_that_scores_everybody(some):
    result, _ = some
    everybody = graft.run("fedavg", metric="accuracy,macro_f1", **SETTINGS)
    for record, whole in zip(result.rounds, everybody.rounds, strict=True):
        scored = record["scored"]
        assert scored == record["participants"] == whole["participants"]
        assert "scored" not in whole
        for kind in ("validation", "test"):
            assert record["per_client"][kind] == [whole["per_client"][kind][client] for client in scored]
            assert record[kind] == pytest.approx(mean(record["per_client"][kind]))
            f1, f1_of_all = (entry["metrics"]["macro_f1"]["per_client"][kind] for entry in (record, whole))
            assert f1 == pytest.approx([f1_of_all[client] for client in scored])
        assert record["confusion"] == [whole["confusion"][client] for client in scored]
        assert record["test"] != whole["test"]  # a mean over others
        assert record["loss"] == pytest.approx(whole["loss"])


def test_a_result_has_rows_of_the_best_rounds_participants(some):
    result, place = some
    best = result.rounds[result.best_round - 1]
    rows = result.summary["per_client"]
    assert [row["client"] for row in rows] == best["scored"]
    assert [row["test"] for row in rows] == best["per_client"]["test"]
    assert result.accuracy["test"] == pytest.approx(mean(row["test"] for row in rows))
    assert result.summary["clients"] == 24
    graphs = result.models.federation().clients
    assert [row["nodes"] for row in rows] == [graphs[client].nodes for client in best["scored"]]
    assert graft.load_result(place).summary["per_client"] == rows


def test_only_states_of_those_who_took_part_are_kept(some):
    result, place = some
    took_part = {client for record in result.rounds for client in record["participants"]}
    assert set(result.clients) == took_part != set(range(24))
    assert set(RunDirectory(place).load().clients) == took_part
    loaded = graft.load_result(place)
    assert all(same(result.clients[client], loaded.clients[client]) for client in took_part)


def test_the_best_models_are_those_of_the_best_rounds_participants(some):
    result, place = some
    scored = result.rounds[result.best_round - 1]["scored"]
    stranger = next(client for client in range(24) if client not in scored)
    never = next(client for client in range(24) if client not in result.clients)
    loaded = graft.load_result(place)
    for run in (result, loaded):
        row = run.summary["per_client"][0]
        graph = run.models.federation().clients[row["client"]]
        right = run.client(row["client"]).predict().classes == graph.y
        assert right[graph.test].mean() == pytest.approx(row["test"])
        with pytest.raises(InputError, match=rf"Client {stranger} .* did not take part in round {run.best_round}"):
            run.client(stranger)
        with pytest.raises(InputError, match=rf"Client {never} .* did not take part in any round"):
            run.client(never, at="last")
        assert run.client(stranger, model="global").predict().classes.shape == (
            run.models.federation().clients[stranger].nodes,
        )
    assert same(result.client(scored[0]).weights, loaded.client(scored[0]).weights)


def test_an_exported_model_says_what_its_client_scored(some, tmp_path):
    result, _ = some
    row = result.summary["per_client"][1]
    card = (result.client(row["client"]).export(tmp_path / "model") / "MODEL_CARD.md").read_text()
    assert f"| {100 * row['validation']:.1f} % | {100 * row['test']:.1f} % |" in card


@pytest.mark.parametrize(("method", "models"), [("scaffold", "gcn"), ("fedgkc", "gcn,gat,sage"), ("fedproto", "gcn")])
def test_a_resumed_run_equals_the_unbroken_one(method, models, tmp_path):
    settings = SOME | dict(checkpoint_every=2)
    with pytest.raises(ZeroDivisionError):
        graft.run(method, models=models, out=tmp_path / "run", callbacks=[stop_after(3)], **settings)
    assert RunDirectory(tmp_path / "run").load().round == 2
    resumed, unbroken = graft.resume(tmp_path / "run"), graft.run(method, models=models, **settings)
    assert essence(resumed) == essence(unbroken)
    assert essence(resumed) != essence(graft.run(method, models=models, **settings | dict(seed=1)))


def test_a_run_stopped_halfway_can_be_opened(tmp_path):
    with pytest.raises(ZeroDivisionError):
        graft.run("fedavg", out=tmp_path / "run", callbacks=[stop_after(3)], **SOME)
    loaded = graft.load_result(tmp_path / "run")
    best = loaded.rounds[loaded.best_round - 1]
    assert [row["client"] for row in loaded.summary["per_client"]] == best["scored"]
    assert loaded.client(best["scored"][0]).round == loaded.best_round


def test_a_run_without_scores_has_no_rows(tmp_path):
    settings = SOME | dict(evaluate_every=4)
    with pytest.raises(ZeroDivisionError):
        graft.run("fedavg", out=tmp_path / "run", callbacks=[stop_after(2)], **settings)
    loaded = graft.load_result(tmp_path / "run")
    assert loaded.summary["per_client"] == []
    assert (loaded.best_round, loaded.accuracy["test"]) == (0, None)
    assert len(graft.resume(tmp_path / "run").summary["per_client"]) == 4


@pytest.mark.parametrize("change", ["test", "more"])
def test_scores_of_others_than_were_scored_are_refused(some, change):
    record = json.loads(json.dumps(some[0].rounds[0]))
    check_record(RoundRecord, record)
    record["per_client"]["test"].append(0.5) if change == "test" else record["scored"].append(7)
    with pytest.raises(ValueError, match="scores of others than the"):
        check_record(RoundRecord, record)


def test_the_report_says_whose_scores_it_shows(some):
    result, place = some
    page = write_report(place).read_text()
    assert f"the 4 of 24 clients that took part in round {result.best_round}" in page
    assert "each client at its own best round" not in page


def test_who_watches_sees_the_clients_that_were_scored(some):
    result, place = some
    followed = FollowedRun(place)
    state = RunState("run", 4, clients=followed.names())
    for _, records in followed.new_rounds():
        for record in records:
            state.see(record)
    last = result.rounds[-1]
    assert state.names == [str(client) for client in last["scored"]]
    assert state.by_client == last["per_client"]["test"]
    numbers = numbers_of({**last, "scored": [3, 1, 7, 2]}, "accuracy", "abcdefgh")
    assert numbers["clients/d/test_accuracy"] == last["per_client"]["test"][0]
    assert sum(name.startswith("clients/") for name in numbers) == 8


def test_a_run_reads_no_graph_of_a_client_that_was_never_drawn(tmp_path):
    graphs = CountedGraphs(30)
    settings = dict(participation=0.1, rounds=3, width=4, evaluate_clients="participants", device="cpu", split="own")
    result = graft.run("fedavg", graphs, out=tmp_path / "run", **settings)
    drawn = {client for record in result.rounds for client in record["participants"]}
    assert set(graphs.reads) == drawn
    assert len(drawn) < 10
    everybody = CountedGraphs(30)
    graft.run("fedavg", everybody, **settings | dict(evaluate_clients="all"))
    assert set(everybody.reads) == set(range(30))


def test_named_clients_keep_their_names(tmp_path):
    names = [f"clinic {letter}" for letter in "abcdefghij"]
    clients = dict(zip(names, CountedGraphs(10).graphs, strict=True))
    settings = dict(participation=0.3, rounds=3, width=4, evaluate_clients="participants", device="cpu", split="own")
    result = graft.run("fedavg", clients, out=tmp_path / "run", **settings)
    best = result.rounds[result.best_round - 1]
    assert [row["client"] for row in result.summary["per_client"]] == best["participants"]
    assert best["participants"] == [names[client] for client in best["scored"]]
    assert result.client(best["participants"][0]).round == result.best_round


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("dfed_sst", {}, "'dfed_sst' has every peer weigh all others"),
        ("gossip", {}, "has every peer weigh all others"),
        ("fedgta", {}, "'fedgta' keeps a model of every client at the server"),
        ("fedavg", {"engine": "loopback"}, "loopback starts a process for every client"),
    ],
)
def test_what_keeps_something_of_everybody_is_refused(method, settings, words):
    with pytest.raises(InputError, match=re.escape(words)):
        graft.run(method, **SOME | settings)


def test_joining_is_not_judged_by_some_clients(some):
    result, _ = some
    with pytest.raises(InputError, match="evaluate_clients = all"):
        result.against(result)


def test_runs_are_compared_by_the_clients_that_both_scored(tmp_path):
    settings = SOME | dict(participation=0.4)
    joined = graft.run("fedavg", out=tmp_path / "joined", **settings)
    alone = graft.run("local", out=tmp_path / "alone", optimizer="sgd", **settings)
    assert joined.best_round != alone.best_round  # so others were scored
    comparison = Comparison(find_runs([tmp_path]))
    (column,), rows = comparison.columns, comparison.rows
    scores, before = ({row["client"]: row["test"] for row in run.summary["per_client"]} for run in (joined, alone))
    both = [client for client in scores if client in before]
    assert 0 < len(both) < len(scores)
    joined_row, alone_row = (next(row for row in rows if row.startswith(name)) for name in ("fedavg", "local"))
    gains = gains_of_clients(comparison, joined_row, alone_row, column)
    assert gains == pytest.approx([100 * (scores[client] - before[client]) for client in both])


def test_a_model_of_all_data_is_scored_on_everybody():
    settings = dict(dataset="synthetic:nodes=60,degree=4,classes=3,features=6", clients=3, width=4, rounds=2)
    some_clients = graft.run("centralised", evaluate_clients="participants", **settings)
    everybody = graft.run("centralised", **settings)
    assert some_clients.summary["per_client"] == everybody.summary["per_client"]
    assert len(everybody.summary["per_client"]) == 3


def test_best_models_of_a_cluster_stay_at_the_workers_until_they_are_read():
    setup = some_of(FedAvg())
    pool = LocalPool(2)
    fetched = []
    for worker in pool.workers:
        worker.fetch_copy = lambda *asked, fetch=worker.fetch_copy: fetched.append(asked) or fetch(*asked)
    session = Session(setup, Cluster(setup, pool))
    best = BestModels()
    for number in (1, 2):
        outcome = session.round(number)
        record = {"round": number, "scored": outcome.facts.scored}
        best.see(session, record, {"own": number, "global": number})
    kept = best.kept["own"]
    assert not fetched
    assert isinstance(kept.states, CopiedStates)
    assert set(kept.states) == set(session.participants(2))
    assert sum(len(worker._copies) for worker in pool.workers) <= 2  # those of round 1 are dropped
    before = kept.tree
    session.round(3)
    best.bring_here()
    assert fetched
    assert same(best.kept["own"].tree, before)
    for worker in pool.workers:
        worker._copies.clear()
    assert same(best.kept["own"].tree, before)


@pytest.mark.filterwarnings("ignore:A worker has ended")
def test_a_run_that_loses_a_worker_at_any_time_ends_as_if_nothing_had_happened(tmp_path, monkeypatch):
    pool = FragilePool()
    host = Host("cpu", lambda: 10**9, lambda setup: Cluster(setup, pool), 1)
    monkeypatch.setitem(engines.HOSTS, "ray", lambda _: nullcontext(host))
    settings = SOME | dict(engine="ray", workers=2, threads=1, checkpoint_every=2)
    settings.pop("device")
    unbroken = essence(graft.run("scaffold", out=tmp_path / "unbroken", **settings))
    calls = list(pool.log)
    assert {"versions", "read_states", "keep_copy", "fetch_copy"} <= set(calls)
    last = {name: len(calls) - 1 - calls[::-1].index(name) for name in set(calls) - {"build"}}
    for number in sorted({*last.values(), calls.index("ask")}):
        pool.log.clear()
        pool.die_at = {number}
        result = graft.run("scaffold", out=tmp_path / str(number), **settings)
        assert essence(result) == unbroken, calls[number]
        assert result.summary.get("recoveries") or calls[number] == "drop_copy"  # which nobody waits for


MEASURED = """
import sys, warnings
import graft
warnings.simplefilter("ignore")
clients = int(sys.argv[1])
result = graft.run(
    "fedavg", "generated:nodes=60,degree=4,classes=3,features=16", clients=clients, participation=20 / clients,
    evaluate_clients=sys.argv[2], rounds=3, width=16, threads=1, memory="1GB", device="cpu", out=sys.argv[3],
)
assert all(len(record["participants"]) == 20 for record in result.rounds)
print(result.summary["peak_memory_bytes"])
"""


def measure(clients, place, evaluate_clients="participants"):
    """The peak memory in bytes of a run of 20 out of so many clients."""
    ended = subprocess.run(
        [sys.executable, "-c", MEASURED, str(clients), evaluate_clients, str(place)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout)


@pytest.mark.slow
def test_a_million_registered_clients_take_the_memory_of_a_thousand(tmp_path):
    few = measure(1000, tmp_path / "few")
    assert measure(1_000_000, tmp_path / "many") < 1.2 * few
    held = measure(3000, tmp_path / "held", "all")  # where all are held, three thousand are more than that
    assert held > 1.2 * few
