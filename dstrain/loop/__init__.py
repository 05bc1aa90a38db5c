"""Floor 9: train, evaluate and predict, as functions whose docstring is their pseudocode."""
