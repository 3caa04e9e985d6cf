"""Held-out scores: k samples a problem, and the greedy answer."""

from dataclasses import replace

import numpy as np

from workbench.policies import Sampling
from workbench.utils.seeding import derive


def evaluate(policy, problems, verifier, k=8, *, sampling=Sampling(), seed=0, greedy=True):
    """Scores `problems` with k sampled responses each, and one greedy response.

    Returns a DataFrame, one row a problem: problem, level, samples (k), correct (how many of them are right), length
    (mean tokens), truncated (share), greedy (True where the greedy response is right; left out with greedy=False).
    The same seed gives the same draws for every policy. ValueError for k < 1 or no problems.
    """
    import pandas as pd

    problems = list(problems)
    if k < 1:
        raise ValueError(f"k={k}: at least one sample a problem is needed")
    if not problems:
        raise ValueError("problems=[]: there is nothing to evaluate")
    sampled, right = _answers(policy, problems, verifier, k, sampling, seed)
    by_problem = lambda column: np.asarray(column, dtype=np.float64).reshape(len(problems), k)  # noqa: E731
    frame = pd.DataFrame(
        {
            "problem": [p.id for p in problems],
            "level": [p.level for p in problems],
            "samples": k,
            "correct": by_problem(right).sum(1).astype(np.int64),
            "length": by_problem(sampled.lengths).mean(1),
            "truncated": by_problem(sampled.truncated).mean(1),
        }
    )
    if greedy:
        frame["greedy"] = _answers(
            policy, problems, verifier, 1, replace(sampling, temperature=0.0), seed
        )[1]
    return frame


def _answers(policy, problems, verifier, k, sampling, seed):
    seeds = [derive(seed, "evaluate", problem.id) for problem in problems]
    rollouts = policy.generate(problems, np.full(len(problems), k), sampling, seeds)
    return rollouts, verifier.score(list(rollouts.text), list(rollouts.answer)).correct
