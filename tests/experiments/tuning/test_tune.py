"""Tunings: equal budgets, the defaults first, whatever fails or is killed, and the files that they leave."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner

import graft
from graft.cli.main import app
from graft.errors import InputError, RunError
from graft.experiments.comparison.finished_runs import find_runs
from graft.experiments.experiment import make_experiment
from graft.experiments.experiment_files import read_experiment
from graft.experiments.tuning.journal import Journal
from graft.experiments.tuning.optuna_study import MethodStudy
from graft.experiments.tuning.trial import TrialOutcome
from graft.fields import Search

DATA = "synthetic:nodes=90,degree=6,classes=3,features=8"
SMALL = {"dataset": DATA, "clients": 3, "width": 8, "rounds": 4, "seeds": 1, "final_seeds": 1}
FLAGS = ["--dataset", DATA, "--clients", "3", "--width", "8", "--seeds", "1"]
FRAGILE = """\
    import os
    from dataclasses import dataclass
    from typing import Annotated

    import graft
    from annotated_types import Ge
    from graft.methods.fedavg import FedAvg


    @dataclass(frozen=True)
    class Fragile(FedAvg):
        \"\"\"Fails, or ends its process, for some values.\"\"\"

        share: Annotated[float, Ge(0), graft.Search(0.0, 1.0)] = 0.0
        deadly: bool = False

        @graft.step
        def train(self, fleet, model):
            if self.share > 0.3:
                if self.deadly:
                    os._exit(3)
                raise graft.RunError("It broke.")
            return super().train(fleet, model)
"""


def rows(tuning, method="fedprox"):
    """The trials of a method, without their times."""
    history = tuning.summary["methods"][method]["history"]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


@pytest.fixture
def fragile(tmp_path):
    path = tmp_path / "fragile.py"
    path.write_text(dedent(FRAGILE))
    return f"{path}:Fragile"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A tuning of two methods, and its folder."""
    out = tmp_path_factory.mktemp("tuned") / "out"
    return graft.tune(["fedprox", "local"], **{**SMALL, "final_seeds": 2}, trials=7, out=out), out


# Budgets and what is chosen.


def test_first_trial_has_the_values_that_a_run_would_have(tuned):
    tuning, _ = tuned
    first = rows(tuning)[0]
    default = make_experiment({"method": "fedprox"})
    assert first["trial"] == 0
    assert first["params"]["mu"] == 1e-3
    assert first["params"]["learning_rate"] == default.learning_rate
    result = graft.run("fedprox", DATA, clients=3, width=8, rounds=4, seed=0)
    assert first["validation"] == result.accuracy["validation"]


def test_every_method_has_as_many_trials_rounds_and_seeds(tuned):
    tuning, _ = tuned
    for label in ("fedprox", "local"):
        assert [row["trial"] for row in rows(tuning, label)] == list(range(7))
        assert {row["rounds"] for row in rows(tuning, label) if row["state"] == "complete"} == {4}
    assert "mu" in tuning.summary["methods"]["fedprox"]["space"]
    assert "mu" not in tuning.summary["methods"]["local"]["space"]


def test_chosen_values_are_the_best_complete_ones_and_never_worse_than_the_default(tuned):
    tuning, _ = tuned
    for label, entry in tuning.summary["methods"].items():
        complete = [row for row in rows(tuning, label) if row["state"] == "complete"]
        best = max(complete, key=lambda row: row["validation"])
        assert entry["best"] == {name: best[name] for name in ("params", "validation", "trial")}
        assert entry["best"]["validation"] >= entry["default"]["validation"]


def test_default_wins_a_tie():
    tuning = graft.tune("majority", **SMALL, trials=3)
    assert len({row["validation"] for row in rows(tuning, "majority")}) == 1
    assert tuning.summary["methods"]["majority"]["best"]["trial"] == 0


def test_lower_is_better_where_the_metric_says_so():
    tuning = graft.tune("fedprox", **SMALL, trials=4, metric="log_loss")
    entry = tuning.summary["methods"]["fedprox"]
    assert not tuning.summary["higher"]
    assert entry["best"]["validation"] == min(row["validation"] for row in rows(tuning) if row["state"] == "complete")


def test_default_outside_of_the_space_is_a_trial_of_its_own():
    tuning = graft.tune("fedprox", **SMALL, trials=4, search=["mu"], space={"mu": "0.1..1"})
    values = [row["params"]["mu"] for row in rows(tuning)]
    assert values[0] == 1e-3
    assert all(0.1 <= value <= 1 for value in values[1:])


def test_what_is_fixed_stays_and_what_is_searched_varies():
    tuning = graft.tune("fedprox", **SMALL, trials=4, fix={"optimizer": "sgd", "mu": 0.5}, search=["epochs"])
    assert [set(row["params"]) for row in rows(tuning)] == [{"epochs"}] * 4
    assert len({row["params"]["epochs"] for row in rows(tuning)}) > 1
    assert (tuning.experiment().optimizer, tuning.experiment().settings["mu"]) == ("sgd", 0.5)


def test_space_with_values_that_a_method_cannot_have_is_refused():
    with pytest.raises(InputError, match=r"mu is -1\.0; it must be at least 0"):
        graft.tune("fedprox", **SMALL, trials=2, space={"mu": Search(-1.0, 1.0)})
    with pytest.raises(InputError, match="optimizer"):
        graft.tune("fedprox", **SMALL, trials=2, space={"optimizer": "adam,adamm"})
    with pytest.raises(InputError, match=r"whole number|valid integer"):
        graft.tune("fedprox", **SMALL, trials=2, space={"epochs": Search(0.5, 2.0)})


def test_method_may_be_an_object():
    tuning = graft.tune(graft.METHODS["fedprox"](mu=0.7), **SMALL, trials=2, search=["mu"])
    assert rows(tuning)[0]["params"] == {"mu": 0.7}
    assert tuning.experiment().settings["mu"] in {row["params"]["mu"] for row in rows(tuning)}


# The end: other seeds, and test nodes.


def test_runs_at_the_end_have_seeds_that_no_trial_used(tuned):
    tuning, out = tuned
    assert (tuning.summary["seeds"], tuning.summary["final_seeds"]) == ([0], [1, 2])
    assert {run.seed for run in find_runs([out])} == {1, 2}
    entry = tuning.summary["methods"]["fedprox"]
    assert set(entry["test"]) == set(entry["default"]["test"]) == {"1", "2"}
    result = graft.run("fedprox", DATA, clients=3, width=8, rounds=4, seed=1)
    assert entry["default"]["test"]["1"] == result.accuracy["test"]


def test_chosen_experiment_can_be_run_and_gives_the_scores_on_record(tuned):
    tuning, out = tuned
    values = read_experiment(out / "fedprox.toml")
    assert make_experiment(values) == tuning.experiment("fedprox")
    result = graft.run(**{**values, "seed": 0})
    entry = tuning.summary["methods"]["fedprox"]
    assert result.accuracy["validation"] == entry["best"]["validation"]
    assert graft.run(**{**values, "seed": 2}).accuracy["test"] == entry["test"]["2"]


def test_folder_can_be_read_again(tuned):
    tuning, out = tuned
    loaded = graft.Tuning.load(out)
    assert json.loads((out / "tuning.json").read_text())["methods"] == tuning.summary["methods"]
    assert loaded.params("local") == tuning.params("local")
    assert loaded.experiment("fedprox") == tuning.experiment("fedprox")
    assert "fedprox: validation" in repr(loaded)
    assert "<td>fedprox</td>" in loaded._repr_html_()
    with pytest.raises(InputError, match="say which: fedprox, local"):
        loaded.params()
    with pytest.raises(InputError, match="no method 'fedavg'"):
        loaded.params("fedavg")
    (out / "tuning.json").replace(out / "kept")
    (out / "tuning.json").write_text("{}")
    with pytest.raises(InputError, match="damaged or not of a tuning"):
        graft.Tuning.load(out)
    (out / "kept").replace(out / "tuning.json")


def test_frame_has_a_row_a_trial(tuned):
    pytest.importorskip("polars")
    frame = tuned[0].frame()
    assert frame.shape[0] == 14
    assert {"method", "trial", "state", "validation", "learning_rate", "mu"} <= set(frame.columns)


def test_importance_is_a_share_of_each_field(tuned):
    importance = tuned[0].summary["methods"]["fedprox"]["importance"]
    assert set(importance) <= set(tuned[0].summary["methods"]["fedprox"]["space"])
    assert sum(importance.values()) == pytest.approx(1)


def test_nothing_is_tested_without_final_seeds():
    tuning = graft.tune("fedprox", **{**SMALL, "final_seeds": 0}, trials=2)
    entry = tuning.summary["methods"]["fedprox"]
    assert entry["test"] is entry["default"]["test"] is None
    assert tuning.runs == []


# Going on.


def test_tuning_that_goes_on_tries_what_an_unbroken_one_would(tmp_path):
    settings = {**SMALL, "rounds": 2, "final_seeds": 0}
    unbroken = graft.tune("fedprox", **settings, trials=12)  # the last ones are not drawn at random any more
    for trials in (3, 9, 12):
        resumed = graft.tune("fedprox", **settings, trials=trials, out=tmp_path / "out")
    assert rows(resumed) == rows(unbroken)
    other = graft.tune("fedprox", **settings, trials=12, seed=7)
    assert [row["params"] for row in rows(other)][1:] != [row["params"] for row in rows(unbroken)][1:]


def test_ctrl_c_keeps_what_is_done(tmp_path):
    def interrupt(message):
        if message["trial"] == 2:
            raise KeyboardInterrupt

    stopped = graft.tune("fedprox", **SMALL, trials=5, out=tmp_path, report=interrupt)
    assert stopped.stopped
    assert len(rows(stopped)) == 3
    assert stopped.summary["methods"]["fedprox"]["test"] is None
    assert stopped.runs == []
    finished = graft.tune("fedprox", **SMALL, trials=5, out=tmp_path)
    assert rows(finished) == rows(graft.tune("fedprox", **SMALL, trials=5))
    assert finished.summary["methods"]["fedprox"]["test"] is not None


def test_time_that_is_over_gives_no_method_more_trials_than_another():
    tuning = graft.tune(["fedprox", "local"], **SMALL, trials=500, timeout=1.5)
    counts = {label: len(rows(tuning, label)) for label in ("fedprox", "local")}
    assert counts["fedprox"] == counts["local"] < 500
    assert tuning.stopped


@pytest.mark.slow
def test_killed_tuning_goes_on(tmp_path):
    command = [sys.executable, "-c", "from graft.cli.main import main; main()", "tune", "fedprox", *FLAGS]
    command += ["--rounds", "20", "--trials", "4", "--final-seeds", "1", "--jobs", "1", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for _ in range(2):
        assert "trial" in process.stdout.readline()
    time.sleep(0.1)  # in the middle of the third
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert "trial 0:" not in done
    assert "4/4 fedprox trial 3" in done
    assert "fedprox default, seed 1: test" in done
    killed = graft.Tuning.load(tmp_path / "out")
    assert rows(killed) == rows(graft.tune("fedprox", **{**SMALL, "rounds": 20}, trials=4))


def test_trial_that_died_is_run_again(tmp_path):
    space = {"mu": (Search(1e-3, 1.0, log=True), False)}
    study = MethodStudy(Journal(tmp_path), "fedprox", space, {"mu": 0.5}, higher=True, rounds=4, seed=0)
    study.begin({"rounds": 4})
    asked = [study.ask() for _ in range(3)]
    study.hear(0, 2, 0.4)
    study.end(0, TrialOutcome("complete", 0.5, 4, 1.0))
    (tmp_path / "trials.jsonl").open("a").write('{"method": "fedprox", "trial": 3, "val')  # killed while it wrote
    again = MethodStudy(Journal(tmp_path), "fedprox", space, {"mu": 0.5}, higher=True, rounds=4, seed=0)
    again.begin({"rounds": 4})
    assert again.history == study.history
    assert [again.ask() for _ in range(2)] == asked[1:]
    number, values = again.ask()
    assert (number, set(values)) == (3, {"mu"})
    with pytest.raises(InputError, match="another tuning of fedprox: rounds is 4 there and 5 here"):
        again.begin({"rounds": 5})


def test_trial_is_measured_by_those_of_an_earlier_call(tmp_path):
    def begun():
        journal = Journal(tmp_path)
        study = MethodStudy(journal, "m", {"mu": (Search(0.0, 1.0), False)}, {"mu": 0.5}, higher=True, rounds=6, seed=0)
        study.begin({})
        return study

    before = begun()
    for score in (0.1, 0.2, 0.3, 0.4, 0.5):
        number, _ = before.ask()
        before.hear(number, 4, score)
        before.end(number, TrialOutcome("complete", score, 6, 1.0))
    after = begun()
    worse, better = after.ask()[0], after.ask()[0]
    assert after.hear(worse, 4, 0.37)
    assert not after.hear(better, 4, 0.39)


def test_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds something else than a tuning"):
        graft.tune("fedprox", **SMALL, trials=2, out=tmp_path)
    with pytest.raises(InputError, match="is a file"):
        graft.tune("fedprox", **SMALL, trials=2, out=tmp_path / "notes.txt")
    (tmp_path / "damaged").mkdir()
    for content in (b"some text", b"some text\n", b'{"trial": 1}\n', b"[]\n{}\n", b"\xff\xfe\n"):
        (tmp_path / "damaged" / "trials.jsonl").write_bytes(content)
        with pytest.raises(InputError, match="damaged, or not the trials of a tuning"):
            graft.tune("fedprox", **SMALL, trials=2, out=tmp_path / "damaged")
        assert (tmp_path / "damaged" / "trials.jsonl").read_bytes() == content


def test_folder_of_another_tuning_is_refused(tuned):
    _, out = tuned
    settings = {**SMALL, "final_seeds": 2, "trials": 7, "out": out}
    for other, reason in (
        ({"rounds": 5}, "rounds is 4 there and 5 here"),
        ({"learning_rate": 0.2}, "learning_rate is 0.1 there and 0.2 here"),
        ({"space": {"mu": "0.1..1"}}, "space of mu is 0.0001..1:log there and 0.1..1 here"),
        ({"seeds": 2}, r"seeds is \[0\] there and \[0, 1\] here"),
        ({"settings": {"mu": 0.5}}, "settings.mu is 0.001 there and 0.5 here"),
    ):
        with pytest.raises(InputError, match=reason):
            graft.tune("fedprox", **{**settings, **other})


def test_file_of_trials_is_a_line_of_json_for_each_thing_that_happened(tuned):
    entries = [json.loads(line) for line in (tuned[1] / "trials.jsonl").read_text().splitlines()]
    assert [sum(name in entry for entry in entries) for name in ("identity", "values", "state")] == [2, 14, 14]


# Trials that fail, and trials that are ended early.


def test_failed_trial_does_not_end_the_tuning(fragile):
    tuning = graft.tune(fragile, **SMALL, trials=6, search=["share"])
    states = {row["state"] for row in rows(tuning, "fragile")}
    failed = [row for row in rows(tuning, "fragile") if row["state"] == "failed"]
    assert states >= {"complete", "failed"}
    assert all("It broke." in row["reason"] and row["params"]["share"] > 0.3 for row in failed)
    assert tuning.params()["share"] <= 0.3


def test_tuning_in_which_every_trial_fails_is_an_error(fragile):
    with pytest.raises(RunError, match=r"No trial is complete: .*It broke"):
        graft.tune(fragile, **SMALL, trials=2, settings={"share": 0.9}, fix=["share"])


@pytest.mark.slow  # many processes start; a killed tuning is another test
def test_processes_that_die_cost_their_trials_alone(fragile, tmp_path):
    told = []
    tuning = graft.tune(
        [fragile, "fedavg"],
        **{**SMALL, "final_seeds": 0},
        trials=3,
        settings={"deadly": True},
        search=["share", "learning_rate"],
        jobs=2,
        out=tmp_path / "out",
        report=told.append,
    )
    by_state = {label: [row["state"] for row in rows(tuning, label)] for label in ("fragile", "fedavg")}
    assert [len(states) for states in by_state.values()] == [3, 3]
    assert "failed" not in by_state["fedavg"]
    dead = [row for row in rows(tuning, "fragile") if row["params"]["share"] > 0.3]
    assert dead
    assert {row["reason"] for row in dead} == {"Its process died, perhaps for want of memory."}
    assert [message["done"] for message in told if "trial" in message] == [1, 2, 3, 4, 5, 6]
    assert tuning.experiments.keys() == {"fragile", "fedavg"}


def study_with_trials(scores, higher=True, at=4, rounds=6):
    """A study whose complete trials had these scores in one round."""
    study = MethodStudy(
        Journal(None), "m", {"mu": (Search(0.0, 1.0), False)}, {"mu": 0.5}, higher=higher, rounds=rounds, seed=0
    )
    study.begin({})
    for score in scores:
        number, _ = study.ask()
        study.hear(number, at, score)
        study.end(number, TrialOutcome("complete", score, rounds, 1.0))
    return study


def test_trial_below_the_best_thirty_per_cent_of_earlier_ones_is_ended():
    study = study_with_trials([0.1, 0.2, 0.3, 0.4, 0.5])
    worse, better = study.ask()[0], study.ask()[0]
    assert study.hear(worse, 4, 0.37)
    assert not study.hear(better, 4, 0.39)


def test_trial_is_not_ended_early_in_a_run_or_with_few_others_to_measure_it_by():
    study = study_with_trials([0.1, 0.2, 0.3, 0.4])
    assert not study.hear(study.ask()[0], 4, 0.0)
    study = study_with_trials([0.1, 0.2, 0.3, 0.4, 0.5], at=1, rounds=12)
    assert not study.hear(study.ask()[0], 1, 0.0)
    study = study_with_trials([0.1, 0.2, 0.3, 0.4, 0.5], at=2, rounds=12)
    assert study.hear(study.ask()[0], 2, 0.0)


def test_higher_losses_are_ended():
    study = study_with_trials([0.1, 0.2, 0.3, 0.4, 0.5], higher=False)
    assert study.hear(study.ask()[0], 4, 0.23)
    assert not study.hear(study.ask()[0], 4, 0.21)


def test_defaults_are_never_ended():
    study = MethodStudy(
        Journal(None), "m", {"mu": (Search(0.0, 1.0), False)}, {"mu": 0.5}, higher=True, rounds=6, seed=0
    )
    study.begin({})
    default, _ = study.ask()
    for score in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        number, _ = study.ask()
        study.hear(number, 4, score)
        study.end(number, TrialOutcome("complete", score, 6, 1.0))
    later = study.ask()[0]
    assert not study.hear(default, 4, 0.0)
    assert study.hear(later, 4, 0.0)


# The command.


def graft_tune(*words):
    return CliRunner().invoke(app, ["tune", *words, *FLAGS, "--rounds", "4", "--jobs", "1"])


def test_command_says_a_line_a_trial_and_what_was_chosen(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('method = "fedprox"\nlearning_rate = 0.02\n[settings]\nmu = 0.1\n')
    out = tmp_path / "out"
    printed = graft_tune(str(file), "--trials", "3", "--final-seeds", "1", "--search", "mu", "--out", str(out))
    assert printed.exit_code == 0, printed.output
    lines = printed.output.splitlines()
    assert lines[0].startswith("1/3 fedprox trial 0: ")
    assert "(best " in lines[1]
    assert "mu=0.1" in lines[0]
    assert any("validation of 1 seeds, test of 1 others" in line for line in lines)
    assert (out / "experiment.toml").is_file()
    assert read_experiment(out / "experiment.toml")["learning_rate"] == 0.02
    again = graft_tune(str(file), "--trials", "3", "--final-seeds", "1", "--search", "mu", "--out", str(out))
    assert again.exit_code == 0
    assert "trial 0:" not in again.output


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "Say which method to tune"),
        (["fedprox", "--method", "fedavg"], "given twice"),
        (["fedprox", "--seed", "3"], "--seed and --seeds"),
        (["fedprox", "--trials", "0"], "trials is 0"),
        (["fedprox", "--final-seeds", "-1"], "--final-seeds is -1"),
        (["fedprox", "--timeout", "0"], "--timeout is 0.0"),
        (["fedprox", "--space", "mu"], "should read name=low..high"),
        (["fedprox", "--search", "mux"], "did you mean 'mu'"),
        (["fedprox", "--set", "nu=1"], "has a setting 'nu'"),
        (["fedprox", "nowhere.toml"], "There is no experiment file nowhere.toml"),
    ],
)
def test_command_refuses_in_one_sentence(words, reason):
    printed = graft_tune(*words)
    assert printed.exit_code == 2
    assert reason in " ".join(printed.output.split())
    assert "Traceback" not in printed.output


def test_command_says_what_is_missing_without_optuna(monkeypatch):
    monkeypatch.setattr("graft.experiments.tuning.optuna_study.find_spec", lambda _: None)
    printed = graft_tune("fedprox")
    assert printed.exit_code == 2
    assert "A tuning needs Optuna: pip install optuna." in printed.output


def test_data_that_are_not_there_end_the_tuning_and_can_be_put_there(tmp_path):
    missing = Path(tmp_path / "later.npz")
    with pytest.raises(InputError, match=r"later\.npz"):
        graft.tune("fedprox", **{**SMALL, "dataset": str(missing)}, trials=2, out=tmp_path / "out")
