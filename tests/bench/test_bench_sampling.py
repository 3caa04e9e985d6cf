"""Tokens a second: our sampling against `generate` of transformers.

Prompts, rows and limits are the same, both run in turns on one thread, and beside them what no
sampler can go below: the matrix products of the decoder for the same tokens, at the batch sizes
that are left when ended rows leave at once.
"""

import numpy as np
import pytest
import torch

from tests.bench import ratios
from workbench.labs import shipped
from workbench.policies import Sampling
from workbench.policies.transformers import TransformersPolicy
from workbench.problems import arithmetic

SHAPES = [(32, 8), (64, 32)]
LIMIT = 64


@pytest.fixture(scope="module")
def policy():
    return TransformersPolicy.from_pretrained(shipped("models/tiny"), device="cpu")


def by_generate(policy, prompts, n, **options):
    """Response tokens (R, T) by `generate`, 0 after the end."""
    batch = policy.tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    with torch.no_grad():
        out = policy.model.generate(
            **batch, num_return_sequences=n, max_new_tokens=LIMIT, pad_token_id=0, **options
        )
    return out[:, batch["input_ids"].shape[1] :]


class Products:
    """The matrix products of a decoder and its head for given numbers of rows, and nothing else."""

    def __init__(self, policy):
        linear = [m.weight for m in policy.decoder.modules() if isinstance(m, torch.nn.Linear)]
        self.weights = [weight.detach() for weight in [*linear, policy.head.weight]]
        self.inputs = {
            width: torch.randn(4096, width)
            for width in {weight.shape[1] for weight in self.weights}
        }

    def __call__(self, batches):
        for size in batches:
            for weight in self.weights:
                torch.nn.functional.linear(self.inputs[weight.shape[1]][:size], weight)


def batches(rollouts, rows):
    """Rows of each decoding step when ended ones leave at once, as a list of ints.

    Before them come the tokens of the prompts of each part.
    """
    sizes = []
    for start in range(0, len(rollouts), rows):
        part = rollouts.take(np.arange(start, min(start + rows, len(rollouts))))
        _, first = np.unique(part.problem, return_index=True)
        sizes += [
            int(part.prompt.lengths[first].sum()),
            *((part.lengths[:, None] > np.arange(LIMIT)).sum(0)),
        ]
    return [int(size) for size in sizes if size]


@pytest.mark.parametrize("problems, n", SHAPES)
def test_sampling(policy, problems, n):
    prompts = [problem.prompt for problem in arithmetic(problems, seed=1)]
    sampling = Sampling(max_new_tokens=LIMIT)
    products = Products(policy)
    tokens = {"ours": [], "theirs": []}
    seen = []

    def ours():
        seen.append(policy.generate(prompts, [n] * problems, sampling, len(seen)))
        tokens["ours"].append(seen[-1].lengths.sum())

    def theirs():
        torch.manual_seed(len(seen))
        tokens["theirs"].append(
            int((by_generate(policy, prompts, n, do_sample=True, top_k=0) != 0).sum())
        )

    repeats = 9 if n == 8 else 5
    a, b, limit = ratios.turns(
        ours,
        theirs,
        lambda: products(batches(seen[-1], policy.rows)),
        repeats=repeats,
        warmup=int(n == 8),
    )
    rates = {
        who: np.array(tokens[who][-repeats:]) / spent for who, spent in (("ours", a), ("theirs", b))
    }
    name = f"sampling {problems} x {n}"
    median = ratios.note(
        f"{name}: tokens a second, ours / transformers' generate",
        rates["ours"] / rates["theirs"],
        ">= 2",
    )
    ratios.note(f"{name}: tokens a second, ours", rates["ours"])
    ratios.note(f"{name}: matrix products alone / all of our time", np.array(limit) / a)
    assert median > 1


@pytest.mark.parametrize("problems, n", SHAPES)
def test_greedy_is_token_for_token_that_of_generate(policy, problems, n):
    prompts = [p.prompt for p in arithmetic(problems, seed=1)]
    rollouts = policy.generate(
        prompts, [n] * problems, Sampling(temperature=0, max_new_tokens=LIMIT), 0
    )
    theirs = by_generate(policy, prompts, 1, do_sample=False).numpy()
    ours = rollouts.response.padded()
    same = [
        np.array_equal(row[:length], other[:length]) and not other[length:].any()
        for row, length, other in zip(ours, rollouts.lengths, np.repeat(theirs, n, axis=0))
    ]
    assert all(same)
