"""Values that suit a method on validation nodes, searched by Optuna with the same budget for every method."""
