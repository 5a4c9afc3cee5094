"""The trials of one method, kept by Optuna: TPE proposes values, the median of earlier trials ends hopeless ones.

Trials are kept in an SQLite file: Optuna's journals lock themselves with a file that stays behind when a process is
killed. An SQLite file holds numbers and JSON, no pickle.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graft.errors import InputError, RunError
from graft.experiments.tuning.space import Space
from graft.fields import Search
from graft.files import checksum

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, Trial
    from sqlalchemy import Engine

    from graft.experiments.tuning.trial import TrialOutcome

FILE = "trials.sqlite3"
RANDOM_TRIALS = 8  # before TPE has enough to learn from
UNPRUNED_TRIALS = 5  # that have to be complete before others are measured by them
WARM_UP = 1 / 3  # share of a run's rounds in which it is not ended
IDENTITY, NUMBER, REASON, ROUNDS, SECONDS = (
    "identity",
    "number",
    "reason",
    "rounds",
    "seconds",
)  # attributes in the file

History = list[dict[str, Any]]  # a row a trial, as tuning.json holds it


def check_optuna() -> None:
    """Refuses to tune without Optuna, before anything else is done."""
    if find_spec("optuna") is None:
        raise InputError("A tuning needs Optuna: pip install optuna.")


@contextmanager
def open_storage(folder: Path | None) -> Iterator[BaseStorage | None]:
    """Opens the trials of a folder, or begins them; None, which is kept in memory, without one."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    if folder is None:
        yield None
        return
    path = folder / FILE
    try:
        storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
        write_ahead(storage.engine)
    except (SQLAlchemyError, RuntimeError) as error:
        raise InputError(f"{path} is damaged, or not the trials of a tuning: {type(error).__name__}.") from error
    try:
        yield storage
    except optuna.exceptions.StorageInternalError as error:
        raise RunError(f"{path} cannot be written to: {error}.") from error
    finally:
        storage.remove_session()
        storage.engine.dispose()


def write_ahead(engine: Engine) -> None:
    """Lets SQLite append what it is told and not wait for the disk each time: a trial has some dozens of entries. A
    process that is killed loses none of them, a machine without power the last ones."""
    from sqlalchemy import event

    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=NORMAL"))
    engine.dispose()


class MethodStudy:
    """The trials of one method: which values come next, which are over, and which were best."""

    def __init__(
        self,
        storage: BaseStorage | None,
        label: str,
        space: Mapping[str, tuple[Search, bool]],
        defaults: Mapping[str, Any],
        *,
        higher: bool,
        rounds: int,
        seed: int,
    ) -> None:
        """Begins a study or goes on with it; `space` says of each field whether only whole numbers will do."""
        import optuna

        self.label, self.defaults, self.higher, self.seed = label, dict(defaults), higher, seed
        self.distributions = {name: distribution(*entry) for name, entry in space.items()}
        self.spaces: Space = {name: search for name, (search, _) in space.items()}
        self.study = optuna.create_study(
            storage=storage,
            study_name=label,
            direction="maximize" if higher else "minimize",
            pruner=optuna.pruners.MedianPruner(UNPRUNED_TRIALS, math.ceil(WARM_UP * rounds)),
            load_if_exists=True,
        )
        self.running: dict[int, Trial] = {}
        self.heard: set[tuple[int, int]] = set()  # trials and rounds of which there is a score

    @property
    def begun(self) -> bool:
        return IDENTITY in self.study.user_attrs

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Puts on record what is tuned, or refuses to go on with a study of something else; trials that died with
        their process are put back into the queue."""
        from optuna.trial import TrialState

        identity = json.loads(json.dumps(identity))
        there = self.study.user_attrs.get(IDENTITY)
        if there is None:
            self.study.set_user_attr(IDENTITY, identity)
            self.study.enqueue_trial(self.reachable, user_attrs={NUMBER: 0})
            return
        differing = [name for name in {**there, **identity} if there.get(name) != identity.get(name)]
        if differing:
            words = [f"{name} is {there.get(name)} there and {identity.get(name)} here" for name in differing[:3]]
            raise InputError(
                f"The folder holds another tuning of {self.label}: {'; '.join(words)}; choose another --out."
            )
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self.study.tell(trial.number, state=TrialState.FAIL)
            self._put_back(trial)

    def _put_back(self, trial: FrozenTrial) -> None:
        """Lets a trial that died be run again; one that died before all of its values were drawn is drawn anew."""
        number = trial.user_attrs.get(NUMBER, self.next_number)
        values = trial.system_attrs.get("fixed_params", trial.params)  # those of the queue, or those that were drawn
        if set(values) == set(self.reachable if number == 0 else self.distributions):
            self.study.enqueue_trial(values, user_attrs={NUMBER: number})

    @property
    def reachable(self) -> dict[str, Any]:
        """Returns those of the default values that lie in the space; the others are tried in the first trial alone."""
        return {name: self.defaults[name] for name in self.spaces if self.defaults[name] in self.spaces[name]}

    @property
    def next_number(self) -> int:
        numbers = [
            trial.user_attrs[NUMBER] for trial in self.study.get_trials(deepcopy=False) if NUMBER in trial.user_attrs
        ]
        return max(numbers, default=-1) + 1

    @property
    def left_over(self) -> int:
        """Returns how many trials wait to be run: the defaults, or those that died."""
        from optuna.trial import TrialState

        return len(self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))

    def ask(self) -> tuple[int, dict[str, Any]]:
        """Returns the number and the values of the next trial: first those of the defaults.

        Every trial has a sampler with a seed of its own, so that one who goes on tries what an unbroken tuning would.
        """
        import optuna

        waiting = self.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,))
        number = waiting[0].user_attrs[NUMBER] if waiting else self.next_number
        seed = int(checksum(self.label, str(self.seed), str(number))[:8], 16)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self.study.sampler = optuna.samplers.TPESampler(
                n_startup_trials=RANDOM_TRIALS, seed=seed, multivariate=True, constant_liar=True
            )
        tried = self.reachable if number == 0 else self.distributions
        trial = self.study.ask({name: self.distributions[name] for name in tried})
        trial.set_user_attr(NUMBER, number)
        self.running[number] = trial
        return number, dict(self.defaults) if number == 0 else trial.params

    def hear(self, number: int, rounds: int, score: float) -> bool:
        """Puts a score of a trial on record; returns whether it is not worth going on with. The defaults always are."""
        trial = self.running[number]
        if (number, rounds) not in self.heard:  # or it was begun again, since its worker had died
            trial.report(score, rounds)
            self.heard.add((number, rounds))
        return number > 0 and trial.should_prune()

    def end(self, number: int, outcome: TrialOutcome) -> None:
        """Puts on record what came of a trial."""
        from optuna.trial import TrialState

        trial = self.running.pop(number)
        trial.set_user_attr(ROUNDS, outcome.rounds)
        trial.set_user_attr(SECONDS, outcome.seconds)
        if outcome.state == "complete":
            self.study.tell(trial, outcome.validation)
            return
        if outcome.state == "failed":
            trial.set_user_attr(REASON, outcome.reason)
        self.study.tell(trial, state=TrialState.PRUNED if outcome.state == "pruned" else TrialState.FAIL)

    @property
    def history(self) -> History:
        """Returns what is over, in the order in which values were proposed; trials that died are not among it."""
        states = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
        rows = []
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state.name not in states or (trial.state.name == "FAIL" and REASON not in trial.user_attrs):
                continue
            number = trial.user_attrs[NUMBER]
            row = {
                "trial": number,
                "state": states[trial.state.name],
                "validation": score_of(trial),
                "params": dict(self.defaults) if number == 0 else {name: trial.params[name] for name in self.spaces},
                "rounds": trial.user_attrs.get(ROUNDS, 0),
                "seconds": trial.user_attrs.get(SECONDS, 0.0),
            }
            rows.append(row | ({"reason": trial.user_attrs[REASON]} if REASON in trial.user_attrs else {}))
        return sorted(rows, key=lambda row: int(row["trial"]))

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


def score_of(trial: FrozenTrial) -> float | None:
    """Returns the score of a complete trial, or the last one of a trial that was ended."""
    if trial.state.name == "COMPLETE":
        return trial.value
    steps = trial.intermediate_values
    return steps[max(steps)] if steps and trial.state.name == "PRUNED" else None


def distribution(search: Search, whole: bool) -> BaseDistribution:
    """Returns a search space as Optuna has it."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if search.low is None or search.high is None:
        return CategoricalDistribution(search.choices)
    if whole:
        return IntDistribution(int(search.low), int(search.high), log=search.log)
    return FloatDistribution(search.low, search.high, log=search.log)
