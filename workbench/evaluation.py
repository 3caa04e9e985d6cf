"""Held-out scores: k samples a problem, and the greedy answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.policies import Policy, Sampling
from workbench.rollouts import Rollouts
from workbench.utils.names import GRADED
from workbench.utils.seeding import derive
from workbench.utils.validation import whole_number
from workbench.verifiers.base import checked_scores

if TYPE_CHECKING:
    import pandas as pd

    from workbench.pools import Problem


def evaluate(
    policy: Policy,
    problems: Iterable[Problem],
    verifier: Any,
    k: int = 8,
    *,
    sampling: Sampling = Sampling(),
    seed: int = 0,
    greedy: bool = True,
) -> pd.DataFrame:
    """Score problems with k sampled responses each, and with the greedy response.

    Parameters
    ----------
    policy : Policy
    problems : iterable of Problem
    verifier : object with score(responses, answers) -> Scores
    k : int
        Samples a problem, at least 1.
    sampling : Sampling
    seed : int
        The same seed gives the same draws for every policy.
    greedy : bool

    Returns
    -------
    DataFrame
        One row a problem: problem, level, samples (k), correct (how many of them are right), length
        (mean tokens), truncated (share) and, with greedy, greedy (whether the greedy response is
        right).
    """
    import pandas as pd

    problems = list(problems)
    whole_number("k", k, 1)
    if not problems:
        raise ValueError("problems=[]: there is nothing to evaluate")
    with at_rest(policy):
        sampled, right = answers(policy, problems, verifier, k, sampling, seed)
        if greedy:
            # One response says it all, since greedy decoding draws nothing.
            most_likely = replace(sampling, temperature=0.0)
            _, likely_right = answers(policy, problems, verifier, 1, most_likely, seed)

    # `generate` returns the rollouts in the order of the problems, k of each.
    def by_problem(column: Any) -> np.ndarray:
        return np.asarray(column, dtype=np.float64).reshape(len(problems), k)

    frame = pd.DataFrame(
        {
            "problem": [problem.id for problem in problems],
            "level": [problem.level for problem in problems],
            "samples": k,
            "correct": by_problem(right).sum(axis=1).astype(np.int64),
            "length": by_problem(sampled.lengths).mean(axis=1),
            "truncated": by_problem(sampled.truncated).mean(axis=1),
        }
    )
    if greedy:
        frame["greedy"] = likely_right
    return frame


def answers(
    policy: Policy,
    problems: Sequence[Problem],
    verifier: Any,
    k: int,
    sampling: Sampling,
    seed: int,
) -> tuple[Rollouts, np.ndarray]:
    """k responses to each problem, and which of them are right (R,) bool."""
    # The seed depends on the problem and not on its place in the list, so a problem meets the same
    # draws in any set of problems.
    seeds = [derive(seed, "evaluate", problem.id) for problem in problems]
    rollouts = policy.generate(problems, np.full(len(problems), k), sampling, seeds)
    scores = checked_scores(verifier, list(rollouts.text), list(rollouts.answer))
    if (scores.status == GRADED).any():
        raise ValueError(
            f"verifier: {type(verifier).__name__} gives rewards without a verdict, and an "
            "evaluation counts right answers; let it return Scores.graded(rewards, solved=...), or "
            "leave the held-out problems out"
        )
    return rollouts, scores.correct


@contextmanager
def at_rest(policy: Any) -> Iterator[None]:
    """Let a policy compute once what responses have in common, if it is one that can.

    Its weights stay as they are in the meantime. What an evaluation costs is no part of any
    comparison, so only its result counts here.
    """
    settings = {"share_prefixes": True, "prompts_kept": {}}
    before = {name: getattr(policy, name) for name in settings if hasattr(policy, name)}
    for name in before:
        setattr(policy, name, settings[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(policy, name, value)
