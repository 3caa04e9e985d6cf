"""Environments of the package verifiers as problems, see `workbench.problems.environment`.

An environment of this package is a taskset: tasks, each with a prompt and reward functions. What is
taken here are those of a single turn, whose rewards need nothing but the model's reply. All others
are refused by name: with tools, a container, a judge or another agent a rollout is more than one
response.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from workbench.policies.checks import check_packages
from workbench.problems import Problem
from workbench.utils.seeding import generator
from workbench.utils.validation import shown, unknown_argument, whole_number

OLDEST = (0, 4)  # the first release whose `verifiers.v1` is all there is
Pairs = list[tuple[Problem, Any]]


def tasks(
    name: str, n: int | None, held_out: int, seed: int, options: Mapping[str, Any]
) -> tuple[Pairs, Pairs]:
    """Problems with their tasks, to train on and to evaluate on.

    The arguments are those of `workbench.problems.environment`.
    """
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


def answers_of(pairs: Iterable[tuple[Problem, Any]]) -> dict[str, Any]:
    """The tasks by the answers of their problems, as `TaskRewards` takes them."""
    return {problem.answer: task for problem, task in pairs}


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
    digest = hashlib.blake2b(answer.encode(), digest_size=8).hexdigest()
    return Problem(f"{name}/{digest}", prompt, answer)


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
