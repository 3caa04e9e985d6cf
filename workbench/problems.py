"""What is asked: problems, finite pools and endless streams of them.

A `Pool` is a finite set of problems, a `Stream` makes fresh ones without end. The functions at the
end make them: `arithmetic` and `chains` for the tiny lab, `from_rows` and `from_file` for data of
your own, `reasoning_gym` for generated tasks, `hub` for public data sets, `environment` for
environments of the package verifiers.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from workbench.utils.seeding import generator
from workbench.utils.validation import one_of, shown, whole_number

SPLITS = ("train", "heldout")
HELD_OUT_SHARE = 0.2  # of all generated problems, by a hash of their text
MOST_MISSES = (
    3000  # draws in a row without a new problem, after which a generator counts as exhausted
)
IN_DIGEST = 64  # problems of a stream that its digest is of
MOST_PROBLEMS = 100_000  # that are generated at once, so that no configuration runs for hours first


class PoolExhausted(ValueError):
    """A pool has fewer problems left than were asked for."""


@dataclass(frozen=True)
class Problem:
    """One question.

    Attributes
    ----------
    id : str
        Stable across runs and pools; all history of a problem is kept under it.
    prompt : str
    answer : str
        The gold answer.
    level : int
        Difficulty level, 0 where there is none.
    """

    id: str
    prompt: str
    answer: str
    level: int = 0


class Pool(Sequence):
    """A finite set of problems, drawn epoch by epoch, each epoch in an order of its own.

    Parameters
    ----------
    problems : iterable of Problem
        With different ids.
    config : dict, optional
        How to make the pool again, for the manifest of a run: "family" is the function of this
        module, the rest are its arguments. Empty for a pool of one's own.
    checked_for : str, optional
        Name of the verifier's class that is known to be able to use every answer. Where it is
        another one or none, a run looks through the answers before its first round.
    """

    def __init__(
        self,
        problems: Iterable[Problem],
        config: Mapping[str, Any] | None = None,
        checked_for: str | None = None,
    ) -> None:
        if isinstance(problems, str | Mapping) or not isinstance(problems, Iterable):
            raise ValueError(
                f"problems={shown(problems)}: several problems are needed, such as "
                "[Problem(id, prompt, answer)]"
            )
        self.problems = tuple(problems)
        self.config = dict(config or {})
        self.checked_for = checked_for
        if not self.problems:
            raise ValueError("problems=[]: a pool needs at least one problem")
        seen: set[str] = set()
        for problem in self.problems:
            if not isinstance(problem, Problem):
                raise ValueError(
                    f"problems: {shown(problem)} is no Problem; make one with Problem(id, prompt, "
                    "answer), or the whole pool with problems.from_rows(rows)"
                )
            if problem.id in seen:
                raise ValueError(f"problems: id {problem.id!r} occurs twice; ids must be unique")
            seen.add(problem.id)
        self._ids = frozenset(seen)
        self._order: tuple[tuple[int, int], np.ndarray] | None = None  # the last one of `order`

    @cached_property
    def digest(self) -> str:
        """A digest of all problems in their order, which a run's manifest records and compares."""
        return _digest(self.problems)

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: Any) -> Any:
        return self.problems[index]

    def draw(
        self, n: int, cursor: int = 0, seed: int = 0, exclude: AbstractSet[str] = frozenset()
    ) -> tuple[list[Problem], int]:
        """The next n problems behind a position, in the order of shuffled epochs.

        Parameters
        ----------
        n : int
        cursor : int
            The position, counted over all epochs.
        seed : int
            The order depends on it alone.
        exclude : set of ids
            Problems that are passed over.

        Returns
        -------
        problems, cursor
            The problems, all of one epoch, and the position behind them. Where an epoch has fewer
            than n left, they are skipped and the next epoch begins.

        Raises
        ------
        PoolExhausted
            When the whole pool has fewer than n problems outside `exclude`.
        """
        whole_number("n", n, 1)
        size = len(self.problems)
        excluded = sum(problem in self._ids for problem in exclude)
        if n > size - excluded:
            taken = f", {excluded} of them already in this round" if excluded else ""
            raise PoolExhausted(f"n={n}: the pool has {size} problems{taken}")
        while True:
            epoch, start = divmod(cursor, size)
            order = self.order(seed, epoch)
            drawn = []
            # Only as far as it takes, since a pool may be large.
            for place in range(start, size):
                problem = self.problems[order[place]]
                if problem.id in exclude:
                    continue
                drawn.append(problem)
                if len(drawn) == n:
                    # Excluded problems before the cursor have had their turn in this epoch.
                    return drawn, epoch * size + place + 1
            cursor = (epoch + 1) * size

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """The places (P,) of all problems in the order of an epoch."""
        # It follows from seed and epoch, so a pool keeps no position and a resumed run has nothing
        # to restore but its cursor. The last one is kept because every round of an epoch needs it.
        if self._order is None or self._order[0] != (seed, epoch):
            places = generator(seed, "order", epoch).permutation(len(self.problems))
            self._order = ((seed, epoch), places)
        return self._order[1]

    def epoch(self, cursor: int) -> int:
        """The epoch that a position lies in, from 0."""
        return cursor // len(self.problems)


class Stream:
    """Endless fresh problems; the k-th depends on the seed and on k alone.

    Parameters
    ----------
    make : function
        make(rng) returns a problem, or None for a draw that does not count.
    config : dict, optional
        As for `Pool`.
    """

    def __init__(
        self,
        make: Callable[[np.random.Generator], Problem | None],
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.make = make
        self.config = dict(config or {})

    @cached_property
    def digest(self) -> str:
        """A digest of the first problems at one seed, by which a run knows another stream."""
        first: list[Problem] = []
        cursor = 0
        # One at a time, so that a stream of few different problems has a digest as well.
        while len(first) < IN_DIGEST:
            drawn, cursor = self.draw(1, cursor)
            first += drawn
        return _digest(first)

    def draw(
        self, n: int, cursor: int = 0, seed: int = 0, exclude: AbstractSet[str] = frozenset()
    ) -> tuple[list[Problem], int]:
        """The next n different problems outside `exclude`, and the position behind them."""
        whole_number("n", n, 1)
        drawn: dict[str, Problem] = {}
        misses = 0
        while len(drawn) < n:
            # A generator for each position, so that a problem does not depend on those before it.
            problem = self.make(generator(seed, "stream", cursor))
            cursor += 1
            if problem is not None and problem.id not in exclude and problem.id not in drawn:
                drawn[problem.id] = problem
                misses = 0
                continue
            # Misses in a row: a slow search that still finds something goes on.
            misses += 1
            if misses > MOST_MISSES:
                raise PoolExhausted(
                    f"n={n}: the stream has too few different problems for one round"
                )
        return list(drawn.values()), cursor

    def epoch(self, cursor: int) -> int:
        """Always 0: nothing comes twice by design."""
        return 0


def arithmetic(
    n: int | None = None,
    *,
    levels: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8),
    seed: int = 0,
    split: str = "train",
) -> Pool | Stream:
    """Integer chains such as "7+5-3=": a `Pool` of n distinct problems, or an endless `Stream`.

    Parameters
    ----------
    n : int, optional
        Problems of the `Pool`; None for a `Stream`.
    levels : numbers from 1 to 8
        The levels to draw from, in equal shares; a level named twice has twice the share. A level
        with fewer distinct problems than its share gives all it has, and the others make up for it.
    seed : int
    split : {"train", "heldout"}
        A problem belongs to one of the two by a hash of its text, so they never overlap, whatever
        seeds and sizes are.

    Raises
    ------
    ValueError
        For unknown levels, and where all levels together have fewer than n problems.
    """
    # Imported here, since the modules of `datasets` import `Pool` and `Problem` from this one.
    from workbench.datasets import arithmetic as family

    return family.problems(n, levels=levels, seed=seed, split=split)


def chains(
    n: int | None = None,
    *,
    levels: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8),
    seed: int = 0,
    split: str = "train",
    regime: str = "spread",
    base: str = "early",
) -> Pool | Stream:
    """Chains of small additions and subtractions for the sharp lab, such as "7+5-3=".

    Parameters
    ----------
    n : int, optional
        Problems of the `Pool`; None for a `Stream` without end.
    levels : numbers from 1 to 8
        Numbers of operations, which take turns.
    seed : int
    split : {"train", "heldout"}
        A problem belongs to one of the two by a hash of its text, so they never overlap.
    regime : {"spread", "knapsack", "ar3po", "mixed"}
        How hard the problems are for the base model, see `workbench.datasets.chains.REGIMES`.
    base : {"early", "late"}
        The base model that `regime` is about.

    Raises
    ------
    ValueError
        For unknown names and levels, and where there are fewer than n such problems.
    """
    from workbench.datasets import chains as family

    return family.problems(n, levels=levels, seed=seed, split=split, regime=regime, base=base)


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
        What is added to each question.
    options
        Go to the task's configuration.

    Notes
    -----
    Gold answers are the stored ones and are compared by the lab's verifier. The task's own scorer
    is never called, since some of them evaluate what a model wrote.
    """
    from workbench.datasets import reasoning_gym as gym

    return gym.problems(name, n, seed=seed, split=split, instruction=instruction, **options)


def hub(
    name: str,
    split: str = "train",
    n: int | None = None,
    *,
    seed: int = 0,
    template: str | None = None,
    levels: Sequence[int] | None = None,
    path: Any = None,
    revision: str | None = None,
    verifier: Any = None,
) -> Pool:
    """A `Pool` of a public data set, such as "gsm8k", "math", "math-500", "aime24" or "gpqa".

    Parameters
    ----------
    name : str
        In any case; `workbench.datasets.hub.DATA_SETS` lists them.
    split : str
        "train" or "test", as the set has it.
    n : int, optional
        Size of a subset drawn by `seed`; None for all problems.
    seed : int
    template : str, optional
        Text with {prompt} where the question goes, such as `BOXED`, the default, `TAGS` or, the
        default of "gpqa", `CHOICE` of `workbench.datasets.hub`; "{prompt}" for the bare question.
    levels : numbers, optional
        Keep these levels (MATH has 1 to 5; 0 is unknown).
    path : path, optional
        A local file (JSONL, JSON, parquet, CSV) or directory with the same columns, in place of the
        hub.
    revision : str, optional
        Another commit, tag or branch than the pinned commit.
    verifier : Verifier, optional
        Leave out problems whose gold answer, in a box, it does not score 1. A few answers of the
        larger sets cannot be read as mathematics and would end a run when they are drawn.

    Raises
    ------
    ValueError
        For an unknown name, split, revision or level, and for missing columns.
    ConnectionError
        When the data is not on this machine, with the command that fetches it.
    PermissionError
        For a data set that asks for consent first.

    Notes
    -----
    Needs the package `datasets`.
    """
    from workbench.datasets import hub as data_sets

    found, config = data_sets.rows(
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
    checked_for = None if verifier is None else _name_of(verifier)
    return Pool([Problem(**row) for row in found], config, checked_for)


def from_rows(
    rows: Iterable[Mapping[str, Any]],
    *,
    prompt: str = "prompt",
    answer: str = "answer",
    level: str | None = None,
    template: str = "{prompt}",
    repeated: str = "refuse",
    verifier: Any = None,
    tokenizer: Any = None,
) -> Pool:
    r"""A `Pool` of your own problems, all of them checked.

    Parameters
    ----------
    rows : iterable of dicts
        One for each problem.
    prompt, answer : str
        Names of the columns with the question and with the gold answer, a text or a number.
    level : str, optional
        Name of a column with the difficulty, a whole number.
    template : str
        A text with {prompt} where the question goes.
    repeated : {"refuse", "drop"}
        What happens to a problem that occurs more than once with the same answer. Different answers
        to one question are always refused.
    verifier : optional
        The verifier of the lab: every answer must be one that it can use. Default: `Math()`, as in
        the labs.
    tokenizer : path, name or tokenizer, optional
        That of the model: every prompt must be one that it can express. Default: prompts are not
        checked.

    Raises
    ------
    ValueError
        For missing columns, blank prompts, answers that the verifier cannot use, repeated problems
        and prompts that the tokenizer cannot express. The message names the first such row.

    Examples
    --------
    >>> pool = from_rows([{"prompt": "1+1=", "answer": 2}, {"prompt": "2+2=", "answer": 4}])
    >>> pool[1].answer
    '4'
    """
    from workbench.datasets import rows as own

    made = own.problems(
        rows,
        prompt=prompt,
        answer=answer,
        level=level,
        template=template,
        repeated=repeated,
        verifier=verifier,
        tokenizer=tokenizer,
    )
    # Without a configuration: a manifest cannot make the caller's rows again.
    return Pool(made, checked_for=_name_of(verifier))


def from_file(
    path: Any,
    *,
    prompt: str = "prompt",
    answer: str = "answer",
    level: str | None = None,
    template: str = "{prompt}",
    repeated: str = "refuse",
    verifier: Any = None,
    tokenizer: Any = None,
) -> Pool:
    """A `Pool` of the problems in a file, all of them checked.

    Parameters
    ----------
    path : path
        A file that ends in .jsonl (an object on each line), .json (a list of objects), .csv (with a
        line of names) or .parquet.
    prompt, answer, level, template, repeated, verifier, tokenizer
        As in `from_rows`.

    Raises
    ------
    ValueError
        As `from_rows`, and for a file of another kind.
    FileNotFoundError
        When there is no such file.
    """
    from workbench.datasets import rows as own

    made = own.problems(
        own.read(path),
        prompt=prompt,
        answer=answer,
        level=level,
        template=template,
        repeated=repeated,
        verifier=verifier,
        tokenizer=tokenizer,
        source=str(path),
    )
    # The tokenizer only checks the prompts, so the pool is the same without it.
    config = {
        "family": "from_file",
        "path": str(path),
        "prompt": prompt,
        "answer": answer,
        "level": level,
        "template": template,
        "repeated": repeated,
    }
    # A verifier of your own is nothing that a manifest can make again.
    return Pool(made, config if verifier is None else None, _name_of(verifier))


class Environment(NamedTuple):
    """What `environment` returns: all that a lab needs besides a model.

    Attributes
    ----------
    problems : Pool
    held_out : Pool, optional
    verifier : Verifier
    """

    problems: Pool
    held_out: Pool | None
    verifier: Any


def environment(
    name: str,
    n: int | None = None,
    *,
    held_out: int = 0,
    seed: int = 0,
    right_from: float = 1.0,
    **options: Any,
) -> Environment:
    """A single-turn environment of the package verifiers, as problems and their verifier.

        sums = problems.environment("my-environment", held_out=100)
        lab = labs.transformers(model, sums.problems, sums.held_out, verifier=sums.verifier)

    Parameters
    ----------
    name : str
        Of an installed environment, or of a module of your own with a `Taskset` in its `__all__`.
    n : int, optional
        Problems to train on; None for all that are left. A set without end needs a number.
    held_out : int
        Problems to evaluate on, which are not trained on.
    seed : int
        Of the draw that divides the tasks. Tasks that are the same in everything count once.
    right_from : float
        The reward from which on a response counts as right, for allocators and accuracies. What is
        trained on is the reward itself: the weighted sum of the environment's functions.
    options
        Go to the environment's configuration.

    Returns
    -------
    Environment
        With `problems`, `held_out` (None without held-out problems) and `verifier`.

    Raises
    ------
    ImportError
        Without the package or the environment.
    ValueError
        For an environment with tools, a container, a judge or several agents, and for options that
        it does not have.

    Notes
    -----
    Needs the package verifiers, 0.4 or later: pip install 'workbench-rlvr[environments]'. Loading
    an environment runs its code, and so does scoring, in this process. So no manifest can name one,
    and `Run.resume` asks for the lab.
    """
    from workbench.datasets import environments
    from workbench.verifiers.environment import TaskRewards

    training, evaluation = environments.tasks(name, n, held_out, seed, options)
    verifier = TaskRewards(environments.answers_of([*training, *evaluation]), right_from)
    return Environment(
        Pool(problem for problem, _ in training),
        Pool(problem for problem, _ in evaluation) if evaluation else None,
        verifier,
    )


def _digest(problems: Iterable[Problem]) -> str:
    """A digest of all fields of problems, in their order."""
    # As JSON the fields stay apart, whatever characters they hold.
    content = [(each.id, each.prompt, each.answer, each.level) for each in problems]
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()


def _name_of(verifier: Any) -> str:
    """The class of the verifier that looked through the answers of rows; `Math` for None."""
    return "Math" if verifier is None else type(verifier).__name__


# What a manifest may name as the family of a pool.
FAMILIES: dict[str, Callable[..., Any]] = {
    "arithmetic": arithmetic,
    "chains": chains,
    "reasoning_gym": reasoning_gym,
    "hub": hub,
    "from_file": from_file,
}
# Tasks of reasoning-gym that a manifest must not name: the first executes snippets of code, the
# second is made of any other tasks.
NOT_FROM_A_MANIFEST = ("codeio", "composite")
# reasoning-gym evaluates some of the expressions that it composes from options. Without brackets
# and quotes an expression cannot call anything.
HARMLESS_TEXT = re.compile(r"[\w +*/.,:<>=-]{0,100}")


def from_config(config: Mapping[str, Any] | None) -> Pool | Stream | None:
    """The pool or stream that a `config` describes; None for None.

    Raises
    ------
    ValueError
        For what `check_config` refuses, and for wrong arguments.
    """
    check_config(config)
    if config is None:
        return None
    make = FAMILIES[config["family"]]
    # A config also tells what was found, such as the rows left out, which is no argument.
    taken = inspect.signature(make).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in taken.values())
    options = {
        name: value
        for name, value in config.items()
        if name in taken or (takes_any and name != "family")
    }
    return make(**options)


def check_config(config: Any) -> None:
    """Raise ValueError for a `config` that names anything but problems of the known families.

    It may come from a stranger's manifest, so nothing in it may lead to code being run.
    """
    if config is None:
        return
    if not isinstance(config, Mapping):
        raise ValueError(f"problems: {shown(config)}; an object with a family is needed")
    one_of("family", config.get("family"), FAMILIES)
    # A verifier is an object that only code can make.
    if config["family"] in ("hub", "from_file") and config.get("verifier") is not None:
        raise ValueError("verifier: a manifest cannot name one for a data set")
    if config["family"] == "from_file" and config.get("tokenizer") is not None:
        raise ValueError("tokenizer: a manifest cannot name one for a file")
    if config["family"] == "reasoning_gym":
        name = config.get("name")
        if name in NOT_FROM_A_MANIFEST:
            raise ValueError(f"name={name!r}: this task cannot be made from a manifest")
        for option, value in config.items():
            # The instruction is text for the model; it is only appended to the question.
            if option != "instruction":
                _check_harmless(option, value)


def _check_harmless(option: str, value: Any) -> None:
    """ValueError unless an option consists of numbers and of texts without brackets and quotes."""
    if isinstance(value, str) and not HARMLESS_TEXT.fullmatch(value):
        raise ValueError(
            f"{option}={shown(value)}: a manifest can give texts of letters, digits and signs only"
        )
    if isinstance(value, Mapping):
        raise ValueError(f"{option}={shown(value)}: a manifest can give numbers, texts and lists")
    if isinstance(value, list):
        for item in value:
            _check_harmless(option, item)


def split_of(text: str) -> str:
    """The split that a generated problem belongs to, by a hash of its text."""
    digest = hashlib.blake2b(text.encode(), digest_size=4, person=b"heldout").digest()
    # The hash as a number in [0, 1), which is uniform over texts.
    share = int.from_bytes(digest, "big") / 2**32
    return "heldout" if share < HELD_OUT_SHARE else "train"
