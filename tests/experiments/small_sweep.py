"""A sweep that takes a second, for the tests of sweeps."""

from typer.testing import CliRunner

from graft.cli import app
from tests.experiments.conftest import SMALL

VALUES = {**{name: SMALL[name] for name in ("clients", "width")}, "rounds": 2, "partition": "random", "threads": 1}
DATA = SMALL["dataset"]
FLAGS = ["--dataset", DATA, *(f"--{name}={value}" for name, value in VALUES.items()), "--jobs", "1"]


def call(*arguments):
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])
