"""Published studies as grids of runs: resumed, in parallel, and told apart by what decides a result."""

import json
from dataclasses import asdict, replace

import pytest
from typer.testing import CliRunner

from graft.cli import app
from graft.experiments import brief_records, many_runs, reproduce
from graft.experiments.make_method import make_method
from graft.experiments.reproduce import make_plan
from graft.experiments.studies import PORTRAITS, STUDIES
from graft.experiments.studies.study import Variant
from tests.experiments.tiny_study import DATA, TINY, accuracies, read_output, reproduce_plan, tiny_plan

pytestmark = pytest.mark.usefixtures("tiny")


def call(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def refused(result, *words):
    assert result.exit_code == 2, result.output
    message = " ".join(result.stderr.split())
    assert message.startswith("graft: ")
    for word in words:
        assert word in message, message


@pytest.mark.slow
def test_two_processes_find_what_one_finds_and_report_what_failed(finished, monkeypatch):
    rows = {**TINY.rows, "wild": Variant("fedavg", changes={"models": "gcn,mlp"})}
    monkeypatch.setitem(STUDIES, "tiny", replace(TINY, rows=rows))
    result = call("tiny", "--seeds", "2", "--clients", "2", "--jobs", "2", "--out", "there")
    assert result.exit_code == 1
    assert f"failed: {DATA}-2 wild seed 1: Method 'fedavg' needs one architecture" in result.stderr
    here = accuracies(finished)
    there = accuracies(tiny_plan("there", clients=(2,), methods=tuple(TINY.rows)))
    assert len(there) == 6
    assert there == {name: here[name] for name in there}
    assert len({str(accuracy) for accuracy in there.values()}) > 1  # the cells are not all one run


def test_a_study_goes_on_where_it_stopped(finished):
    before = accuracies(finished)
    outcome, messages = reproduce_plan(finished)
    assert (outcome.ran, outcome.skipped, messages) == (0, 12, [])
    finished.cells[4].path.unlink()
    outcome, messages = reproduce_plan(tiny_plan())
    assert [message["cell"] for message in messages] == [finished.cells[4].name]
    assert outcome.skipped == 11
    assert accuracies(finished) == before


def test_a_damaged_result_is_computed_again(finished):
    path = finished.cells[0].path
    whole = path.read_text()
    for text in (whole[: len(whole) // 2], "[]", "{}", json.dumps({"experiment": finished.cells[0].experiment})):
        path.write_text(text)
        assert reproduce_plan(tiny_plan())[0].ran == 1


@pytest.mark.usefixtures("finished")
def test_a_changed_setting_is_computed_again_and_another_device_is_not(monkeypatch):
    rows = {**TINY.rows, "mine": Variant("fedprox", {"mu": 0.25}, paper="theirs")}
    monkeypatch.setitem(STUDIES, "tiny", replace(TINY, rows=rows))
    _, messages = reproduce_plan(tiny_plan())
    assert {message["cell"].split()[1] for message in messages} == {"mine"}
    assert reproduce_plan(make_plan("tiny", "out", seeds=(0, 1), device="auto"))[0].ran == 0
    assert reproduce_plan(tiny_plan(rounds=3, methods=("local",)))[0].ran == 4


def test_a_changed_default_of_a_method_is_computed_again(finished):
    cell = next(cell for cell in finished.cells if cell.row == "mine")
    stored = json.loads(cell.path.read_text())
    assert stored["experiment"]["settings"] == asdict(make_method("fedprox", {"mu": 0.5}))
    del stored["experiment"]["settings"]["mu"]
    cell.path.write_text(json.dumps(stored))
    assert reproduce_plan(tiny_plan())[0].ran == 1


def test_a_stop_keeps_what_is_finished_and_leaves_nothing_half_written(monkeypatch):
    plan = tiny_plan()
    whole, calls = brief_records.run_experiment, []

    def third_is_interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*arguments, **options)

    monkeypatch.setattr(brief_records, "run_experiment", third_is_interrupted)
    outcome, _ = reproduce_plan(plan)
    assert (outcome.ran, outcome.stopped) == (2, True)
    assert len([path for path in (plan.out / "runs").rglob("*") if path.is_file()]) == 2
    assert [cell.done for cell in tiny_plan().cells] == [True, True] + 10 * [False]


def test_a_failed_cell_is_reported_and_the_others_run(monkeypatch):
    rows = {"local": Variant("local"), "wild": Variant("fedavg", changes={"models": "gcn,mlp"})}
    monkeypatch.setitem(STUDIES, "tiny", replace(TINY, rows=rows))
    result = call("tiny", "--seeds", "2", "--clients", "2", "--jobs", "1", "--out", "out")
    assert result.exit_code == 1
    assert "2 of 4 runs are done" in result.output
    stored = json.loads(next(cell.path for cell in tiny_plan().cells if cell.row == "wild").read_text())
    assert "needs one architecture" in stored["error"]
    assert "| wild | failed |" in read_output("table.md")
    assert "needs one architecture" in read_output("table.html")
    assert reproduce_plan(tiny_plan(clients=(2,)))[0].ran == 2  # failures are tried again


def test_data_that_cannot_be_loaded_is_tried_once_a_group(monkeypatch):
    tries = []

    def fail(name):
        tries.append(name)
        raise reproduce.InputError("The disk is on fire.")

    monkeypatch.setattr(many_runs, "open_once", fail)
    outcome, _ = reproduce_plan(tiny_plan())
    assert len(tries) == 4
    assert set(outcome.failures.values()) == {"The disk is on fire."}
    assert len(outcome.failures) == 12


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fedgkc-architecture"], ["no study 'fedgkc-architecture'", "did you mean 'fedgkc-architectures'"]),
        (["tiny", "--datasets", "cora"], ["no dataset 'cora'", DATA]),
        (["tiny", "--clients", "7"], ["no number of clients '7'", "2, 3"]),
        (["tiny", "--clients", "many"], ["--clients", "many", "whole numbers"]),
        (["tiny", "--methods", "fedgkc"], ["no method 'fedgkc'", "local, mine, centralised"]),
        (["tiny", "--methods", ","], ["No method is left"]),
        (["tiny", "--seeds", "few"], ["--seeds", "few"]),
        (["tiny", "--seeds", "0"], ["at least one seed"]),
        (["tiny", "--seeds=-1,2"], ["none below 0"]),
        (["tiny", "--rounds", "0"], ["rounds is 0"]),
        (["tiny", "--jobs", "0"], ["jobs is 0"]),
        (["tiny", "--device", "abacus"], ["'device'", "'abacus'"]),
        (["tiny", "--no-run"], ["nothing in reproductions/tiny"]),
    ],
)
def test_wrong_words_are_refused_with_what_exists(arguments, words, tiny):
    refused(call(*arguments), *words)
    assert not (tiny / "reproductions").exists()


def test_a_folder_of_something_else_and_one_in_use_are_refused(tiny):
    (tiny / "thesis").mkdir()
    (tiny / "thesis" / "table.md").write_text("years of work")
    refused(call("tiny", "--out", "thesis"), "something else")
    assert (tiny / "thesis" / "table.md").read_text() == "years of work"
    (tiny / "busy" / "runs").mkdir(parents=True)
    with many_runs.exclusive(tiny / "busy", "graft reproduce"):
        refused(call("tiny", "--out", "busy"), "Another")


def test_studies_are_listed():
    for result in (call(), CliRunner().invoke(app, ["list", "studies"])):
        assert result.exit_code == 0
        assert all(name in result.output for name in (*STUDIES, *PORTRAITS))


def test_a_result_from_before_a_field_existed_is_still_good(finished):
    cell = finished.cells[0]
    stored = json.loads(cell.path.read_text())
    del stored["experiment"]["topology"]
    cell.path.write_text(json.dumps(stored))
    assert cell.done
    del stored["experiment"]["method"]
    cell.path.write_text(json.dumps(stored))
    assert not cell.done
