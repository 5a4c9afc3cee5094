"""`graft list`."""

from typer.testing import CliRunner

from graft.cli import app
from graft.methods import METHOD_FAMILIES, METHODS
from graft.methods.fedavg import FedAvg


def listed(*words):
    result = CliRunner().invoke(app, ["list", *words])
    assert result.exit_code == 0
    return result.output.splitlines()


def test_methods_are_listed_by_families_with_a_line_each():
    lines = listed("methods")
    shown = {title: family for title, family in METHOD_FAMILIES.items() if family.methods}
    assert [line.partition(":")[0] for line in lines if line and not line.startswith(" ")] == list(shown)
    for title, family in shown.items():
        begin = lines.index(f"{title}: {family.meaning}") + 1
        below = [line.split()[0] for line in lines[begin : begin + len(family.methods)]]
        assert below == sorted(family.methods)
    assert len([line for line in lines if line.startswith("  ")]) == len(METHODS.targets)


def test_methods_that_were_added_are_yours():
    class Mine(FedAvg):
        """A method of a notebook."""

    assert not any(line.startswith("Yours") for line in listed("methods"))
    METHODS["mine"] = Mine
    try:
        lines = listed("methods")
    finally:
        del METHODS["mine"]
    assert lines[-2].startswith("Yours:")
    assert lines[-1].split(maxsplit=1) == ["mine", "A method of a notebook."]


def test_other_lists_have_no_families():
    assert listed("datasets")[0].startswith("digits")
    assert listed("models")[0].startswith("gcn ")
