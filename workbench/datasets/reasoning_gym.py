"""Generated tasks of reasoning-gym as pools of problems."""

from __future__ import annotations

from typing import Any

from workbench.policies.checks import check_packages
from workbench.pools import MOST_PROBLEMS, SPLITS, Pool, Problem, digest_of, split_of
from workbench.utils.validation import instance_of, one_of, whole_number
from workbench.verifiers.pool import Pool as Workers
from workbench.verifiers.worker import Judge

# What making the problems may take.
SECONDS = 60.0
SECONDS_EACH = 0.01
MEMORY_MB = 2048


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
    # Enough draws for n problems of the split, which has four fifths or one fifth of all.
    size = 20 + n * (3 if split == "train" else 10)
    asked = {"name": name, "n": n, "size": size, "seed": seed, "split": split, "options": options}
    # In a process that can be killed: options such as min_terms=10**9, which may come from a
    # stranger's manifest, would take all time or memory.
    deadline = SECONDS + n * SECONDS_EACH
    with Workers(
        f"{__name__}:generator", workers=1, deadline=deadline, memory_mb=MEMORY_MB
    ) as each:
        reply = each.run([asked])[0]
    if reply["status"] != "ok":
        reasons = {
            "timeout": f"making the problems takes longer than {deadline:.0f} seconds",
            "crash": f"making the problems takes more than {MEMORY_MB} MiB",
        }
        raise ValueError(
            f"name={name!r}, options={options}: "
            f"{reasons.get(reply['status']) or 'reasoning-gym says: ' + reply['message']}"
        )
    # Not by `format`: a stranger's instruction could ask it for a text of any length.
    ending = instruction.replace("{{", "{").replace("}}", "}")
    # The id does not depend on the instruction, so its wording can be changed.
    found = [
        Problem(f"{name}/{digest_of(question)}", question + ending, answer, 0)
        for question, answer in reply["found"].items()
    ]
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
    return Pool(found, config)


def generator() -> Judge:
    """What the process does: the first n different questions of the split, with their answers."""
    import reasoning_gym as gym

    def generate(asked: dict) -> dict:
        try:
            items = gym.create_dataset(
                asked["name"], size=asked["size"], seed=asked["seed"], **asked["options"]
            )
        except (AssertionError, TypeError, ValueError) as error:
            return {"status": "refused", "message": str(error)}
        found: dict[str, str] = {}
        for item in items:
            if split_of(item["question"]) == asked["split"]:
                found.setdefault(item["question"], str(item["answer"]))
            if len(found) == asked["n"]:
                break
        return {"status": "ok", "found": found}

    return generate
