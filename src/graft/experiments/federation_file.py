"""federation.toml: who takes part, what they agree on, and how long anybody waits; typed, and checked as a whole."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from graft.data import OWN_GRAPHS
from graft.data.data_agreement import READING, DataAgreement
from graft.data.schema import Schema, parse_schema
from graft.errors import InputError
from graft.experiments.combinations import check_combination
from graft.experiments.experiment import GIVEN, Experiment, check_names, make_experiment
from graft.experiments.federation_rules import (
    NO_MEANING,
    Limits,
    RoundRules,
    check_address,
    check_name,
    check_party_names,
)
from graft.experiments.make_method import make_method
from graft.experiments.validation import validated
from graft.federation.method import Method
from graft.federation.metric_names import check_positive, parse_metrics
from graft.federation.peers import PeerMethod
from graft.files import canonical, read_text
from graft.methods import METHODS, PLUGS
from graft.models import MODELS
from graft.registry import Registry, parse_reference

# Fields of an experiment that parties need not share: those that nobody may set here, and what is the server's own.
NOT_SHARED = {*NO_MEANING, "method", "plug", "settings", "models", "checkpoint_every"}


@dataclass(frozen=True)
class Content:
    """The keys of federation.toml with their types; what they hold is checked afterwards."""

    name: str
    classes: list[str | int] | int
    server: str = ""
    address: str = ""
    parties: list[str] = field(default_factory=list)
    peers: dict[str, str] = field(default_factory=dict)
    positive: str | int | None = None
    features: int | list[str] | None = None
    experiment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    schema: dict[str, Any] = field(default_factory=dict)
    rounds: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FederationFile:
    """A federation as its file describes it; `read_federation` and `parse_federation` make one."""

    name: str
    parties: tuple[str, ...]  # their order gives their numbers
    classes: tuple[str, ...] | int
    server: str = ""  # the common name of its certificate; empty for peers
    address: str = ""  # HOST:PORT where the server listens; empty for peers
    peers: Mapping[str, str] = field(default_factory=dict)  # the address of each, where there is no server
    positive: str | None = None
    features: tuple[str, ...] | int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)  # of [experiment], as they are written
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the method
    schema: Schema = field(default_factory=Schema)
    rounds: RoundRules = field(default_factory=RoundRules)
    limits: Limits = field(default_factory=Limits)

    @cached_property
    def experiment(self) -> Experiment:
        """Returns the experiment, in which every party is a client that brings its own graph."""
        return make_experiment(
            {
                **self.values,
                "settings": dict(self.settings),
                "dataset": GIVEN,
                "partition": OWN_GRAPHS,
                "clients": len(self.parties),
                "checkpoint_every": self.rounds.checkpoint,
            }
        )

    @cached_property
    def method(self) -> Method:
        """Returns the method with its settings."""
        return make_method(self.experiment.method, self.experiment.settings, self.experiment.plug)

    @property
    def has_server(self) -> bool:
        """Returns whether parties are asked by a server, rather than being peers."""
        return not isinstance(self.method, PeerMethod)

    @cached_property
    def agreement(self) -> DataAgreement:
        """Returns what is agreed on about data, which is all that a party needs to prepare its own."""
        experiment = self.experiment
        return DataAgreement(
            self.classes,
            self.schema,
            self.features,
            experiment.features,
            experiment.scaling,
            experiment.split,
            experiment.inductive,
            experiment.seed,
            self.positive or self.schema.positive,
            experiment.feature_norm,
        )

    @cached_property
    def hash(self) -> str:
        """Returns the SHA-256 of all that server and parties must agree on.

        Not in it are addresses, times, limits and how files are read, which each may have otherwise in its own copy of
        the file. Methods and models of your own count by what their files hold, wherever these are.
        """
        return hashlib.sha256(canonical(self._shared()).encode()).hexdigest()

    def _shared(self) -> dict[str, Any]:
        experiment, agreement = self.experiment, self.agreement
        default = Schema()
        schema = replace(self.schema, **{name: getattr(default, name) for name in READING})
        chosen = self.method.one_model and self.method.architecture is None
        return {
            "federation": self.name,
            "server": self.server,
            "parties": self.parties,
            "classes": self.classes,
            "positive": agreement.positive,
            "features": agreement.feature_names or agreement.width,
            "schema": schema.to_dict(),
            "method": _portable(experiment.method, METHODS),
            "plug": _portable(experiment.plug, PLUGS),
            "settings": asdict(self.method),
            "models": [_portable(name, MODELS) for name in experiment.model_names] if chosen else None,
            "experiment": {
                name: _file_content(value) if name == "topology" else value
                for name, value in asdict(experiment).items()
                if name not in NOT_SHARED
            },
            "minimum": self.rounds.minimum,
            "quorum": self.rounds.quorum,
        }

    def number(self, party: str) -> int:
        """Returns the number of a party in the federation; refused where it is none of it."""
        if party not in self.parties:
            raise InputError(f"'{party}' is no party of federation '{self.name}': there are {', '.join(self.parties)}.")
        return self.parties.index(party)


def read_federation(path: Path) -> FederationFile:
    """Returns the federation that a file describes; what is wrong with it is refused with one sentence."""
    try:
        content = tomllib.loads(read_text(path))
    except FileNotFoundError:
        raise InputError(f"There is no federation file {path}.") from None
    except (OSError, ValueError, RecursionError) as error:  # a TOMLDecodeError or a UnicodeError too
        raise InputError(f"{path} is not a readable TOML file: {error}.") from error
    return parse_federation(content, str(path), path.parent)


def parse_federation(content: Mapping[str, Any], where: str, folder: Path | None = None) -> FederationFile:
    """Returns the federation of the values in a file; `where` begins the sentence of a mistake, and files of your own
    are looked for in `folder`."""
    try:
        return _parse(content, where, Path() if folder is None else folder)
    except InputError as error:
        raise InputError(f"{error}" if f"{error}".startswith(where) else f"{where}: {error}") from None


def _parse(content: Mapping[str, Any], where: str, folder: Path) -> FederationFile:
    for key, example in (("name", '"banks"'), ("classes", '["fraud", "honest"]')):
        if key not in content:
            raise InputError(f"{key} is missing; it is needed, as {key} = {example}.")
    typed = validated(Content, content, "a federation file")
    check_name("The federation's name", typed.name)
    values = _experiment_values(typed.experiment, folder)
    parties = tuple(typed.peers) if typed.peers else tuple(typed.parties)
    file = FederationFile(
        name=typed.name,
        parties=parties,
        classes=typed.classes if isinstance(typed.classes, int) else tuple(map(str, typed.classes)),
        server=typed.server,
        address=typed.address,
        peers=typed.peers,
        positive=None if typed.positive is None else str(typed.positive),
        features=tuple(typed.features) if isinstance(typed.features, list) else typed.features,
        values=values,
        settings=typed.settings,
        schema=parse_schema(typed.schema, where),
        rounds=validated(RoundRules, typed.rounds, "[rounds]"),
        limits=validated(Limits, typed.limits, "[limits]"),
    )
    _check_who(file, typed)
    file = replace(file, rounds=file.rounds.for_parties(len(parties)))
    _check_experiment(file)
    _check_data(file)
    return file


def _experiment_values(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the values of [experiment] with files of your own by their absolute paths."""
    for name in values:
        if name in NO_MEANING:
            raise InputError(f"[experiment] has {name}, but {NO_MEANING[name]}: leave it out.")
    located = dict(values)
    for name in ("method", "plug", "models"):
        value = located.get(name)
        if isinstance(value, str):
            located[name] = _located(value, folder)
        elif isinstance(value, list):
            located[name] = [_located(entry, folder) if isinstance(entry, str) else entry for entry in value]
    topology = located.get("topology")
    if isinstance(topology, str) and topology and (folder / topology).is_file():
        located["topology"] = str((folder / topology).resolve())
    return located


def _located(name: str, folder: Path) -> str:
    reference = parse_reference(name)
    return str(reference._replace(where=str(folder / reference.where))) if reference and reference.is_file else name


def _check_who(file: FederationFile, typed: Content) -> None:
    """Refuses names and addresses that cannot be, and those that do not go with the method."""
    method = file.values.get("method", Experiment.method)
    METHODS.check(str(method))
    peer = issubclass(METHODS[str(method)], PeerMethod)
    if peer and (typed.server or typed.address or typed.parties or not typed.peers):
        raise InputError(
            f"Method '{method}' has no server: list all peers with their addresses in a table [peers], as bank_a = "
            f'"10.0.0.1:7451", and leave out server, address and parties.'
        )
    if not peer and typed.peers:
        raise InputError(
            f"Method '{method}' has a server, but there is a table [peers]: give server, address and parties instead."
        )
    for key, example in (("server", '"coordinator"'), ("address", '"10.0.0.1:7447"'), ("parties", '["bank_a", ...]')):
        if not peer and not getattr(typed, key):
            raise InputError(f"{key} is missing, but method '{method}' has a server: give it, as {key} = {example}.")
    check_party_names([*([] if peer else [file.server]), *file.parties])
    if len(file.parties) < 2:
        raise InputError(f"There is one party, '{file.parties[0]}': a federation needs at least two.")
    addresses = dict(file.peers) if peer else {"address": file.address}
    for key, address in addresses.items():
        check_address(key, address)
    if len(set(addresses.values())) < len(addresses):
        twice = next(address for address in addresses.values() if list(addresses.values()).count(address) > 1)
        raise InputError(f"Two of the peers have the address {twice}: each needs its own.")


def _check_experiment(file: FederationFile) -> None:
    """Refuses settings that no federation of these parties can have."""
    check_names(file.experiment)
    kind = METHODS[file.experiment.method]
    if "models" in file.values and (not kind.one_model or kind.architecture is not None):
        reason = "is of one architecture" if kind.architecture is not None else "lets every party have its own model"
        raise InputError(f"[experiment] has models, but method '{file.experiment.method}' {reason}: leave it out.")
    if kind.place is not Method.place:
        raise InputError(
            f"Method '{file.experiment.method}' needs the data of all parties in one place, and nobody has them here."
        )
    check_combination(file.experiment, file.method)


def _check_data(file: FederationFile) -> None:
    declared = file.schema.positive
    if file.positive is not None and declared is not None and file.positive != declared:
        raise InputError(f"positive is '{file.positive}', but in [schema] it is '{declared}': leave one out.")
    agreement = file.agreement  # refuses what cannot be agreed on
    positive = 0 if agreement.positive is not None else None  # whichever it is
    check_positive(parse_metrics(file.experiment.metric), agreement.class_count, positive)


def _portable(name: str, table: Registry[Any]) -> str:
    """Returns a name as it is the same on all machines: what is yours by the content of its file."""
    reference = None if not name or name in table else parse_reference(name)
    if reference is None or not reference.is_file:
        return name
    return f"{reference.attribute} {_file_content(str(reference.file))}"


def _file_content(name: str) -> str:
    """Returns the checksum of a file of that name; any other text as it is."""
    path = Path(name)
    return hashlib.sha256(path.read_bytes()).hexdigest() if name and path.is_file() else name
