"""Random numbers that depend on who draws them and when, never on who else is drawing.

Every draw is a hash of (run, round, client, step, number of the draw, position), so a client gets the same
numbers alone, in a fleet, in another process or after a restart; and there is no generator state to save.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graft.tensors import kernels

if TYPE_CHECKING:
    from graft.graphs.fleet_graph import Rows

# The constants of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), as signed 64-bit numbers.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
FIRST = 0xBF58476D1CE4E5B9 - 2**64
SECOND = 0x94D049BB133111EB - 2**64


MASKS_AHEAD = 4  # masks that are made before they are asked for
SMALL_MASK = 2**18  # numbers; up to so many, what takes time is to ask for them


def seed_for(*parts: int | str) -> int:
    """A 63-bit seed of its own for every combination of run, round, client, step or purpose."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def scramble(bits: Tensor) -> Tensor:
    """Scramble 64-bit numbers so that neighbouring ones have nothing in common."""
    # A shift copies the sign into the free bits, so the mask is what makes it a shift of plain bits.
    bits = (bits ^ (bits >> 30).bitwise_and_(2**34 - 1)).mul_(FIRST)
    bits.bitwise_xor_((bits >> 27).bitwise_and_(2**37 - 1)).mul_(SECOND)
    return bits.bitwise_xor_((bits >> 31).bitwise_and_(2**33 - 1))


def counters(count: int, device: torch.device) -> Tensor:
    return counter_block(max(count - 1, 0).bit_length(), device)[:count]


@cache  # recorded steps read them from where they are, so they must never go
def counter_block(power: int, device: torch.device) -> Tensor:
    return torch.arange(1, 2**power + 1, device=device) * GOLDEN


class Stream:
    """Random draws for the clients of a fleet, one key a client."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys
        self.draws = 0
        self._part_of: tuple[Stream, range] | None = None
        self._masks: dict[tuple[Any, ...], Tensor] = {}  # of draws to come, or that parts come to one after another
        self._ahead = 2  # how many are made at a time: most models have two layers

    def bits(self, count: int, places: Tensor | None = None) -> Tensor:
        """Fresh 64-bit numbers [clients, count], or of those the ones at some places, [clients, some]."""
        self.draws += 1
        if places is None and self.keys.is_cuda:
            found = kernels.draw_bits(self.keys, self.draws, count)
            if found is not None:
                return found
        start = scramble(self.keys + self.draws)
        every = counters(count, self.keys.device) if places is None else (places + 1) * GOLDEN
        return scramble(every + start[:, None])

    def of(self, owners: range) -> Stream:
        """The same draws for some of the owners, who stand side by side."""
        part = Stream(self.keys[owners.start : owners.stop])
        part.draws, part._part_of = self.draws, (self, owners)
        return part

    def advance(self, draws: Sequence[int]) -> None:
        """Move on as if every owner had drawn a number of times of its own."""
        if len(set(draws)) == 1:
            self.draws += draws[0]
            self._forget()
        else:
            self.keys = self.keys + index_tensor(tuple(draws), self.keys.device)
            self._masks = {}

    def clear_masks(self) -> None:
        """Nobody will draw any more: masks that were made ahead are not needed."""
        self._masks = {}

    def _forget(self) -> None:
        """Let go of what was drawn before now."""
        self._masks = {draw: mask for draw, mask in self._masks.items() if draw[0] > self.draws}

    def keep(self, rate: float, rows: int, width: int) -> Tensor:
        """True with probability 1 - rate, for every client, row and column (steps of 1/65536)."""
        draws, least = self._draws(rate, rows, width)
        return draws >= least

    def _draws(self, rate: float, rows: int, width: int, nodes: Tensor | None = None) -> tuple[Tensor, int]:
        """Whole numbers, and the least that they must be for something to be kept; maybe those of some rows alone."""
        size, least = keep_threshold(rate)
        words = -(-width * size // 64)
        kind = torch.int8 if size == 8 else torch.int16
        count, places = rows * words, None
        if nodes is not None:
            rows = nodes.shape[1]
            places = (nodes.unsqueeze(2) * words + torch.arange(words, device=nodes.device)).flatten(1)
        return self.bits(count, places).view(kind).view(-1, rows, words * 64 // size)[:, :, :width], least

    def drop(self, values: Tensor, rate: float, rows: Rows | None = None) -> Tensor:
        """Dropout: values [clients, rows, width] as `keep` says, scaled so that their mean stays.

        Values may be those of some rows alone; each is dropped as it would be among all.
        """
        if values.is_cuda and values.dtype == torch.float32:
            self.draws += 1
            return _Dropout.apply(values, self.keys, self.draws, rate, rows)  # type: ignore[no-any-return, no-untyped-call]
        return values * self._mask(values, rate, rows)

    def _mask(self, values: Tensor, rate: float, some: Rows | None) -> Tensor:
        """What `keep` says, as numbers to multiply these values with."""
        whole, owners = self._part_of or (self, range(len(self.keys)))
        rows, width, kind = values.shape[1] if some is None else some.whole.nodes, values.shape[2], values.dtype
        if self.keys.is_cuda or len(whole.keys) * rows * width > SMALL_MASK:
            draws, least = self._draws(rate, rows, width, None if some is None else some.nodes)
            return dropout_mask(draws, least, rate, kind)
        # A small mask costs calls, not numbers: one serves all parts of a fleet, and some are made ahead.
        self.draws += 1
        asked = rate, rows, width, kind
        if (self.draws, *asked) not in whole._masks:
            whole._make_masks(self.draws, *asked)
        mask = whole._masks[self.draws, *asked][owners.start : owners.stop]
        if whole is self:  # nobody else will come for it
            del self._masks[self.draws, *asked]
        return mask if some is None else some.chosen.times(mask)

    def _make_masks(self, first: int, rate: float, rows: int, width: int, kind: torch.dtype) -> None:
        """The masks of this draw and a few more, in case they are of the same kind."""
        if any(draw[0] == first for draw in self._masks):  # made ahead for nothing: draws take turns in their shapes
            self._ahead = 1
        index_tensor = range(first, first + self._ahead)
        several = Stream((self.keys + torch.tensor(index_tensor)[:, None]).flatten() - 1)
        draws, least = several._draws(rate, rows, width)
        masks = dropout_mask(draws, least, rate, kind).view(self._ahead, len(self.keys), rows, width)
        self._forget()
        self._masks |= {(number, rate, rows, width, kind): masks[number - first] for number in index_tensor}
        self._ahead = 1 if self._ahead == 1 else MASKS_AHEAD

    def uniform(self, count: int) -> Tensor:
        """Numbers in [0, 1), [clients, count]."""
        return ((self.bits(count) >> 40) & (2**24 - 1)).float() / 2**24

    def normal(self, count: int) -> Tensor:
        """Numbers from the standard normal distribution, [clients, count] (Box and Muller, 1958)."""
        radius = (-2 * (1 - self.uniform(count)).log()).sqrt()  # 1 - u is never 0
        return radius * (2 * math.pi * self.uniform(count)).cos()


def dropout_mask(draws: Tensor, least: int, rate: float, kind: torch.dtype) -> Tensor:
    """A mask to multiply with; CPUs are slow at truth values."""
    return draws.float().ge_(least).to(kind).mul_(1 / (1 - rate))


def keep_threshold(rate: float) -> tuple[int, int]:
    """How many bits decide, and the least number that they must be, as a signed one, for something to be kept."""
    # A 64-bit number holds eight draws of 8 bits, which is enough for rates such as 0.5, or four of 16 bits.
    size = 8 if (256 * rate).is_integer() else 16
    levels = 1 << size
    # A rate just below 1 must not round up to 1: the threshold would not fit.
    return size, min(round(rate * levels), levels - 1) - levels // 2


class _Dropout(torch.autograd.Function):
    """Nothing is kept for the way back: what is dropped is drawn again."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, keys: Tensor, draws: int, rate: float, rows: Rows | None) -> Tensor:
        ctx.how = keys, draws, rate, rows
        return dropout_forward(values, keys, draws, rate, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        return dropout_forward(gradient, *ctx.how), None, None, None, None


def dropout_forward(values: Tensor, keys: Tensor, draws: int, rate: float, rows: Rows | None) -> Tensor:
    nodes = None if rows is None else rows.nodes
    found = kernels.dropout(keys, draws, values.contiguous(), nodes, *keep_threshold(rate), 1 / (1 - rate))
    if found is not None:
        return found
    stream = Stream(keys)
    stream.draws = draws - 1
    return values * stream._mask(values, rate, rows)


class SeedBuffer:
    """Seeds for a recorded round, filled in before every replay: who draws is known from the recording."""

    def __init__(self, device: torch.device, most: int = 256) -> None:
        self.seeds = torch.zeros(most, dtype=torch.int64, device=device)
        self._host = torch.zeros(most, dtype=torch.int64, pin_memory=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._who: list[tuple[int | str, ...]] = []

    def take(self, *who: int | str) -> Tensor:
        """The place of one seed more."""
        self._who.append(who)
        return self.seeds[len(self._who) - 1]

    def fill(self, round: int) -> None:
        """Set the seeds of a round."""
        taken = len(self._who)
        self._copied.synchronize()  # those of the round before are read from here
        self._host.numpy()[:taken] = [seed_for(run, round, *who) for run, *who in self._who]
        self.seeds[:taken].copy_(self._host[:taken], non_blocking=True)
        self._copied.record()


def streams(device: torch.device, seed: int | Tensor, owners: Sequence[int]) -> Stream:
    """One stream for every owner's number, all from one seed."""
    if device.type != "cpu" and not isinstance(seed, Tensor):  # filled in by the device itself: a copy would wait
        seed = torch.full((), seed, dtype=torch.int64, device=device)
    return Stream(scramble(index_tensor(tuple(owners), device) * GOLDEN + seed))


def index_tensor(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Whole numbers on a device; to a GPU they are brought once, since that waits for it."""
    return torch.tensor(values) if device.type == "cpu" else cached_index_tensor(values, device)


@cache  # as above
def cached_index_tensor(values: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)
