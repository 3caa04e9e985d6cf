"""Where learning happens: problems, a verifier, a policy and how it samples."""

import inspect
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from workbench import problems as problem_room
from workbench.policies import Sampling
from workbench.policies.checks import check_gpu, check_packages, check_template, check_vllm
from workbench.problems import LEVELS, Pool, arithmetic
from workbench.utils.checks import check_parts
from workbench.utils.columns import whole_number
from workbench.utils.descriptions import compose, describe
from workbench.utils.html import card
from workbench.verifiers import Math

FAMILIES = (
    "arithmetic",
    "reasoning_gym",
    "hub",
)  # problems whose `config` is the call that makes them


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

    def __post_init__(self):
        check_parts(self)

    def policy(self):
        """A fresh policy at its initial weights: the same for every run of this lab."""
        return self.make_policy()

    def __repr__(self):
        held_out = 0 if self.held_out is None else len(self.held_out)
        return f"Lab({self.name!r}, learning_rate={self.learning_rate}, {held_out} held-out problems, {self.sampling})"

    def _repr_html_(self):
        problems = (
            f"a pool of {len(self.problems)}"
            if isinstance(self.problems, Pool)
            else "fresh ones every round"
        )
        held_out = (
            "none"
            if self.held_out is None
            else f"{len(self.held_out)} problems, {self.samples} responses to each"
        )
        return card(
            f"Lab {self.name}",
            [
                ("problems", problems),
                ("held out", held_out),
                ("verifier", type(self.verifier).__name__),
                ("sampling", compose(self.sampling)),
                ("learning rate", f"{self.learning_rate:g}"),
            ],
        )


def tiny(
    pool=None,
    *,
    levels=tuple(LEVELS),
    held_out=200,
    samples=8,
    learning_rate=3e-4,
    seed=0,
    model=None,
    threads=1,
):
    """The embedded lab: arithmetic by a 0.34 M parameter model, shipped with the package, on one CPU thread.

    pool: number of training problems, drawn epoch by epoch; None for fresh problems every round. levels: 1 to 8, a
    level named twice has twice the share. held_out: number of evaluation problems (0: no evaluation), which never
    occur in training; samples: responses to each. seed: of the pools. model: directory of another model. threads:
    of torch, set when the policy is made; more than one slows a model this small.
    """
    _known_levels(levels)
    for name, value, least in (
        ("held_out", held_out, 0),
        ("seed", seed, 0),
        ("threads", threads, 1),
    ):
        whole_number(name, value, least)
    if model is not None and not isinstance(model, (str, os.PathLike)):
        raise ValueError(
            f"model={model!r}: the path of a directory is needed, or None for the shipped model"
        )
    config = {
        "lab": "tiny",
        "pool": pool,
        "levels": list(levels),
        "held_out": held_out,
        "samples": samples,
        "learning_rate": learning_rate,
        "seed": seed,
        "model": None if model is None else str(model),
        "threads": threads,
    }
    path = Path(model) if model is not None else shipped("models/tiny")

    def make_policy():
        import torch

        from workbench.policies.transformers import TransformersPolicy

        torch.set_num_threads(threads)
        return TransformersPolicy.from_pretrained(path, device="cpu")

    return Lab(
        "tiny",
        arithmetic(pool, levels=levels, seed=seed),
        arithmetic(held_out, levels=sorted(set(levels)), seed=seed, split="heldout")
        if held_out
        else None,
        Math(boxed=True),
        make_policy,
        Sampling(max_new_tokens=64),
        learning_rate,
        {"betas": (0.9, 0.95), "weight_decay": 0.0},
        samples=samples,
        micro_tokens=2048,
        config=config,
    )


def transformers(
    model,
    problems,
    held_out=None,
    *,
    lora=None,
    learning_rate=None,
    sampling=Sampling(max_new_tokens=512),
    verifier=None,
    template="{prompt}",
    dtype="float32",
    device=None,
    revision=None,
    samples=8,
    micro_tokens=16_384,
    engine="transformers",
    max_length=None,
    gpu_memory_utilization=0.4,
):
    """A lab on any Hugging Face causal language model: a local directory or a hub name.

    problems, held_out: a `Pool` or `Stream` and a `Pool`. lora: keyword arguments of `peft.LoraConfig`, or None to train
    all parameters. learning_rate: default 5e-6 with LoRA (PODS), 1e-6 without. template: "{prompt}" pattern or "chat".
    verifier: default `Math()`. engine: what samples, "transformers" or "vllm", which holds weights of its own, in bfloat16
    on a GPU, and is brought to the trainer's before each use; max_length: tokens of prompt and response there, None for
    all the model has; gpu_memory_utilization: its share of the GPU's memory.
    """
    arguments = _plain(locals(), ("model", "problems", "held_out", "verifier"))
    check_template(template)
    if engine not in ("transformers", "vllm"):
        raise ValueError(f"engine={engine!r}: allowed are 'transformers' and 'vllm'")
    if lora:
        check_packages("peft")
    if engine == "vllm":
        _check_sampler(sampling, max_length, gpu_memory_utilization)
        device = check_gpu(device, "engine='vllm'")
        check_vllm(device)
    vllm = (
        {"max_length": max_length, "gpu_memory_utilization": gpu_memory_utilization}
        if engine == "vllm"
        else None
    )

    def make_policy():
        from workbench.policies.transformers import TransformersPolicy

        return TransformersPolicy.from_pretrained(
            model,
            lora=lora,
            dtype=dtype,
            device=device,
            revision=revision,
            template=template,
            vllm=vllm,
        )

    return Lab(
        f"transformers:{model}",
        problems,
        held_out,
        verifier or Math(),
        make_policy,
        sampling,
        (5e-6 if lora else 1e-6) if learning_rate is None else learning_rate,
        {"weight_decay": 0.1 if lora else 0.0},
        samples=samples,
        micro_tokens=micro_tokens,
        config=_config("transformers", model, problems, held_out, verifier, arguments),
    )


def unsloth(
    model,
    problems,
    held_out=None,
    *,
    lora_rank=64,
    load_in_4bit=False,
    max_length=1024,
    fast_inference=True,
    gpu_memory_utilization=0.5,
    learning_rate=5e-6,
    sampling=Sampling(max_new_tokens=512),
    verifier=None,
    template="chat",
    device=None,
    revision=None,
    samples=8,
    micro_tokens=16_384,
):
    """The single-GPU box: LoRA by Unsloth in bfloat16, sampled by vLLM on the same weights.

    PODS's setting (a), section 4, Qwen2.5-3B-Instruct on GSM8K at rank 64, is

        labs.unsloth("Qwen/Qwen2.5-3B-Instruct", problems.hub("gsm8k"), problems.hub("gsm8k", "test"))

    problems, held_out: a `Pool` or `Stream` and a `Pool`. lora_rank: rank and alpha of the adapter on all seven linear
    projections. load_in_4bit: base weights in 4 bits, by bitsandbytes. max_length: tokens of prompt and response.
    fast_inference: sample by vLLM, else by Unsloth's `generate`; gpu_memory_utilization: share of the GPU's memory for the
    shared weights and vLLM's cache, the trainer has the rest. learning_rate and a weight decay of 0.1: PODS, section 4.
    verifier: default `Math()`. template: "{prompt}" pattern or "chat". device: "cpu" for Unsloth's CPU backend, without
    vLLM. Gradients are checkpointed as Unsloth does; log-probabilities are the trainer's, see `policies.unsloth`.
    """
    arguments = _plain(locals(), ("model", "problems", "held_out", "verifier"))
    check_template(template)
    whole_number("lora_rank", lora_rank, 1)
    _check_sampler(sampling, max_length, gpu_memory_utilization)
    if device == "cpu" and (fast_inference or load_in_4bit):
        raise ValueError(
            "device='cpu': Unsloth has neither vLLM nor 4 bits there; fast_inference=False, load_in_4bit=False"
        )
    device = check_gpu(device, "labs.unsloth")
    check_packages(
        "unsloth",
        "unsloth_zoo",
        "peft",
        *["vllm"] * fast_inference,
        *["bitsandbytes"] * load_in_4bit,
    )

    def make_policy():
        from workbench.policies.unsloth import UnslothPolicy

        return UnslothPolicy.from_pretrained(
            model,
            lora_rank=lora_rank,
            load_in_4bit=load_in_4bit,
            max_length=max_length,
            fast_inference=fast_inference,
            gpu_memory_utilization=gpu_memory_utilization,
            device=device,
            revision=revision,
            template=template,
        )

    return Lab(
        f"unsloth:{model}",
        problems,
        held_out,
        verifier or Math(),
        make_policy,
        sampling,
        learning_rate,
        {"weight_decay": 0.1},
        samples=samples,
        micro_tokens=micro_tokens,
        config=_config("unsloth", model, problems, held_out, verifier, arguments),
    )


def shipped(name):
    """Path of a file that comes with the package, under `data/` of the repository or inside the installed package."""
    here = Path(__file__).parent
    for folder in (here.parent / "data", here / "_data"):
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(
        f"data/{name} is missing: this is no complete checkout or installation"
        + (" (python -m workbench base-model makes it)" if os.fspath(name) == "models/tiny" else "")
    )


def from_config(config):
    """The lab that a manifest describes; ValueError when only the caller's own code can make it."""
    if (
        not config
        or config.get("lab") not in ("tiny", "transformers", "unsloth")
        or len(config) == 1
    ):
        raise ValueError(
            "lab: the manifest cannot make this lab again; pass it: Run.resume(path, lab=...)"
        )
    options = {name: value for name, value in config.items() if name != "lab"}
    if config["lab"] == "tiny":
        return tiny(**options)
    options |= {name: _problems(options[name]) for name in ("problems", "held_out")}
    sampling = Sampling(**{**options["sampling"], "stop": tuple(options["sampling"]["stop"])})
    verifier = None if options["verifier"] is None else Math(**options["verifier"])
    make = {"transformers": transformers, "unsloth": unsloth}[config["lab"]]
    return make(**{**options, "sampling": sampling, "verifier": verifier})


def _config(lab, model, problems, held_out, verifier, arguments):
    """How to make the lab again, or None where problems or verifier are of the caller's own making."""
    known = all(
        getattr(pool, "config", {}).get("family") in FAMILIES
        for pool in (problems, held_out)
        if pool is not None
    )
    if not known or not (verifier is None or type(verifier) is Math):
        return None
    return {
        "lab": lab,
        "model": str(model),
        "problems": problems.config,
        "held_out": held_out and held_out.config,
        "verifier": verifier and verifier.config,
        **arguments,
    }


def _plain(arguments, left_out):
    """Arguments as a manifest holds them."""
    return {
        name: describe(asdict(value) if name == "sampling" else value)
        for name, value in arguments.items()
        if name not in left_out
    }


def _problems(config):
    """The pool or stream of a `config`, made by the function of its family."""
    if config is None:
        return None
    make = getattr(problem_room, config["family"])
    known = inspect.signature(make).parameters
    further = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    return make(
        **{
            name: value
            for name, value in config.items()
            if name in known or (further and name != "family")
        }
    )


def _check_sampler(sampling, max_length, gpu_memory_utilization):
    if max_length is not None and not sampling.max_new_tokens < max_length:
        raise ValueError(
            f"max_length={max_length}: prompt and response share it, and sampling.max_new_tokens is "
            f"{sampling.max_new_tokens}; raise the one or lower the other"
        )
    if not 0 < gpu_memory_utilization < 1:
        raise ValueError(
            f"gpu_memory_utilization={gpu_memory_utilization}: a share of the GPU's memory above 0 and below 1"
        )


def _known_levels(levels):
    if (
        not isinstance(levels, (tuple, list))
        or not levels
        or any(level not in tuple(LEVELS) for level in levels)
    ):
        raise ValueError(
            f"levels={levels!r}: known levels are {', '.join(map(str, LEVELS))}, one or more of them in a tuple"
        )
