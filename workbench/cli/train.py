"""The commands that train: quickstart, run, resume and sweep."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli import summaries
from workbench.cli.terminal import as_json, say

if TYPE_CHECKING:
    from workbench.run import Run

# What people write on a command line for values that Python spells otherwise.
WORDS = {"true": True, "false": False, "none": None, "null": None}


def quickstart(rounds: int, seed: int, out: str, figures: str) -> None:
    """GRPO in the tiny lab, its table, and its overview figure in two formats."""
    import workbench as wb

    run = wb.Run(wb.labs.tiny(), wb.methods.grpo(), seed=seed, out=out)
    say(f"GRPO in the tiny lab, {run.problems_per_round} problems x 8 rollouts a round")
    say(f"record    {out}")
    for _ in run.rounds(rounds):
        pass
    say(summaries.text(summaries.summary(run.record)))

    folder = Path(figures)
    folder.mkdir(parents=True, exist_ok=True)
    figure = wb.plots.overview(run.record)
    # Without the date the same run always draws the same file.
    figure.savefig(folder / "quickstart.svg", metadata={"Date": None})
    figure.savefig(folder / "quickstart.png", dpi=150)
    say(f"\nfigure    {folder / 'quickstart.svg'} (and .png)")
    # An installed package has no notebooks beside it.
    if Path("notebooks", "00_quickstart.ipynb").exists():
        say("notebook  make lab, then open notebooks/00_quickstart.ipynb")
    else:
        say(f"report    python -m workbench show {out} --html report.html")


def run(
    method: str,
    settings: Iterable[str],
    lab: Iterable[str],
    model: str | None,
    data: str | None,
    held_out_data: str | None,
    prompt_column: str,
    answer_column: str,
    rounds: int,
    problems: int,
    seed: int,
    evaluate_every: int,
    out: str,
    json: bool,
) -> None:
    """Any method in any lab, and its table."""
    from workbench import config
    from workbench.problems import from_file

    made = config.method(method, pairs(settings))

    # The lab: --model and the files become arguments of it, like those that --lab gives.
    name, options = lab_options(lab)
    if model is not None:
        options["model"] = model
    for which, path in (("problems", data), ("held_out", held_out_data)):
        if path is not None:
            options[which] = from_file(path, prompt=prompt_column, answer=answer_column)
    import workbench as wb

    started = wb.Run(
        config.lab(name, options),
        made,
        seed=seed,
        out=out,
        problems_per_round=problems,
        evaluate_every=evaluate_every,
    )
    _train(started, rounds, json)


def resume(path: str, rounds: int, json: bool) -> None:
    """A run as its record says, and its table."""
    import workbench as wb

    _train(wb.Run.resume(path), rounds, json)


def _train(run: Run, rounds: int, json: bool) -> None:
    """Train up to so many rounds, and print the run's table."""
    if not json:
        say(repr(run.method))
    for _ in run.rounds(rounds):
        pass
    summarized = summaries.summary(run.record)
    say(as_json(summarized) if json else summaries.text(summarized))


def sweep(
    grid: str,
    out: str | None,
    jobs: int | None,
    ray: str | None,
    gpus: float,
    records: str | None,
    json: bool,
) -> None:
    """The runs of a grid, and their table; ValueError when some failed."""
    from workbench.trials import sweep as make_runs

    # With --json the lines about progress go to stderr, so that stdout holds the table alone.
    frame = make_runs(
        grid,
        out=out,
        jobs=jobs,
        ray=ray,
        gpus=gpus,
        records=records,
        report=lambda line: say(line, err=json),
    )
    if json:
        say(frame.to_json(orient="records", indent=2))
    else:
        say("\n" + frame.drop(columns=["error", "logs"]).to_string(index=False))
    # After the table, which says what failed. The error makes the exit status 1.
    failed = int((frame["status"] == "failed").sum())
    if failed:
        raise ValueError(f"{failed} of {len(frame)} runs failed; the same command makes them again")


def pairs(texts: Iterable[str]) -> dict[str, Any]:
    """NAME=VALUE texts as a dict.

    Values are Python literals, and true, false and none in any case; anything else is text.

    >>> pairs(["n=16", "clip=0.1,0.2", "rule=random", "mode=none"])
    {'n': 16, 'clip': (0.1, 0.2), 'rule': 'random', 'mode': None}
    """
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"{text!r}: NAME=VALUE is needed")
        values[name] = _value(value)
    return values


def lab_options(texts: Iterable[str]) -> tuple[str, dict[str, Any]]:
    """The name of a lab, and its arguments; dotted names are arguments of an argument.

    >>> lab_options(["transformers", "dtype=bfloat16", "sampling.max_new_tokens=64"])
    ('transformers', {'dtype': 'bfloat16', 'sampling': {'max_new_tokens': 64}})
    """
    texts = list(texts)
    names = [text for text in texts if "=" not in text]
    if len(names) > 1:
        raise ValueError(f"--lab {' --lab '.join(names)}: one lab is needed")
    options: dict[str, Any] = {}
    for path, value in pairs(text for text in texts if "=" in text).items():
        # a.b=c becomes {"a": {"b": c}}, made on the way where it is not there yet.
        node = options
        *outer, last = path.split(".")
        for name in outer:
            node = node.setdefault(name, {})
            if not isinstance(node, dict):
                raise ValueError(f"{path}: {name} has a value of its own already")
        node[last] = value
    return (names[0] if names else "tiny"), options


def _value(text: str) -> Any:
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    # Literals alone: nothing that is written here is run as code.
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        # Also brackets nested so deep that the parser gives up.
        return text
