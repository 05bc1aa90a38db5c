"""Floor 1: errors, findings, facts, sources, units, atomic files. No torch here."""
