"""Published claims, put to recorded runs.

`published_claims.py` has the claims. The same claims can be put to any set of runs whose labels are
those that the claims name: another base model, another batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from papers.measures import Runs
from papers.published_claims import CLAIMS
from papers.verdicts import Claim, Finding, here, judge, kind, marked, read
from workbench.analysis.intervals import LEVEL
from workbench.utils.validation import one_of

__all__ = ["at_one_rate", "findings", "judged", "of"]


def of(paper: str | None = None) -> list[Claim]:
    """The published claims, of one paper or of all.

    Parameters
    ----------
    paper : str, optional
        Its short name, such as "PODS".
    """
    if paper is not None:
        one_of("paper", paper, list(dict.fromkeys(claim.paper for claim in CLAIMS)))
    return [claim for claim in CLAIMS if paper in (None, claim.paper)]


def judged(claims: Sequence[Claim], runs: Runs, level: float = LEVEL) -> pd.DataFrame:
    """Measure every claim and decide it: the table of `verdicts.judge`.

    Parameters
    ----------
    claims : list of Claim
    runs : dict from label to records
        Labels that no claim names are passed over; a claim whose labels are missing, or whose runs
        cannot be compared, ends in "cannot tell" with the reason.
    level : float
        Probability of the intervals.
    """
    return judge(claims, findings(claims, runs, level))


def findings(claims: Sequence[Claim], runs: Runs, level: float = LEVEL) -> list[Finding]:
    """What was measured for each claim, or why it could not be."""
    results = []
    for claim in claims:
        try:
            results.append(_finding(claim, runs, level))
        # A claim that these runs cannot answer must not stop the others; the message becomes its
        # reason. Any other error is a fault of the code and goes on.
        except ValueError as error:
            results.append(Finding(reason=str(error)))
    return results


def _finding(claim: Claim, runs: Runs, level: float) -> Finding:
    """One claim measured on recorded runs; a ValueError where an arm or a column is missing."""
    how = claim.measured_by
    if how is None:
        raise ValueError(f"claim {claim.claim!r}: it does not say how it is measured")
    measured = how.measured(runs, level)
    # Only published sizes that are scaled need the gain, and claims without it may have no
    # baseline.
    return Finding(measured, how.gain(runs, level) if claim.published_gain else None)


def at_one_rate(claims: Sequence[Claim], path: Any) -> pd.DataFrame:
    """What the same claims came to in runs at one learning rate for all arms.

    Parameters
    ----------
    claims : list of Claim
    path : path
        The table of those runs, "data/verdicts-one-rate.csv".

    Returns
    -------
    DataFrame, a row a claim
        here_one_rate (size and interval, as text) and verdict_one_rate; both are empty where there
        is no such claim.
    """
    before = read(path).set_index(["paper", "claim"])
    rows = []
    for claim in claims:
        row = before.loc[(claim.paper, claim.one_rate)] if claim.one_rate else None
        rows.append(("", "") if row is None else (here(row), marked(claim, kind(row["verdict"]))))
    return pd.DataFrame(rows, columns=["here_one_rate", "verdict_one_rate"])
