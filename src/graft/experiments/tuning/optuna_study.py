"""The trials of one method: TPE proposes values, and what is not among the better ones of earlier trials ends early.

Optuna keeps them in memory, and a journal of our own on the disk: a trial has some dozens of scores, and Optuna's files
take longer over each than a small federation over a round. Who goes on tells Optuna again what the journal holds.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from graft.errors import InputError
from graft.experiments.tuning.journal import Entry, Journal
from graft.experiments.tuning.space import Space
from graft.fields import Search
from graft.files import checksum

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

    from graft.experiments.tuning.trial import TrialOutcome

RANDOM_TRIALS = 8  # before TPE has enough to learn from
UNPRUNED_TRIALS = 5  # that have to be complete before others are measured by them
# Replayed on 41 searches of a tournament: a quarter fewer rounds than with 40 % from a sixth on, and the best trial
# that is left is worse by 0.06 points of validation accuracy on average.
WARM_UP = 1 / 10  # share of a run's rounds in which it is not ended
KEPT = 30  # per cent of the trials that came so far are worth going on with

History = list[dict[str, Any]]  # a row a trial, as tuning.json holds it


def check_optuna() -> None:
    """Refuses to tune without Optuna, before anything else is done."""
    if find_spec("optuna") is None:
        raise InputError("A tuning needs Optuna: pip install optuna.")


class MethodStudy:
    """The trials of one method: which values come next, which are over, and which were best."""

    def __init__(
        self,
        journal: Journal,
        label: str,
        space: Mapping[str, tuple[Search, bool]],
        defaults: Mapping[str, Any],
        *,
        higher: bool,
        rounds: int,
        seed: int,
    ) -> None:
        """Prepares a study; `space` says of each field whether only whole numbers will do."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.journal, self.label = journal, label
        self.defaults, self.higher, self.seed = dict(defaults), higher, seed
        self.distributions = {name: distribution(*entry) for name, entry in space.items()}
        self.spaces: Space = {name: search for name, (search, _) in space.items()}
        self.study = optuna.create_study(
            direction="maximize" if higher else "minimize",
            pruner=optuna.pruners.PercentilePruner(KEPT, UNPRUNED_TRIALS, math.ceil(WARM_UP * rounds)),
        )
        self.waiting: list[int] = []  # trials whose values are in the queue: the defaults, or those that died
        self.next_number = 1
        self.running: dict[int, Trial] = {}
        self.scores: dict[int, dict[int, float]] = {}  # of trials that run, by rounds
        self.rows: dict[int, dict[str, Any]] = {}  # of trials that are over

    def begin(self, identity: dict[str, Any]) -> None:
        """Puts on record what is tuned, or goes on with its trials; a journal of something else is refused."""
        identity = json.loads(json.dumps(identity))
        entries = self.journal.of(self.label)
        if not entries:
            self.journal.append({"method": self.label, "identity": identity})
            self._put_back(0, self.reachable)
            return
        there = entries[0].get("identity", {})
        differing = [name for name in {**there, **identity} if there.get(name) != identity.get(name)]
        if differing:
            words = [f"{name} is {there.get(name)} there and {identity.get(name)} here" for name in differing[:3]]
            raise InputError(
                f"The folder holds another tuning of {self.label}: {'; '.join(words)}; choose another --out."
            )
        asked = {entry["trial"]: entry["values"] for entry in entries if "values" in entry}
        over = {entry["trial"]: entry for entry in entries if "state" in entry}
        for number, values in {0: self.reachable, **asked}.items():
            if number in over:
                self._restore(over[number], values)
            else:
                self._put_back(number, values)

    def _put_back(self, number: int, values: Mapping[str, Any]) -> None:
        """Lets the next trial have these values: those of the defaults, or of a trial that died with its process."""
        self.study.enqueue_trial(dict(values))
        self.waiting.append(number)
        self.next_number = max(self.next_number, number + 1)

    def _restore(self, entry: Entry, values: Mapping[str, Any]) -> None:
        """Tells Optuna of a trial that is over."""
        import optuna

        complete = entry["state"] == "complete"
        state = {"complete": "COMPLETE", "pruned": "PRUNED"}.get(entry["state"], "FAIL")
        trial = optuna.trial.create_trial(
            state=optuna.trial.TrialState[state],
            value=entry["validation"] if complete else None,
            params=dict(values),
            distributions={name: self.distributions[name] for name in values},
            intermediate_values={int(rounds): score for rounds, score in entry["scores"].items()},
        )
        self.study.add_trial(trial)
        self._keep(entry, values)

    def _keep(self, entry: Entry, values: Mapping[str, Any]) -> None:
        """Remembers what came of a trial."""
        number = entry["trial"]
        params = dict(self.defaults) if number == 0 else {name: values[name] for name in self.spaces}
        kept = {name: value for name, value in entry.items() if name in ("trial", "state", "validation")}
        cost = {name: value for name, value in entry.items() if name in ("rounds", "seconds", "reason")}
        self.rows[number] = {**kept, "params": params, **cost}
        self.next_number = max(self.next_number, number + 1)

    @property
    def reachable(self) -> dict[str, Any]:
        """Returns those of the default values that lie in the space; the others are tried in the first trial alone."""
        return {name: self.defaults[name] for name in self.spaces if self.defaults[name] in self.spaces[name]}

    def ask(self) -> tuple[int, dict[str, Any]]:
        """Returns the number and the values of the next trial: first those of the defaults.

        Every trial has a sampler with a seed of its own, so that one who goes on tries what an unbroken tuning would.
        """
        import optuna

        number = self.waiting.pop(0) if self.waiting else self.next_number
        self.next_number = max(self.next_number, number + 1)
        seed = int(checksum(self.label, str(self.seed), str(number))[:8], 16)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self.study.sampler = optuna.samplers.TPESampler(
                n_startup_trials=RANDOM_TRIALS, seed=seed, multivariate=True, constant_liar=True
            )
        tried = self.reachable if number == 0 else self.distributions
        trial = self.study.ask({name: self.distributions[name] for name in tried})
        self.running[number], self.scores[number] = trial, {}
        self.journal.append({"method": self.label, "trial": number, "values": trial.params})
        return number, dict(self.defaults) if number == 0 else trial.params

    def hear(self, number: int, rounds: int, score: float) -> bool:
        """Puts a score of a trial on record; returns whether it is not worth going on with. The defaults always are."""
        trial = self.running[number]
        if rounds not in self.scores[number]:  # or it was begun again, since its worker had died
            trial.report(score, rounds)
            self.scores[number][rounds] = score
        return number > 0 and trial.should_prune()

    def end(self, number: int, outcome: TrialOutcome) -> None:
        """Puts on record what came of a trial."""
        from optuna.trial import TrialState

        trial, scores = self.running.pop(number), self.scores.pop(number)
        if outcome.state == "complete":
            self.study.tell(trial, outcome.validation)
        else:
            self.study.tell(trial, state=TrialState.PRUNED if outcome.state == "pruned" else TrialState.FAIL)
        last = scores[max(scores)] if scores and outcome.state == "pruned" else None
        entry: Entry = {
            "method": self.label,
            "trial": number,
            "state": outcome.state,
            "validation": outcome.validation if outcome.state == "complete" else last,
            "rounds": outcome.rounds,
            "seconds": outcome.seconds,
            "scores": {str(rounds): score for rounds, score in scores.items()},
        }
        if outcome.state == "failed":
            entry["reason"] = outcome.reason
        self.journal.append(entry)
        self._keep(entry, trial.params)

    @property
    def history(self) -> History:
        """Returns what is over, in the order in which values were proposed; trials that died are not among it."""
        return [self.rows[number] for number in sorted(self.rows)]

    def importance(self) -> dict[str, float]:
        """Returns the share of each field in the variance of the scores, by fANOVA; empty with too few trials."""
        import optuna

        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                shares = optuna.importance.get_param_importances(self.study, evaluator=evaluator)
        except (ValueError, RuntimeError):  # too few trials, or all of one score
            return {}
        return {name: float(share) for name, share in shares.items() if math.isfinite(share)}


def distribution(search: Search, whole: bool) -> BaseDistribution:
    """Returns a search space as Optuna has it."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if search.low is None or search.high is None:
        return CategoricalDistribution(search.choices)
    if whole:
        return IntDistribution(int(search.low), int(search.high), log=search.log)
    return FloatDistribution(search.low, search.high, log=search.log)
