"""What all trackers share: what they are told, what they do when their package fails, and the command line."""

import json

import pytest
from typer.testing import CliRunner

import graft
from graft.cli import app
from graft.errors import GraftWarning, InputError, RunError
from graft.experiments.trackers import kept_trackers, make_tracker, tracker
from graft.experiments.trackers.tracker import Tracker, numbers_of, summary_of

RECORD = {
    "round": 2,
    "loss": 0.5,
    "seconds": 0.1,
    "up_bytes": 10,
    "down_bytes": 20,
    "peer_bytes": 0,
    "test": 0.25,
    "validation": None,
    "test_global": float("nan"),
    "per_client": {"test": [0.5, None], "validation": [0.25, 0.75]},
    "details": {"drift": 1.5, "shares": [0.5, 0.5], "done": True},
}


class Listing(Tracker):
    """Keeps what it is told in lists; `fails` says where its package fails."""

    name, package = "listing", "json"

    def __init__(self, fails=""):
        super().__init__()
        self.fails, self.kept, self.rounds, self.ends = fails, [], [], []

    def fail(self, where):
        if where == self.fails:
            raise OSError(f"no answer in {where}")

    def begin(self, start, kept):
        self.fail("begin")
        self.kept.append(kept)
        return {"id": len(start.records)}

    def log(self, numbers, step):
        self.fail(f"log {step}")
        assert "loss" in numbers
        self.rounds.append(step)

    def end(self, summary, status):
        self.fail("end")
        self.ends.append((status, "accuracy/test" in summary))


def test_the_numbers_of_a_round_are_those_that_are_finite():
    assert numbers_of(RECORD, "accuracy", ["alpha", "beta"]) == {
        "loss": 0.5,
        "seconds": 0.1,
        "bytes/up": 10,
        "bytes/down": 20,
        "bytes/peer": 0,
        "accuracy/test": 0.25,
        "clients/alpha/test_accuracy": 0.5,
        "clients/alpha/validation_accuracy": 0.25,
        "clients/beta/validation_accuracy": 0.75,
        "details/drift": 1.5,
    }


def test_other_metrics_and_many_clients():
    scores = {"test": 0.75, "test_pooled": 0.5, "per_client": {"test": [0.125, 0.25]}}
    numbers = numbers_of({**RECORD, "metrics": {"auroc": scores}}, "auroc", [0, 1])
    assert (numbers["auroc/test"], numbers["auroc/test_pooled"], numbers["clients/1/test_auroc"]) == (0.75, 0.5, 0.25)
    assert "clients/1/test_accuracy" not in numbers
    many = numbers_of(RECORD, "accuracy", range(tracker.MOST_CLIENTS + 1))
    assert not any(name.startswith("clients/") for name in many)


def test_the_summary_is_flat():
    assert summary_of({"rounds": 3, "method": "fedavg", "seconds": {"total": 1.5}, "accuracy": {"test": None}}) == {
        "rounds": 3,
        "seconds/total": 1.5,
    }


def test_how_a_run_ended_is_told(run_with):
    listing = Listing()
    run_with(listing)
    run_with(listing, out="failed", fails_after=2)
    assert listing.ends == [("finished", True), ("failed", False)]
    assert listing.rounds == [1, 2, 3, 4, 1, 2]


def test_what_a_tracker_keeps_is_handed_to_it_when_the_run_goes_on(run_with, tmp_path):
    run_with(Listing(), fails_after=3)
    assert json.loads((tmp_path / "run" / "trackers.json").read_text()) == {"listing": {"id": 0}}
    again = Listing()
    graft.resume("run", callbacks=[again])
    assert (again.kept, again.rounds) == ([{"id": 0}], [3, 4])
    (tmp_path / "run" / "trackers.json").write_text("damaged")
    assert kept_trackers(tmp_path / "run") == []


def test_a_package_that_fails_at_the_start_ends_the_run_with_a_sentence(run_with):
    with pytest.raises(RunError, match=r"^listing cannot track this run: no answer in begin$"):
        run_with(Listing("begin"))


@pytest.mark.parametrize(("place", "rounds"), [("log 2", [1]), ("end", [1, 2, 3, 4])])
def test_a_package_that_fails_later_does_not_end_the_run(run_with, place, rounds):
    listing = Listing(place)
    with pytest.warns(GraftWarning, match=f"listing failed, and the run goes on without it: no answer in {place}"):
        assert run_with(listing).finished
    assert listing.rounds == rounds
    assert listing.ends == []


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(tracker, "find_spec", lambda _: None)
    for text in ("tensorboard", "wandb", "mlflow"):
        with pytest.raises(InputError, match=rf"^{text} is not installed: pip install 'graft-fgl\[{text}\]'\.$"):
            make_tracker(text)


def test_a_tracker_is_made_of_a_text():
    assert make_tracker("mlflow:sqlite:///a.db").destination == "sqlite:///a.db"
    assert make_tracker("wandb").destination is None
    with pytest.raises(InputError, match=r"There is no tracker 'tensorbord' .did you mean 'tensorboard'"):
        make_tracker("tensorbord:logs")


SMALL = ["--dataset", "synthetic:nodes=60,degree=4,classes=3,features=6", "--clients", "3", "--rounds", "2"]


def test_the_command_line_tracks_every_run_of_a_comparison_and_goes_on(tmp_path):
    command = ["run", *SMALL, "--method", "fedavg", "--against", "local", "--track", "tensorboard:logs"]
    done = CliRunner().invoke(app, [*command, "--out", "demo"])
    assert done.exit_code == 0, done.output
    names = {folder.name.partition("-")[0] for folder in (tmp_path / "logs").iterdir()}
    assert names == {"fedavg", "local", "majority"}
    (tmp_path / "demo" / "fedavg" / "result.json").unlink()
    files = len(list((tmp_path / "logs").rglob("events*")))
    assert CliRunner().invoke(app, ["resume", "demo/fedavg"]).exit_code == 0
    assert len(list((tmp_path / "logs").iterdir())) == 3
    assert len(list((tmp_path / "logs").rglob("events*"))) > files


def test_a_tracker_that_does_not_exist_is_refused_before_anything_runs(tmp_path):
    refused = CliRunner().invoke(app, ["run", *SMALL, "--track", "sacred"])
    assert refused.exit_code == 2
    assert "There is no tracker 'sacred'" in refused.stderr
    assert not (tmp_path / "runs").exists()
