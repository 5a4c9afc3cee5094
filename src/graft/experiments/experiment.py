"""The typed description of an experiment: everything that is needed to repeat it."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w
import torch

from graft.data.perturbations import Perturbation
from graft.engines.memory import parse_memory
from graft.errors import InputError
from graft.federation.method import Method
from graft.federation.plug import Plug, plugged, takes_plugs
from graft.fields import check_field
from graft.files import read_text
from graft.methods import METHODS, PLUGS
from graft.training.loop import Training

GIVEN = "given-in-python"  # stands in experiment.toml for an object that no file can name


@dataclass(frozen=True)
class Experiment:
    """One run; every field can be set in a file, by a flag or in Python."""

    method: str = "fedgkc"
    plug: str = ""  # what is added to the method, as fedtad
    settings: dict[str, Any] = field(default_factory=dict)  # the method's own fields, and the plug's
    dataset: str = "digits"  # a name, or the path of your own data
    clients: int = 5
    partition: str = "louvain"  # a name, with options as in louvain:resolution=20, or a file of client ids
    split: str = "20/40/40"  # percent for training, validation and test within each client, or "own"
    features: Literal["raw", "row", "l2", "standard"] = "raw"
    label_sparsity: float = 0.0  # these six: how the clients' data are made worse, see data/perturbations.py
    label_noise: float = 0.0
    edge_sparsity: float = 0.0
    edge_noise: float = 0.0
    feature_sparsity: float = 0.0
    feature_noise: float = 0.0
    perturbed_clients: str = "all"  # or their numbers, as 0,3
    evaluate_on: Literal["clean", "perturbed"] = "clean"  # whether models are scored on the data as they were
    models: str | list[str] = "gcn"  # client k gets entry k modulo their number
    width: int = 64
    dropout: float = 0.5
    head: Literal["linear", "conv"] = "linear"
    rounds: int = 100
    epochs: int = 3  # how often a round goes through each client's nodes
    batches: int = 1  # parts that each client's nodes are cut into; an epoch takes a step on each
    optimizer: Literal["adam", "sgd", "momentum"] = "adam"  # momentum: SGD that keeps 0.9 of its last step
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    optimizer_state: Literal["persistent", "reset"] = "persistent"
    weight_by: Literal["nodes", "train", "uniform"] = "nodes"
    participation: float = 1.0  # share of the clients in a round
    topology: str = ""  # who hears whom without a server, as ring or random:k=3 or a file; empty: as the method says
    score: Literal["personal", "global"] = "personal"  # whose validation accuracy picks the best round
    evaluate_every: int = 1
    patience: int = 0  # stop after so many evaluations without a better validation accuracy; 0 never stops
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    engine: Literal["in_process", "loopback"] = "in_process"
    precision: Literal["float32", "tf32"] = "float32"  # of matrix products on a GPU; tf32 keeps 10 bits of a fraction
    threads: int = 0  # of PyTorch on a CPU; 0: one for every core that other programs leave alone
    memory: str = ""  # how much may be used, as 4GB; empty: three quarters of what is free on the device
    checkpoint_every: int = 10  # rounds; 0 writes none but the last

    def __post_init__(self) -> None:
        at_least = dict(
            clients=1,
            width=1,
            rounds=1,
            epochs=1,
            batches=1,
            evaluate_every=1,
            patience=0,
            seed=0,
            checkpoint_every=0,
            threads=0,
        )
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least {least}.")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout is {self.dropout}; it must be at least 0 and below 1.")
        if not 0 < self.participation <= 1:
            raise InputError(f"participation is {self.participation}; it must be above 0 and at most 1.")
        if not self.learning_rate > 0 or not self.weight_decay >= 0:
            raise InputError("learning_rate must be above 0 and weight_decay at least 0.")
        self.perturbation.client_ids(self.clients)
        parse_memory(self.memory)

    @property
    def perturbation(self) -> Perturbation:
        return Perturbation(**{one.name: getattr(self, one.name) for one in fields(Perturbation)})

    @property
    def label(self) -> str:
        """The method and its plug, for people and places."""
        return f"{self.method}+{self.plug}" if self.plug else self.method

    @property
    def training(self) -> Training:
        mine = {one.name for one in fields(self)}  # the rest of a training is for methods to set
        return Training(**{one.name: getattr(self, one.name) for one in fields(Training) if one.name in mine})

    def torch_device(self) -> torch.device:
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError("device is cuda, but PyTorch sees no GPU here; use cpu or auto.")
        usable = torch.cuda.is_available() and self.engine == "in_process"
        device = ("cuda" if usable else "cpu") if self.device == "auto" else self.device
        if self.precision == "tf32" and device == "cpu":
            raise InputError("precision is tf32, which only a GPU has; use float32.")
        return torch.device(device)


def make_experiment(values: Mapping[str, Any]) -> Experiment:
    """Check values against the fields of an experiment and refuse what does not fit.

    What nobody says is as usual with the method, or else the experiment's default.
    """
    method = METHODS.get(str(values.get("method", Experiment.method)))
    return _checked(Experiment, {**(method.experiment_defaults if method else {}), **values}, "an experiment")


def make_method(name: str, settings: Mapping[str, Any], plug: str = "") -> Method:
    """The method of that name with its own settings, and those of what is added to it."""
    if name not in METHODS:
        raise InputError(f"Unknown method '{name}'{close_to(name, METHODS)}: there are {', '.join(sorted(METHODS))}.")
    if plug:
        return _checked(plugged_kind(METHODS[name], plug), settings, f"method '{name}' with plug '{plug}'")
    return _checked(METHODS[name], settings, f"method '{name}'")


def plugged_kind(host: type[Method], plug: str) -> type[Method]:
    """The class of a method with a plug; refused for methods that it cannot be added to."""
    if plug not in PLUGS:
        raise InputError(f"Unknown plug '{plug}'{close_to(plug, PLUGS)}: there are {', '.join(PLUGS)}.")
    if not takes_plugs(host):
        able = ", ".join(sorted(name for name, kind in METHODS.items() if takes_plugs(kind)))
        raise InputError(
            f"Plug '{plug}' cannot be added to {host.__name__}: it needs a server that keeps models of one "
            f"architecture for clients, as these methods have: {able}."
        )
    return plugged(host, PLUGS[plug])


def add_plug(method: Method, plug: str, settings: Mapping[str, Any]) -> Method:
    """A method that is there already, with a plug of those settings."""
    kind = plugged_kind(type(method), plug)
    return _checked(kind, {**asdict(method), **settings}, f"{type(method).__name__} with plug '{plug}'")


def name_of(method: Method) -> str:
    """The name of a method in the table, with its plug, or of your own class."""
    names = {kind: name for name, kind in {**METHODS, **PLUGS}.items()}
    kinds = [method.host, method.plug] if isinstance(method, Plug) and method.host else [type(method)]
    return "+".join(names.get(kind, kind.__name__.lower()) for kind in kinds if kind is not None)


def read_experiment(path: Path) -> dict[str, Any]:
    """The values in an experiment file."""
    try:
        return tomllib.loads(read_text(path))
    except FileNotFoundError:
        raise InputError(f"There is no experiment file {path}.") from None
    except RecursionError:
        raise InputError(f"{path} is not a readable TOML file: its values are nested too deeply.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a readable TOML file: {error}.") from error


def format_experiment(experiment: Experiment) -> str:
    """The text of experiment.toml: everything resolved, enough to repeat the run."""
    values = asdict(experiment)
    settings = {name: value for name, value in values.pop("settings").items() if value is not None}
    try:
        return tomli_w.dumps({**values, "settings": settings})
    except TypeError as error:
        raise InputError(f"A setting of '{experiment.method}' cannot be put on record: {error}.") from error


def parse_value(text: str) -> Any:
    """The value of `--set name=value`: a TOML value, or else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def split_options(text: str) -> tuple[str, dict[str, Any]]:
    """A name with options, as in 'louvain:resolution=20,cut=order'; a path is left alone."""
    name, colon, rest = text.partition(":")
    if not colon or Path(text).exists():
        return text, {}
    options = {}
    for part in rest.split(","):
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"'{text}' should read name:option=value,option=value.")
        options[key.strip()] = parse_value(value.strip())
    return name, options


Kind = TypeVar("Kind")


def _checked(kind: type[Kind], values: Mapping[str, Any], what: str) -> Kind:
    from pydantic import TypeAdapter, ValidationError

    known = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            possible = ", ".join(sorted(known)) or "none at all"
            raise InputError(f"Unknown setting '{name}'{close_to(name, known)} of {what}: there are {possible}.")
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if isinstance(part, str) and part in known)
        if first["type"].startswith(("greater_than", "less_than")):
            check_field(kind, place, first["input"])  # one sentence about bounds, here as in Python
        raise InputError(f"Setting '{place}' of {what} is {first['input']!r}: {_lower(first['msg'])}.") from None


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def close_to(name: str, known: Any) -> str:
    """What was perhaps meant, to go into a sentence; empty if nothing is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""
