"""Random draws: what they depend on, what they do not, and whether they look random."""

import os
import subprocess
import sys

import pytest
import torch

from graft.methods.local import Local
from graft.tensors.randomness import Stream, scramble, seed_for
from tests.toy import toy_setup

CPU = torch.device("cpu")
PINNED = 4141939757170682699  # seed_for(0, 1, 2, "train")


def draw(*keys, number=1, rate=0.5, rows=6, width=8):
    """The `number`-th mask that clients with these keys draw."""
    source = Stream(torch.tensor(keys))
    for _ in range(number - 1):
        source.keep(rate, rows, width)
    return source.keep(rate, rows, width)


def test_same_key_gives_the_same_draw():
    assert torch.equal(draw(7), draw(7))
    assert torch.equal(draw(7, number=3), draw(7, number=3))
    assert not torch.equal(draw(7), draw(8))
    assert not torch.equal(draw(7), draw(7, number=2))


def fleet_bits(clients, round=1, step="train", seed=0, number=1):
    fleet = toy_setup(Local(), seed=seed).fleet(clients)
    fleet = fleet.for_call(round, step)
    for _ in range(number - 1):
        fleet.random.bits(16)
    return fleet.random.bits(16)


def test_every_part_of_the_key_matters():
    usual = fleet_bits([0])
    assert torch.equal(usual, fleet_bits([0]))
    others = [
        fleet_bits([1]),
        fleet_bits([0], round=2),
        fleet_bits([0], step="score"),
        fleet_bits([0], seed=1),
        fleet_bits([0], number=2),
    ]
    drawn = torch.cat([usual, *others]).flatten()
    assert len(drawn.unique()) == drawn.numel()  # no 64-bit number comes twice


def test_a_clients_draws_do_not_depend_on_its_fleet():
    together = fleet_bits([0, 1, 2])
    for client in range(3):
        assert torch.equal(together[client], fleet_bits([client])[0])
    assert torch.equal(fleet_bits([2, 0]), together[[2, 0]])
    assert not torch.equal(together[0], together[1])


@pytest.mark.parametrize("width", [1, 4, 7, 64])
def test_padding_rows_do_not_change_the_rows_above(width):
    short, long = draw(5, rows=7, width=width), draw(5, rows=12, width=width)
    assert torch.equal(short[0], long[0, :7])
    assert short.shape == (1, 7, width)
    if width == 64:
        assert not torch.equal(long[0, :5], long[0, 7:])  # the rows below are new


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.25, 0.5, 0.6, 0.9])
def test_kept_share_is_one_minus_the_rate(rate):
    kept = draw(*range(10), rate=rate, rows=500, width=64).double()
    deviation = (rate * (1 - rate) / kept.numel()) ** 0.5
    assert abs(float(kept.mean()) - (1 - rate)) <= 4 * deviation
    per_client = (kept.mean((1, 2)) - (1 - rate)).abs()
    assert (per_client <= 5 * deviation * 10**0.5).all()


def test_a_rate_close_to_one_drops_nearly_everything():
    assert draw(1, rate=0.99999, rows=100, width=64).double().mean() < 0.01
    assert draw(1, rate=1e-9, rows=100, width=64).all()


def test_uniform_numbers_have_the_mean_and_variance_of_uniform_numbers():
    numbers = Stream(torch.tensor([1, 2, 3])).uniform(50_000).double()
    assert 0 <= numbers.min() < 1e-3
    assert 1 - 1e-3 < numbers.max() < 1
    assert abs(float(numbers.mean()) - 1 / 2) < 4 * (1 / 12 / numbers.numel()) ** 0.5
    assert abs(float(numbers.var()) - 1 / 12) < 1e-3
    shares = torch.histc(numbers, bins=16, min=0, max=1) / numbers.numel()
    assert (shares - 1 / 16).abs().max() < 0.003


def correlation(first, second):
    return abs(float(torch.corrcoef(torch.stack([first.flatten().double(), second.flatten().double()]))[0, 1]))


ROWS, WIDTH = 1000, 64
CLEAR = 4.5 / (ROWS * WIDTH) ** 0.5  # beyond chance


def test_normal_numbers_have_the_moments_and_tails_of_normal_numbers():
    numbers = Stream(torch.tensor([5, 6])).normal(200_000)
    assert numbers.isfinite().all()
    assert (numbers.mean(1).abs() < 0.01).all()
    assert ((numbers.var(1) - 1).abs() < 0.02).all()
    assert (((numbers**4).mean(1) - 3).abs() < 0.1).all()
    assert abs(float((numbers.abs() > 2).double().mean()) - 0.0455) < 0.002
    assert not torch.equal(numbers[0], numbers[1])


def test_clients_draws_are_not_correlated():
    kept = draw(*(seed_for(0, 1, client, "train") for client in range(6)), rows=ROWS, width=WIDTH)
    neighbours = draw(100, 101, rows=ROWS, width=WIDTH)  # even where keys are consecutive numbers
    assert max(correlation(kept[0], kept[client]) for client in range(1, 6)) < CLEAR
    assert correlation(neighbours[0], neighbours[1]) < CLEAR
    assert correlation(kept[0], kept[0]) > 0.99


def test_consecutive_draws_are_not_correlated_nor_shifted_copies():
    source = Stream(torch.tensor([42]))
    first, second = source.keep(0.5, ROWS, WIDTH)[0], source.keep(0.5, ROWS, WIDTH)[0]
    assert correlation(first, second) < CLEAR
    for shift in (1, 2, 3):
        assert correlation(first[shift:], second[:-shift]) < CLEAR * 1.01
        assert correlation(first[:-shift], second[shift:]) < CLEAR * 1.01


def test_neither_columns_nor_rows_are_correlated():
    kept = draw(3, rows=ROWS, width=WIDTH)[0]
    for shift in (1, 2, 3, 4):  # four columns come from one 64-bit number
        assert correlation(kept[:, shift:], kept[:, :-shift]) < CLEAR * 1.05
        assert correlation(kept[shift:], kept[:-shift]) < CLEAR * 1.05


def test_consecutive_keys_and_draw_numbers_do_not_meet():
    # Draw 2 of key 5 and draw 1 of key 6 start from the same sum; keys are hashes, so that this never matters.
    assert torch.equal(draw(5, number=2), draw(6, number=1))
    seeds = [seed_for(0, round, client, "train") for round in range(30) for client in range(30)]
    gaps = torch.tensor(sorted(seeds)).diff()
    assert gaps.min() > 10_000


def test_mix_never_maps_two_numbers_to_one():
    numbers = torch.arange(-50_000, 50_000)
    assert len(scramble(numbers).unique()) == len(numbers)
    flipped = (scramble(numbers) ^ scramble(numbers ^ 1)).view(torch.uint8)
    ones = sum(((flipped >> bit) & 1).sum() for bit in range(8)) / len(numbers)
    assert abs(float(ones) - 32) < 0.1  # one bit changes half of all 64


def test_seeds_are_the_same_in_every_process():
    assert seed_for(0, 1, 2, "train") == PINNED
    environment = os.environ | {"PYTHONHASHSEED": "123"}
    code = "from graft.tensors.randomness import seed_for; print(seed_for(0, 1, 2, 'train'))"
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(printed.stdout) == PINNED
    assert seed_for(0, 12, "train") != seed_for(0, 1, 2, "train")
    assert seed_for("1") != seed_for(1)
    assert 0 <= PINNED < 2**63


def test_draws_are_those_of_splitmix64_worked_out_in_plain_integers():
    assert Stream(torch.tensor([1])).bits(2).tolist() == [[4689417271487893854, -1942014151176595275]]


def test_some_owners_draw_what_they_draw_among_all():
    for drawn in (
        lambda stream: stream.bits(5),
        lambda stream: stream.keep(0.3, 4, 8),
        lambda stream: stream.dropout(torch.ones(len(stream.keys), 4, 8), 0.5),
    ):
        whole = Stream(torch.tensor([3, 1, 4, 1000, 59]))
        whole.bits(2)
        first, last = whole.select(range(2)), whole.select(range(2, 5))
        parts = [torch.cat([drawn(first), drawn(last)]) for _ in range(2)]
        assert torch.equal(parts[0], drawn(whole))
        assert torch.equal(parts[1], drawn(whole))
        assert not torch.equal(*parts)


def test_dropout_is_the_same_whether_parts_share_its_draws_or_not(monkeypatch):
    def drops():
        whole = Stream(torch.tensor([3, 1, 4]))
        first, last = whole.select(range(1)), whole.select(range(1, 3))
        found = [first.dropout(torch.ones(1, 6, 8), 0.5), last.dropout(torch.ones(2, 6, 8), 0.5)]
        found.append(last.dropout(torch.ones(2, 6, 8), 0.25))
        whole.advance([first.draws, last.draws, last.draws])
        return [*found, whole.dropout(torch.ones(3, 6, 8), 0.5)]

    shared = drops()
    monkeypatch.setattr("graft.tensors.randomness.SMALL_MASK", 0)
    assert all(torch.equal(one, other) for one, other in zip(shared, drops(), strict=True))
    assert not torch.equal(shared[1], shared[2])


@pytest.mark.parametrize("widths", [[8] * 11, [8, 4] * 5, [8, 8, 4, 8, 8, 8, 8]])
def test_masks_made_ahead_are_those_made_when_they_are_asked_for(widths, monkeypatch):
    def drops():
        stream = Stream(torch.tensor([3, 1, 4]))
        found = []
        for place, width in enumerate(widths):
            if place == 3:  # something else may be drawn in between
                found.append(stream.bits(2))
            found.append(stream.dropout(torch.ones(3, 6, width), 0.5))
            if place == 5:
                stream.advance([2, 2, 2])
        assert len(stream._masks) <= 4  # those that were used are gone
        draws = stream.draws
        stream.clear_masks()
        assert not stream._masks
        return found, draws

    ahead, draws = drops()
    monkeypatch.setattr("graft.tensors.randomness.SMALL_MASK", 0)
    alone, others = drops()
    assert draws == others
    assert all(torch.equal(one, other) for one, other in zip(ahead, alone, strict=True))


@pytest.mark.parametrize(("draws", "wanted"), [([2, 2, 2], [2, 4]), ([1, 2, 2], [2, 2, 2])])
def test_masks_are_made_no_further_ahead_than_they_can_be_used(draws, wanted, monkeypatch):
    """Owners that draw different numbers of times go on with other keys, for which no mask was made."""
    made = []

    def watched(self, *arguments, make=Stream._make_masks):
        make(self, *arguments)
        made.append(len(self._masks))

    monkeypatch.setattr(Stream, "_make_masks", watched)
    stream = Stream(torch.tensor([3, 1, 4]))
    for _ in range(3):
        passes = stream.select(range(1)), stream.select(range(1, 3))
        for part, count in zip(passes, (draws[0], draws[1]), strict=True):
            for _ in range(count):
                part.dropout(torch.ones(len(part.keys), 6, 8), 0.5)
        stream.advance(draws)
    assert made == wanted


@pytest.mark.parametrize("draws", [[2, 2, 2], [0, 1, 3]])
def test_advancing_is_drawing(draws):
    whole = Stream(torch.tensor([3, 1, 4]))
    whole.advance(draws)
    for owner, count in enumerate(draws):
        alone = Stream(torch.tensor([[3, 1, 4][owner]]))
        for _ in range(count):
            alone.bits(1)
        assert torch.equal(whole.bits(4)[owner], alone.bits(4)[0])
        whole.draws -= 1
