"""Steps of a server towards an average: two of each worked out by hand, for a model of two numbers."""

from dataclasses import replace

import pytest
import torch

from graft.experiments.experiment import Experiment, make_experiment
from graft.federation.server_optimizer_names import (
    FIELDS,
    SERVER_OPTIMIZERS,
    ServerOptimizer,
    server_optimizer_of,
    suiting_optimizer,
    unread_fields,
)
from graft.federation.server_optimizers import MOMENTS, STEPS, start_moments, step
from graft.tensors.trees import Tree, flatten

# After the averages 2 and then 5, from a model that was 1 and has moved to where the first step led.
HAND = {
    "sgd": (0.5, [1.5, 3.25]),
    "momentum": (0.5, [1.5, 3.5]),  # velocity 1; then 0.5 * 1 + (5 - 1.5) = 4
    # direction 0.5, square 0.75 * 0.25 + 0.25 * 1 = 0.4375; then 0.25 + (5 - x) / 2, 0.75 * 0.4375 + (5 - x)^2 / 4
    "adam": (0.1, [1 + 0.1 * 0.5 / (0.4375**0.5 + 0.5), None]),
    "yogi": (0.1, [1 + 0.1 * 0.5 / (0.5**0.5 + 0.5), None]),  # square 0.25 + 0.25 * 1
    "adagrad": (0.1, [1 + 0.1 * 0.5 / (1.25**0.5 + 0.5), None]),  # square 0.25 + 1
}
NEXT_SQUARE = {
    "adam": lambda square, update: 0.75 * square + 0.25 * update**2,
    "yogi": lambda square, update: square + 0.25 * update**2,  # the square is below that of the update
    "adagrad": lambda square, update: square + update**2,
}
FIRST_SQUARE = {"adam": 0.4375, "yogi": 0.5, "adagrad": 1.25}


def two_steps(how, averages=(2.0, 5.0), start=1.0):
    model = Tree(x=torch.tensor([start, 0.0]))
    moments, reached = start_moments(how, model, frozenset()), []
    for average in averages:
        model, moments = step(how, model, Tree(x=torch.tensor([average, 0.0])), moments, frozenset())
        reached.append(model.x.tolist())
    return reached, moments


@pytest.mark.parametrize("name", STEPS)
def test_two_steps_by_hand(name):
    rate, (first, second) = HAND[name]
    how = ServerOptimizer(name, rate, momentum=0.5, beta2=0.75, tau=0.5)
    if second is None:
        update = 5 - first
        square = NEXT_SQUARE[name](FIRST_SQUARE[name], update)
        second = first + rate * (0.5 * 0.5 + 0.5 * update) / (square**0.5 + 0.5)
    reached, _ = two_steps(how)
    assert [value for value, _ in reached] == pytest.approx([first, second], abs=1e-6)
    assert [other for _, other in reached] == [0.0, 0.0]  # a number that no client moves stays


def test_mean_square_of_yogi_falls_by_no_more_than_the_update_is_large():
    """From 4, after an update of 1: Adam's falls by a quarter of itself, Yogi's by a quarter of 1."""
    squares = {}
    for name in ("adam", "yogi"):
        how = ServerOptimizer(name, 0.1, momentum=0.0, beta2=0.75, tau=2.0)  # squares begin at 4
        squares[name] = float(two_steps(how, averages=(2.0,))[1].square.x[0])
    assert squares == {"adam": 3.25, "yogi": 3.75}


def test_sgd_of_rate_one_is_the_average_bit_for_bit():
    torch.manual_seed(0)
    before, average = torch.randn(1000), torch.randn(1000)
    model, moments = step(ServerOptimizer("sgd"), Tree(x=before), Tree(x=average), Tree(), frozenset())
    assert torch.equal(model.x, average)
    assert moments == {}
    other, _ = step(ServerOptimizer("sgd", 0.999), Tree(x=before), Tree(x=average), Tree(), frozenset())
    assert not torch.equal(other.x, average)


@pytest.mark.parametrize("name", STEPS)
def test_buffers_and_integers_are_those_of_the_average(name):
    def model(value):
        return Tree(weight=torch.tensor([value]), mean=torch.tensor([value]), count=torch.tensor(int(value)))

    how, frozen = ServerOptimizer(name, 0.5), frozenset({"mean"})
    moments = start_moments(how, model(1.0), frozen)
    assert {path.rpartition("/")[2] for path, _ in flatten(moments)} <= {"weight"}
    after, moments = step(how, model(1.0), model(3.0), moments, frozen)
    assert (float(after.mean), int(after.count)) == (3.0, 3)
    assert float(after.weight) != 3.0
    assert list(moments) == list(MOMENTS[name])


def test_every_optimiser_has_its_fields_steps_and_moments():
    assert set(SERVER_OPTIMIZERS) == set(STEPS) == set(MOMENTS)
    assert {field.removeprefix("server_") for field in FIELDS} == set(ServerOptimizer._fields) - {"name"}
    assert unread_fields("none") == list(FIELDS)
    assert unread_fields("adam") == []
    assert unread_fields("sgd") == ["server_momentum", "server_beta2", "server_tau"]


@pytest.mark.parametrize("name", STEPS)
def test_an_experiment_takes_what_suits_its_optimiser_unless_somebody_says_otherwise(name):
    suiting = suiting_optimizer(name)
    values = {"method": "fedprox", "server_optimizer": name}
    assert server_optimizer_of(make_experiment(values)) == suiting
    said = make_experiment({**values, "server_rate": 0.7, "server_momentum": 0.3})
    assert server_optimizer_of(said) == suiting._replace(rate=0.7, momentum=0.3)
    assert server_optimizer_of(Experiment(method="fedprox")) is None
    assert suiting_optimizer("none") is None


@pytest.mark.parametrize(
    ("method", "name"), [("fedavgm", "momentum"), ("fedadam", "adam"), ("fedyogi", "yogi"), ("fedadagrad", "adagrad")]
)
def test_named_methods_are_fedavg_with_an_optimiser_at_the_server(method, name):
    assert server_optimizer_of(make_experiment({"method": method})) == suiting_optimizer(name)
    other = make_experiment({"method": method, "server_optimizer": "sgd"})
    assert server_optimizer_of(other) == suiting_optimizer("sgd")
    plain = make_experiment({"method": method})
    assert plain == replace(make_experiment({"method": "fedavg", "server_optimizer": name}), method=method)
