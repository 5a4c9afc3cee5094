"""The instances of methods that are held against each other to five digits."""

from graft.methods import METHODS

# The gradients of FedTGP's server nearly cancel: unit vectors from what clients sent to a distant prototype, weighted
# by probabilities that sum to one. In single precision their rounding, which Adam divides by their small size, adds up
# to 1e-5 and more in its usual 100 steps; in double precision two runs stay as near as what clients sent, 1e-7.
SETTINGS = {"fedtgp": {"server_epochs": 20}}


def contract_method(name):
    """The method of that name, with settings under which rounding does not grow."""
    return METHODS[name](**SETTINGS.get(name, {}))
