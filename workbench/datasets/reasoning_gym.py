"""Generated tasks of reasoning-gym as pools of problems."""

from typing import Any

from workbench.policies.checks import check_packages
from workbench.pools import MOST_PROBLEMS, SPLITS, Pool, Problem, digest_of, split_of
from workbench.utils.validation import instance_of, one_of, whole_number

BETWEEN_SEEDS = 10**8  # more than there are draws of one pool


def reasoning_gym(
    name: str,
    n: int = 500,
    *,
    seed: int = 0,
    split: str = "train",
    instruction: str = "\nGive the final answer in \\boxed{{}}.",
    **options: Any,
) -> Pool:
    """A `Pool` of n problems of a reasoning-gym task, such as "chain_sum" or "gsm_symbolic".

    Parameters
    ----------
    name : str
        Name of the task, as in reasoning-gym.
    n, seed, split
        As in `arithmetic`.
    instruction : str
        What is added to each question; {{ and }} stand for braces.
    options
        Go to the task's configuration.

    Notes
    -----
    Gold answers are the stored ones and are compared by the lab's verifier. The task's own scorer
    is never called, since some of them evaluate what a model wrote.
    """
    whole_number("n", n, 1, MOST_PROBLEMS)
    one_of("split", split, SPLITS)
    instance_of("instruction", instruction, str, "'\\nGive the answer alone.'")
    check_packages("reasoning_gym")
    import reasoning_gym as gym

    # Enough draws for n problems of the split, which has four fifths or one fifth of all.
    size = 20 + n * (3 if split == "train" else 10)
    try:
        # It draws item i by seed + i, so that neighbouring seeds would share nearly all items.
        items = gym.create_dataset(name, size=size, seed=seed * BETWEEN_SEEDS, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"name={name!r}, options={options}: reasoning-gym says: {error}") from None
    # As in a template, {{ and }} stand for braces.
    ending = instruction.replace("{{", "{").replace("}}", "}")
    found: dict[str, Problem] = {}
    for item in items:
        question = item["question"]
        # Some tasks have a scorer alone, which is never called.
        if item["answer"] is None:
            raise ValueError(f"name={name!r}: its problems have no stored answer to compare with")
        # Neither the split nor the id depends on the instruction, so its wording can be changed.
        if split_of(question) == split:
            key = f"{name}/{digest_of(question)}"
            found.setdefault(key, Problem(key, question + ending, str(item["answer"]), 0))
        if len(found) == n:
            break
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
