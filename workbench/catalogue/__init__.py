"""Further papers, one file a method: its slot values, its formula, its source, its method."""
