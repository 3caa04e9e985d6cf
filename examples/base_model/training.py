"""How the embedded base models are made: next-token training of a small Qwen3 on worked solutions.

They are made here so that the lab needs no download: `python -m examples.base_model early-small`.
Left out on purpose: dropout, weight decay, and a second epoch over anything.
"""

from __future__ import annotations

import string
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from examples.base_model.card import card
from examples.base_model.corpus import Clean, Corpus, WithMistakes, drawn_facts, write_facts
from workbench.datasets import chains
from workbench.evaluation import evaluate
from workbench.policies import Sampling
from workbench.policies.transformers import TransformersPolicy
from workbench.problems import Pool, arithmetic
from workbench.rollouts import Ragged
from workbench.utils.validation import one_of, whole_number
from workbench.verifiers import Math

# Positions are token ids: `untrained` relies on padding being 0 and the end being 1.
SPECIAL = ("<pad>", "<eos>", "<unk>", "\\boxed{", "<answer>", "</answer>")
CHARACTERS = string.digits + string.ascii_lowercase + "+-*/=(){}[]<>.,:;?!'^_|% \n"
BATCH = 48  # problems of a training step, of all levels: batches of one length converge worse
LEARNING_RATE = 3e-3
WARM_UP = 100  # steps in which the learning rate rises
BETAS = (0.9, 0.98)
AHEAD = 16  # batches that are drawn and tokenized at once
CARD_TEMPERATURES = (0.0, 0.6, 1.0)
SAMPLING = Sampling(max_new_tokens=64)
HELD_OUT = 400

# Shape of the model: hidden size, layers, heads (of 32), key-value heads, feed-forward size.
SIZES = {
    "small": (64, 2, 2, 1, 192),
    "large": (96, 3, 3, 3, 256),
}


@dataclass(frozen=True)
class Recipe:
    """How one of the shipped models is made.

    Attributes
    ----------
    base : {"early", "late", "clean"}
        Its corpus.
    size : {"small", "large"}
    steps : int
        Training steps.
    decay : float
        The last share of the steps in which the learning rate falls linearly to 0.
    seed : int
        Of the weights, the facts and the corpus.
    """

    base: str
    size: str
    steps: int
    decay: float
    seed: int = 1


RECIPES = {
    # Trained to the end of the learning curve: they know both the right and the wrong result of a
    # fact, and sample them at the rates of the corpus.
    "early-small": Recipe("early", "small", steps=6000, decay=0.4),
    "early-large": Recipe("early", "large", steps=4000, decay=0.4),
    "late-small": Recipe("late", "small", steps=6000, decay=0.4),
    "late-large": Recipe("late", "large", steps=4000, decay=0.4),
    # Stopped early, so that it is unfinished in another way: unsure of everything.
    "clean-large": Recipe("clean", "large", steps=1500, decay=0.0),
}


def tokenizer(size: int = 0) -> PreTrainedTokenizerFast:
    """A character tokenizer; `\\boxed{` and the two tags are one token each.

    Tokens that no text has fill it up to `size`, for a model with a larger embedding.
    """
    known = [*SPECIAL, *CHARACTERS]
    known += [f"<unused {number}>" for number in range(len(known), size)]
    vocabulary = {token: i for i, token in enumerate(known)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    # The special tokens first, then any other character by itself, line ends included.
    pattern = Regex(r"\\boxed\{|</?answer>|[\s\S]")
    words.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
    words.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=128,
        clean_up_tokenization_spaces=False,
    )


def untrained(size: str, vocabulary: int, seed: int = 0) -> Qwen3ForCausalLM:
    """An untrained Qwen3 of one of `SIZES`, tied embeddings, float32."""
    one_of("size", size, SIZES)
    hidden, layers, heads, key_value_heads, feed_forward = SIZES[size]
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=32,
        intermediate_size=feed_forward,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )
    return Qwen3ForCausalLM(config)


def train(
    net: Qwen3ForCausalLM,
    coder: PreTrainedTokenizerFast,
    corpus: Corpus,
    steps: int,
    *,
    decay: float = 0.0,
    seed: int = 0,
    learning_rate: float = LEARNING_RATE,
) -> Iterator[dict[str, float]]:
    """Next-token training on a corpus; prompt tokens carry no loss.

    Parameters
    ----------
    net, coder
        Model and tokenizer.
    corpus : Corpus
    steps : int
    decay : float
        The last share of the steps in which the learning rate falls linearly to 0.
    seed : int
    learning_rate : float

    Yields
    ------
    dict
        step, loss (nats a token) and seconds since the start.
    """
    started = time.perf_counter()
    cursor = 0
    optimizer = torch.optim.AdamW(net.parameters(), lr=learning_rate, betas=BETAS, weight_decay=0.0)
    net.train()
    for step in range(steps):
        if step % AHEAD == 0:
            problems, responses, cursor = corpus.draw(BATCH * AHEAD, cursor, seed)
            prompts = [problem.prompt for problem in problems]
            batches = _batches(prompts, responses, coder)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * _learning_rate_factor(step, steps, decay)
        loss = _loss(net, batches[step % AHEAD])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        yield {
            "step": step + 1,
            "loss": loss.item(),
            "seconds": time.perf_counter() - started,
        }


def make(
    name: str,
    path: Any,
    *,
    seed: int | None = None,
    steps: int | None = None,
    every: int = 250,
    report: Callable[[str], Any] = print,
) -> None:
    """Train a base model and write it to a directory, with tokenizer, facts, card and two logs.

    Parameters
    ----------
    name : str
        One of `RECIPES`.
    path : path
        The directory; training.csv has step, loss and seconds, accuracy.csv the held-out accuracy
        at temperature 1 by level, and facts.csv what the corpus gets wrong.
    seed, steps : int, optional
        None for those of the shipped model.
    every : int
        Steps between evaluations.
    report : function
        Called with a line of text after each evaluation.

    Notes
    -----
    One CPU thread, so that the same machine makes the same model.
    """
    one_of("name", name, RECIPES)
    recipe = RECIPES[name]
    seed = recipe.seed if seed is None else seed
    steps = recipe.steps if steps is None else steps
    whole_number("steps", steps, 1)
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"path={str(folder)!r}: no directory can be made there ({error.strerror})"
        ) from None
    torch.set_num_threads(1)

    corpus: Corpus = Clean()
    facts = None
    if recipe.base != "clean":
        facts = drawn_facts(chains.ERROR_RATES[recipe.base], seed)
        corpus = WithMistakes(facts)
    coder = tokenizer()
    policy = TransformersPolicy(untrained(recipe.size, len(coder), seed), coder, name=name)
    held_out = held_out_problems(recipe.base)
    losses = []
    curve = []
    with Math(boxed=True) as verifier:
        for row in train(policy.model, coder, corpus, steps, decay=recipe.decay, seed=seed):
            losses.append(row)
            if row["step"] % every == 0 or row["step"] == steps:
                accuracy = accuracy_by_level(policy, held_out, verifier)
                curve.append({"step": row["step"], **accuracy})
                report(
                    f"step {row['step']:>5}  loss {row['loss']:.3f}  {row['seconds']:.0f} s  "
                    f"avg@8 {accuracy['all']:.3f}"
                )
                # The evaluation has switched the model to its mode for sampling.
                policy.model.train()
        table = [
            {"temperature": t, **accuracy_by_level(policy, held_out, verifier, t)}
            for t in CARD_TEMPERATURES
        ]
    policy.save(folder)
    if facts is not None:
        write_facts(facts, folder / "facts.csv")
    pd.DataFrame(losses).round(4).to_csv(folder / "training.csv", index=False)
    pd.DataFrame(curve).to_csv(folder / "accuracy.csv", index=False)
    text = card(name, recipe.base, policy, table, seed, steps, losses[-1]["seconds"])
    (folder / "README.md").write_text(text)


def held_out_problems(base: str) -> Pool:
    """The problems that a base model is evaluated on while it is made."""
    make_problems = arithmetic if base == "clean" else chains.chains
    # The corpora draw from the other split, so none of these is ever trained on.
    pool = make_problems(HELD_OUT, split="heldout")
    assert isinstance(pool, Pool)
    return pool


def accuracy_by_level(
    policy: TransformersPolicy,
    problems: Pool,
    verifier: Math,
    temperature: float = 1.0,
    k: int = 8,
) -> dict[Any, float]:
    """Mean correctness over k samples, over all problems ("all") and by level.

    At temperature 0 it is that of the greedy answer.
    """
    sampling = Sampling(temperature=temperature, max_new_tokens=SAMPLING.max_new_tokens)
    # Greedy answers to one problem are all the same.
    samples = k if temperature else 1
    frame = evaluate(policy, problems, verifier, samples, sampling=sampling, greedy=False)
    accuracy = frame["correct"] / frame["samples"]
    by_level = accuracy.groupby(frame["level"]).mean().round(3)
    return {"all": round(accuracy.mean(), 4), **by_level.to_dict()}


def _learning_rate_factor(step: int, steps: int, decay: float) -> float:
    """Up to 1 during the warm-up, linearly down to 0 over the last share `decay` of the steps."""
    rising = (step + 1) / WARM_UP
    left = (steps - step) / steps
    falling = left / decay if decay else 1.0
    return min(1.0, rising, falling)


def _batches(
    prompts: Sequence[str], responses: Sequence[str], coder: PreTrainedTokenizerFast
) -> list[list[tuple[list[int], list[int]]]]:
    """(prompt tokens, response tokens) of each row, in batches."""
    prompt_ids = coder(list(prompts))["input_ids"]
    response_ids = coder(list(responses))["input_ids"]
    # To end is a part of the response that has to be learnt.
    rows = [(p, [*r, coder.eos_token_id]) for p, r in zip(prompt_ids, response_ids)]
    return [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]


def _loss(net: Qwen3ForCausalLM, rows: Sequence[tuple[list[int], list[int]]]) -> torch.Tensor:
    ignored = -100  # the label that transformers leaves out of the loss
    # No attention mask is needed: padding stands on the right, where a causal model does not
    # look, and its labels are ignored.
    ids = Ragged.of([prompt + response for prompt, response in rows], np.int64).padded(0)
    labels = Ragged.of(
        [[ignored] * len(prompt) + response for prompt, response in rows], np.int64
    ).padded(ignored)
    # transformers moves the labels by one place itself, so ids and labels are aligned here.
    out = net(
        input_ids=torch.as_tensor(ids, device=net.device),
        labels=torch.as_tensor(labels, device=net.device),
        use_cache=False,
    )
    return out.loss
