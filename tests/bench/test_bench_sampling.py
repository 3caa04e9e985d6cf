"""Tokens a second: our sampling against `generate` of transformers, and against the limit.

Prompts, rows and lengths are the same, and all run in turns on one thread. What the limit is says
`limits.py`. Each response is sampled alone, except where sharing prefixes is what is measured.
"""

import numpy as np
import pytest
import torch

from tests.bench import limits, ratios
from workbench.policies import Sampling

SHAPES = [(32, 8, 7), (64, 32, 2)]  # problems, responses to each, repeats
LENGTH = 64


def by_generate(policy, prompts, n, **options):
    """Response tokens (R, T) by `generate`, 0 after the end."""
    batch = policy.tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    with torch.no_grad():
        out = policy.model.generate(
            **batch, num_return_sequences=n, max_new_tokens=LENGTH, pad_token_id=0, **options
        )
    return out[:, batch["input_ids"].shape[1] :]


@pytest.fixture(scope="module", params=limits.SIZES)
def material(request):
    lab = limits.lab(request.param, share_prefixes=False)
    return request.param, lab, lab.policy()


@pytest.mark.parametrize("problems, n, repeats", SHAPES)
def test_sampling(material, problems, n, repeats):
    size, lab, policy = material
    prompts = [problem.prompt for problem in lab.problems.draw(problems, 0, 1)[0]]
    limit = limits.Limits(policy)
    sampling = Sampling(max_new_tokens=LENGTH)
    ours_drawn = []
    theirs_drawn = []

    def ours():
        ours_drawn.append(policy.generate(prompts, [n] * problems, sampling, len(ours_drawn)))

    def theirs():
        torch.manual_seed(len(theirs_drawn))
        drawn = by_generate(policy, prompts, n, do_sample=True, top_k=0)
        theirs_drawn.append(int((drawn != 0).sum()))

    ours_seconds, theirs_seconds, least_seconds = ratios.turns(
        ours,
        theirs,
        lambda: limit.generation(limit.work(ours_drawn[-1])),
        repeats=repeats,
        warmup=int(n == 8),
        clock=ratios.OF_THE_PROCESS,
    )
    ours_rate = [drawn.lengths.sum() for drawn in ours_drawn[-repeats:]] / np.array(ours_seconds)
    theirs_rate = theirs_drawn[-repeats:] / np.array(theirs_seconds)
    name = f"sampling {problems} x {n}, {size}"
    against_generate = ratios.note(
        f"{name}: tokens a second, ours / transformers' generate", ours_rate / theirs_rate, ">= 2"
    )
    ratios.note(f"{name}: tokens a second, ours", ours_rate)
    ratios.note(f"{name}: x of the limit", np.array(ours_seconds) / least_seconds)
    assert against_generate > 1


def test_greedy_is_token_for_token_that_of_generate(material):
    _, lab, policy = material
    prompts = [problem.prompt for problem in lab.problems.draw(32, 0, 1)[0]]
    sampling = Sampling(temperature=0, max_new_tokens=LENGTH)
    rollouts = policy.generate(prompts, [8] * 32, sampling, 0)
    theirs = by_generate(policy, prompts, 1, do_sample=False).numpy()
    ours = rollouts.response.padded()
    same = [
        np.array_equal(row[:length], other[:length]) and not other[length:].any()
        for row, length, other in zip(ours, rollouts.lengths, np.repeat(theirs, 8, axis=0))
    ]
    assert all(same)


def test_sharing_prefixes(material):
    """As in an evaluation: 24 responses to each of 100 problems."""
    size, lab, policy = material
    problems = lab.problems.draw(100, 0, 1)[0]
    counts = [24] * len(problems)
    texts = {}

    def sample(share_prefixes):
        policy.share_prefixes = share_prefixes
        rollouts = policy.generate(problems, counts, lab.sampling, 0)
        texts[share_prefixes] = rollouts.text.tolist()

    spent = ratios.ratio(
        lambda: sample(True), lambda: sample(False), repeats=5, clock=ratios.OF_THE_PROCESS
    )
    policy.share_prefixes = False
    shared = ratios.note(
        f"sampling 100 x 24, {size}: prefixes shared / each response alone", spent, "<= 0.8"
    )
    assert texts[True] == texts[False]
    assert shared < 1
