"""`graft export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graft.cli.console import Text, say
from graft.cli.predict import check_run, open_client
from graft.experiments.export.destination import check_export_folder, check_format


def export(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    client: Annotated[Text, typer.Option(help="Whose model: a client's name or number.")] = None,
    format: Annotated[Text, typer.Option(help="Also as torchscript or onnx.")] = None,
    shared: Annotated[bool, typer.Option("--global", help="The model that all clients have in common.")] = False,
    last: Annotated[bool, typer.Option("--last", help="As it is after the last round, not the best.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
) -> None:
    """Write a model of a run as a plain PyTorch and PyG module with its weights and a model card."""
    check_run(run)
    check_format(format)
    check_export_folder(out, overwrite)
    model = open_client(run, client, shared=shared, last=last)
    model.export(out, format, overwrite=overwrite)
    say(f"The {model.kind} {model.model} of client {model.name}, round {model.round}: {out / 'MODEL_CARD.md'}")
