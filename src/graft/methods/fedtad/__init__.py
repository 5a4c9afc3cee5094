"""FedTAD, as a method and as a plug on any aggregator of one architecture."""
