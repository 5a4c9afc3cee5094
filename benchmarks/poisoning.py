"""What one bad party of ten does to a federation: accuracy by attack, average and screening, over seeds.

One party sends noise in the place of its model, its update with the sign flipped, once as long as it was and once ten
times, or NaN. Which of the ten it is differs from seed to seed. The accuracy is that of the test nodes in the round
whose validation accuracy is best: of the global model where the method has one, else of the clients' own models.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from graft.data.federation import FederationData
from graft.engines.in_process import InProcess
from graft.errors import RunError
from graft.experiments.build import build_federation, build_setup
from graft.experiments.experiment import Experiment, make_experiment
from graft.experiments.make_method import make_method
from graft.experiments.scores import Scores
from graft.federation.clients import Engine
from graft.federation.method import Method
from graft.federation.session import Session
from graft.methods import METHODS
from graft.testing.poisoning import ATTACKS, Poisoned

MAX_NORM = 3.0
AVERAGES = ("mean", "median", "trimmed:0.2", "krum:1", "multi_krum:1")
NO_ATTACK = "none"


def accuracy(experiment: Experiment, federation: FederationData, attack: str, *, screened: bool) -> float | None:
    """Returns the test accuracy in percent of the best round; None where the run ended without one."""
    method = make_method(experiment.method, experiment.settings)
    setup = build_setup(experiment, method, federation)
    engine: Engine = InProcess(setup)
    if attack != NO_ATTACK:
        bad = experiment.seed % experiment.clients
        engine = Poisoned(setup, bad, ATTACKS[attack], screened=screened, max_norm=MAX_NORM)
    elif screened:
        engine = Poisoned(setup, -1, ATTACKS["nan"], screened=True, max_norm=MAX_NORM)
    session = Session(setup, engine)
    scores = Scores(*session.count_nodes(), experiment.score)
    for number in range(1, experiment.rounds + 1):
        try:
            scores.add(number, session.round(number))
        except RunError:  # losses are no numbers any more
            return None
    kind = "test_global" if experiment.score == "global" else "test"
    return 100 * float(scores.summary(experiment.clients)["accuracy"][kind])


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns the accuracies of every attack, average and screening, by seed."""
    rows: dict[tuple[str, str, bool], list[float | None]] = {}
    own = METHODS[options.method].shared is Method.shared
    for seed in range(options.seeds):
        begun = time.perf_counter()
        base = {
            "method": options.method,
            "dataset": options.dataset,
            "clients": 10,
            "rounds": options.rounds,
            "seed": seed,
            "device": "cpu",
            "score": "personal" if own else "global",
        }
        federation = build_federation(make_experiment(base))
        for average in options.averages:
            experiment = make_experiment({**base, "average": average})
            for attack in (NO_ATTACK, *options.attacks):
                for screened in (False, True):
                    value = accuracy(experiment, federation, attack, screened=screened)
                    rows.setdefault((attack, average, screened), []).append(value)
        print(f"seed {seed}: {time.perf_counter() - begun:.0f} s", flush=True)
    unharmed = rows[NO_ATTACK, "mean", False]
    return [
        {
            "attack": attack,
            "average": average,
            "screened": screened,
            "accuracy": values,
            "difference": [
                None if value is None or base is None else value - base
                for value, base in zip(values, unharmed, strict=True)
            ],
        }
        for (attack, average, screened), values in rows.items()
    ]


def in_words(values: list[float | None], *, sign: bool = False) -> str:
    """Returns mean and standard deviation; where runs failed, how many did."""
    finished = [value for value in values if value is not None]
    if len(finished) < len(values):
        return f"{len(values) - len(finished)} of {len(values)} runs fail"
    plus = "+" if sign else ""
    return f"{statistics.mean(finished):{plus}.1f} ± {statistics.stdev(finished) if len(finished) > 1 else 0:.1f}"


def table(rows: list[dict[str, Any]]) -> str:
    """Returns a table in Markdown: a row for every attack and average."""
    lines = [
        "| Attack | Average | Accuracy | Change | Screened: accuracy | Change |",
        "|---|---|---|---|---|---|",
    ]
    by_key = {(row["attack"], row["average"], row["screened"]): row for row in rows}
    for attack in dict.fromkeys(row["attack"] for row in rows):
        for average in dict.fromkeys(row["average"] for row in rows):
            cells = [attack, f"`{average}`"]
            for screened in (False, True):
                row = by_key[attack, average, screened]
                ended = None in row["accuracy"]
                cells += [in_words(row["accuracy"]), "" if ended else in_words(row["difference"], sign=True)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--dataset", default="cora")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--averages", nargs="+", default=list(AVERAGES))
    parser.add_argument("--attacks", nargs="+", default=["noise", "flip", "flip x10", "nan"], choices=list(ATTACKS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = measure(options)
    if options.out:
        options.out.write_text(json.dumps({**vars(options), "out": None, "max_norm": MAX_NORM, "rows": rows}, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
