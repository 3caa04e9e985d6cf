"""What each value of a slot changes, over all combinations that a search tried."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from papers.halving import CHOICES, Choices, combinations, named_choices
from workbench.analysis.intervals import mean_interval


def effects(rungs: pd.DataFrame, choices: Choices = CHOICES) -> pd.DataFrame:
    """What each value of a slot changes, on average over everything that the other slots do.

    The first rung has all combinations, so for each value there are pairs of combinations that
    differ in this slot alone, one with the value and one with what GRPO has there.

    Parameters
    ----------
    rungs : DataFrame
        As `search` returns it. Only its first rung is read.
    choices
        Those of the search. The first value of each slot is the one that the others are compared
        with, as that of GRPO is in `CHOICES`.

    Returns
    -------
    DataFrame
        A row a slot and value, the first ones left out: ratio, the geometric mean over pairs of the
        bill with the value over the bill without; low and high, the 95 % Student interval over
        pairs; pairs; unfinished, pairs that are left out since one of the two did not arrive.
        Pairs have their seed and the rest of their slots in common with other pairs, so the
        interval says whether the change is the same whatever the other slots do, and not how it
        would differ with another seed.

    Raises
    ------
    ValueError
        If the first rung lacks a combination.
    """
    first = rungs[rungs["rung"] == 1]
    scores = dict(zip(first["label"], first["score"].astype(float)))
    missing = sorted(set(combinations(choices)) - set(scores))
    if missing:
        raise ValueError(f"the first rung lacks {missing[0]}, so not every value has its pairs")
    # The bill of GRPO is what all others are divided by.
    scores[""] = 0.0
    of_names = {names: scores[label] for names, label in named_choices(choices).items()}
    rows = {}
    for place, (slot, values) in enumerate(choices.items()):
        usual, *others = values
        for value in others:
            differences = np.array(
                [
                    score - of_names[*names[:place], usual, *names[place + 1 :]]
                    for names, score in of_names.items()
                    if names[place] == value
                ]
            )
            # Of two runs that did not arrive the difference is not a number.
            arrived = differences[np.isfinite(differences)]
            mean, half = mean_interval(arrived) if len(arrived) else (math.nan, math.nan)
            rows[slot, value] = {
                "ratio": math.exp(mean),
                "low": math.exp(mean - half),
                "high": math.exp(mean + half),
                "pairs": len(arrived),
                "unfinished": len(differences) - len(arrived),
            }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["slot", "value"])
