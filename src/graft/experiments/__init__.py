"""From a description of an experiment to a run, its record and its report."""
