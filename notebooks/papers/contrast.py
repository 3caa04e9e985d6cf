"""One contrast on a pretrained model: AR3PO against GRPO with groups of eight and of five.

What is asked, how it is decided and what the small lab predicts stands in docs/ladder.md, written
before the first of these runs. In the folder `notebooks`, with the model that `examples/smollm2.py`
writes, and on one core with `--jobs 1`:

    python -m papers.contrast --jobs 1
    python -m papers.contrast --answer

The first may be stopped or killed at any time; the same command goes on. The second reads what is
there, and says of how many pairs.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from papers import ladder
from workbench import methods
from workbench.analysis.curves import of_common_seeds, read
from workbench.analysis.intervals import holm
from workbench.analysis.targets import crossings, ratio_to_target
from workbench.methods import Method
from workbench.policies import Sampling
from workbench.rollouts import Rollouts
from workbench.trials.trial import Trial
from workbench.utils.seeding import derive

__all__ = ["TASKS", "Luck", "answer", "arms", "controls", "trials"]

TASKS = ("additions to 20", "the largest of four")
TARGET = 0.5
TEMPERATURE = 0.7
PAIRS = 30  # of each task
FEW = 6  # pairs of the controls, on the second task alone
# All below the rates at which runs of these tasks collapse.
RATES = (2e-4, 4e-4, 8e-4)
# Arm and what it is compared with; the order is that of docs/ladder.md.
CONTRASTS = (("ar3po", "grpo"), ("ar3po", "grpo-5"), ("grpo-5", "grpo"))


@dataclass(frozen=True)
class Luck:
    """A reward that has nothing to do with the answer: 0 or 1, by lot."""

    weight: float = 1.0
    name: ClassVar[str] = "luck"

    def __call__(self, rollouts: Rollouts, sampling: Sampling) -> np.ndarray:
        """(R,) of 0 and 1, from the texts and their places."""
        lots = [derive("luck", place, text) for place, text in enumerate(rollouts.text)]
        return np.array(lots, dtype=np.int64) % 2


def arms() -> dict[str, Method]:
    """The arms of the contrast."""
    return {"grpo": methods.grpo(8), "grpo-5": methods.grpo(5), "ar3po": methods.ar3po()}


def controls() -> dict[str, Method]:
    """What must be seen to help at equal rounds, and what must not."""
    luck = methods.grpo(8).but(name="luck", reward=(Luck(),))
    return {"grpo": methods.grpo(8), "pods": methods.pods(32, 8), "luck": luck}


def trials(model: str | Path, out: Path, **options: Any) -> dict[str, Trial]:
    """The trials of the contrast and of its controls, before they are run.

    Parameters
    ----------
    model : path
        The directory of the pretrained model.
    out : path
    options
        Further arguments of `wb.trial`, such as jobs.
    """
    settings = {
        "rounds": 16,
        "problems_per_round": 4,
        "target": TARGET,
        "rates": RATES,
        "tuning_seeds": 4,
        "evaluate_every": 4,
        "columns": "none",
        **options,
    }
    made = {}
    for task in TASKS:
        lab = ladder.lab(task, model, temperature=TEMPERATURE)
        folder = task.replace(" ", "-")
        plans = [(folder, arms(), PAIRS)]
        if task == TASKS[-1]:
            plans.append((f"{folder}-controls", controls(), FEW))
        for name, compared, seeds in plans:
            against = compared.pop("grpo").but(name="grpo")
            made[name] = Trial(
                compared, against=against, lab=lab, out=out / name, seeds=seeds, **settings
            )
    return made


def answer(curves: Mapping[str, Mapping[str, Mapping[int, Any]]]) -> pd.DataFrame:
    """What the runs of both tasks say together.

    Pairs of runs of one task and one seed, of all tasks, are read as one trial: the mean of the
    logarithms of the ratios of rollouts to the target, with Student's interval, or signed ranks
    where runs did not arrive. The three tests are corrected by Holm's method.

    Parameters
    ----------
    curves : dict from task to a dict from label to a dict from seed to Curve
        As `analysis.curves.read` gives the inner ones.

    Returns
    -------
    DataFrame, a row a contrast
        arm, against, pairs, reached, others_reached, ratio, low, high, p, p_holm.
    """
    rows = []
    for arm, other in CONTRASTS:
        mine, others = [], []
        for by_label in curves.values():
            crossed = [crossings(dict(by_label[name]), TARGET, "rollouts") for name in (arm, other)]
            first, second = of_common_seeds(*crossed)
            mine += first
            others += second
        ratio = ratio_to_target(mine, others)
        rows.append(
            {
                "arm": arm,
                "against": other,
                "pairs": len(mine),
                "reached": sum(crossing.reached for crossing in mine),
                "others_reached": sum(crossing.reached for crossing in others),
                "ratio": ratio.value,
                "low": ratio.low,
                "high": ratio.high,
                "p": ratio.p_value(1.0),
            }
        )
    table = pd.DataFrame(rows)
    return table.assign(p_holm=holm(table["p"]))


def main() -> None:
    """Make the runs, or say what they show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("../build/smollm2"))
    parser.add_argument("--out", type=Path, default=Path("../runs/contrast"))
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--answer", action="store_true", help="make no runs")
    asked = parser.parse_args()
    made = trials(asked.model, asked.out, jobs=asked.jobs, report=print)
    if not asked.answer:
        for trial in made.values():
            trial.run()
    curves = {
        name: read({label: list(of.values()) for label, of in trial.records.items()})
        for name, trial in made.items()
        if not name.endswith("controls")
    }
    print(answer(curves).to_string(index=False, float_format="{:.3g}".format))


if __name__ == "__main__":
    main()
