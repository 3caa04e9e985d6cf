"""The tiny base model: a character-level Qwen3 of 0.34 M parameters, trained on worked arithmetic and stopped early.

It is made here so that the lab needs no download. Left out on purpose: dropout, learning-rate decay, weight decay and
a second epoch over anything; the model has to be *unfinished*, so that success rates spread from 0 to 1 and
reinforcement learning has something to teach. Command: `python -m workbench base-model`.
"""

import string
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from workbench.evaluation import evaluate
from workbench.policies import Sampling
from workbench.policies.transformers import TransformersPolicy
from workbench.problems import LEVELS, arithmetic, solution
from workbench.rollouts import Ragged
from workbench.utils.seeding import generator
from workbench.verifiers import Math

SPECIAL = ("<pad>", "<eos>", "<unk>", "\\boxed{")
CHARACTERS = string.digits + string.ascii_lowercase + "+-*/=(){}[]<>.,:;?!'^_|% \n"
LEVEL_WEIGHTS = (4, 4, 3, 3, 3, 2, 2, 1)
SEED, STEPS = 1, 1500  # the shipped model's
TEMPERATURES = (0.0, 0.6, 1.0)
SAMPLING = Sampling(max_new_tokens=64)


def tokenizer():
    """A character tokenizer; `\\boxed{` is one token, an unknown character `<unk>`."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=128,
        clean_up_tokenization_spaces=False,
    )


def model(vocabulary, seed=0):
    """An untrained Qwen3: width 96, 3 layers, 3 heads of 32, feed-forward 256, tied embeddings, float32."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=32,
        intermediate_size=256,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )
    return Qwen3ForCausalLM(config)


def train(net, coder, steps, *, batch=48, learning_rate=3e-3, seed=0, buckets=16):
    """Next-token training on worked solutions of the training split; yields a dict with step, loss and seconds.

    Prompt tokens carry no loss. Problems are drawn by level with `LEVEL_WEIGHTS`; batches are made of rows of like
    length out of `buckets` batches.
    """
    levels = tuple(np.repeat(list(LEVELS), LEVEL_WEIGHTS))
    stream, cursor, started = arithmetic(levels=levels, split="train"), 0, time.perf_counter()
    optimizer = torch.optim.AdamW(net.parameters(), lr=learning_rate, weight_decay=0.0)
    net.train()
    for step in range(steps):
        if step % buckets == 0:
            problems, cursor = stream.draw(batch * buckets, cursor, seed)
            ready = _batches(problems, coder, batch, generator(seed, "batches", step))
        loss = _loss(net, ready[step % buckets])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        yield {"step": step + 1, "loss": loss.item(), "seconds": time.perf_counter() - started}


def make(path, *, seed=None, steps=None, every=125, report=print):
    """Trains the base model and writes it to directory `path`, with tokenizer, card and two logs.

    training.csv: step, loss, seconds. accuracy.csv: held-out accuracy at temperature 1 by level, every `every` steps.
    seed, steps: None for the shipped model's. One CPU thread, so that it comes out the same on the same machine.
    """
    seed, steps = SEED if seed is None else seed, STEPS if steps is None else steps
    if steps < 1:
        raise ValueError(f"steps={steps}: a positive number of training steps is needed")
    torch.set_num_threads(1)
    coder = tokenizer()
    policy = TransformersPolicy(model(len(coder), seed), coder, name="tiny")
    held_out, losses, curve = arithmetic(200, split="heldout"), [], []
    with Math(boxed=True) as verifier:
        for row in train(policy.model, coder, steps, seed=seed):
            losses.append(row)
            if row["step"] % every == 0 or row["step"] == steps:
                curve.append({"step": row["step"], **accuracy_by_level(policy, held_out, verifier)})
                report(
                    f"step {row['step']:>5}  loss {row['loss']:.3f}  {row['seconds']:.0f} s  avg@8 {curve[-1]['all']:.3f}"
                )
                policy.model.train()
        table = pd.DataFrame(
            [
                {"temperature": t, **accuracy_by_level(policy, held_out, verifier, t)}
                for t in TEMPERATURES
            ]
        )
    policy.save(path)
    pd.DataFrame(losses).round(4).to_csv(path / "training.csv", index=False)
    pd.DataFrame(curve).to_csv(path / "accuracy.csv", index=False)
    (path / "README.md").write_text(_card(policy, table, seed, steps, losses[-1]["seconds"]))


def accuracy_by_level(policy, problems, verifier, temperature=1.0, k=8):
    """Mean correctness over k samples, over all problems ("all") and by level, a dict; one greedy sample at 0."""
    sampling = replace(SAMPLING, temperature=temperature)
    frame = evaluate(
        policy, problems, verifier, k if temperature else 1, sampling=sampling, greedy=False
    )
    frame = frame.assign(accuracy=frame.correct / frame.samples)
    return {
        "all": round(frame.accuracy.mean(), 4),
        **frame.groupby("level").accuracy.mean().round(3).to_dict(),
    }


def _batches(problems, coder, size, rng):
    prompts = coder([p.prompt for p in problems])["input_ids"]
    responses = coder([solution(p.prompt) for p in problems])["input_ids"]
    rows = sorted(
        ((p, [*r, coder.eos_token_id]) for p, r in zip(prompts, responses)),
        key=lambda row: len(row[0] + row[1]),
    )
    chunks = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [chunks[i] for i in rng.permutation(len(chunks))]


def _loss(net, rows):
    ids = torch.as_tensor(Ragged.of([p + r for p, r in rows], np.int64).padded(0))
    labels = torch.as_tensor(
        Ragged.of([[-100] * len(p) + r for p, r in rows], np.int64).padded(-100)
    )
    return net(input_ids=ids, labels=labels, use_cache=False).loss


def _card(policy, table, seed, steps, seconds):
    rows = [
        " | ".join(
            f"{value:.2f}" if name != "all" else f"{value:.3f}" for name, value in row.items()
        )
        for row in table.to_dict("records")
    ]
    header = " | ".join(["temperature", "all", *(f"level {level}" for level in LEVELS)])
    lines = [f"| {row} |" for row in (header, " | ".join("---" for _ in table.columns), *rows)]
    return CARD.format(
        parameters=policy.parameter_count,
        steps=steps,
        seed=seed,
        seconds=seconds,
        vocabulary=len(policy.tokenizer),
        table="\n".join(lines),
        weights=", ".join(map(str, LEVEL_WEIGHTS)),
    )


CARD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---
# tiny: the base model of the embedded lab

A character-level Qwen3 causal language model with {parameters:,} parameters and {vocabulary} tokens, made to be the start of
reinforcement learning experiments on a CPU. Training was stopped early on purpose, so that success rates spread from 0 to 1.

- Data: generated left-to-right integer chains of 8 levels with worked solutions (`workbench.problems.arithmetic`, training
  split; level weights {weights}); no label is corrupted, no held-out problem was seen.
- Training: {steps} steps of 48 problems, AdamW at 3e-3, seed {seed}; {seconds:.0f} s on one CPU thread. `training.csv` has
  the loss, `accuracy.csv` the held-out accuracy along the way.
- Made by `python -m workbench base-model`; shown in `notebooks/08_base_model.ipynb`.

Accuracy on 200 held-out problems (8 samples each; temperature 0 is greedy):

{table}

Use: prompt `7+5+6=`, response `+5=12+6=18 \\boxed{{18}}`. Anything else is outside its training data.
"""
