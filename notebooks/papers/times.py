"""Time that can be compared between runs: counted in tokens that a run itself handles meanwhile.

Seconds of two runs can only be compared where the machine was as busy beside one as beside the
other. Seconds within one run always can.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from workbench.analysis.cost import BILLS, CostModel, price_of_rounds
from workbench.utils.validation import one_of, positive_number

__all__ = ["OwnPrice", "compute_with_replay", "update_time"]


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
