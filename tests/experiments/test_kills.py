"""Runs that are killed at any moment go on as if nothing had happened."""

import itertools

import pytest

import graft
from graft.experiments.run_directory import RunDirectory
from tests.damage import essence
from tests.kills import SETTINGS, outcome_of, random_kills, run_and_kill

SHORT = SETTINGS | {"rounds": 3, "checkpoint_every": 1, "seed": 1}
FINE = {"equal", "not begun", "finished"}


def kill_at(folder, number, *, overwrite=False):
    """The outcome of a run that is killed at a call of the file system; None if it ended before that call."""
    place = folder / f"run{number}"
    settings = SHORT
    if overwrite:
        graft.run("fedavg", out=place, **SHORT | {"seed": 7})
        settings = SHORT | {"overwrite": True}
    if not run_and_kill(place, settings, die_at=number):
        return None
    return outcome_of(place, settings, essence(graft.run("fedprox", **SHORT)))


@pytest.mark.parametrize("number", [0, 2, 7, 15, 24, 33, 47, 62])
def test_a_run_killed_at_a_call_of_the_file_system_is_resumed_equal(tmp_path, number):
    assert kill_at(tmp_path, number) in FINE


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_killed_at_any_call_of_the_file_system_is_resumed_equal(tmp_path, overwrite):
    """Also when it takes the place of an earlier run, nothing of which may be seen again."""
    outcomes = []
    for number in itertools.count():
        outcome = kill_at(tmp_path, number, overwrite=overwrite)
        if outcome is None:
            break
        outcomes.append(outcome)
        assert outcome in FINE, f"killed at call {number}: {outcome}"
    assert len(outcomes) > 40
    assert outcomes.count("equal") > len(outcomes) / 2


def test_runs_killed_at_random_moments_are_resumed_equal(tmp_path):
    outcomes = random_kills(tmp_path, 2, SETTINGS | {"rounds": 60, "checkpoint_every": 1})
    assert outcomes.keys() <= FINE, outcomes


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 10])
def test_many_runs_killed_at_random_moments_are_resumed_equal(tmp_path, every):
    outcomes = random_kills(tmp_path, 70, SETTINGS | {"rounds": 100, "checkpoint_every": every})
    assert outcomes.keys() <= FINE, outcomes
    assert outcomes["equal"] > 35


def test_a_resumed_run_that_is_killed_is_resumed_again(tmp_path):
    settings = SHORT | {"rounds": 6}
    assert run_and_kill(tmp_path / "run", settings, die_at=70)
    before = RunDirectory(tmp_path / "run").load().round
    with pytest.raises(ZeroDivisionError):
        graft.resume(tmp_path / "run", callbacks=[lambda record: 1 / (record["round"] - before - 1)])
    assert RunDirectory(tmp_path / "run").load().round == before + 1
    assert essence(graft.resume(tmp_path / "run")) == essence(graft.run("fedprox", **settings))
