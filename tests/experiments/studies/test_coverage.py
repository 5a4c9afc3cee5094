"""The page of the papers' tables and figures: it has all of them, and its commands name what there is."""

import re
import shlex

import pytest

from graft.experiments.studies import PORTRAITS, STUDIES
from tests.documents import ROOT

PAGE = (ROOT / "docs/results/coverage.md").read_text()
ITEMS = {
    "FedGKC": {
        *(f"v1 Table {number}" for number in range(1, 6)),
        *(f"v2 Table {number}" for number in range(1, 7)),
        *(f"{version} Fig. {name}" for version in ("v1", "v2") for name in ("1", "2", "3a", "3b", "4a", "4b")),
    },
    "FedTAD": {
        *(f"Table {number}" for number in range(1, 5)),
        *(f"Fig. {name}" for name in ("1", "2", "3", "4a", "4b", "5")),
    },
    "DFed-SST": {
        *(f"Table {number}" for number in range(1, 5)),
        *(f"Fig. {name}" for name in ("1", "2a", "2b", "2c", "2d", "3", "4", "5", "6", "7")),
    },
    "FedOMD": {
        *(f"Table {number}" for number in range(1, 8)),
        *(f"Fig. {number}" for number in range(1, 8)),
    },
}
COMMANDS = re.findall(r"`graft reproduce ([^`]+)`", PAGE)


def lines_of(paper):
    """The lines of the table of a paper, as cells."""
    section = PAGE.partition(f"\n## {paper}\n")[2].partition("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


@pytest.mark.parametrize("paper", ITEMS)
def test_every_table_and_figure_of_a_paper_has_its_line(paper):
    items = [item for line in lines_of(paper) for item in line[0].split(", ")]
    assert len(items) == len(set(items))
    assert set(items) == ITEMS[paper]


@pytest.mark.parametrize("paper", ITEMS)
def test_every_line_says_how_far_it_was_computed_and_where_the_results_are(paper):
    for item, _, command, state in lines_of(paper):
        assert re.match(r"(\[Done\]\(|Partly: |Ready|No runs)", state), item
        assert bool(command) != state.startswith("No runs"), item
        if state.startswith("Partly"):
            assert "](" in state, item
            assert "Not run: " in state, item


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_names_a_study_and_what_it_has(command):
    name, *flags = shlex.split(command)
    study = STUDIES.get(name) or PORTRAITS[name]
    possible = {
        "--datasets": {*study.datasets, *getattr(study, "on_request", ())},
        "--clients": {str(count) for count in study.clients},
        "--methods": set(getattr(study, "rows", ())),
        "--jobs": {"1"},
    }
    for flag, value in zip(flags[::2], flags[1::2], strict=True):
        assert set(value.split(",")) <= possible[flag], flag


def test_every_study_is_on_the_page():
    assert {shlex.split(command)[0] for command in COMMANDS} == {*STUDIES, *PORTRAITS}
