"""Tokens a second: our batched loop on the cache API against `generate` of transformers, same prompts, rows and tokens."""

import pytest
import torch

from workbench.labs import shipped
from workbench.policies import Sampling
from workbench.policies.transformers import TransformersPolicy
from workbench.problems import arithmetic

SHAPES = [(32, 8), (64, 32)]


@pytest.fixture(scope="module")
def policy():
    torch.set_num_threads(1)
    return TransformersPolicy.from_pretrained(shipped("models/tiny"), device="cpu")


@pytest.mark.parametrize("problems, n", SHAPES)
@pytest.mark.parametrize("sampler", ["loop", "generate"])
def test_sampling(benchmark, policy, sampler, problems, n):
    prompts = [p.prompt for p in arithmetic(problems, seed=1)]
    tokens = []

    def loop():
        tokens.append(int(policy.generate(prompts, [n] * problems, Sampling(max_new_tokens=64), len(tokens)).lengths.sum()))

    def generate():
        torch.manual_seed(len(tokens))
        batch = policy.tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
        with torch.no_grad():
            out = policy.model.generate(
                **batch, do_sample=True, top_k=0, num_return_sequences=n, max_new_tokens=64, pad_token_id=0)
        tokens.append(int((out[:, batch["input_ids"].shape[1]:] != 0).sum()))

    benchmark.pedantic({"loop": loop, "generate": generate}[sampler], rounds=5, warmup_rounds=1)
    benchmark.extra_info["tokens_a_second"] = round(sum(tokens[1:]) / 5 / benchmark.stats.stats.mean)
