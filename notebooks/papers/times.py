"""The price of sampling as it was measured, and time that can be compared between runs.

Such a time is counted in tokens that a run itself handles meanwhile.

Seconds of two runs can only be compared where the machine was as busy beside one as beside the
other. Seconds within one run always can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.cost import BILLS, CostModel, Tokens, tokens_of
from workbench.analysis.curves import column_of, read
from workbench.analysis.intervals import Measurement
from workbench.analysis.runs import one_setting
from workbench.utils.validation import one_of, positive_number

__all__ = [
    "OwnPrice",
    "compute_with_replay",
    "price_of_sampling",
    "tokens_to_target",
    "update_time",
]


@dataclass(frozen=True)
class OwnPrice:
    """A unit of spending: the time of sampling and training, in trained tokens of the run itself.

    As `cost.CostModel`, at the price of sampling that the run's own seconds give. It stands for
    seconds where runs were not made under the same load. It takes for granted that an update needs
    the same time for a token in all of them; that sampling does not is what the price is there for.

    Attributes
    ----------
    bill : {"gradient", "selected"}
        Which trained tokens are counted.
    """

    bill: str = "gradient"

    def __post_init__(self) -> None:
        one_of("bill", self.bill, BILLS)

    @property
    def name(self) -> str:
        """How the unit is called on an axis."""
        return "time of sampling and training, in trained tokens"

    def per_round(self, rounds: pd.DataFrame) -> np.ndarray:
        """What each row of a record's rounds table cost, (rounds,) float64.

        The table has to be that of the whole run, over which the price is measured.
        """
        price = price_of_rounds(rounds, "seconds", self.bill)
        return CostModel(price, self.bill).per_round(rounds)


def update_time(rounds: pd.DataFrame) -> np.ndarray:
    """How long each update took, counted in tokens that the run could have sampled meanwhile.

    Parameters
    ----------
    rounds : DataFrame
        A record's rounds table.

    Returns
    -------
    (rounds,) float64

    Raises
    ------
    ValueError
        For a run that sampled nothing, or in no time.

    Examples
    --------
    >>> columns = {"tokens_sampled": [50, 50], "seconds_generate": [1, 1], "seconds_update": [2, 4]}
    >>> update_time(pd.DataFrame(columns))
    array([100., 200.])
    """
    sampled = rounds["tokens_sampled"].sum()
    generating = rounds["seconds_generate"].sum()
    if not min(sampled, generating) > 0:
        raise ValueError(
            f"{sampled:g} tokens sampled in {generating:g} seconds; both must be above 0 to have a "
            "speed of sampling"
        )
    return rounds["seconds_update"].to_numpy(dtype=float) * (sampled / generating)


def compute_with_replay(inference: float, training: float, generation_cost: float = 5.28) -> float:
    """Compute of a training step with replay, over that of one without.

    Inference and training share a number of GPUs. With replay more of them train, and each new
    rollout is trained on more often.

    Parameters
    ----------
    inference, training : float
        GPUs of each kind, above 0.
    generation_cost : float
        What generating a batch costs over what training on it does, above 0.

    Examples
    --------
    >>> [round(compute_with_replay(8 - t, t), 2) for t in (1, 2, 4)]
    [1.27, 0.64, 0.32]

    References
    ----------
    Arnal et al., replay study (arXiv 2604.08706): gamma = (1 + W / T) / (1 + mu), with mu = 5.28
    for Qwen2.5-7B. The values that it prints come out with 5.2.
    """
    positive_number("inference", inference)
    positive_number("training", training)
    positive_number("generation_cost", generation_cost)
    return (1 + inference / training) / (1 + generation_cost)


def price_of_sampling(records: Any, unit: str = "seconds", bill: str = "gradient") -> Measurement:
    """What a sampled token costs over what a trained one costs, measured on recorded runs.

    Parameters
    ----------
    records : records of one setting
        With timings taken on the machine in question, by one run at a time.
    unit : {"seconds", "flops"}
        Of generation over tokens sampled, and of the update over tokens trained.
    bill : {"gradient", "selected"}
        Which tokens the update is divided by. On this library's own runs "gradient" is what was
        computed.

    Returns
    -------
    Measurement
        On the scale "ratio": one price a run.

    Raises
    ------
    ValueError
        For a run that sampled or trained nothing.
    """
    one_of("unit", unit, ("seconds", "flops"))
    one_of("bill", bill, BILLS)
    group = one_setting(records)
    prices = [price_of_rounds(record.rounds, unit, bill) for record in group]
    return Measurement(np.array(prices), scale="ratio")


def price_of_rounds(rounds: pd.DataFrame, unit: str, bill: str) -> float:
    """The price of sampling of one run."""
    # Sums over the run before dividing, so that long rounds count for what they cost.
    sampled = rounds["tokens_sampled"].sum()
    trained = column_of(rounds, BILLS[bill]).sum()
    generating = rounds[f"{unit}_generate"].sum()
    updating = rounds[f"{unit}_update"].sum()
    if not min(sampled, trained, generating, updating) > 0:
        raise ValueError(
            f"{sampled:g} tokens sampled in {generating:g} {unit} and {trained:g} trained in "
            f"{updating:g}; all must be above 0 to have a price"
        )
    return float((generating / sampled) / (updating / trained))


def tokens_to_target(
    groups: Any, target: float, bill: str = "gradient"
) -> dict[str, dict[int, Tokens]]:
    """Tokens that every run sampled and trained until its held-out score reached a target.

    Parameters
    ----------
    groups : dict from label to records
    target : float
    bill : {"gradient", "selected"}

    Returns
    -------
    dict from label to a dict from seed to Tokens
    """
    one_of("bill", bill, BILLS)
    return {
        label: {seed: tokens_of(curve, target, bill) for seed, curve in by_seed.items()}
        for label, by_seed in read(groups).items()
    }
