"""Records made by hand with the real writer, for tests of what reads records."""

import numpy as np
import pandas as pd

from workbench.analysis.comparisons import PHASES
from workbench.records import Writer

SAMPLES = 4


def write(
    path,
    label="a",
    seed=0,
    *,
    scores=((0, 0.25), (2, 0.75)),
    rollouts=(10, 30),
    problems=("p", "q"),
    columns=None,
    arguments=None,
    method=None,
    lab=None,
    rows=None,
):
    """A record at path/label/seed-N.

    scores: (round, accuracy) of each evaluation, in quarters, the same for every problem. rollouts:
    those of each round. columns: further columns of the rounds table, name to one value a round.
    method, lab, arguments: of the manifest. rows: the rollouts of each round, a list of dicts of
    columns.
    """
    manifest = {
        "format": 1,
        "seed": seed,
        "method": {"name": label, **(method or {})},
        "lab": {"lab": "tiny", **(lab or {})},
        "arguments": {"seed": seed, "evaluate_every": 2, **(arguments or {})},
    }
    writer = Writer(path / label / f"seed-{seed}", manifest)
    for i, count in enumerate(rollouts):
        row = {"round": i + 1, "rollouts": count, "flops": 2.0 * count, "seconds": 1.0}
        row |= {f"seconds_{phase}": 0.25 for phase in PHASES}
        row |= {name: values[i] for name, values in (columns or {}).items()}
        table = rows[i] if rows else {"problem": np.array(["p"])}
        writer.round(row, {name: np.asarray(value) for name, value in table.items()})
    for number, score in scores:
        writer.evaluation(evaluation(number, score, problems))
    return path


def evaluation(number, score, problems=("p", "q")):
    """One evaluation in which every problem has the same share of right answers."""
    return pd.DataFrame(
        {
            "problem": list(problems),
            "level": np.arange(len(problems)) + 1,
            "samples": SAMPLES,
            "correct": round(score * SAMPLES),
            "greedy": score > 0.5,
            "round": number,
        }
    )


def curve(path, label, seed, accuracies, *, every=1, rollouts=10, **options):
    """A record evaluated every so many rounds, with accuracies (E,) of any value.

    The held-out set has 1,000 problems of one sample, so that accuracies are kept to .001.
    """
    rounds = every * (len(accuracies) - 1)
    writer = write(path, label, seed, scores=(), rollouts=[rollouts] * rounds, **options)
    writer = Writer(path / label / f"seed-{seed}", {})
    for i, accuracy in enumerate(accuracies):
        right = np.arange(1000) < round(1000 * accuracy)
        frame = pd.DataFrame(
            {
                "problem": [f"p{j}" for j in range(1000)],
                "level": 1,
                "samples": 1,
                "correct": right.astype(int),
                "greedy": right,
                "round": i * every,
            }
        )
        writer.evaluation(frame)
    return path
