"""A class is summarised by the first sentence of its docstring, however many lines that takes."""

import pytest

from graft.cli.listing import TABLES
from graft.source import ClassSource, read_class


@pytest.mark.parametrize(
    ("doc", "summary", "details"),
    [
        ("Peers mix.", "Peers mix.", ""),
        ("Peers mix what\n    they hear.\n\nAnd more.", "Peers mix what they hear.", "And more."),
        ("Peers mix. They train\nbefore.", "Peers mix.", "They train\nbefore."),
        ("Peers mix, e.g. Cora's, by J. Smith. Then more.", "Peers mix, e.g. Cora's, by J. Smith.", "Then more."),
        ("Decays by 0.2 % a round, see Eq. 3. `mix` mixes.", "Decays by 0.2 % a round, see Eq. 3.", "`mix` mixes."),
        ("No full stop\n \nmore", "No full stop", "more"),
        ("\n", "", ""),
    ],
)
def test_summary_is_the_first_sentence_and_details_are_the_rest(doc, summary, details):
    source = ClassSource(doc, module_doc="")
    assert (source.summary, source.details) == (summary, details)


@pytest.mark.parametrize("table", sorted(TABLES))
def test_no_summary_is_cut_inside_a_sentence(table):
    sources = {name: TABLES[table].source(name) for name in TABLES[table]}
    assert [name for name, source in sources.items() if source and not source.summary.endswith((".", ".)"))] == []


def test_summary_of_two_lines_is_read_from_a_file(tmp_path):
    path = tmp_path / "my_method.py"
    path.write_text('class Mine:\n    """Averages models\n    by size.\n\n    Slowly."""\n')
    source = read_class(path, "Mine")
    assert (source.summary, source.details) == ("Averages models by size.", "Slowly.")
