"""What is asked: problems, finite pools and endless streams of them.

The arithmetic family is the tiny lab's task: left-to-right integer chains, solved by echoing each operation with the
running value and ending in a box. A problem belongs to the training or the held-out split by a hash of its text, so
the two can never overlap, whatever the seeds and sizes.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.datasets.hub import rows
from workbench.utils.seeding import generator

# level: (operations, largest operand)
LEVELS = {
    1: (1, 9),
    2: (2, 9),
    3: (3, 9),
    4: (4, 9),
    5: (2, 49),
    6: (3, 49),
    7: (4, 99),
    8: (5, 99),
}
SPLITS = ("train", "heldout")
HELD_OUT_SHARE = 0.2
OPENING_PRODUCT = 0.15


@dataclass(frozen=True)
class Problem:
    """One question: `id` is stable across runs and pools, `answer` the gold answer as text, `level` >= 0."""

    id: str
    prompt: str
    answer: str
    level: int = 0


class Pool(Sequence):
    """A finite set of problems, drawn epoch by epoch, each epoch in an order of its own.

    A round never spans two epochs: what an epoch has left beyond its last whole draw is skipped.
    """

    def __init__(self, problems, config):
        self.problems, self.config = tuple(problems), dict(config)
        if not self.problems:
            raise ValueError("problems=[]: a pool needs at least one problem")
        ids = [problem.id for problem in self.problems]
        if len(set(ids)) < len(ids):
            twice = next(i for i in ids if ids.count(i) > 1)
            raise ValueError(f"problems: id {twice!r} occurs twice; ids must be unique")

    def __len__(self):
        return len(self.problems)

    def __getitem__(self, index):
        return self.problems[index]

    def draw(self, n, cursor=0, seed=0, exclude=frozenset()):
        """The next n problems after position `cursor`, and the new cursor.

        The order depends on `seed` alone. Problems whose id is in `exclude` are passed over.
        ValueError when the pool has fewer than n others.
        """
        _positive("n", n)
        size = len(self.problems)
        if n > size - sum(problem.id in exclude for problem in self.problems):
            raise ValueError(
                f"n={n}: the pool has {size} problems, {len(exclude)} of them already in this round"
            )
        while True:
            epoch, start = divmod(cursor, size)
            order = generator(seed, "order", epoch).permutation(size)
            ahead = [i for i in range(start, size) if self.problems[order[i]].id not in exclude]
            if len(ahead) >= n:
                return [self.problems[order[i]] for i in ahead[:n]], epoch * size + ahead[n - 1] + 1
            cursor = (epoch + 1) * size

    def epoch(self, cursor):
        """The epoch that position `cursor` lies in, from 0."""
        return cursor // len(self.problems)


class Stream:
    """Endless fresh problems; the k-th depends only on the seed and k. No epochs: `epoch` is always 0."""

    def __init__(self, make, config):
        self.make, self.config = make, dict(config)

    def draw(self, n, cursor=0, seed=0, exclude=frozenset()):
        """The next n problems after position `cursor` with distinct ids outside `exclude`, and the new cursor."""
        _positive("n", n)
        drawn, misses = {}, 0
        while len(drawn) < n:
            problem = self.make(generator(seed, "stream", cursor))
            cursor += 1
            new = problem is not None and problem.id not in exclude and problem.id not in drawn
            misses = 0 if new else misses + 1
            if new:
                drawn[problem.id] = problem
            if misses > 3000:
                raise ValueError(
                    f"n={n}: the stream's levels have too few different problems for one round"
                )
        return list(drawn.values()), cursor

    def epoch(self, cursor):
        """Always 0: nothing comes twice by design."""
        return 0


def arithmetic(n=None, *, levels=tuple(LEVELS), seed=0, split="train"):
    """Integer chains for the tiny lab: a `Pool` of n distinct problems, or an endless `Stream` with n=None.

    levels: those to draw from, in equal shares (1 to 8, see `LEVELS`; a level named twice has twice the share).
    split: "train" or "heldout"; no problem is ever in both.
    A level with fewer distinct problems than its share gives all it has (level 1: 99 for training and 27 held
    out) and the others make up for it; ValueError when all of them together have fewer than n.
    """
    levels = tuple(levels)
    _check_split(split)
    if not levels or not set(levels) <= set(LEVELS):
        raise ValueError(f"levels={levels}: known levels are {', '.join(map(str, LEVELS))}")
    config = {"family": "arithmetic", "n": n, "levels": list(levels), "seed": seed, "split": split}
    if n is None:
        return Stream(_of_split(lambda rng: _chain(int(rng.choice(levels)), rng), split), config)
    _positive("n", n)
    return Pool(_distinct_chains(n, levels, seed, split), config)


def solution(prompt):
    """The worked response to an arithmetic prompt: each operation with the running value, then the box.

    `solution("7+5+6=")` is `"+5=12+6=18 \\boxed{18}"`; an opening product is given by its value, `"5*10-31="` starts
    with `"50"`.
    """
    value, text = None, ""
    for sign, operand in _operations(prompt):
        if value is None:
            value = operand
        elif sign == "*":
            value *= operand
            text += str(value)
        else:
            value += operand if sign == "+" else -operand
            text += f"{sign}{operand}={value}"
    return f"{text} \\boxed{{{value}}}"


def reasoning_gym(
    name,
    n=500,
    *,
    seed=0,
    split="train",
    instruction="\nGive the final answer in \\boxed{{}}.",
    **options,
):
    """A `Pool` of n problems of a reasoning-gym task (`name` as there: "chain_sum", "gsm_symbolic", ...).

    options go to the task's configuration. Gold answers are the stored ones and are compared by the lab's verifier:
    the task's own scorer, which may evaluate what a model wrote, is never called.
    """
    _positive("n", n)
    _check_split(split)
    gym = _import_reasoning_gym()
    found, size = {}, 20 + n * {"train": 3, "heldout": 10}[split]
    try:
        items = gym.create_dataset(name, size=size, seed=seed, **options)
    except ValueError as error:
        raise ValueError(f"name={name!r}, options={options}: reasoning-gym says: {error}") from None
    for item in items:
        if len(found) < n and _split_of(item["question"]) == split:
            question = item["question"] + instruction.format()
            key = f"{name}/{hashlib.blake2b(item['question'].encode(), digest_size=8).hexdigest()}"
            found.setdefault(key, Problem(key, question, str(item["answer"]), 0))
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


def hub(
    name,
    split="train",
    n=None,
    *,
    seed=0,
    template=None,
    levels=None,
    path=None,
    revision=None,
    verifier=None,
):
    """A `Pool` of a public data set: "gsm8k", "math", "math-500", "dapo-math-17k", "aime24", "gpqa", ... (`hub.DATA_SETS`).

    name: in any case. split: "train" or "test", as the set has. n: a subset drawn by `seed`; None for all.
    template: text with {prompt} where the question goes, such as `workbench.datasets.hub.BOXED`, the default, `TAGS` or, the
    default of "gpqa", `CHOICE`; "{prompt}" for the bare question. levels: keep these (MATH has 1 to 5; 0 is unknown).
    path: a local file (JSONL, JSON, parquet, CSV) or directory with the same columns, instead of the hub. revision:
    another commit, tag or branch than the pinned commit. verifier: leave out problems whose gold answer, in a box, it
    does not score 1; a few answers of the larger sets cannot be read as mathematics, and would end a run when drawn.

    Needs the package `datasets`. ValueError for an unknown name, split, revision or level and for missing columns,
    ConnectionError with the command to run elsewhere when the data is not here, PermissionError for a gated set.
    """
    found, config = rows(
        name,
        split,
        n,
        seed=seed,
        template=template,
        levels=levels,
        path=path,
        revision=revision,
        verifier=verifier,
    )
    return Pool([Problem(**row) for row in found], config)


def _chain(level, rng):
    """One chain of the level, partial results never negative; one of several operations may open with a product."""
    operations, largest = LEVELS[level]
    if operations > 1 and rng.random() < OPENING_PRODUCT:
        factors = rng.integers(2, 10), rng.integers(2, 11)
        value, text, left = (
            int(factors[0] * factors[1]),
            f"{factors[0]}*{factors[1]}",
            operations - 1,
        )
    else:
        value = int(rng.integers(1, largest + 1))
        text, left = str(value), operations
    for _ in range(left):
        if value > 0 and rng.random() < 0.5:
            operand = int(rng.integers(1, min(value, largest) + 1))
            value, text = value - operand, f"{text}-{operand}"
        else:
            operand = int(rng.integers(1, largest + 1))
            value, text = value + operand, f"{text}+{operand}"
    return Problem(f"arithmetic/{text}=", f"{text}=", str(value), level)


def _distinct_chains(n, levels, seed, split):
    """n distinct problems, each level its share; what a small level cannot give, the others do."""
    found, makers = {}, {level: generator(seed, "arithmetic", split, level) for level in levels}
    while len(found) < n:
        open_levels = [level for level in levels if level in makers]
        if not open_levels:
            raise ValueError(
                f"n={n}: levels {levels} have only {len(found)} distinct {split} problems"
            )
        shares = np.bincount(
            np.arange(n - len(found)) % len(open_levels), minlength=len(open_levels)
        )
        for level, share in zip(open_levels, shares):
            if not _add_chains(found, int(share), level, makers[level], split):
                makers.pop(level, None)
    return found.values()


def _add_chains(found, share, level, rng, split):
    """Adds `share` new problems of the level to `found`; False when the level runs dry first."""
    make, goal, misses = _of_split(_chain, split), len(found) + share, 0
    while len(found) < goal and misses < 3000:
        problem = make(level, rng)
        misses = misses + 1 if problem is None or problem.id in found else 0
        if problem is not None:
            found.setdefault(problem.id, problem)
    return len(found) == goal


def _of_split(make, split):
    def made(*args):
        problem = make(*args)
        return problem if _split_of(problem.prompt) == split else None

    return made


def _split_of(text):
    share = (
        int.from_bytes(
            hashlib.blake2b(text.encode(), digest_size=4, person=b"heldout").digest(), "big"
        )
        / 2**32
    )
    return "heldout" if share < HELD_OUT_SHARE else "train"


def _operations(prompt):
    body = prompt.rstrip("=")
    sign, digits = "+", ""
    for character in body + "+":
        if character.isdigit():
            digits += character
        else:
            yield sign, int(digits)
            sign, digits = character, ""


def _import_reasoning_gym():
    try:
        import reasoning_gym as gym
    except ImportError:
        raise ImportError(
            "reasoning_gym problems need a package: pip install reasoning-gym"
        ) from None
    return gym


def _check_split(split):
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: allowed are {', '.join(SPLITS)}")


def _positive(name, value):
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name}={value!r}: a positive whole number is needed")
