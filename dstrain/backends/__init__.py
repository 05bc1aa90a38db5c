"""Floor 8: one Protocol (`base`), several engines. Import the engine's own module; this package imports none."""
