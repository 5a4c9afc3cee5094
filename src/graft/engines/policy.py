"""What a party lets out beside what training needs: scores of models, and how much data it has."""

from __future__ import annotations

import inspect
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from graft.errors import InputError
from graft.federation.method import Method, find_step
from graft.federation.reveals import CONFUSION, GAPS, HISTOGRAMS, METRIC_VALUES, NODE_COUNTS, SCORES, declared
from graft.fields import check_fields
from graft.files import read_text
from graft.registry import close_to

MOST = 1_000_000
SCORE_FIELDS = (SCORES, METRIC_VALUES, CONFUSION, HISTOGRAMS, GAPS)  # declarations of what scores are made of
Kind = Literal["own", "sent", "counts"]  # scores of a party's own model, of one that it is sent, numbers of nodes


@dataclass(frozen=True)
class Policy:
    """What may leave a party beside the replies that training needs.

    A score is exact: how many nodes of each mask a model classifies correctly, or a metric of that. So a model that
    always says the same class returns how many nodes of each mask have that class, and two models that differ on a
    single node return its label. `scores` says whose models are scored:

    * "never": no score and no number of nodes leaves for scoring. Models are compared at the party alone.
    * "own": those of the model that the party holds after training. What the server sends is never scored. Where a
      method has a party start from what the server sends, as FedAvg does, a server that does not follow the method can
      steer even this model, and learns one number for each mask in a round; "never" is the only answer to that.
    * "all": also those of any model that the server sends. In as many rounds as there are classes it can then learn
      the exact number of nodes of every class in each mask, and with more rounds the labels of single nodes.
    """

    scores: Literal["never", "own", "all"] = "own"
    minimum_count: Annotated[int, Ge(0), Le(MOST)] = 20  # nodes; no score leaves where a mask has fewer
    scores_per_round: Annotated[int, Ge(0), Le(MOST)] = 1  # how often a step may ask for scores in one round
    counts: bool = True  # whether the numbers of nodes in the masks leave, which scores are divided by

    def __post_init__(self) -> None:
        for name in ("minimum_count", "scores_per_round"):
            if isinstance(getattr(self, name), bool):
                raise InputError(f"{name} is {getattr(self, name)}; it must be a whole number.")
        if not isinstance(self.counts, bool):
            raise InputError(f"counts is {self.counts!r}; it must be true or false.")
        check_fields(self)

    def allows(self, kind: Kind, totals: Sequence[int], before: int = 0) -> str | None:
        """Returns why a reply may not leave, as the end of a sentence; None where it may.

        `totals` are the numbers of nodes in the masks, `before` how often the same was answered in this round.
        """
        if self.scores == "never":
            return "its policy lets no score out"
        if min(totals, default=0) < self.minimum_count:
            return f"a mask has fewer than the {self.minimum_count} nodes that its policy asks for"
        if kind == "counts":
            return None if self.counts else "its policy lets no number of nodes out"
        if kind == "sent" and self.scores != "all":
            return "its policy scores no model but its own"
        if before >= self.scores_per_round:
            return f"its policy lets scores out {self.scores_per_round} times a round"
        return None


class ScoreGate:
    """A policy at work: keeps count of what was answered in a round."""

    def __init__(self, policy: Policy, method: Method, totals: Sequence[int]) -> None:
        """Takes the numbers of nodes in the masks that models are scored on."""
        self.policy = policy
        self.totals = tuple(totals)
        self._kinds = scoring_steps(method)
        self._round = 0
        self._answered: Counter[str] = Counter()

    def allows(self, step: str, round: int) -> str | None:
        """Returns why a step may not be answered now; None where it may, and for steps that training needs."""
        kind = self._kinds.get(step)
        if kind is None:
            return None
        if round < self._round:
            return f"round {round} is over"
        before = self._answered[step] if round == self._round else 0
        return self.policy.allows(kind, self.totals, before)

    def answered(self, step: str, round: int) -> None:
        """Counts an answer, before it leaves; the same answer sent again counts once, so is not told here."""
        if step not in self._kinds:
            return
        if round > self._round:
            self._round = round
            self._answered.clear()
        self._answered[step] += 1

    def state(self) -> dict[str, Any]:
        """Returns what has to be kept on disk, so that a restart lets no more out; JSON can hold it."""
        return {"round": self._round, "answered": dict(self._answered)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state` returned."""
        self._round = int(state["round"])
        self._answered = Counter({step: int(count) for step, count in state["answered"].items()})


def scoring_steps(method: Method) -> dict[str, Kind]:
    """Returns the steps of a method whose replies only say how good models are, or how much data there is, by what its
    declarations say of every field."""
    by_step: dict[str, list[Any]] = {}
    for field, reveals in declared(method).items():
        by_step.setdefault(field.partition("/")[0], []).append(reveals)
    kinds: dict[str, Kind] = {}
    for name, fields_of_step in by_step.items():
        if all(reveals in SCORE_FIELDS for reveals in fields_of_step):
            function, _ = find_step(method, name)
            # A step that can be asked without a message scores what the party holds.
            parameters = inspect.signature(function).parameters.values()
            needed = [parameter for parameter in parameters if parameter.default is parameter.empty]
            kinds[name] = "own" if len(needed) == 1 else "sent"
        elif all(reveals == NODE_COUNTS for reveals in fields_of_step):
            kinds[name] = "counts"
    return kinds


def read_policy(path: Path | None = None, **flags: Any) -> Policy:
    """Returns the policy of a file, if there is one, with the flags that are not None in its place."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(read_text(path))
        except FileNotFoundError:
            raise InputError(f"There is no policy file {path}.") from None
        except (OSError, ValueError, RecursionError) as error:  # a TOMLDecodeError or a UnicodeError too
            raise InputError(f"{path} is not a readable TOML file: {error}.") from error
    values |= {name: value for name, value in flags.items() if value is not None}
    known = [entry.name for entry in fields(Policy)]
    for name in values:
        if name not in known:
            where = f"{path}: " if path is not None else ""
            raise InputError(
                f"{where}a policy has no '{name}'{close_to(name, known)}; what it says is {', '.join(known)}."
            )
    try:
        return Policy(**values)
    except InputError as error:
        raise InputError(f"{path}: {error}") if path is not None else error from None
