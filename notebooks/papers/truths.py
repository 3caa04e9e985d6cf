"""Timed trials of arms whose effect is known by construction, in the default lab.

An arm that samples more responses than it trains on, at random, is GRPO that wastes the rest: its
updates are distributed as GRPO's are, and a round costs more rollouts by exactly that share. GRPO
against an arm that wastes so much is better by the same share. And GRPO as a class of one's own is
another arm on paper that makes the same runs.

In the folder `notebooks`, `python -m papers.truths` makes five trials of each with the default
settings, every one on seeds of its own, and writes what each said to `data/trial-truths.csv`. It
may be stopped at any time; the same command goes on, but a trial that was stopped counts the
seconds of its last call alone.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import workbench as wb
from workbench.methods import Method
from workbench.rules import allocators, selectors

__all__ = ["TRUTHS", "Truth", "summary", "tried"]

REPEATS = 5
SEEDS_APART = 100  # no trial makes as many pairs


class Truth(NamedTuple):
    """An arm, what it is compared with, and its true ratio of rollouts to the target."""

    arm: Method
    against: Method
    ratio: float


class Wasteful(allocators.Uniform):
    """n responses on average, as whole numbers that differ from problem to problem."""

    def __init__(self, share: float) -> None:
        super().__init__(8)
        object.__setattr__(self, "share", share)

    def allocate(self, problems: Any, context: Any) -> Any:
        """As many responses as 8 times the share, on average."""
        wanted = 8 * self.share
        more = context.rng("waste").random(len(problems)) < wanted % 1
        yield np.full(len(problems), int(wanted), dtype=np.int64) + more


class EveryRollout(selectors.All):
    """What GRPO does, as a class of one's own."""


def wasteful(share: float) -> Method:
    """GRPO that samples so many times as many responses as it trains on."""
    return wb.methods.grpo().but(
        name="wasteful", allocator=Wasteful(share), selector=selectors.Random(8)
    )


TRUTHS = {
    "better": Truth(wb.methods.grpo(), wasteful(1 / 0.85), 0.85),
    "worse": Truth(wasteful(1.15), wb.methods.grpo(), 1.15),
    "same": Truth(
        wb.methods.grpo().but(name="mine", selector=EveryRollout()), wb.methods.grpo(), 1.0
    ),
}


def tried(truth: str, out: Path, first_seed: int = 0, **options: Any) -> dict[str, Any]:
    """What a trial with the default settings says of an arm.

    Parameters
    ----------
    truth : str
        A key of `TRUTHS`.
    out : path
        Of the trial. Nothing else should lie beside it, whose runs it would use again.
    first_seed : int
    options
        Of `workbench.trial`, in place of the default settings.

    Returns
    -------
    dict
        truth, first_seed, ratio (the true one), verdict, measured, low, high, seeds, seconds (of
        this call) and load (how many processes wanted to run on this machine, on average over its
        last minutes).
    """
    arm, against, ratio = TRUTHS[truth]
    started = time.monotonic()
    trial = wb.trial(arm, against=against, out=out, first_seed=first_seed, **options)
    [row] = trial.table.to_dict("records")
    return {
        "truth": truth,
        "first_seed": first_seed,
        "ratio": ratio,
        "verdict": row["verdict"],
        "measured": row["ratio"],
        "low": row["low"],
        "high": row["high"],
        "seeds": row["seeds"],
        "seconds": round(time.monotonic() - started),
        "load": round(os.getloadavg()[1], 1),
    }


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """The trials of each truth together.

    Parameters
    ----------
    table : DataFrame
        Rows of `tried`.

    Returns
    -------
    DataFrame, a row a truth
        trials; right and wrong (verdicts; those that are left are open); holds (intervals that hold
        the true ratio); and the medians of measured, seeds and seconds.
    """
    rows = {}
    for truth, part in table.groupby("truth", sort=False):
        right = "alike" if truth == "same" else truth
        rows[truth] = {
            "trials": len(part),
            "right": int((part["verdict"] == right).sum()),
            "wrong": int((~part["verdict"].isin([right, "open"])).sum()),
            "holds": int(part["ratio"].between(part["low"], part["high"]).sum()),
            "measured": part["measured"].median(),
            "seeds": part["seeds"].median(),
            "seconds": part["seconds"].median(),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def main() -> None:
    """Make the trials and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="../runs/truths")
    parser.add_argument("--table", default="../data/trial-truths.csv")
    given = parser.parse_args()
    path = Path(given.table)
    rows = pd.read_csv(path).to_dict("records") if path.exists() else []
    known = [(row["truth"], row["first_seed"]) for row in rows]
    for first_seed in range(0, REPEATS * SEEDS_APART, SEEDS_APART):
        for truth in TRUTHS:
            if (truth, first_seed) in known:
                continue
            # A folder for each, so that no trial uses the runs of another.
            out = Path(given.out, f"{truth}-{first_seed}", "trial")
            rows.append(tried(truth, out, first_seed))
            pd.DataFrame(rows).to_csv(path, index=False, float_format="%.4g")
    print(summary(pd.DataFrame(rows)).round(2).to_string())


if __name__ == "__main__":
    main()
