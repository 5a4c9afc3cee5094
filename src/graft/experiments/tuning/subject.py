"""A method that is tuned, with all that is known of it before the first trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graft.experiments.experiment import Experiment
from graft.experiments.identity import comparable
from graft.experiments.sweep.plan import PlannedRun, plan_runs, resolve
from graft.experiments.tuning.design import Candidate
from graft.experiments.tuning.space import FIELDS, OWN, Changes, with_values
from graft.federation.metric_names import METRICS, parse_metrics
from graft.federation.server_optimizer_names import unread_fields
from graft.fields import Search, rules

NOT_OF_A_TUNING = ("seed",)  # fields that trials of one tuning do not share


@dataclass(frozen=True)
class Subject:
    """A method that is tuned, with all that is known of it before the first trial."""

    candidate: Candidate
    default: PlannedRun  # its experiment with the first seed
    space: Mapping[str, tuple[Search, bool]]  # with whether only whole numbers will do
    values: dict[str, Any]  # of the fields in the space, as they are without a tuning

    @property
    def experiment(self) -> Experiment:
        return self.default.experiment

    @property
    def metric(self) -> str:
        """Returns the metric that values are chosen by."""
        return parse_metrics(self.experiment.metric)[0]

    @property
    def higher(self) -> bool:
        return METRICS[self.metric].higher

    @property
    def identity(self) -> dict[str, Any]:
        """Returns what a tuning must find unchanged when it goes on."""
        fields_compared = comparable(asdict(self.experiment))
        settings = fields_compared.pop("settings")
        fields_compared |= {f"{OWN}{name}": value for name, value in settings.items()}
        shared = {name: value for name, value in fields_compared.items() if name not in NOT_OF_A_TUNING}
        space = {f"space of {name}": str(search) for name, (search, _) in self.space.items()}
        return {**shared, **space, **self.default.hashes}


def examine(candidate: Candidate, changes: Changes, seed: int) -> Subject:
    """Returns a method with its default values, and of its space what the server's optimiser reads; refuses a space
    with values that it cannot have."""
    (planned,) = plan_runs([{**candidate.variant, "seed": seed}], lambda _row, _column, _seed: Path())
    experiment = planned.experiment
    method = planned.given.method_of(experiment)
    if "server_optimizer" not in candidate.space:
        candidate = candidate.without(unread_fields(experiment.server_optimizer))
    space, values = {}, {}
    for name, search in candidate.space.items():
        of_experiment = name in FIELDS
        own = name.removeprefix(OWN)
        rule = (rules(Experiment) if of_experiment else rules(type(method))).get(own)
        space[name] = search, bool(rule and rule.whole)
        values[name] = getattr(experiment, name) if of_experiment else experiment.settings[own]
        for value in search.ends if name in changes.space else ():
            resolve(with_values(candidate.variant, {name: value}))
    return Subject(candidate, planned, space, values)
