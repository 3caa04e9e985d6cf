"""Responses a second that `Math` judges with two workers; `rate` in extra_info."""

from __future__ import annotations

import random

import numpy as np
import pytest

from workbench.verifiers import Math

ROUND = 256


def rounds(form: str, top: int):
    """Endless rounds of responses whose texts differ and whose boxes repeat, half of them right."""
    rng = random.Random(0)
    while True:
        answers = [rng.randrange(top) for _ in range(ROUND)]
        said = [answer if rng.random() < 0.5 else rng.randrange(top) for answer in answers]
        responses = [
            f"Step {rng.random()} leads on, so the answer is ${form % value}$." for value in said
        ]
        yield (responses, [str(answer) for answer in answers]), {}


@pytest.mark.parametrize(
    ("form", "top", "cache"),
    [
        (r"\boxed{%d}", 201, 65_536),
        (r"\boxed{%d.0}", 201, 65_536),
        (r"\boxed{\frac{%d}{1}}", 10**6, 0),
    ],
    ids=["integers", "decimals", "uncached"],
)
def test_rate(benchmark, form, top, cache):
    batches = rounds(form, top)
    with Math(cache=cache) as verifier:
        verifier.score(*next(batches)[0])
        scores = benchmark.pedantic(verifier.score, setup=lambda: next(batches), rounds=5)
    assert np.isin(scores.status, ("ok", "wrong")).sum() == ROUND
    benchmark.extra_info["rate"] = round(ROUND / benchmark.stats["mean"])
