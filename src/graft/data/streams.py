"""One independent stream of random numbers for every purpose."""

import numpy as np

from graft.errors import InputError

PURPOSES = {"synthetic": 0, "partition": 1, "split": 2, "perturbation": 3}


def stream(purpose: str, seed: int, *ids: int) -> np.random.Generator:
    """The generator of one purpose: the same seed and ids always give the same numbers."""
    return np.random.default_rng(np.random.SeedSequence([PURPOSES[purpose], check_seed(seed), *ids]))


def check_seed(seed: int) -> int:
    """The seed itself, refused when it is not a whole number from zero up."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"A seed is a whole number of at least 0, not {seed!r}.")
    return int(seed)
