"""Generated tasks of reasoning-gym as pools of problems."""

from __future__ import annotations

import hashlib
from typing import Any

from workbench.problems import MOST_PROBLEMS, SPLITS, Pool, Problem, split_of
from workbench.utils.validation import one_of, whole_number


def problems(name: str, n: int, *, seed: int, split: str, instruction: str, **options: Any) -> Pool:
    """The pool that `workbench.problems.reasoning_gym` documents."""
    whole_number("n", n, 1, MOST_PROBLEMS)
    one_of("split", split, SPLITS)
    gym = _imported()
    # Enough draws for n problems of the split, which has four fifths or one fifth of all.
    size = 20 + n * (3 if split == "train" else 10)
    try:
        items = gym.create_dataset(name, size=size, seed=seed, **options)
    except ValueError as error:
        raise ValueError(f"name={name!r}, options={options}: reasoning-gym says: {error}") from None
    found: dict[str, Problem] = {}
    for item in items:
        question = item["question"]
        # Neither the split nor the id depends on the instruction, so its wording can be changed.
        if len(found) < n and split_of(question) == split:
            digest = hashlib.blake2b(question.encode(), digest_size=8).hexdigest()
            key = f"{name}/{digest}"
            prompt = question + instruction.format()
            found.setdefault(key, Problem(key, prompt, str(item["answer"]), 0))
    if len(found) < n:
        raise ValueError(
            f"n={n}: {name} has only {len(found)} distinct {split} problems among {size} draws"
        )
    config = {
        "family": "reasoning_gym",
        "name": name,
        "n": n,
        "seed": seed,
        "split": split,
        "instruction": instruction,
        **options,
    }
    return Pool(found.values(), config)


def _imported() -> Any:
    try:
        import reasoning_gym
    except ImportError:
        raise ImportError(
            "reasoning_gym problems need a package: pip install reasoning-gym"
        ) from None
    return reasoning_gym
