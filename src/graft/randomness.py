"""Random numbers that depend on who draws them and when, never on who else is drawing.

Every draw is a hash of (run, round, client, step, number of the draw, position), so a client gets the same
numbers alone, in a fleet, in another process or after a restart; and there is no generator state to save.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache

import torch
from torch import Tensor

# The constants of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), as signed 64-bit numbers.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
FIRST = 0xBF58476D1CE4E5B9 - 2**64
SECOND = 0x94D049BB133111EB - 2**64


def seed_for(*parts: int | str) -> int:
    """A 63-bit seed of its own for every combination of run, round, client, step or purpose."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def mix(bits: Tensor) -> Tensor:
    """Scramble 64-bit numbers so that neighbouring ones have nothing in common."""
    # A shift copies the sign into the free bits, so the mask is what makes it a shift of plain bits.
    bits = (bits ^ (bits >> 30).bitwise_and_(2**34 - 1)).mul_(FIRST)
    bits.bitwise_xor_((bits >> 27).bitwise_and_(2**37 - 1)).mul_(SECOND)
    return bits.bitwise_xor_((bits >> 31).bitwise_and_(2**33 - 1))


@lru_cache(maxsize=64)
def counters(count: int, device: torch.device) -> Tensor:
    return torch.arange(1, count + 1, device=device) * GOLDEN


class Stream:
    """Random draws for the clients of a fleet, one key a client."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys
        self.draws = 0

    def bits(self, count: int) -> Tensor:
        """Fresh 64-bit numbers [clients, count]."""
        self.draws += 1
        start = mix(self.keys + self.draws)
        return mix(counters(count, self.keys.device) + start[:, None])

    def keep(self, rate: float, rows: int, width: int) -> Tensor:
        """True with probability 1 - rate, for every client, row and column (steps of 1/65536)."""
        # A 64-bit number holds eight draws of 8 bits, which is enough for rates such as 0.5, or four of 16 bits.
        size, kind = (8, torch.int8) if (256 * rate).is_integer() else (16, torch.int16)
        words = -(-width * size // 64)
        draws = self.bits(rows * words).view(kind).view(-1, rows, words * 64 // size)
        # A rate just below 1 must not round up to 1: the threshold would not fit.
        levels = 1 << size
        return draws[:, :, :width] >= min(round(rate * levels), levels - 1) - levels // 2

    def uniform(self, count: int) -> Tensor:
        """Numbers in [0, 1), [clients, count]."""
        return ((self.bits(count) >> 40) & (2**24 - 1)).float() / 2**24

    def normal(self, count: int) -> Tensor:
        """Numbers from the standard normal distribution, [clients, count] (Box and Muller, 1958)."""
        radius = (-2 * (1 - self.uniform(count)).log()).sqrt()  # 1 - u is never 0
        return radius * (2 * math.pi * self.uniform(count)).cos()


def streams(device: torch.device, seed: int, owners: list[int]) -> Stream:
    """One stream for every owner's number, all from one seed."""
    numbers = torch.tensor(owners) * GOLDEN + seed
    return Stream(mix(numbers).to(device))
