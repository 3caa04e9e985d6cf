"""Where learning happens: problems, a verifier, a policy and how it samples."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.cards import card
from workbench.describe import compose
from workbench.policies import Sampling
from workbench.problems import LEVELS, Pool, arithmetic
from workbench.verifiers import Math


@dataclass(frozen=True)
class Lab:
    """Everything a run needs besides a method.

    problems: `Pool` or `Stream` to train on; held_out: `Pool` to evaluate on, None for no evaluation.
    verifier: has `score(responses, answers) -> Scores`. make_policy: returns a fresh policy at its initial weights.
    learning_rate, optimizer: of AdamW (`optimizer` holds further keyword arguments). max_grad_norm: gradient clip.
    samples: responses a held-out problem. micro_tokens: tokens of one micro-batch, padding included.
    config: how to make this lab again, for the manifest; None where only your own code can.
    """

    name: str
    problems: Any
    held_out: Pool | None
    verifier: Any
    make_policy: Callable
    sampling: Sampling = Sampling()
    learning_rate: float = 1e-6
    optimizer: dict = field(default_factory=dict)
    max_grad_norm: float = 1.0
    samples: int = 8
    micro_tokens: int = 16_384
    config: dict | None = None

    def policy(self):
        """A fresh policy at its initial weights: the same for every run of this lab."""
        return self.make_policy()

    def __repr__(self):
        held_out = 0 if self.held_out is None else len(self.held_out)
        return f"Lab({self.name!r}, learning_rate={self.learning_rate}, {held_out} held-out problems, {self.sampling})"

    def _repr_html_(self):
        problems = f"a pool of {len(self.problems)}" if isinstance(self.problems, Pool) else "fresh ones every round"
        held_out = "none" if self.held_out is None else f"{len(self.held_out)} problems, {self.samples} responses to each"
        return card(f"Lab {self.name}", [
            ("problems", problems), ("held out", held_out), ("verifier", type(self.verifier).__name__),
            ("sampling", compose(self.sampling)), ("learning rate", f"{self.learning_rate:g}")])


def tiny(pool=None, *, levels=tuple(LEVELS), held_out=200, samples=8, learning_rate=3e-4, seed=0, model=None, threads=1):
    """The embedded lab: arithmetic by a 0.34 M parameter model, shipped with the package, on one CPU thread.

    pool: number of training problems, drawn epoch by epoch; None for fresh problems every round. levels: 1 to 8, a
    level named twice has twice the share. held_out: number of evaluation problems (0: no evaluation), which never
    occur in training; samples: responses to each. seed: of the pools. model: directory of another model. threads:
    of torch, set when the policy is made; more than one slows a model this small.
    """
    _known_levels(levels)
    config = {"lab": "tiny", "pool": pool, "levels": list(levels), "held_out": held_out, "samples": samples,
              "learning_rate": learning_rate, "seed": seed, "model": None if model is None else str(model),
              "threads": threads}
    path = Path(model) if model is not None else shipped("models/tiny")

    def make_policy():
        import torch

        from workbench.policies.transformers import TransformersPolicy

        torch.set_num_threads(threads)
        return TransformersPolicy.from_pretrained(path, device="cpu")

    return Lab(
        "tiny", arithmetic(pool, levels=levels, seed=seed),
        arithmetic(held_out, levels=sorted(set(levels)), seed=seed, split="heldout") if held_out else None,
        Math(boxed=True), make_policy, Sampling(max_new_tokens=64), learning_rate,
        {"betas": (0.9, 0.95), "weight_decay": 0.0}, samples=samples, config=config,
    )


def transformers(model, problems, held_out=None, *, lora=None, learning_rate=None, sampling=Sampling(max_new_tokens=512),
                 verifier=None, template="{prompt}", dtype="float32", device=None, samples=8, micro_tokens=16_384):
    """A lab on any Hugging Face causal language model: a local directory or a hub name.

    problems, held_out: a `Pool` or `Stream` and a `Pool`. lora: keyword arguments of `peft.LoraConfig`, or None to train
    all parameters. learning_rate: default 5e-6 with LoRA (PODS), 1e-6 without. template: "{prompt}" pattern or "chat".
    verifier: default `Math()`.
    """
    def make_policy():
        from workbench.policies.transformers import TransformersPolicy

        return TransformersPolicy.from_pretrained(model, lora=lora, dtype=dtype, device=device, template=template)

    return Lab(
        f"transformers:{model}", problems, held_out, verifier or Math(), make_policy, sampling,
        learning_rate or (5e-6 if lora else 1e-6), {"weight_decay": 0.1 if lora else 0.0}, samples=samples,
        micro_tokens=micro_tokens,
    )


def shipped(name):
    """Path of a file that comes with the package, under `data/` of the repository or inside the installed package."""
    here = Path(__file__).parent
    for folder in (here.parent / "data", here / "_data"):
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(f"data/{name} is missing: this is no complete checkout or installation"
                            + (" (python -m workbench base-model makes it)" if os.fspath(name) == "models/tiny" else ""))


def from_config(config):
    """The lab that a manifest describes; ValueError when only the caller's own code can make it."""
    if not config or config.get("lab") != "tiny":
        raise ValueError("lab: the manifest cannot make this lab again; pass it: Run.resume(path, lab=...)")
    return tiny(**{name: value for name, value in config.items() if name != "lab"})


def _known_levels(levels):
    unknown = [level for level in levels if level not in LEVELS]
    if unknown or not levels:
        raise ValueError(f"levels={tuple(levels)}: known levels are {', '.join(map(str, LEVELS))}")
