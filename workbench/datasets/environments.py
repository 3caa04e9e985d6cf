"""Environments of the package verifiers as problems and their verifier.

An environment of this package is a taskset: tasks, each with a prompt and reward functions. What is
taken here are those of a single turn, whose rewards need nothing but the model's reply. All others
are refused by name: with tools, a container, a judge or another agent a rollout is more than one
response.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from workbench.policies.checks import check_packages
from workbench.pools import Pool, Problem, digest_of
from workbench.utils.seeding import generator
from workbench.utils.validation import shown, unknown_argument, whole_number
from workbench.verifiers.environment import TaskRewards

OLDEST = (0, 4)  # the first release whose `verifiers.v1` is all there is
Pairs = list[tuple[Problem, Any]]


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
    training, evaluation = _divided(name, n, held_out, seed, options)
    # A verifier sees answers alone, so it finds the task of a response by the answer.
    tasks = {problem.answer: task for problem, task in [*training, *evaluation]}
    return Environment(
        Pool(problem for problem, _ in training),
        Pool(problem for problem, _ in evaluation) if evaluation else None,
        TaskRewards(tasks, right_from),
    )


def _divided(
    name: str, n: int | None, held_out: int, seed: int, options: Mapping[str, Any]
) -> tuple[Pairs, Pairs]:
    """Problems with their tasks, to train on and to evaluate on."""
    if n is not None:
        whole_number("n", n, 1)
    whole_number("held_out", held_out, 0)
    _check_package()
    taskset = _taskset(name, options)
    if taskset.bounded:
        found = list(taskset)
    elif n is None:
        raise ValueError(f"n=None: environment {name!r} has no end; say how many problems to take")
    else:
        found = list(taskset.take(n + held_out))
    if not found:
        raise ValueError(f"environment {name!r}: it has no tasks")
    _check_single_turn(name, taskset, found[0])

    pairs = _distinct((_problem(name, task), task) for task in found)
    order = generator(seed, "environment").permutation(len(pairs))
    shuffled = [pairs[place] for place in order]
    if held_out >= len(shuffled):
        raise ValueError(
            f"held_out={held_out}: environment {name!r} has {len(shuffled)} different tasks, and "
            "at least one has to be left to train on"
        )
    rest = shuffled[held_out:]
    if n is not None and n > len(rest):
        raise ValueError(
            f"n={n}: environment {name!r} has {len(shuffled)} different tasks, {held_out} of them "
            "held out"
        )
    return rest[:n], shuffled[:held_out]


def _check_package() -> None:
    """Raise ImportError unless the package is there, in a release that this module knows."""
    check_packages("verifiers")
    installed = version("verifiers")
    if tuple(int(part) for part in installed.split(".")[:2]) < OLDEST:
        raise ImportError(
            f"verifiers {installed} is too old for this; install with: "
            "pip install 'workbench-rlvr[environments]'"
        )


def _taskset(name: str, options: Mapping[str, Any]) -> Any:
    """The taskset of that name, with its options."""
    import verifiers.v1 as vf

    if not isinstance(name, str) or not name:
        raise ValueError(f"name={shown(name)}: the name of an installed environment is needed")
    try:
        kind = vf.taskset_config_type(name)
        several = not issubclass(vf.environment_class(name), vf.SingleAgentEnv)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"environment {name!r} is not installed ({error}); install its package, or put the "
            "module with its taskset where Python finds it"
        ) from error
    except (AttributeError, TypeError) as error:
        raise ValueError(
            f"environment {name!r} is no taskset of verifiers 0.4 or later: {error}"
        ) from error
    if several:
        raise ValueError(f"environment {name!r} needs several agents; here a rollout is one reply")
    known = [each for each in kind.model_fields if each != "id"]
    for option in options:
        if option not in known:
            raise unknown_argument(option, f"environment {name!r}", known)
    # Its own checks of the values raise a ValueError that names them.
    return vf.load_taskset(kind(id=name, **options))


def _check_single_turn(name: str, taskset: Any, task: Any) -> None:
    """Raise ValueError for an environment whose rollouts are more than one reply.

    All tasks of a taskset are of one class, so the first one speaks for all.
    """
    import verifiers.v1 as vf

    kind = type(task)
    reason = None
    if type(taskset).toolsets(taskset.config) or kind.toolsets(task.config):
        reason = "gives the model tools"
    elif kind.NEEDS_CONTAINER or task.data.image is not None:
        reason = "runs in a container"
    elif kind.setup is not vf.Task.setup or kind.finalize is not vf.Task.finalize:
        reason = "prepares a machine for each rollout"
    elif task.config.judges:
        reason = "asks another model to judge"
    elif any(map(_needs_runtime, task.hooks("reward"))):
        reason = "looks at the machine that a rollout ran on"
    if reason is not None:
        raise ValueError(
            f"environment {name!r} {reason}; only environments of a single turn can be used, whose "
            "rewards read the reply alone"
        )
    if not task.hooks("reward"):
        raise ValueError(f"environment {name!r} has no reward function")


def _needs_runtime(function: Any) -> bool:
    runtime = inspect.signature(function).parameters.get("runtime")
    return runtime is not None and runtime.default is runtime.empty


def _problem(name: str, task: Any) -> Problem:
    """The task's prompt, with all that the task says as its answer.

    The rewards may read any field of a task, so a changed field is another problem and makes
    another digest of the pool.
    """
    prompt = _prompt(name, task.data)
    # The index is the task's place in the set, and no property of the question.
    content = task.data.model_dump(mode="json", exclude={"idx"}, exclude_defaults=True)
    answer = json.dumps(content, sort_keys=True)
    return Problem(f"{name}/{digest_of(answer)}", prompt, answer)


def _prompt(name: str, data: Any) -> str:
    """The text that the model is asked; ValueError for a conversation and for pictures."""
    messages: Sequence[Any] = () if isinstance(data.prompt, str | None) else data.prompt
    for message in messages:
        if message.role != "user" or not isinstance(message.content, str):
            raise ValueError(
                f"environment {name!r} begins with more than one text of the user "
                f"({shown(message)}); here a prompt is one text"
            )
    text = data.prompt_text
    if not text.strip():
        raise ValueError(f"environment {name!r} has a task without a prompt: {shown(data)}")
    return text if data.system_prompt is None else f"{data.system_prompt}\n\n{text}"


def _distinct(pairs: Iterable[tuple[Problem, Any]]) -> Pairs:
    """The pairs without tasks that are the same in everything."""
    by_id: dict[str, tuple[Problem, Any]] = {}
    for problem, task in pairs:
        by_id.setdefault(problem.id, (problem, task))
    return list(by_id.values())
