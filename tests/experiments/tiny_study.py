"""A study that takes milliseconds, for the tests of reproductions and of their tables."""

from pathlib import Path

from graft.experiments import reproduce
from graft.experiments.reproduce import make_plan
from graft.experiments.studies.paper_tables import Number
from graft.experiments.studies.study import Study, Variant

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


def tiny_plan(out="out", **options):
    return make_plan("tiny", out, seeds=options.pop("seeds", (0, 1)), device="cpu", **options)


def reproduce_plan(plan, jobs=1):
    """Run the cells of a plan that are missing: the outcome, and all that was reported."""
    messages = []
    return reproduce.reproduce(plan, jobs, messages.append), messages


def accuracies(plan):
    return {cell.name: cell.read()["summary"]["accuracy"] for cell in plan.cells}


def read_output(name):
    return (Path("out") / name).read_text()
