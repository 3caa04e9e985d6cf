"""The command line: `python -m workbench quickstart`."""

import ast
import inspect
import json
import os
import sys
from pathlib import Path

import click


@click.group()
def main():
    """Which rollouts are worth generating, and which are worth training on?"""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MPLBACKEND", "agg")


@main.command()
@click.option("--rounds", default=100, show_default=True, type=click.IntRange(1), help="Rounds of 32 problems x 8 rollouts.")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", default="runs/quickstart", show_default=True, help="Directory of the record, resumed.")
@click.option("--figures", default="figures", show_default=True, help="Directory of the pictures.")
def quickstart(rounds, seed, out, figures):
    """Train the tiny language model by GRPO on this machine, and draw what happened."""
    _guard(lambda: _quickstart(rounds, seed, Path(out), Path(figures)))


@main.command()
@click.argument("method")
@click.option("--set", "options", multiple=True, metavar="NAME=VALUE", help="An argument of the method, as n=16; repeatable.")
@click.option("--lab", "lab_options", multiple=True, metavar="NAME=VALUE", help="An argument of the tiny lab, as pool=1024.")
@click.option("--rounds", default=200, show_default=True, type=click.IntRange(1))
@click.option("--problems", default=32, show_default=True, help="Problems a round.")
@click.option("--seed", default=0, show_default=True)
@click.option("--evaluate-every", default=20, show_default=True, help="Rounds between evaluations, 0 for none.")
@click.option("--out", required=True, help="Directory of the record; resumed if it holds this run.")
def run(method, options, lab_options, rounds, problems, seed, evaluate_every, out):
    """Run METHOD, a name in workbench.methods, in the tiny lab: python -m workbench run grpo --set n=16 --out runs/a"""
    _guard(lambda: _run(method, _settings(options), _settings(lab_options), rounds, problems, seed, evaluate_every, out))


@main.command()
@click.argument("grid", type=click.Path())
@click.option("--out", default=None, help="Output directory, gone on with if it holds this sweep.  [default: runs/sweeps/NAME]")
@click.option("--jobs", default=None, type=click.IntRange(1), help="Runs side by side.  [default: one a core]")
@click.option("--ray", default=None, metavar="ADDRESS", help="A Ray cluster: auto or its address; local starts one here.")
@click.option("--gpus", default=0.0, help="GPUs that each run takes on Ray.")
def sweep(grid, out, jobs, ray, gpus):
    """Run a notebook over GRID, a YAML file: python -m workbench sweep data/grids/example.yaml"""
    _guard(lambda: _sweep(grid, out, jobs, ray, gpus))


@main.command("base-model")
@click.option("--out", default="data/models/tiny", show_default=True, help="Directory to write the model to.")
@click.option("--seed", default=None, type=int, help="Default: that of the shipped model.")
@click.option("--steps", default=None, type=int, help="Default: those of the shipped model.")
def base_model(out, seed, steps):
    """Make the tiny base model again: supervised training, stopped early, with its card."""
    from workbench import pretrain

    _guard(lambda: pretrain.make(Path(out), seed=seed, steps=steps, report=click.echo))


@main.command()
@click.option("--lab", default="tiny", show_default=True, type=click.Choice(["tiny", "transformers", "unsloth"]))
@click.option("--model", default=None, metavar="NAME_OR_PATH", help="Estimate the memory of this model; nothing is downloaded.")
@click.option("--lora-rank", default=64, show_default=True, help="0 trains all parameters.")
@click.option("--load-in-4bit", is_flag=True, help="Quantised weights (bitsandbytes).")
@click.option("--fast-inference/--no-fast-inference", default=True, show_default=True, help="vLLM samples in the lab unsloth.")
@click.option("--dtype", default="bfloat16", show_default=True, help="Of the weights.")
@click.option("--max-length", default=1024, show_default=True, help="Tokens of prompt and response.")
@click.option("--rollouts", default=64, show_default=True, help="Sampled at once.")
@click.option("--micro-tokens", default=16_384, show_default=True, help="Tokens of a micro-batch.")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
def doctor(lab, model, as_json, **options):
    """Show this machine and what is missing; exit with 1 when LAB, with the model if one is named, cannot run here."""
    _guard(lambda: _doctor(lab, model, as_json, options))


def _doctor(lab, model, as_json, options):
    from workbench import doctor

    told = doctor.report(lab, model, **options)
    click.echo(json.dumps(told, indent=2) if as_json else doctor.text(told))
    if not told["can_run"]:
        sys.exit(1)


def _quickstart(rounds, seed, out, figures):
    import workbench as wb

    lab = wb.labs.tiny()
    run = wb.Run(lab, wb.methods.grpo(), seed=seed, out=out)
    click.echo(f"GRPO on the tiny lab, {run.problems_per_round} problems x 8 rollouts a round; the record goes to {out}")
    for _ in run.rounds(rounds):
        pass
    click.echo(_table(run.record))
    figures.mkdir(parents=True, exist_ok=True)
    figure = wb.plots.overview(run.record)
    for suffix in ("svg", "png"):
        figure.savefig(figures / f"quickstart.{suffix}", dpi=150, metadata={"Date": None} if suffix == "svg" else None)
    click.echo(f"\nfigure    {figures / 'quickstart.svg'} (and .png)")
    click.echo("notebook  make lab, then open notebooks/00_quickstart.ipynb")


def _run(method, options, lab_options, rounds, problems, seed, evaluate_every, out):
    import workbench as wb

    lab = _call(wb.labs.tiny, lab_options)
    chosen = _call(_method(method), options)
    run = wb.Run(lab, chosen, seed=seed, out=out, problems_per_round=problems, evaluate_every=evaluate_every)
    click.echo(repr(chosen))
    for _ in run.rounds(rounds):
        pass
    click.echo(_table(run.record))


def _sweep(grid, out, jobs, ray, gpus):
    from workbench import sweep as sweeps

    try:
        frame = sweeps.sweep(grid, out=out, jobs=jobs, ray=ray, gpus=gpus, report=click.echo)
    except KeyboardInterrupt:
        click.echo("\nstopped; the same command goes on with what is missing", err=True)
        sys.exit(130)
    click.echo("\n" + frame.drop(columns=["error", "notebook"]).to_string(index=False))
    failed = int((frame["status"] == "failed").sum())
    if failed:
        raise ValueError(f"{failed} of {len(frame)} runs failed; the same command runs them again")


def _method(name):
    from workbench import methods

    if name not in methods.PAPERS:
        raise ValueError(f"method {name!r}: there are {', '.join(methods.PAPERS)}")
    return getattr(methods, name)


def _settings(options):
    """NAME=VALUE pairs as keyword arguments; values are Python literals, anything else is text."""
    settings = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"{option!r}: NAME=VALUE is needed")
        try:
            settings[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[name] = value
    return settings


def _call(function, options):
    known = inspect.signature(function).parameters
    for name in options:
        if name not in known and "objective" not in known:
            raise ValueError(f"{name}: no argument of {function.__name__}; there are {', '.join(known)}")
    return function(**options)


def _table(record):
    """Before and after, as text."""
    rounds, curve = record.rounds, record.accuracy()
    lines = []
    if len(curve):
        first, last = curve.iloc[0], curve.iloc[-1]
        k = int(record.evals["samples"].iloc[0])
        heads = f"round {int(first['round'])}", f"round {int(last['round'])}"
        lines += ["", f"{'held-out accuracy':<28}{heads[0]:>12}{heads[1]:>12}"]
        lines += [f"{f'  avg@{k}':<28}{first['accuracy']:>12.3f}{last['accuracy']:>12.3f}",
                  f"{'  greedy':<28}{first['greedy']:>12.3f}{last['greedy']:>12.3f}"]
        for level, part in record.evals.groupby("level"):
            rate = part["correct"].groupby(part["round"]).sum() / part["samples"].groupby(part["round"]).sum()
            lines.append(f"{f'  level {level}, avg@{k}':<28}{rate.iloc[0]:>12.2f}{rate.iloc[-1]:>12.2f}")
    if len(rounds):
        seconds = rounds[["seconds_generate", "seconds_verify", "seconds_schedule", "seconds_update"]].mean()
        shares = "  ".join(f"{name.removeprefix('seconds_')} {value:.3f}" for name, value in seconds.items())
        share = rounds["effective_gradient_ratio"].mean()
        lines += ["", f"rollouts {int(rounds['rollouts'].sum())}, of those trained on {share:.0%} with a gradient",
                  f"seconds a round {rounds['seconds'].mean():.2f}: {shares}"]
    return "\n".join(lines)


def _guard(job):
    """Runs a job; a named error is one line on stderr and exit status 1."""
    try:
        job()
    except (ValueError, OSError, ImportError, FloatingPointError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main(prog_name="python -m workbench")
