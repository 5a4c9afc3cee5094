"""Whole pages: of any run, whatever its names and sizes, of comparisons and of tunings."""

import html
import json
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from graft.cli import app
from graft.errors import InputError
from graft.experiments.comparison.comparison import Comparison
from graft.experiments.comparison.conclusion import conclude
from graft.experiments.comparison.finished_runs import find_runs, read_run
from graft.experiments.experiment import Experiment
from graft.experiments.reports import pages, vega
from graft.experiments.reports.charts import Point, curves
from graft.experiments.reports.comparison_page import said_of_seeds
from graft.experiments.reports.pages import Figure, Page, Section, Table, render
from graft.experiments.reports.record_sections import command_of
from graft.experiments.reports.report import write_comparison_report, write_report, write_tuning_report
from graft.experiments.reports.series import MOST_POINTS, mean_points, thinned
from graft.experiments.reports.summary_table import Cell, summarise
from graft.experiments.verdicts import Verdict, write_verdicts
from tests.experiments.reports.folders import write_run, write_tuning

HOSTILE = "</script><img src=x onerror=alert(1)><!--<script>"


@pytest.fixture(autouse=True)
def short_bundle(monkeypatch):
    """The script that draws figures is not looked at here."""
    monkeypatch.setattr(pages, "javascript", lambda: "/* bundle */")


class Tags(HTMLParser):
    """All tags and attributes of a page, and the texts of its scripts of data."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.specs, self.inside = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.inside = ("type", "application/json") in attributes

    def handle_data(self, data):
        if self.inside:
            self.specs.append(json.loads(data))
            self.inside = False


def words_of(page):
    """Returns what people read on a page."""
    main = page[page.index("<main>") : page.index("</main>")]
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<script.*?</script>|<[^>]+>", " ", main, flags=re.S)))


def report_of(folder, **how):
    return write_report(write_run(folder, **how)).read_text()


def test_a_page_loads_nothing_and_says_what_was_found(tmp_path):
    page = report_of(tmp_path / "run", details={"knowledge": 0.1}, confusion=True, warnings=["Beware of one class."])
    tags = Tags(page)
    assert not {"img", "iframe", "object", "embed"} & set(tags.tags)
    assert [value for name, value in tags.attributes if name == "src"] == []
    assert {value for name, value in tags.attributes if name == "href"} >= {"data:,", "#over-the-rounds"}
    assert all(value[0] == "#" or value == "data:," for name, value in tags.attributes if name == "href")
    words = words_of(page)
    for part in (
        "fedavg reaches 4",
        "mean test accuracy",
        "One seed",
        "Beware of one class",
        "Confusion matrix",
        "knowledge",
    ):
        assert part in words, part
    titles = re.findall("<h2><a[^>]*>(.*?)</a>", page)
    assert titles[:3] == ["Scores at the best round", "Over the rounds", "Client by client"]
    assert titles[-1] == "Settings, and how to repeat it"


def test_hostile_names_are_shown_as_text(tmp_path):
    folder = write_run(tmp_path / "run", clients=2, names=[HOSTILE, "b"], details={HOSTILE: 1.0}, warnings=[HOSTILE])
    write_verdicts(folder, [Verdict(HOSTILE, "accuracy", 40, 0.5, 0.6, 0.1, 0.0, 0.2, "joining helps")], "local")
    page = write_report(folder).read_text()
    tags = Tags(page)
    assert "img" not in tags.tags
    assert "onerror" not in {name for name, _ in tags.attributes}
    assert "</script><img" not in page
    assert HOSTILE in words_of(page)
    named = [
        value.get("name")
        for spec in tags.specs
        for layer in spec.get("layer", [])
        for value in layer.get("data", {}).get("values", [])
    ]
    assert HOSTILE in named  # and in the data of figures, where nothing ends a script


def test_a_run_without_validation_nodes_or_scores_still_has_a_page(tmp_path):
    assert "no validation nodes to pick a round by" in words_of(report_of(tmp_path / "blind", validation=False))
    nothing = words_of(report_of(tmp_path / "nothing", evaluate=False))
    assert "No round of this run was scored on test nodes" in nothing
    assert "Training loss" in nothing
    assert "None" not in nothing


def test_one_client_is_enough(tmp_path):
    assert "1 client, louvain" in words_of(report_of(tmp_path / "run", clients=1))


def test_many_clients_and_rounds_make_no_large_page(tmp_path):
    small = len(report_of(tmp_path / "small", details={"knowledge": 0.1}))
    many = report_of(tmp_path / "many", clients=500, rounds=3, details={"knowledge": 0.1}, confusion=True)
    assert len(many) < small + 350_000
    assert "The 60 lowest and highest of 500 clients" in words_of(many)
    long = Tags(report_of(tmp_path / "long", rounds=1000))
    longest = max(len(spec["data"]["values"]) for spec in long.specs if "values" in spec.get("data", {}))
    assert 100 < longest <= 2 * (MOST_POINTS + 1)  # test and validation


def test_the_first_the_last_and_the_best_round_stay_in_thinned_curves():
    assert thinned(list(range(1, 5001)), [777])[0] == 1
    assert {1, 777, 5000} <= set(thinned(list(range(1, 5001)), [777]))
    assert len(thinned(list(range(1, 5001)), [777])) <= MOST_POINTS + 1
    assert thinned([1, 2, 3]) == [1, 2, 3]


def test_bands_are_one_deviation_over_the_seeds_that_share_a_round():
    first, second = mean_points([{1: 10.0, 2: 20.0}, {1: 14.0, 2: 20.0, 3: 9.0}])
    assert (first.y, first.high - first.y) == (12.0, pytest.approx(2.8284, abs=1e-4))
    assert (second.low, second.high) == (20.0, 20.0)
    assert mean_points([{5: 1.0}]) == [Point(5, 1.0)]  # one seed has no band


def test_clients_with_names_keep_them(tmp_path):
    words = words_of(report_of(tmp_path / "run", names=["north", "south", "west"]))
    assert "north" in words
    assert "client north" not in words  # only numbers need the word


def test_without_vl_convert_a_sentence_stands_for_every_figure(tmp_path, monkeypatch):
    def refuse():
        raise InputError(vega.MISSING)

    monkeypatch.setattr(pages, "javascript", refuse)
    page = report_of(tmp_path / "run")
    assert vega.MISSING in page
    assert 'class="vega"' not in page
    assert "fedavg reaches" in page


def test_numbers_that_are_none_at_all_are_refused_in_data_of_figures():
    spec = curves({"a": [Point(1, float("nan"))]}, "x", "y")
    with pytest.raises(ValueError, match="not JSON compliant"):
        render(Page("title", sections=[Section("section", [Figure("figure", spec)])]))


def test_links_of_many_peers_are_cut(tmp_path):
    peers = 120
    links = {"mix": [[to, sender, 1.0] for to in range(peers) for sender in range(peers)]}
    page = report_of(tmp_path / "run", clients=peers, rounds=1, links=links)
    assert "Of each round the 3,000 strongest links." in words_of(page)
    assert len(page) < 1_000_000


# Comparisons.


def folders(root, methods=("fedavg", "fedprox", "local"), seeds=2, **how):
    levels = dict(zip(methods, (0.7, 0.6, 0.5), strict=False))
    for method in methods:
        for seed in range(seeds):
            write_run(root / f"{method}-{seed}", method, seed, level=levels[method], **how)
    return root


def test_a_comparison_says_which_is_best_and_from_what_it_can_be_told(tmp_path):
    comparison = Comparison(find_runs([folders(tmp_path, seeds=5)]))
    words = words_of(write_comparison_report(comparison, tmp_path).read_text())
    assert "fedavg is best on digits" in words
    assert "points ahead of fedprox" in words
    assert "It can be told from all others" in words
    assert "above training alone, a clear difference" in words
    assert "Differences from training alone" in words
    assert "Gain over training alone" in words


def test_the_page_and_the_terminal_say_the_same(tmp_path):
    folder = folders(tmp_path / "runs", seeds=3)
    verdict = conclude(Comparison(find_runs([folder])))
    printed = CliRunner().invoke(app, ["compare", str(folder), "--out", str(tmp_path / "paper"), "--csv"]).output
    shown = words_of(write_comparison_report(Comparison(find_runs([folder])), tmp_path).read_text())
    assert len(verdict) == 3
    for sentence in verdict:
        assert sentence in " ".join(printed.split())
        assert sentence in shown


def test_one_seed_can_tell_nothing(tmp_path):
    comparison = Comparison(find_runs([folders(tmp_path, seeds=1)]))
    words = words_of(write_comparison_report(comparison, tmp_path).read_text())
    assert "nothing can be tested: run more seeds" in words
    assert "It can be told" not in words
    assert "Bold: the best of one run each." in words


def test_the_best_row_is_bold_and_one_that_is_clearly_worse_is_not(tmp_path):
    table = summarise(Comparison(find_runs([folders(tmp_path, seeds=5)])))
    bold = {row[0].text: row[1].best for row in table.rows}
    assert bold == {"fedavg": True, "fedprox": False, "local": False}


def test_runs_of_different_settings_are_rows_of_their_own_with_their_names(tmp_path):
    for number, mu in enumerate((0.0, 0.01, 10.0)):
        write_run(tmp_path / f"run{number}", "fedprox", settings={"mu": mu})
    table = summarise(Comparison(find_runs([tmp_path])))
    assert [row[0].text for row in table.rows] == ["fedprox, mu=0", "fedprox, mu=0.01", "fedprox, mu=10"]
    assert table.notes[0] == "One run a row."  # and not three seeds of one


def test_the_same_run_twice_is_refused(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 2
    assert "are the same experiment with the same seed" in " ".join(result.output.split())


def test_hostile_names_of_rows_are_shown_as_text(tmp_path):
    for name in (HOSTILE, "plain"):
        write_run(tmp_path / str(len(name)), "fedprox", settings={"kind": name})
    page = write_comparison_report(Comparison(find_runs([tmp_path])), tmp_path).read_text()
    assert "</script><img" not in page
    assert "img" not in Tags(page).tags
    assert HOSTILE in words_of(page)


def test_a_comparison_on_several_data_has_ranks(tmp_path):
    for count in (2, 3):
        folders(tmp_path / str(count), clients=count)
    words = words_of(write_comparison_report(Comparison(find_runs([tmp_path])), tmp_path).read_text())
    assert "fedavg has the best mean on 2 of 2 data" in words
    assert "average rank" in words


def test_partitions_that_differ_are_noted(tmp_path):
    write_run(tmp_path / "a", "fedavg")
    file = write_run(tmp_path / "b", "local", seed=1) / "result.json"
    comparison = Comparison(find_runs([tmp_path]))
    assert "different partitions" not in words_of(write_comparison_report(comparison, tmp_path).read_text())
    comparison.runs[1].summary["hashes"]["partition"] = "f" * 32
    comparison.runs[1].experiment["seed"] = 0
    mixed = Comparison(comparison.runs)
    assert "saw different partitions" in words_of(write_comparison_report(mixed, tmp_path).read_text())
    assert file.exists()


# Tunings.


def test_a_tuning_shows_what_it_gained_and_chose(tmp_path):
    words = words_of(write_tuning_report(write_tuning(tmp_path)).read_text())
    for part in ("Tuned, fedprox reaches 62.0 %", "12.0 points above its default", "stopped early", "0.00156", "80 %"):
        assert part in words, part


def test_a_folder_with_a_tuning_and_runs_shows_both(tmp_path):
    folders(write_tuning(tmp_path) / "runs")
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 0, result.output
    words = words_of((tmp_path / "report.html").read_text())
    assert words.index("Chosen values") < words.index("Test scores")


def test_a_damaged_tuning_is_refused_in_one_sentence(tmp_path):
    file = write_tuning(tmp_path) / "tuning.json"
    file.write_text(file.read_text().replace('"accuracy"', '"nonsense"'))
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 2
    assert "tuning.json is damaged or not of a tuning" in " ".join(result.output.split())


# The command.


def test_one_run_gets_its_page_and_several_get_one_together(tmp_path):
    folder = folders(tmp_path / "runs")
    runner = CliRunner()
    assert runner.invoke(app, ["report", str(folder / "fedavg-0")]).exit_code == 0
    assert "fedavg on digits" in words_of((folder / "fedavg-0" / "report.html").read_text())
    out = tmp_path / "page.html"
    result = runner.invoke(app, ["report", str(folder), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "fedavg, fedprox and local on digits" in words_of(out.read_text())
    assert not (folder / "report.html").exists()
    refused = runner.invoke(app, ["report", str(folder), "--rounds", "1"])
    assert (refused.exit_code, "--rounds is for the page of one run" in refused.output) == (2, True)
    assert runner.invoke(app, ["report", str(folder), "--out", str(tmp_path)]).exit_code == 2


def test_a_report_needs_no_pytorch(tmp_path):
    folder = folders(tmp_path / "runs", seeds=3)
    script = (
        f"import sys; from graft.cli import app; app(['report', {str(folder)!r}], standalone_mode=False); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "report.html").exists()


def test_the_command_that_repeats_a_run_is_the_one_that_was_typed():
    experiment = Experiment(
        method="fedprox",
        dataset="my data.npz",
        clients=7,
        inductive=True,
        settings={"mu": 0.5, "on": True, "text": "1"},
    )
    words = shlex.split(command_of(vars(experiment)))
    assert words[:6] == ["graft", "run", "--method", "fedprox", "--set", "mu=0.5"]
    assert {"on=true", 'text="1"', "my data.npz", "--inductive"} <= set(words)
    assert "--rounds" not in words  # the default
    assert command_of({**vars(experiment), "dataset": "given-in-python"}) is None
    several = command_of(vars(Experiment(models=["gcn", "gat"], graphs=["a=x.npz", "b=y.npz"], partition="own")))
    assert "--models gcn,gat" in several
    assert several.count("--graphs") == 2


def test_cells_are_sorted_by_numbers_and_not_by_their_texts():
    table = Table(("name", "number"), [[Cell("a"), Cell("9.0 kB", 9000.0)], ["b", Cell("-")]])
    page = render(Page("title", sections=[Section("section", [table])]))
    assert '<td data-value="9000.0">9.0 kB</td>' in page
    assert '<td class="word">b</td>' in page


def test_the_record_of_a_page_is_that_of_the_run(tmp_path):
    folder = write_run(tmp_path / "run", "fedprox", settings={"mu": 0.5})
    words = words_of(write_report(folder).read_text())
    run = read_run(folder)
    assert command_of(run.experiment) in words
    assert run.hashes["experiment"] in words
    assert "What is not the default" in words


def test_seeds_may_be_far_apart():
    assert said_of_seeds([0, 1, 2]) == "seeds 0 to 2"
    assert said_of_seeds([3, 2**40, 2**62]) == f"seeds 3, {2**40} and {2**62}"
