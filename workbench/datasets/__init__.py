"""Where problems come from: the tiny lab's arithmetic, generated tasks, public data sets."""
