"""A round of a method in a training loop of your own on verl's `DataProto`.

`play` hands out prompts, one row for each rollout that the method wants, takes them back with
scores, and returns the rows to train on with their advantages:

    method = methods.pods(n=32, m=8)
    for step, prompts in enumerate(loader, start=1):  # DataProto with raw_prompt
        batch = play(method, prompts, generate, step=step, multiple=8)
        trainer.update(batch)  # batch.batch["advantages"], groups may be uneven
        logger.log(batch.meta_info["metrics"], step)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from workbench import adapters
from workbench.methods import Method
from workbench.pools import Problem
from workbench.rollouts import Ragged, Rollouts
from workbench.utils.validation import instance_of, whole_number
from workbench.verl.functions import PADDING, Verdict, row_advantages

SCORES = ("token_level_scores", "rm_scores")  # the reward before any KL term

# What such a loop gives a method, see `slots.NEEDS`; with a function for more prompts, those too.
# The updates come after it, but no old responses join, so every row is one that no update has seen.
PROVIDES = frozenset(
    {"epochs", "resampling", "row_weights", "token_advantages", "update_statistics"}
)


def play(
    method: Method,
    prompts: Any,
    generate: Callable[[Any], Any],
    *,
    step: int,
    seed: int = 0,
    epoch: int = 0,
    solved: float | None = None,
    multiple: int = 1,
    more: Callable[[int], Any] | None = None,
    max_new_tokens: int | None = None,
    decode: Callable[[Sequence[np.ndarray]], Sequence[str]] | None = None,
) -> Any:
    """One round of a method on verl's `DataProto`: the rows to train on, with their advantages.

    The method learns from the round at once. What it has learnt is in `method.state_dict()`, for
    the checkpoints of your loop.

    Parameters
    ----------
    method : Method
        One object for the whole training, `method.clone()` for the next.
    prompts : DataProto
        The prompts of the step, with the column `raw_prompt`.
    generate : function
        Called with prompts repeated, one row for each rollout wanted. Returns the same rows,
        sampled and scored, in that order: `responses` and `response_mask` (R, T), and
        `token_level_scores` or `rm_scores` (R, T). The column `acc` says which are correct. All
        calls of a round must pad to the same T.
    step : int
        Number of the round, from 1.
    seed : int
        Of everything that the method draws.
    epoch : int
        Passes over the data before this step.
    solved : float, optional
        Without `acc`: the reward from which a rollout counts as correct.
    multiple : int
        The number of rows is made divisible by it (data-parallel size, mini-batch) with padding:
        copies of the first row whose mask, scores and advantages are zero. They add nothing to
        means over tokens, and in means over rows verl's divisor is made up for.
    more : function, optional
        Returns n further prompts as a `DataProto`, for allocators that draw more problems.
    max_new_tokens : int, optional
        The longest response that the sampler allows; that of the rows, T, by default.
    decode : function, optional
        Token arrays to texts, for parts of the reward that read texts.

    Returns
    -------
    DataProto
        With `advantages` and `returns` (K, T), a `uid` for each problem, and `is_padding`. The
        round's metrics are in `meta_info["metrics"]`.

    Raises
    ------
    ValueError
        For a method that needs what such a loop does not give, before anything is sampled, and for
        a round with nothing to train on.
    """
    instance_of("method", method, Method, "methods.pods(n=32, m=8)")
    whole_number("multiple", multiple, 1)
    whole_number("step", step, 1)
    further = set() if more is None else {"more_problems"}
    adapters.check_fits(method, "this loop", PROVIDES | further)

    driver = adapters.Driver(method, seed)
    driver.begin(step, epoch=epoch, max_new_tokens=max_new_tokens)
    verdict = Verdict(solved, method.reads_verdict)
    parts: list[Any] = []  # of the rows, in the order of sampling, which is that of the table

    def find_more(n: int, problems: list[Problem]) -> list[Problem]:
        nonlocal prompts
        assert more is not None
        found = more(n)
        prompts = type(prompts).concat([prompts, found])
        taken = [problem.id for problem in problems]
        return adapters.as_problems(found.non_tensor_batch["raw_prompt"], taken)

    def sample(
        problems: list[Problem], counts: np.ndarray, before: np.ndarray, stage: int
    ) -> Rollouts:
        places = np.repeat(np.arange(len(problems)), counts)
        # One row of the prompts for each rollout, with the id of its problem as the uid, so that
        # copies of a prompt in one round stay apart.
        wanted = prompts.select_idxs(places)
        names = np.array([problems[place].id for place in places])
        wanted.non_tensor_batch["uid"] = names.astype(object)
        rows = generate(wanted)
        if len(rows) != len(places):
            raise ValueError(
                f"generate: it returned {len(rows)} rows for {len(places)} prompts; one for each "
                "is needed"
            )
        # Once more, since `generate` may have set others.
        rows.non_tensor_batch["uid"] = names.astype(object)
        parts.append(rows)
        limit = max_new_tokens or rows.batch["responses"].shape[1]
        driver.context = replace(driver.context, max_new_tokens=limit)
        fresh = _table(rows, names, verdict, limit, decode)
        return driver.score(fresh, problems, before, stage)

    problems = adapters.as_problems(prompts.non_tensor_batch["raw_prompt"])
    outcome = driver.play(problems, sample, find_more)
    # The updates come after this function, so the slots learn from the round without their numbers.
    rollouts = driver.learn()
    if not len(outcome.rows):
        raise ValueError(
            f"method {method.name!r}: it kept none of {len(rollouts)} rollouts, and verl cannot "
            "train on an empty batch; go on with the next prompts"
        )
    kept = type(prompts).concat(parts).select_idxs(outcome.rows)
    # Rows of different lengths become (K, T). The mask then removes the advantages of tokens that a
    # tool wrote.
    mask = kept.batch["response_mask"]
    column = torch.zeros(mask.shape, dtype=torch.float32)
    advantages = row_advantages(outcome, method.objective, multiple)
    for i in range(len(kept)):
        column[i, : len(advantages[i])] = torch.as_tensor(advantages[i])
    kept.batch["advantages"] = column.to(mask.device) * mask
    kept.batch["returns"] = kept.batch["advantages"].clone()
    kept.non_tensor_batch["is_padding"] = np.zeros(len(kept), dtype=bool)
    batch = _padded(kept, -len(kept) % multiple)
    metrics = {**adapters.round_metrics(rollouts, step), **method.metrics()}
    batch.meta_info["metrics"] = adapters.with_prefix(metrics)
    return batch


def _table(rows: Any, names: np.ndarray, verdict: Verdict, limit: int, decode: Any) -> Rollouts:
    """Sampled rows (R,) as rollouts of the problems named."""
    size = len(rows)
    scores = rows.batch[_scores_of(rows)]
    responses = rows.batch["responses"].cpu().numpy()
    # Tokens that a tool wrote are part of a response, but not of the response mask.
    mask = rows.batch.get("attention_mask", rows.batch["response_mask"])
    lengths = mask[:, -responses.shape[1] :].sum(-1).cpu().numpy()
    response = Ragged.of_padded(responses.astype(np.int32), lengths)
    reward = scores.double().sum(-1).cpu().numpy()
    text: Any = None
    if decode is not None:
        text = np.array(decode([response[i] for i in range(size)]), dtype=object)
    found = verdict(reward, rows.non_tensor_batch.get("acc", [None] * size))
    return Rollouts(
        names,
        response=response,
        text=text,
        reward=reward,
        **adapters.verdict_columns(found),
        # A response as long as the limit may have ended by itself at the last token. The rows do
        # not tell, so it counts as truncated.
        truncated=lengths >= limit,
    )


def _scores_of(rows: Any) -> str:
    for name in SCORES:
        if name in rows.batch.keys():
            return name
    raise ValueError(
        f"generate: its rows have no {' or '.join(SCORES)}; score the rollouts before they return"
    )


def _padded(data: Any, size: int) -> Any:
    """The rows with `size` more that train on nothing."""
    if not size:
        return data
    # Copies of a real row, so that every column has a value of the right kind and shape.
    rows = data.select_idxs(np.zeros(size, dtype=np.int64))
    for name in ("response_mask", "token_level_rewards", "advantages", "returns", *SCORES):
        if name in rows.batch.keys():
            rows.batch[name] = torch.zeros_like(rows.batch[name])
    names = [f"{PADDING}-{i}" for i in range(size)]
    rows.non_tensor_batch["uid"] = np.array(names, dtype=object)
    rows.non_tensor_batch["is_padding"] = np.ones(size, dtype=bool)
    return type(data).concat([data, rows])
