"""One trial: an experiment with some values, run with every seed of a tuning and scored on validation nodes alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from graft.data.federation import FederationData
from graft.data.graphs import Graph
from graft.data.lazy_graphs import ChangedGraphs
from graft.errors import InputError
from graft.experiments.callbacks import Callback
from graft.experiments.experiment import Experiment, data_settings
from graft.experiments.given import Given
from graft.experiments.many_runs import cached_federation, one_line
from graft.experiments.run import run_experiment
from graft.experiments.sweep.plan import resolve
from graft.federation.metric_names import METRICS, parse_metrics

CHECKS = 20  # times in a run that its validation score may end it
HIDDEN_FROM_CARD = ("labels", "unlabelled", "homophily", "class_homophily")  # what a card says of labels

Prunes = Callable[[int, float], bool]  # hears of a score after so many rounds, and says whether the trial ends there


@dataclass(frozen=True)
class TrialOrder:
    """A trial that is to be run; without objects it can be sent to another process."""

    method: str  # the label of what is tuned
    number: int  # of the trial among those of this method, from 0: the defaults
    variant: Mapping[str, Any]  # the values of the experiment
    seeds: tuple[int, ...]
    tuning: str = ""  # the name of the tuning, where several have the same workers


@dataclass(frozen=True)
class TrialOutcome:
    """What came of a trial."""

    state: Literal["complete", "pruned", "failed"]
    validation: float | None  # the mean over seeds of the best score of any round
    rounds: int  # of all seeds
    seconds: float
    reason: str = ""  # why it failed
    bad_input: bool = False  # whether a person has to change something


class Pruned(Exception):
    """A trial is not worth going on with."""


class HiddenTests:
    """The federations of a tuning, built once for each seed, without the labels of test nodes."""

    def __init__(self) -> None:
        self._federations: dict[str, FederationData] = {}
        self._dataset: tuple[str, Any] | None = None  # what they are of: those of another are let go

    def federation(self, experiment: Experiment, dataset: Any = None) -> FederationData:
        """Returns the federation of an experiment, of a dataset that was given as an object if there is one."""
        source = (f"{experiment.dataset} {experiment.graphs}", dataset)
        if self._dataset is None or self._dataset[0] != source[0] or self._dataset[1] is not dataset:
            self._federations, self._dataset = {}, source
        key = data_settings(experiment)
        if key not in self._federations:
            self._federations[key] = without_test_labels(cached_federation(experiment, {}, dataset))
        return self._federations[key]


def without_test_labels(federation: FederationData) -> FederationData:
    """Returns a federation in which only training and validation nodes have labels, and no node is to be tested on;
    features and edges of the others stay."""
    rows = [
        {name: value for name, value in row.items() if name not in HIDDEN_FROM_CARD}
        for row in federation.card["per_client"]
    ]
    return replace(
        federation,
        graph=None if federation.graph is None else hide_labels(federation.graph),
        clients=[hide_labels(graph) for graph in federation.clients]
        if federation.lazy is None
        else ChangedGraphs(federation.lazy, hide_labels),
        clean=None if federation.clean is None else without_test_labels(federation.clean),
        card={**federation.card, "per_client": rows},
    )


def hide_labels(graph: Graph) -> Graph:
    nowhere = np.zeros(graph.nodes, bool)
    shown = (nowhere if graph.train is None else graph.train) | (
        nowhere if graph.validation is None else graph.validation
    )
    return replace(graph, y=np.where(shown, graph.y, -1), test=nowhere)


class ValidationWatch(Callback):
    """Keeps the best validation score of a run, and ends it where it is not worth going on with."""

    def __init__(self, experiment: Experiment, earlier: list[float], prunes: Prunes) -> None:
        self.metric = parse_metrics(experiment.metric)[0]
        self.name = "validation_global" if experiment.score == "global" else "validation"
        self.higher = METRICS[self.metric].higher
        self.rounds, self.every = experiment.rounds, max(1, experiment.rounds // CHECKS)
        self.earlier, self.prunes = earlier, prunes
        self.best: float | None = None
        self.round = 0

    def on_round(self, record: dict[str, Any]) -> None:
        self.round = record["round"]
        scores = record["metrics"][self.metric] if "metrics" in record else record
        value = scores.get(self.name)
        if value is not None and math.isfinite(value):
            better = max if self.higher else min
            self.best = value if self.best is None else better(self.best, value)
        if self.best is None or self.round % self.every or self.round == self.rounds:
            return
        mean = (sum(self.earlier) + self.best) / (len(self.earlier) + 1)
        if self.prunes(len(self.earlier) * self.rounds + self.round, mean):
            raise Pruned


def run_trial(order: TrialOrder, data: HiddenTests, prunes: Prunes) -> TrialOutcome:
    """Runs a trial; whatever it fails of is its outcome, and does not end the tuning."""
    begun = time.perf_counter()
    scores: list[float] = []
    rounds = 0

    def outcome(state: Literal["complete", "pruned", "failed"], error: Exception | None = None) -> TrialOutcome:
        mean = sum(scores) / len(scores) if scores and state != "failed" else None
        reason, bad = ("", False) if error is None else (one_line(error), isinstance(error, InputError))
        return TrialOutcome(state, mean, rounds, time.perf_counter() - begun, reason, bad)

    for seed in order.seeds:
        try:
            experiment, given = resolve({**order.variant, "seed": seed})
            watch = ValidationWatch(experiment, scores, prunes)
            try:
                run_hidden(experiment, given, data, watch)
            finally:
                rounds += watch.round
            if watch.best is None:
                raise InputError("No client has validation nodes, so there is nothing to choose values by.")
            scores = [*scores, watch.best]
        except Pruned:
            scores = [*scores, *([] if watch.best is None else [watch.best])]
            return outcome("pruned")
        except Exception as error:  # of whatever kind: the next trial may do
            return outcome("failed", error)
    return outcome("complete")


def run_hidden(experiment: Experiment, given: Given, data: HiddenTests, watch: ValidationWatch) -> None:
    """Runs an experiment on data whose test labels are hidden."""
    federation = data.federation(experiment, given.dataset)
    experiment = replace(experiment, threads=experiment.threads or torch.get_num_threads())  # the same for all trials
    result = run_experiment(experiment, callbacks=[watch], given=replace(given, federation=federation))
    if not result.finished:  # by Ctrl-C
        raise KeyboardInterrupt
