"""`graft predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graft.cli.console import Text, say
from graft.data import parse_dataset
from graft.errors import InputError

if TYPE_CHECKING:
    from graft.experiments.prediction import ClientModel


def predict(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    out: Annotated[Path, typer.Option(help="The table to write: id, class, and a probability for every class.")],
    client: Annotated[Text, typer.Option(help="Whose model: a client's name or number.")] = None,
    data: Annotated[
        Text,
        typer.Option(help="A folder with tables, a .npz file or a dataset; if not given, the client's own graph."),
    ] = None,
    shared: Annotated[bool, typer.Option("--global", help="The model that all clients have in common.")] = False,
    last: Annotated[bool, typer.Option("--last", help="As it is after the last round, not the best.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier table.")] = False,
) -> None:
    """Predict the classes of nodes with a model of a run, also for graphs that training never saw."""
    check_run(run)
    check_data(data)
    from graft.experiments.predictions import check_out

    check_out(out, overwrite)
    model = open_client(run, client, shared=shared, last=last)
    predictions = model.predict(data)
    predictions.to_csv(out, overwrite=overwrite)
    whose = f"the {model.kind} {model.model} of client {model.name}, round {model.round}"
    say(f"{len(predictions)} nodes predicted by {whose}: {out}")


def check_run(run: Path) -> None:
    """Refuses what is no run directory, before PyTorch is imported."""
    if not (run / "experiment.toml").is_file():
        raise InputError(f"{run} is not a run directory: it holds no experiment.toml.")


def check_data(data: str | None) -> None:
    """Refuses data that are neither there nor a dataset, before PyTorch is imported."""
    if data is not None and not Path(data).exists():
        parse_dataset(data)


def open_client(run: Path, client: str | None, *, shared: bool, last: bool) -> ClientModel:
    """Returns the model of a run that was asked for; a client need not be named where there is one only."""
    from graft.experiments.given import Given
    from graft.experiments.load_result import open_models
    from graft.experiments.run_directory import RunDirectory

    models = open_models(RunDirectory(run), Given())
    if client is None:
        if models.data.clients > 1:
            raise InputError(f"Say whose model: --client with one of {models.data.listed()}.")
        client = "0"
    return models.client(client, "global" if shared else "own", "last" if last else "best")
