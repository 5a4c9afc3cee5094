"""The options of `graft run`, one for every field of an experiment, and of `graft shard`, those about data."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, Optional, TypeVar, get_args, get_type_hints

import typer
from typing_extensions import Doc

from graft.experiments.experiment import DATA_FIELDS, GROUPS, Experiment
from graft.experiments.run_cluster import OF_CLIENTS

OF_ONE_RUN = ("engine", "address", "max_failures", *OF_CLIENTS)

Command = TypeVar("Command", bound=Callable[..., None])


def with_experiment_options(command: Command) -> Command:
    """Give a command that takes `**flags` an option for every field of an experiment, in its groups."""
    return with_options(command, experiment_options(), after="file")


def with_options_of_many(command: Command) -> Command:
    """Give a command with many runs an option for every field but those that say where the clients of a run live."""
    return with_options(
        command, [option for option in experiment_options() if option.name not in OF_ONE_RUN], after="file"
    )


def with_data_options(command: Command) -> Command:
    """Give a command that takes `**flags` an option for every field that the data of clients depend on."""
    return with_options(command, [option for option in experiment_options() if option.name in DATA_FIELDS])


def with_options(command: Command, options: list[inspect.Parameter], after: str = "") -> Command:
    """Give a command that takes `**flags` these options, after one of its own or before them all."""
    signature = inspect.signature(command, eval_str=True)
    own = [entry for entry in signature.parameters.values() if entry.kind != entry.VAR_KEYWORD]
    position = 1 + [entry.name for entry in own].index(after) if after else 0
    parameters = [*own[:position], *options, *own[position:]]
    with_signature: Any = command  # the type of a function has no such attribute
    with_signature.__signature__ = signature.replace(parameters=parameters)
    return command


def experiment_options() -> list[inspect.Parameter]:
    """Returns a parameter with its type, help and group for every field; None says that the option was not given."""
    hints = get_type_hints(Experiment, include_extras=True)
    options, group = [], ""
    for field in fields(Experiment):
        group = GROUPS.get(field.name, group)
        if field.name != "settings":  # these are set one by one, with --set
            option = typer.Option(help=help_of(field, hints[field.name]), rich_help_panel=group)
            annotation: Any = Annotated[Optional[type_of(field)], option]  # noqa: UP045  (Typer reads it at run time)
            options.append(
                inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            )
    return options


def help_of(field: Field[Any], annotation: Any) -> str:
    """Returns the documentation in an annotation, and the default."""
    text: str = next(note.documentation for note in get_args(annotation) if isinstance(note, Doc))
    shown = default_of(field)
    return text if shown in ("", [], False) else f"{text} ({shown})"


def type_of(field: Field[Any]) -> Any:
    """Returns a number, a text or a list of texts, as its default is."""
    default = default_of(field)
    return list[str] if isinstance(default, list) else type(default)


def default_of(field: Field[Any]) -> Any:
    make = field.default_factory
    return field.default if make is MISSING else make()
