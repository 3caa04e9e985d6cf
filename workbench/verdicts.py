"""Does a published claim hold here? Decided by an interval, never by a point.

A claim says on which side of a bound a quantity lies (that a method saves something: above 0). An interval wholly inside
*agrees*, one wholly outside *disagrees*, any other *cannot tell*.
"""

import numpy as np
import pandas as pd

from workbench.metrics import mean_interval

AGREES, DISAGREES, OPEN = "agrees", "disagrees", "cannot tell"
VERDICTS = (AGREES, DISAGREES, OPEN)


def verdict(low, high, *, above=-np.inf, below=np.inf):
    """One of `VERDICTS` on the claim that a quantity lies between `above` and `below`, given its interval [low, high].

    A bound that the interval touches is not cleared: [0, 1] does not agree with above=0. An interval with a missing end
    (one seed has no width) cannot tell. ValueError if low > high or above >= below.
    """
    if low > high:
        raise ValueError(f"low={low}, high={high}: low must not lie above high")
    if not above < below:
        raise ValueError(f"above={above}, below={below}: above must lie under below")
    if above < low and high < below:
        return AGREES
    return DISAGREES if high <= above or low >= below else OPEN


def table(claims, digits=3):
    """Claims side by side with what was measured: a DataFrame with claim, published, here and verdict, a row a claim.

    claims: dicts with claim and published (texts), value, low and high (numbers), and above, below or both as `verdict`
    takes them. digits: decimals of `here`, "value [low, high]"; a claim may have its own.
    """
    rows = []
    for claim in claims:
        bounds = {name: claim[name] for name in ("above", "below") if name in claim}
        if not bounds:
            raise ValueError(f"claim {claim['claim']!r}: above, below or both are needed")
        ends = claim["value"], claim["low"], claim["high"]
        value, low, high = (f"{end:.{claim.get('digits', digits)}f}" for end in ends)
        rows.append({"claim": claim["claim"], "published": claim["published"], "here": f"{value} [{low}, {high}]",
                     "verdict": verdict(claim["low"], claim["high"], **bounds)})
    return pd.DataFrame(rows, columns=["claim", "published", "here", "verdict"])


def over_seeds(records, quantity, baseline=None):
    """A quantity of single runs, over seeds: dict with value (mean), low and high (95 %, Student) and n.

    records: runs of one method. quantity: function from a record to a number. With a baseline, the runs of another
    method, it is the difference to it on the same seed. ValueError where the two have no seed in common.
    """
    ours, theirs = ({r.manifest["seed"]: quantity(r) for r in group} for group in (records, baseline or ()))
    seeds = sorted(ours) if baseline is None else sorted(set(ours) & set(theirs))
    if not seeds:
        raise ValueError(f"no seed in common: {sorted(ours)} and {sorted(theirs)}")
    return measured([ours[seed] - theirs.get(seed, 0.0) for seed in seeds])


def measured(values):
    """Values of single seeds (n,) as a claim needs them: dict with value (mean), low and high (95 %, Student) and n."""
    value, half = mean_interval(values)
    return {"value": value, "low": value - half, "high": value + half, "n": len(values)}
