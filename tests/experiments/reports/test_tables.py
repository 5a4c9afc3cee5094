"""The table of a study: means and deviations beside the paper's numbers, partitions, other measures and figures."""

import csv
import json
import re
import sys
from dataclasses import replace
from statistics import mean, stdev

import pytest
from typer.testing import CliRunner

from graft.cli import app
from graft.experiments.brief_records import served
from graft.experiments.reports.study_figures import study_figure, study_panels
from graft.experiments.reports.tables import StudyTable
from graft.experiments.studies import STUDIES
from graft.experiments.studies.paper_tables import Number
from graft.experiments.studies.study import Variant
from tests.experiments.tiny_study import DATA, TINY, accuracies, read_output, reproduce_plan, tiny_plan

pytestmark = pytest.mark.usefixtures("tiny")


def change_partition(cell):
    """Let a stored result say that it was computed on another partition."""
    stored = json.loads(cell.path.read_text())
    cell.path.write_text(json.dumps({**stored, "partition": "0" * 64}))


def test_methods_share_partitions_and_the_page_lists_them(finished):
    table = StudyTable(finished)
    hashes = table.hashes()
    assert [len(seen) for seen in hashes.values()] == [1] * 4
    assert len(set().union(*hashes.values())) == 4
    text = table.markdown()
    assert all(next(iter(seen))[:16] in text for seen in hashes.values())
    assert "did not all see" not in text
    change_partition(finished.cells[0])
    assert "did not all see the same partition" in StudyTable(finished).markdown()


@pytest.mark.usefixtures("finished")
def test_rows_that_ask_for_other_data_may_have_other_partitions(monkeypatch):
    rows = {**TINY.rows, "skewed": Variant("local", changes={"partition": "random"})}
    monkeypatch.setitem(STUDIES, "tiny", replace(TINY, rows=rows))
    plan = tiny_plan()
    assert reproduce_plan(plan)[0].ran == 4
    assert StudyTable(plan).inconsistent() == []
    change_partition(plan.cells[0])
    assert StudyTable(plan).inconsistent() == [(DATA, 2, 0)]
    assert "Partitions that differ" in [heading for heading, *_ in StudyTable(plan).sections()]


def write_results(plan, scores):
    """Write results as if the runs had happened: row -> clients -> accuracies of the seeds."""
    for cell in plan.cells:
        test = scores[cell.row][cell.clients][cell.seed]
        if test is None:
            continue
        summary = {
            "accuracy": {"test": test, "test_node_weighted": test / 2},
            "seconds": {"total": 3.0},
            "device": "cpu",
            "graft": "0.1.0",
        }
        cell.path.parent.mkdir(parents=True, exist_ok=True)
        cell.path.write_text(json.dumps({"experiment": cell.experiment, "partition": "f" * 64, "summary": summary}))


def test_the_table_shows_mean_deviation_paper_and_difference_worked_out_by_hand():
    plan = tiny_plan()
    scores = {
        "local": {2: (0.40, 0.42), 3: (0.70, 0.70)},
        "mine": {2: (0.52, 0.56), 3: (0.50, None)},
        "centralised": {2: (0.90, 0.90), 3: (0.90, 0.90)},
    }
    write_results(plan, scores)
    table = StudyTable(plan)
    # 52 and 56: mean 54, deviation sqrt(4 + 4) = 2.83; the paper says 50.
    assert table.text("mine", f"{DATA}-2") == "54.00 ± 2.83 (v1: 50.00, +4.00; v2: 51.00, +3.00)"
    assert table.text("mine", f"{DATA}-3") == "50.00 (v1: 60.00, -10.00) [1 of 2 seeds]"
    # Seed by seed: 55 and 56.
    assert table.text("local", "average") == "55.50 ± 0.71"
    # Only seed 0 has both columns: (52 + 50) / 2 = 51; the paper's average is 55.
    assert table.text("mine", "average") == "51.00 (v1: 55.00, -4.00) [1 of 2 seeds]"
    assert table.best(f"{DATA}-2") == {"mine"}  # the reference is better and does not count
    assert table.best(f"{DATA}-3") == {"local"}
    assert (table.mean_difference(f"{DATA}-2"), table.mean_difference(f"{DATA}-2", later=True)) == ("+4.00", "+3.00")
    table.write()
    text = read_output("table.md")
    both = "54.00 ± 2.83 (v1: 50.00, +4.00; v2: 51.00, +3.00)"
    assert f"| mine | **{both}** | 50.00 (v1: 60.00, -10.00) [1 of 2 seeds] |" in text
    assert "| mean difference to v1 | +4.00 | -10.00 | -4.00 |" in text
    assert "| mean difference to v2 | +3.00 |  |  |" in text
    assert "In brackets the number of each version of the paper" in text
    assert "mu = 0.5" in text
    assert "11 of 12 runs" in text
    page = read_output("table.html")
    assert f"<b>{both}</b>" in page
    assert "<svg" in page
    assert "src=" not in page
    assert len(page) < 60_000  # without figures that need it, the page does without the bundle that draws them
    assert read_output("figure.svg").startswith("<svg")
    lines = {(line["row"], line["clients"]): line for line in csv.DictReader(read_output("table.csv").splitlines())}
    line = lines["mine", "2"]
    assert {name: line[name] for name in ("test", "test_deviation", "test_node_weighted", "paper", "difference")} == {
        "test": "54",
        "test_deviation": "2.8284",
        "test_node_weighted": "27",
        "paper": "50",
        "difference": "4",
    }
    assert (line["paper_deviation"], line["paper_later_version"], line["difference_later"]) == ("1.5", "51", "3")
    assert (line["seeds"], line["paper_sure"]) == ("2", "yes")
    assert lines["local", "2"]["paper"] == ""


def test_the_table_of_real_runs_holds_their_mean(tiny):
    arguments = ["reproduce", "tiny", "--seeds", "2", "--clients", "3", "--methods", "local,mine", "--out", "out"]
    result = CliRunner().invoke(app, [*arguments, "--jobs", "1", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    plan = tiny_plan(clients=(3,), methods=("local", "mine"))
    local = [100 * accuracy["test"] for name, accuracy in accuracies(plan).items() if "-3 local" in name]
    assert f"{mean(local):.2f} ± {stdev(local):.2f}" in read_output("table.md")
    assert "4/4" in result.output
    again = CliRunner().invoke(app, [*arguments, "--no-run"])
    assert "4 of 4 runs are done" in again.output
    names = {path.name for path in (tiny / "out").iterdir()}
    assert names == {"runs", "progress.jsonl", "table.md", "table.csv", "table.html", "figure.svg"}


def test_other_measures_of_the_same_runs_stand_below_the_table(monkeypatch):
    rows = {"local": Variant("local"), "fedavg": Variant("fedavg"), "peers": Variant("dpsgd")}
    study = replace(TINY, rows=rows, paper={}, later={}, measure="test_served", beside=("test", "test_trained"))
    monkeypatch.setitem(STUDIES, "tiny", study)
    plan = tiny_plan(clients=(2,), seeds=(0,))
    reproduce_plan(plan)
    table, accuracy = StudyTable(plan), {cell.row: accuracies(plan)[cell.name] for cell in plan.cells}
    column = table.columns[0]
    assert table.entries["fedavg", column].values[0] == 100 * accuracy["fedavg"]["test_global"]
    assert table.entries["local", column].values[0] == 100 * accuracy["local"]["test"]  # it has no global model
    sections = {heading: rows for heading, _, _, rows in table.sections()}
    assert [row[0] for row in sections["Own models"]] == ["local", "fedavg", "peers"]
    trained = {"local": "test", "fedavg": "test", "peers": "test_trained"}
    wanted = [(row, f"{100 * accuracy[row][name]:.2f}") for row, name in trained.items()]
    assert sections["After local training, before mixing"] == wanted


def test_time_is_measured_but_nobody_wins(finished, monkeypatch):
    accuracy_table = StudyTable(finished)
    monkeypatch.setitem(STUDIES, "tiny", replace(TINY, paper={}, later={}, measure="milliseconds"))
    plan = tiny_plan()
    table = StudyTable(plan)
    seconds = plan.cells[0].read()["summary"]["seconds"]["per_round"]
    assert table.entries[plan.cells[0].row, table.columns[0]].values[0] == 1000 * seconds > 0
    assert all(accuracy_table.best(heading) for heading in table.headings)
    assert all(not table.best(heading) for heading in table.headings)
    assert "Milliseconds" in table.caption()
    assert "Bold" not in table.caption()


def test_traffic_and_memory_are_those_of_the_runs(finished, monkeypatch):
    study = replace(TINY, paper={}, later={}, measure="megabytes", beside=("memory",))
    monkeypatch.setitem(STUDIES, "tiny", study)
    table = StudyTable(tiny_plan())
    cell = next(cell for cell in finished.cells if cell.row == "mine")
    summary = cell.read()["summary"]
    sent = summary["communication"]
    megabytes = table.entries["mine", table.columns[0]].values[cell.seed]
    assert megabytes == pytest.approx((sent["up_bytes"] + sent["down_bytes"]) / 2 / 1e6)  # two rounds
    assert megabytes > 0
    assert table.entries["local", table.columns[0]].values[cell.seed] == 0
    memory = table.other_entry("mine", DATA, cell.clients, "memory").values[cell.seed]
    assert memory == pytest.approx(summary["peak_memory_bytes"] / 1e6)
    assert not table.best(table.columns[0])


@pytest.mark.usefixtures("finished")
def test_a_paper_with_one_version_has_one_number_and_one_that_is_not_sure_a_mark(monkeypatch):
    printed = {("theirs", DATA, 2): Number(50.0), ("theirs", DATA, 3): Number(60.0, sure=False)}
    monkeypatch.setitem(STUDIES, "tiny", replace(TINY, paper=printed, later={}))
    table = StudyTable(tiny_plan())
    assert re.search(r" \(50\.00, [+-]\d+\.\d\d\)$", table.text("mine", table.columns[0]))
    assert " (60.00?, " in table.text("mine", table.columns[1])
    assert " (55.00?, " in table.text("mine", "average")
    assert "question mark" in table.caption()
    assert [row[0] for row in table.last_rows()] == ["mean difference"]
    monkeypatch.setitem(STUDIES, "tiny", replace(TINY, later=TINY.paper))
    again = StudyTable(tiny_plan())
    assert " (v1 and v2: 50.00, " in again.text("mine", again.columns[0])
    assert "question mark" not in again.caption()


# Figures.


def test_curves_are_drawn_where_a_study_asks_for_them(monkeypatch):
    rows = {f"m{mu}": Variant("fedprox", {"mu": mu}, point=("mu", mu)) for mu in (0.0, 0.5, 1.0)}
    monkeypatch.setitem(STUDIES, "tiny", replace(TINY, rows=rows, figure="lines", axis="mu"))
    plan = tiny_plan()
    assert study_figure(StudyTable(plan)) == ("", "")  # there is nothing to draw yet
    write_results(plan, {row: {2: (0.5, 0.6), 3: (0.5, 0.5)} for row in rows})
    panels = study_panels(StudyTable(plan))
    assert [panel.title for panel in panels] == [f"{DATA}-2", f"{DATA}-3"]
    first = [(value["series"], value["x"], value["y"]) for value in panels[0].body["data"]["values"]]
    assert first == [("mu", 0, 55), ("mu", 0.5, 55), ("mu", 1, 55)]
    assert [value.get("deviation") for value in panels[1].body["data"]["values"]] == [None] * 3  # both seeds agree
    assert study_figure(StudyTable(plan)).svg.count("mark-line role-mark") == 2


def test_a_table_does_not_wait_for_the_package_that_draws_figures(monkeypatch):
    plan = tiny_plan()
    write_results(plan, {row: {2: (0.5, 0.6), 3: (0.5, 0.5)} for row in TINY.rows})
    StudyTable(plan).write()
    assert "](figure.svg)" in read_output("table.md")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    result = CliRunner().invoke(app, ["reproduce", "tiny", "--seeds", "2", "--no-run", "--out", "out"])
    assert result.exit_code == 0, result.output
    assert "The figure was left out. Figures need vl-convert" in " ".join(result.stderr.split())
    assert "](figure.svg)" not in read_output("table.md")
    assert "The figure was left out." in read_output("table.md")
    assert "The figure was left out." in read_output("table.html")


@pytest.mark.usefixtures("finished")
def test_curves_show_accuracy_round_by_round(monkeypatch):
    monkeypatch.setitem(STUDIES, "tiny", replace(TINY, figure="rounds"))
    plan = tiny_plan()
    cell = plan.cells[0].read()
    assert cell["curve"]["round"] == [1, 2]
    assert round(cell["summary"]["accuracy"]["test"], 5) in cell["curve"]["test"]
    panels = study_panels(StudyTable(plan))
    assert len(panels) == len(TINY.clients)
    values = panels[0].body["data"]["values"]
    assert [(value["series"], value["x"]) for value in values] == [(row, n) for row in TINY.rows for n in (1, 2)]
    of_seeds = [cell.read()["curve"]["test"][0] for cell in plan.cells if (cell.row, cell.clients) == ("local", 2)]
    assert values[0]["y"] == pytest.approx(100 * mean(of_seeds), abs=0.01)


@pytest.mark.usefixtures("finished")
def test_curves_are_of_the_models_that_the_table_is_of(monkeypatch):
    def first_point(measure):
        monkeypatch.setitem(STUDIES, "tiny", replace(TINY, figure="rounds", measure=measure))
        plan = tiny_plan()
        values = study_panels(StudyTable(plan))[0].body["data"]["values"]
        cells = [cell.read()["curve"] for cell in plan.cells if (cell.row, cell.clients) == ("mine", 2)]
        own, served = (100 * mean(curve[name][0] for curve in cells) for name in ("test", "test_served"))
        assert abs(own - served) > 0.1
        return next(value["y"] for value in values if value["series"] == "mine"), own, served

    drawn, own, _ = first_point("test")
    assert drawn == pytest.approx(own, abs=0.01)
    drawn, _, served = first_point("test_served")
    assert drawn == pytest.approx(served, abs=0.01)
    for cell in tiny_plan().cells:  # as older versions wrote them
        stored = cell.read()
        del stored["curve"]["test_served"]
        cell.path.write_text(json.dumps(stored), encoding="utf-8")
    assert study_panels(StudyTable(tiny_plan())) == []


def test_what_is_handed_out_is_the_global_model_or_one_for_each():
    assert served({"test": 0.5, "test_global": 0.6}) == 0.6
    assert served({"test": 0.5, "test_global": None}) == 0.5  # nothing is handed out
    assert served({"test": 0.5, "test_trained": 0.4, "test_global": 0.6}) == 0.5  # the server made one for each
