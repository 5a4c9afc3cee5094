"""The `graft` command and its subcommands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from graft import __version__
from graft.cli.check import check
from graft.cli.check_method import check_method
from graft.cli.compare import compare
from graft.cli.console import guarded, say
from graft.cli.example import example
from graft.cli.export import export
from graft.cli.federations import join, peer, serve
from graft.cli.flower import flower
from graft.cli.keys import keys
from graft.cli.listing import list_names
from graft.cli.many_values import ManyValues
from graft.cli.partition import partition
from graft.cli.predict import predict
from graft.cli.report import report
from graft.cli.reproduce import reproduce
from graft.cli.run import resume, run
from graft.cli.shard import shard
from graft.cli.sweep import sweep
from graft.cli.trial import trial
from graft.cli.tune import tune
from graft.cli.watch import watch

app = typer.Typer(
    help="Federated training of graph neural networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def show_version(requested: bool) -> None:
    if requested:
        say(f"graft {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Federated training of graph neural networks."""


app.command(cls=ManyValues)(guarded(run))
app.command(cls=ManyValues)(guarded(sweep))
app.command(cls=ManyValues)(guarded(tune))
app.command(cls=ManyValues)(guarded(shard))
for command in (example, resume, watch, predict, export, report, compare, partition, check, reproduce):
    app.command()(guarded(command))
for of_organisations in (serve, join, peer, trial):
    app.command()(guarded(of_organisations))
app.command("list")(guarded(list_names))
app.command("check-method")(guarded(check_method))
app.add_typer(flower, name="flower")
app.add_typer(keys, name="keys")


def main() -> None:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # for `--method package.module:MyMethod`; at the end, so that nothing is hidden
    app()
