"""The commands that train: quickstart and run."""

from pathlib import Path

import click

from workbench.cli import settings, summaries


def quickstart(rounds, seed, out, figures):
    """GRPO in the tiny lab, its table, and its overview figure in both formats."""
    import workbench as wb

    run = wb.Run(wb.labs.tiny(), wb.methods.grpo(), seed=seed, out=out)
    click.echo(
        f"GRPO on the tiny lab, {run.problems_per_round} problems x 8 rollouts a round; the record goes to {out}"
    )
    for _ in run.rounds(rounds):
        pass
    click.echo(summaries.text(summaries.summary(run.record)))
    figures = Path(figures)
    figures.mkdir(parents=True, exist_ok=True)
    figure = wb.plots.overview(run.record)
    for suffix in ("svg", "png"):
        figure.savefig(
            figures / f"quickstart.{suffix}",
            dpi=150,
            metadata={"Date": None} if suffix == "svg" else None,
        )
    click.echo(f"\nfigure    {figures / 'quickstart.svg'} (and .png)")
    click.echo("notebook  make lab, then open notebooks/00_quickstart.ipynb")


def run(method, options, lab_options, rounds, problems, seed, evaluate_every, out, as_json):
    """Any method in the tiny lab, and its table."""
    chosen = settings.method(method, settings.pairs(options))
    import workbench as wb

    lab = settings.call(wb.labs.tiny, settings.pairs(lab_options))
    run = wb.Run(
        lab, chosen, seed=seed, out=out, problems_per_round=problems, evaluate_every=evaluate_every
    )
    if not as_json:
        click.echo(repr(chosen))
    for _ in run.rounds(rounds):
        pass
    found = summaries.summary(run.record)
    click.echo(summaries.dump(found) if as_json else summaries.text(found))
