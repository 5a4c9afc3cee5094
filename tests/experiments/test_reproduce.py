"""Published studies as grids of runs: resumed, in parallel, and written down beside the paper's numbers."""

import csv
import json
from dataclasses import asdict, replace
from statistics import mean, stdev

import pytest
from typer.testing import CliRunner

from graft.cli import app
from graft.experiments import reproduce
from graft.experiments.experiment import make_experiment, make_method
from graft.experiments.reports.tables import StudyTable
from graft.experiments.reproduce import make_plan, parse_seeds, group_cells
from graft.experiments.studies import PORTRAITS, STUDIES, fedgkc
from graft.experiments.studies.study import Number, Study, Variant, numbers

DATA = "synthetic:nodes=120,degree=6,classes=3,features=8"
TINY = Study(
    meaning="A study that takes milliseconds",
    datasets=(DATA,),
    clients=(2, 3),
    rows={
        "local": Variant("local"),
        "mine": Variant("fedprox", {"mu": 0.5}, paper="theirs"),
        "centralised": Variant("centralised", changes={"models": "gcn"}, reference=True),
    },
    experiment={"models": "gcn", "rounds": 2, "width": 8},
    paper={("theirs", DATA, 2): Number(50.0, 1.5), ("theirs", DATA, 3): Number(60.0)},
    later={("theirs", DATA, 2): Number(51.0)},
    figure="bars",
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path):
    monkeypatch.setitem(STUDIES, "tiny", TINY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tiny_plan(out="out", **options):
    return make_plan("tiny", out, seeds=options.pop("seeds", (0, 1)), device="cpu", **options)


def play(plan, jobs=1):
    heard = []
    return reproduce.reproduce(plan, jobs, heard.append), heard


def call(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def refused(result, *words):
    assert result.exit_code == 2, result.output
    message = " ".join(result.stderr.split())
    assert message.startswith("graft: ")
    for word in words:
        assert word in message, message


def accuracies(plan):
    return {cell.name: cell.read()["summary"]["accuracy"] for cell in plan.cells}


def test_two_processes_find_what_one_finds():
    here, there = tiny_plan("here"), tiny_plan("there")
    assert play(here)[0].ran == play(there, jobs=2)[0].ran == 12
    assert accuracies(here) == accuracies(there)
    assert len({str(one) for one in accuracies(here).values()}) > 1  # the cells are not all one run


def test_a_study_goes_on_where_it_stopped():
    plan = tiny_plan()
    assert play(plan)[0].ran == 12
    before = accuracies(plan)
    outcome, heard = play(tiny_plan())
    assert (outcome.ran, outcome.skipped, heard) == (0, 12, [])
    plan.cells[4].path.unlink()
    outcome, heard = play(tiny_plan())
    assert [message["cell"] for message in heard] == [plan.cells[4].name]
    assert outcome.skipped == 11
    assert accuracies(plan) == before


def test_a_damaged_result_is_computed_again():
    plan = tiny_plan()
    play(plan)
    whole = plan.cells[0].path.read_text()
    for text in (whole[: len(whole) // 2], "[]", "{}", json.dumps({"experiment": plan.cells[0].experiment})):
        plan.cells[0].path.write_text(text)
        assert play(tiny_plan())[0].ran == 1


def test_a_changed_setting_is_computed_again_and_another_device_is_not(monkeypatch):
    play(tiny_plan())
    rows = {**TINY.rows, "mine": Variant("fedprox", {"mu": 0.25}, paper="theirs")}
    monkeypatch.setitem(STUDIES, "tiny", replace(TINY, rows=rows))
    _, heard = play(tiny_plan())
    assert {message["cell"].split()[1] for message in heard} == {"mine"}
    assert play(make_plan("tiny", "out", seeds=(0, 1), device="auto"))[0].ran == 0
    assert play(tiny_plan(rounds=3))[0].ran == 12


def test_a_changed_default_of_a_method_is_computed_again():
    plan = tiny_plan()
    play(plan)
    cell = next(cell for cell in plan.cells if cell.row == "mine")
    stored = json.loads(cell.path.read_text())
    assert stored["experiment"]["settings"] == asdict(make_method("fedprox", {"mu": 0.5}))
    del stored["experiment"]["settings"]["mu"]
    cell.path.write_text(json.dumps(stored))
    assert play(tiny_plan())[0].ran == 1


def test_a_stop_keeps_what_is_finished_and_leaves_nothing_half_written(monkeypatch):
    plan = tiny_plan()
    whole, calls = reproduce.run_experiment, []

    def third_is_interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*arguments, **options)

    monkeypatch.setattr(reproduce, "run_experiment", third_is_interrupted)
    outcome, _ = play(plan)
    assert (outcome.ran, outcome.stopped) == (2, True)
    assert len([path for path in plan.out.rglob("*") if path.is_file()]) == 2
    monkeypatch.setattr(reproduce, "run_experiment", whole)
    assert play(tiny_plan())[0].skipped == 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failed_cell_is_reported_and_the_others_run(monkeypatch, jobs):
    rows = {**TINY.rows, "wild": Variant("fedavg", changes={"models": "gcn,mlp"})}
    monkeypatch.setitem(STUDIES, "tiny", replace(TINY, rows=rows))
    result = call("tiny", "--seeds", "2", "--clients", "2", "--jobs", jobs, "--out", "out")
    assert result.exit_code == 1
    assert f"failed: {DATA}-2 wild seed 1: Method 'fedavg' needs one architecture" in result.stderr
    assert "6 of 8 runs are done" in result.output
    stored = json.loads(next(cell.path for cell in tiny_plan().cells if cell.row == "wild").read_text())
    assert "needs one architecture" in stored["error"]
    assert "| wild | failed |" in tiny_text("table.md")
    assert "needs one architecture" in tiny_text("table.html")
    assert play(tiny_plan(clients=(2,)))[0].ran == 2  # failures are tried again


def tiny_text(name):
    from pathlib import Path

    return (Path("out") / name).read_text()


def test_data_that_cannot_be_loaded_is_tried_once_a_group(monkeypatch):
    tries = []

    def fail(name):
        tries.append(name)
        raise reproduce.InputError("The disk is on fire.")

    monkeypatch.setattr(reproduce, "load_graph", fail)
    outcome, _ = play(tiny_plan())
    assert len(tries) == 4
    assert set(outcome.failures.values()) == {"The disk is on fire."}
    assert len(outcome.failures) == 12


def test_methods_share_partitions_and_the_page_lists_them():
    plan = tiny_plan()
    play(plan)
    table = StudyTable(plan)
    assert len(table.hashes()) == 4
    assert all(len(found) == 1 for found in table.hashes().values())
    assert len(set().union(*table.hashes().values())) == 4
    for found in table.hashes().values():
        assert next(iter(found))[:16] in table.markdown()
    assert "did not all see" not in table.markdown()
    stored = json.loads(plan.cells[0].path.read_text())
    plan.cells[0].path.write_text(json.dumps({**stored, "partition": "0" * 64}))
    assert "did not all see the same partition" in StudyTable(plan).markdown()


def fake(plan, scores):
    """Results as if the runs had happened: row -> (dataset, clients) -> accuracies of the seeds."""
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
    fake(plan, scores)
    table = StudyTable(plan)
    # 52 and 56: mean 54, deviation sqrt(4 + 4) = 2.83; the paper says 50.
    assert table.text("mine", f"{DATA}-2") == "54.00 ± 2.83 (50.00, +4.00)"
    assert table.text("mine", f"{DATA}-3") == "50.00 (60.00, -10.00) [1 of 2 seeds]"
    # Seed by seed: 55 and 56.
    assert table.text("local", "average") == "55.50 ± 0.71"
    # Only seed 0 has both columns: (52 + 50) / 2 = 51; the paper's average is 55.
    assert table.text("mine", "average") == "51.00 (55.00, -4.00) [1 of 2 seeds]"
    assert table.best(f"{DATA}-2") == {"mine"}  # the reference is better and does not count
    assert table.best(f"{DATA}-3") == {"local"}
    assert table.mean_difference(f"{DATA}-2") == "+4.00"
    table.write()
    text = tiny_text("table.md")
    assert "| mine | **54.00 ± 2.83 (50.00, +4.00)** | 50.00 (60.00, -10.00) [1 of 2 seeds] |" in text
    assert "| mean difference | +4.00 | -10.00 | -4.00 |" in text
    assert "mu = 0.5" in text
    assert "11 of 12 runs" in text
    page = tiny_text("table.html")
    assert "<b>54.00 ± 2.83 (50.00, +4.00)</b>" in page
    assert "<svg" in page
    assert "<script" not in page
    assert "src=" not in page
    assert tiny_text("figure.svg").startswith("<svg")
    lines = {(line["row"], line["clients"]): line for line in csv.DictReader(tiny_text("table.csv").splitlines())}
    line = lines["mine", "2"]
    assert {name: line[name] for name in ("test", "test_deviation", "test_node_weighted", "paper", "difference")} == {
        "test": "54",
        "test_deviation": "2.8284",
        "test_node_weighted": "27",
        "paper": "50",
        "difference": "4",
    }
    assert (line["paper_deviation"], line["paper_later_version"], line["seeds"]) == ("1.5", "51", "2")
    assert lines["local", "2"]["paper"] == ""


def test_the_table_of_real_runs_holds_their_mean(tiny):
    result = call("tiny", "--seeds", "2", "--out", "out", "--jobs", "1", "--device", "cpu")
    assert result.exit_code == 0, result.output
    found = [100 * one["test"] for name, one in accuracies(tiny_plan()).items() if "-3 local" in name]
    assert f"{mean(found):.2f} ± {stdev(found):.2f}" in tiny_text("table.md")
    assert "12/12" in result.output
    again = call("tiny", "--seeds", "2", "--out", "out", "--no-run")
    assert "12 of 12 runs are done" in again.output
    assert {path.name for path in (tiny / "out").iterdir()} == {
        "runs",
        "table.md",
        "table.csv",
        "table.html",
        "figure.svg",
    }


def test_curves_are_drawn_where_a_study_asks_for_them(monkeypatch):
    rows = {f"m{mu}": Variant("fedprox", {"mu": mu}, point=("mu", mu)) for mu in (0.0, 0.5, 1.0)}
    monkeypatch.setitem(STUDIES, "tiny", replace(TINY, rows=rows, figure="lines", axis="mu"))
    plan = tiny_plan()
    fake(plan, {row: {2: (0.5, 0.6), 3: (0.5, 0.5)} for row in rows})
    figure = StudyTable(plan).figure()
    assert figure.count("<polyline") == 2  # a panel a column
    assert figure.count("<circle") == 6


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
    with reproduce.exclusive(tiny / "busy"):
        refused(call("tiny", "--out", "busy"), "Another")


def test_studies_are_listed():
    for result in (call(), CliRunner().invoke(app, ["list", "studies"])):
        assert result.exit_code == 0
        assert all(name in result.output for name in (*STUDIES, *PORTRAITS))


def test_seeds_are_a_number_or_a_list():
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("0,3") == (0, 3)
    assert parse_seeds("7,") == (7,)


def test_cells_on_the_same_data_stay_together_unless_workers_would_idle():
    cells = tiny_plan().cells
    assert [len(chunk) for chunk in group_cells(cells, 1)] == [3] * 4
    assert [len(chunk) for chunk in group_cells(cells, 2)] == [3] * 4
    assert len(group_cells(cells, 4)) == 8
    assert len(group_cells(cells, 100)) == 12
    assert group_cells([], 4) == []


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "tiny"])
def test_every_declared_study_is_made_of_possible_experiments(name):
    plan = make_plan(name, seeds=(0,), device="cpu")
    study = plan.study
    assert len(plan.cells) == len(study.datasets) * len(study.clients) * len(study.rows)
    assert len({cell.path for cell in plan.cells}) == len(plan.cells)
    for cell in plan.cells:
        experiment = make_experiment(cell.experiment)
        make_method(experiment.method, experiment.settings, experiment.plug)
    datasets, names = {*study.datasets, *study.on_request}, {row.paper or name for name, row in study.rows.items()}
    for table in (study.paper, study.later):
        for row, dataset, clients in table:
            assert row in names
            assert dataset in datasets
            assert clients in study.clients
    if study.figure == "lines":
        assert all(row.point is not None for row in study.rows.values())


def test_the_paper_settings_live_in_one_place():
    row = STUDIES["fedgkc-architectures"].rows["fedgkc-paper"]
    assert (row.method, row.settings) == ("fedgkc_paper", {})
    both = STUDIES["fedgkc-modules"].rows["both"]
    assert (both.method, both.settings) == ("fedgkc_paper", {})


def test_printed_numbers_are_read_cell_by_cell():
    assert numbers({"a": {"cora": "80.5±0.25 - 70"}}) == {
        ("a", "cora", 5): Number(80.5, 0.25),
        ("a", "cora", 20): Number(70.0),
    }
    target, later = (numbers(table) for table in (fedgkc.ARCHITECTURES, fedgkc.ARCHITECTURES_LATER))
    assert target["fedgkc", "cora", 10] == Number(80.71)
    assert (target["fedkd", "photo", 20].mean, later["fedkd", "photo", 20].mean) == (85.37, 86.74)
    assert (target["lg_fedavg", "cs", 5].mean, later["lg_fedavg", "cs", 5].mean) == (89.07, 88.07)
    assert len(target) == 6 * 8 * 3
    homogeneous = numbers(fedgkc.HOMOGENEOUS, (10,))
    assert mean(one.mean for (row, _, _), one in homogeneous.items() if row == "fedavg") == pytest.approx(
        79.67, abs=0.01
    )
    assert mean(one.mean for (row, _, _), one in homogeneous.items() if row == "fedgkc") == pytest.approx(
        90.17, abs=0.01
    )


def test_a_result_from_before_a_field_existed_is_still_good():
    plan = tiny_plan()
    play(plan)
    stored = json.loads(plan.cells[0].path.read_text())
    del stored["experiment"]["topology"]
    plan.cells[0].path.write_text(json.dumps(stored))
    assert plan.cells[0].done
    del stored["experiment"]["method"]
    plan.cells[0].path.write_text(json.dumps(stored))
    assert not plan.cells[0].done


def test_other_measures_of_the_same_runs_stand_below_the_table(monkeypatch):
    rows = {"local": Variant("local"), "fedavg": Variant("fedavg"), "peers": Variant("dpsgd")}
    study = replace(TINY, rows=rows, paper={}, later={}, measure="test_served", beside=("test", "test_trained"))
    monkeypatch.setitem(STUDIES, "tiny", study)
    plan = tiny_plan(clients=(2,))
    play(plan)
    table, found = StudyTable(plan), {cell.row: accuracies(plan)[cell.name] for cell in plan.cells if cell.seed == 0}
    column = table.columns[0]
    assert table.spots["fedavg", column].values[0] == 100 * found["fedavg"]["test_global"]
    assert table.spots["local", column].values[0] == 100 * found["local"]["test"]  # it has no global model
    sections = {heading: rows for heading, _, _, rows in table.sections()}
    assert [row[0] for row in sections["Own models"]] == ["local", "fedavg", "peers"]
    assert [row[0] for row in sections["After local training, before mixing"]] == ["peers"]
    assert found["peers"]["test_trained"] is not None


def test_time_is_measured_but_nobody_wins(monkeypatch):
    monkeypatch.setitem(STUDIES, "tiny", replace(TINY, paper={}, later={}, measure="milliseconds"))
    plan = tiny_plan()
    play(plan)
    table = StudyTable(plan)
    assert all(spot.mean > 0 for spot in table.spots.values())
    assert all(not table.best(heading) for heading in table.headings)
    assert "Milliseconds" in table.caption()
    assert "Bold" not in table.caption()


def test_curves_show_accuracy_round_by_round(monkeypatch):
    monkeypatch.setitem(STUDIES, "tiny", replace(TINY, figure="rounds"))
    plan = tiny_plan(rounds=4)
    play(plan)
    curve = plan.cells[0].read()["curve"]
    assert curve["round"] == [1, 2, 3, 4]
    figure = StudyTable(plan).figure()
    assert figure.count("<polyline") == len(TINY.rows) * len(TINY.clients)


def test_rows_that_ask_for_other_data_may_have_other_partitions(monkeypatch):
    other = {**TINY.rows, "skewed": Variant("local", changes={"partition": "random"})}
    monkeypatch.setitem(STUDIES, "tiny", replace(TINY, rows=other))
    plan = tiny_plan()
    play(plan)
    headings = [heading for heading, *_ in StudyTable(plan).sections()]
    assert "Partitions that differ" not in headings
    stored = json.loads(plan.cells[0].path.read_text())
    plan.cells[0].path.write_text(json.dumps({**stored, "partition": "0" * 64}))
    assert "Partitions that differ" in [heading for heading, *_ in StudyTable(plan).sections()]
