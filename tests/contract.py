"""The instances of methods that are held against each other to five digits."""

from graft.methods import METHODS

# FedTGP's margin is as wide as the gap between classes, so its server's loss is nearly flat (see
# test_margin_as_wide_as_the_gap_of_two_classes_holds_the_loss_at_log_two) and Adam, which divides gradients by their
# size, wanders: in 100 steps a change of 3e-7 in the clients' models becomes 1e-4 in the prototypes, and 0.3 within
# three rounds. Half of that is rounding; the rest is there in double precision, too. With 10 steps it is 1e-5 after
# six rounds, as with FedProto.
# The released code of FedTAD takes absolute differences of logits and chooses neighbours, both of which jump: where a
# difference is nearly zero, a change of 3e-8 in the server's model became 6e-4 within a round, in one process alone.
# With one step of each a round comes by few such places.
# The gradient of a cosine grows as an embedding shrinks. In FGSSL a toy node without neighbours has one of length 0.002
# in the strong view, which makes Adam's second moments 200: of that, 1e-6 is rounding. A larger temperature divides it.
SETTINGS = {
    "fedtgp": {"server_epochs": 10},
    "fedtad_released": {"iterations": 1, "student_steps": 1},
    "fgssl": {"temperature": 0.5},
}
# Methods that cannot do with the architecture that all others are tried with.
MODELS = {"fedbn": "gin"}


def usual_model(method):
    """The architecture that a method of one architecture is tried with."""
    return next((model for name, model in MODELS.items() if isinstance(method, METHODS[name])), "gcn")


def contract_method(name):
    """The method of that name, with settings under which rounding does not grow."""
    return METHODS[name](**SETTINGS.get(name, {}))
