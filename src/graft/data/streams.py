"""One independent stream of random numbers for every purpose."""

import numpy as np

from graft.errors import InputError

PURPOSES = {
    "synthetic": 0,
    "partition": 1,
    "split": 2,
    "perturbation": 3,
    "class means": 4,
    "generated": 5,
    "held out": 6,
}


def stream(purpose: str, seed: int, *ids: int) -> np.random.Generator:
    """NumPy's generator for a purpose: the same seed and ids always give the same numbers."""
    return np.random.default_rng(np.random.SeedSequence([PURPOSES[purpose], check_seed(seed), *ids]))


def check_seed(seed: int) -> int:
    """Returns the seed as an int; refused unless it is a whole number of at least 0."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"A seed is a whole number of at least 0, not {seed!r}.")
    return int(seed)
