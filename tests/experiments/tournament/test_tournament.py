"""Tournaments: one crew for all, as many trials for everybody, resumed wherever they end, and no test label in them."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from typer.testing import CliRunner

import graft
from graft.cli.main import app
from graft.errors import InputError
from graft.experiments.build import build_federation
from graft.experiments.tournament.families import DATA, FAMILIES
from graft.experiments.tournament.page import write_tournament
from graft.experiments.tournament.results import family_results
from graft.experiments.tournament.tournament import CALLS, run_tournament
from graft.experiments.tuning import workers
from graft.experiments.tuning.finals import Finals
from tests.experiments.tournament.conftest import SYNTHETIC, TOY, small_events


def histories(tournament):
    """The trials of every method of every event, without their times."""
    return {
        (name, label): [{key: value for key, value in row.items() if key != "seconds"} for row in study.history]
        for name, trials in tournament.trials.items()
        for label, study in trials.studies.items()
    }


def final_scores(tournament):
    """The test scores of every method of every event, by seed, with the defaults, with the chosen values and, where
    these read validation labels in training, without them."""
    return {
        (name, label, values): {seed: run.score() for seed, run in finals.cell(label, values).items()}
        for name, finals in tournament.finals.items()
        for label in finals.subjects
        for values in finals.kinds(label)
    }


def test_every_method_of_every_event_has_as_many_trials_and_final_runs(events, tmp_path):
    told = []
    tournament = run_tournament(events, tmp_path, jobs=1, report=told.append)
    assert tournament.complete
    assert not tournament.stopped
    assert {len(rows) for rows in histories(tournament).values()} == {4}
    assert len(histories(tournament)) == 2 * 3
    assert {tuple(scores) for scores in final_scores(tournament).values()} == {(1, 2)}
    trials = [message for message in told if "trial" in message]
    assert [message["done"] for message in trials] == list(range(1, 25))
    assert {message["total"] for message in trials} == {24}
    assert trials[0]["method"] == "toy/toy-a local"
    tuning = graft.Tuning.load(tmp_path / "toy" / "toy-a")
    assert tuning.experiment("fedavg").width == 8
    same = graft.tune(["local", "fedavg", "fedgkc"], SYNTHETIC, clients=3, rounds=3, width=8, trials=4, seeds=1,
                      final_seeds=2, space={"learning_rate": "0.001..1:log"}, fix=[])  # fmt: skip
    assert same.params("fedavg") == tuning.params("fedavg")


def test_tournament_that_goes_on_is_an_unbroken_one(events, tmp_path):
    def interrupt_at(number):
        def hear(message):
            if message["done"] == number and ("trial" in message) == (number > 10):
                raise KeyboardInterrupt

        return hear

    unbroken = run_tournament(events, tmp_path / "unbroken", jobs=1)
    out = tmp_path / "broken"
    for number in (11, 17, 3):  # twice among the trials, then among the runs at the end
        stopped = run_tournament(events, out, jobs=1, report=interrupt_at(number))
        assert stopped.stopped
        assert not stopped.complete
    finished = run_tournament(events, out, jobs=1)
    assert finished.complete
    assert histories(finished) == histories(unbroken)
    assert final_scores(finished) == final_scores(unbroken)


def test_an_event_can_be_watched_while_it_runs(events, tmp_path):
    run_tournament(events, tmp_path, jobs=1, report=stop_at_the_first_final)
    said = CliRunner().invoke(app, ["watch", str(tmp_path / "toy/toy-a"), "--once"]).output
    assert "12 of 12 trials done" in said
    assert "fedgkc, trial 3" in said


def test_nothing_is_run_again(events, tmp_path):
    run_tournament(events, tmp_path, jobs=1)
    told = []
    again = run_tournament(events, tmp_path, jobs=1, report=told.append)
    assert again.complete
    assert told == []


def of_one_dataset(**values):
    return small_events(datasets=["toy-a"], trials=2, rounds=2, **values)


def test_methods_and_datasets_that_join_later_find_the_others_as_they_were(tmp_path):
    alone = run_tournament(of_one_dataset(methods=["local"]), tmp_path, jobs=1)
    assert alone.complete
    everybody = small_events(trials=2, rounds=2)
    half = run_tournament(everybody, tmp_path, jobs=1, run=False)
    assert not half.complete
    write_tournament(half, tmp_path)  # methods whose trials are over are in it, whoever has joined since
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 1 + 2 * 2
    told = []
    later = run_tournament(everybody, tmp_path, jobs=1, report=told.append)
    assert later.complete
    assert not any(message.get("method") == "toy/toy-a local" for message in told)
    at_once = run_tournament(everybody, tmp_path / "at once", jobs=1)
    assert histories(later) == histories(at_once)
    assert final_scores(later) == final_scores(at_once)


def test_tournament_goes_on_from_journals_and_results_alone(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    whole = run_tournament(of_one_dataset(), here, jobs=1)
    write_tournament(whole, here)
    assert not [path for path in here.rglob("*") if path.name in ("checkpoint", "report.html", "rounds.jsonl")]
    for file in [*here.rglob("trials.jsonl"), *here.rglob("runs/*/*.json"), here / CALLS]:
        copy = there / file.relative_to(here)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    write_tournament(run_tournament(of_one_dataset(), there, jobs=1, run=False), there)
    for name in ("tournament.md", "runs.csv"):
        assert (there / name).read_text() == (here / name).read_text()
    told = []
    next(there.rglob("runs/fedgkc/held-out*.json")).unlink()
    assert run_tournament(of_one_dataset(), there, jobs=1, report=told.append).complete
    assert ["held-out" in message["cell"] for message in told] == [True]


def test_runs_at_the_end_without_validation_labels_are_of_methods_that_judge_by_them(tmp_path):
    tournament = run_tournament(of_one_dataset(), tmp_path, jobs=1)
    finals = tournament.finals["toy/toy-a"]
    counted, held_out = (finals.cell("fedgkc", values) for values in (finals.better("fedgkc"), "held-out"))
    assert held_out.keys() == counted.keys()
    for seed, run in held_out.items():
        differing = {name for name, value in run.experiment.items() if value != counted[seed].experiment[name]}
        assert differing == {"judge_on"}
    assert all(finals.kinds(label) == ["default", "tuned"] for label in ("local", "fedavg"))
    by_training = run_tournament(of_one_dataset(judge_on="training"), tmp_path / "by training", jobs=1)
    assert by_training.finals["toy/toy-a"].kinds("fedgkc") == ["default", "tuned"]


@pytest.mark.parametrize("counting", ["default", "tuned"])
def test_runs_without_validation_labels_have_the_values_that_count(counting, tmp_path, monkeypatch):
    monkeypatch.setattr(Finals, "better", lambda _finals, _label: counting)
    finals = run_tournament(of_one_dataset(), tmp_path, jobs=1).finals["toy/toy-a"]
    counted, other = (finals.variant("fedgkc", values, 1) for values in (counting, "held-out"))
    assert other == {**counted, "judge_on": "training"}
    assert finals.cell("fedgkc", "held-out").keys() == {1, 2}


def test_time_that_is_over_leaves_all_methods_of_an_event_as_many_trials(tmp_path):
    events = small_events(trials=300)
    tournament = run_tournament(events, tmp_path, jobs=1, timeout=1.5)
    assert tournament.stopped
    assert tournament.finals == {}
    counts = {name: {len(study.history) for study in t.studies.values()} for name, t in tournament.trials.items()}
    assert all(len(numbers) == 1 for numbers in counts.values())
    assert 0 < min(counts["toy/toy-a"]) < 300


def test_time_that_is_over_begins_no_final_run(events, tmp_path):
    run_tournament(events, tmp_path, jobs=1, report=stop_at_the_first_final)
    told = []
    tournament = run_tournament(events, tmp_path, jobs=1, timeout=1e-9, report=told.append)
    assert tournament.stopped
    assert len(told) == 1  # the one after which the clock was looked at


def stop_at_the_first_final(message):
    if "trial" not in message:
        raise KeyboardInterrupt


@pytest.mark.slow  # processes start
def test_one_crew_runs_the_trials_of_all_events(events, tmp_path, monkeypatch):
    started = []
    start = workers.Processes.start
    monkeypatch.setattr(workers.Processes, "start", lambda crew: started.append(1) or start(crew))
    tournament = run_tournament(events, tmp_path, jobs=2)
    assert tournament.complete
    assert len(started) == 2
    assert {len(rows) for rows in histories(tournament).values()} == {4}


def test_method_that_cannot_be_run_keeps_no_other_from_it(events, tmp_path, monkeypatch):
    event = events[0]
    (one_alone, *others) = event.design.methods
    broken = replace(one_alone, label="broken", changes={"clients": 95})
    entrants = [broken, *others]
    monkeypatch.setitem(FAMILIES, "toy", replace(TOY, entrants=entrants))
    tournament = run_tournament([replace(event, design=replace(event.design, methods=entrants))], tmp_path, jobs=1)
    rows = histories(tournament)
    assert {row["state"] for row in rows["toy/toy-a", "broken"]} == {"failed"}
    assert any(row["state"] == "complete" for row in rows["toy/toy-a", "fedavg"])
    write_tournament(tournament, tmp_path)
    assert rows["toy/toy-a", "broken"][0]["reason"] in (tmp_path / "tournament.md").read_text()


# Test labels.


@pytest.fixture(name="two_files")
def write_two_files(tmp_path, monkeypatch):
    """Two files with a split of their own, of which one has wrong labels at its test nodes."""
    federation = build_federation(graft.Experiment(dataset=SYNTHETIC, clients=3))
    graph = federation.graph
    for name, y in (("clean", graph.y), ("trap", np.where(graph.test, (graph.y + 1) % graph.classes, graph.y))):
        path = tmp_path / f"{name}.npz"
        np.savez(path, x=graph.x, edges=graph.edges, y=y, **graph.masks)
        monkeypatch.setitem(DATA, name, {"dataset": str(path), "split": "own", "partition": "random"})


@pytest.mark.usefixtures("two_files")
def test_wrong_test_labels_change_no_trial_and_are_met_at_the_end(tmp_path):
    clean, trap = (
        run_tournament(small_events(datasets=[name]), tmp_path / f"of {name}", jobs=1) for name in ("clean", "trap")
    )
    assert list(histories(clean).values()) == list(histories(trap).values())
    scores = [[list(cell.values()) for cell in final_scores(entry).values()] for entry in (clean, trap)]
    assert scores[0] != scores[1]


# The files.


def test_page_and_table_hold_what_was_found_out(events, tmp_path):
    tournament = run_tournament(events, tmp_path, jobs=1)
    files = write_tournament(tournament, tmp_path)
    text = (tmp_path / "tournament.md").read_text()
    assert {file.name for file in files} == {"tournament.md", "runs.csv", "ranks-toy.svg"}
    for words in ("## Toys", "They are small.", "| local |", "Average ranks over 2 datasets", "critical difference"):
        assert words in text
    for words in (
        "### Judged by training nodes instead",
        "| fedgkc | toy-a |",
        "With these scores in the table",
    ):
        assert words in text
    assert "24 trials took" in text
    assert "1 of them worked at a time on a CPU with" in text
    assert "| fedgkc \\* |" in text  # its gate looks at validation labels
    assert "local \\*" not in text
    with (tmp_path / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    chosen = {(row["dataset"], row["row"]) for row in rows if row["values"] == "tuned"}
    assert chosen == {(data, row) for data in ("toy-a", "toy-b") for row in ("local", "fedavg", "fedgkc")}
    assert len(rows) == (2 * 3 * 2 + 2) * 2
    assert {row["row"] for row in rows if row["values"] == "held-out"} == {"fedgkc"}
    assert {row["reads_validation"] for row in rows if row["values"] == "held-out"} == {"False"}
    scores = final_scores(tournament)
    for row in rows:
        key = (f"toy/{row['dataset']}", row["row"], row["values"])
        assert float(row["test"]) == scores[key][int(row["seed"])]
        assert bool(row["chosen"]) <= (row["values"] != "default")


def test_page_of_a_tournament_that_is_not_over_says_how_far_it_is(events, tmp_path):
    tournament = run_tournament(events, tmp_path, jobs=1, run=False)
    write_tournament(tournament, tmp_path)
    text = (tmp_path / "tournament.md").read_text()
    assert "Of 6 searches, of a method on a dataset each, 0 are done." in text
    assert "Not begun: local, fedavg, fedgkc, toy-a, toy-b." in text


def test_page_names_what_nobody_has_begun_and_shows_the_rest(tmp_path):
    begun = small_events(datasets=["toy-a"], methods=["local", "fedavg"])
    run_tournament(begun, tmp_path, jobs=1)
    tournament = run_tournament(small_events(), tmp_path, run=False)
    write_tournament(tournament, tmp_path)
    text = (tmp_path / "tournament.md").read_text()
    assert "Of 6 searches, of a method on a dataset each, 2 are done." in text
    assert "Not begun: fedgkc, toy-b." in text
    assert "|  | toy-a | rank |" in text
    assert "| fedgkc" not in text
    (result,) = family_results(tournament, FAMILIES)
    assert result.complete == ["toy-a"]  # what is not begun leaves no gap


# The command.


def call(*words):
    return CliRunner().invoke(app, ["reproduce", "tournament", *map(str, words)])


ARGUMENTS = ("--families", "toy", "--trials", 3, "--seeds", "1", "--final-seeds", 1, "--clients", "3", "--rounds", 2)


def test_command_runs_and_goes_on(tmp_path):
    stopped = call(*ARGUMENTS, "--jobs", 1, "--out", tmp_path, "--timeout", 0.001)
    assert stopped.exit_code == 1, stopped.output
    assert "0 of 6 searches are done." in stopped.output
    assert "the same command goes on" in stopped.output
    done = call(*ARGUMENTS, "--jobs", 1, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "18/18 toy/toy-b fedgkc trial 2" in done.output
    assert "toy/toy-a fedavg default, seed 1: test" in done.output
    assert "6 of 6 searches are done." in done.output
    text = (tmp_path / "tournament.md").read_text()
    again = call(*ARGUMENTS, "--no-run", "--out", tmp_path)
    assert again.exit_code == 0, again.output
    assert (tmp_path / "tournament.md").read_text() == text


def test_another_tournament_in_the_folder_is_refused(tmp_path):
    assert call(*ARGUMENTS, "--methods", "local", "--datasets", "toy-a", "--jobs", 1, "--out", tmp_path).exit_code == 0
    other = call(*ARGUMENTS[:-1], 4, "--jobs", 1, "--out", tmp_path)
    assert other.exit_code == 2
    assert "rounds is 2 there and 4 here" in other.output


def test_what_a_tournament_cannot_do_is_refused(tmp_path):
    assert "one number of clients" in call("--clients", "3,5", "--out", tmp_path).output
    assert "no family 'toys'" in call("--families", "toys", "--out", tmp_path).output
    assert "one machine" in call("--engine", "ray", "--out", tmp_path).output
    study = CliRunner().invoke(app, ["reproduce", "twitch", "--trials", "3"])
    assert study.exit_code == 2
    assert "--trials is for `graft reproduce tournament`" in study.output
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        run_tournament(small_events(), tmp_path / "file")


@pytest.mark.slow
def test_killed_tournament_goes_on(tmp_path):
    script = tmp_path / "hold.py"
    script.write_text(
        dedent("""\
        import sys
        from pathlib import Path
        from graft.experiments.tournament.families import DATA, FAMILIES
        from graft.experiments.tournament.tournament import run_tournament
        from tests.experiments.tournament.conftest import SYNTHETIC, TOY, small_events

        if __name__ == "__main__":
            DATA.update({"toy-a": {"dataset": SYNTHETIC}, "toy-b": {"dataset": SYNTHETIC + ",homophily=0.3"}})
            FAMILIES["toy"] = TOY
            print(run_tournament(small_events(rounds=40), Path(sys.argv[1]), jobs=2, report=print).complete, flush=True)
        """)
    )
    command = [sys.executable, str(script), str(tmp_path / "out")]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}  # of these tests, whose toys it takes
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    for _ in range(5):
        process.stdout.readline()
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    again = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=env)
    done = again.stdout.splitlines()
    assert done[-1] == "True"
    entries = [json.loads(line) for line in (tmp_path / "out/toy/toy-a/trials.jsonl").read_text().splitlines()]
    over = [(entry["method"], entry["trial"]) for entry in entries if "state" in entry]
    assert sorted(over) == sorted((label, trial) for label in ("local", "fedavg", "fedgkc") for trial in range(4))
