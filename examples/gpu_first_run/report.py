"""The page to hand back: tokens a second, seconds by phase, memory, gap, and the price of sampling.

Everything on it is read from the records and from what the other parts have written.
"""

from __future__ import annotations

from math import nan
from typing import Any

import pandas as pd

from examples.gpu_first_run.settings import PAPERS, Settings, read

PHASES = ("generate", "rescore", "verify", "schedule", "update")
WARM_UP = 1  # rounds at the start that no mean counts: kernels are compiled in them


def make(settings: Settings) -> bool:
    """Write report.md, the tables and the figures. True, since it can be made again at any time."""
    import workbench as wb

    records = {}
    for name in ("grpo", "pods"):
        if wb.records.exists(settings.out / name):
            records[name] = wb.load(settings.out / name)
    rows = {name: summary(settings, name, record) for name, record in records.items()}
    beside = read(settings.file("trl"))
    if beside is not None:
        rows["trl"] = summary_of_trl(settings, beside)
    table = pd.DataFrame(rows).T if rows else pd.DataFrame()
    table.to_csv(settings.out / "summary.csv")
    if records:
        draw(settings, records)
    papers = papers_runs(settings)
    if papers:
        papers_table(settings, papers).to_csv(settings.out / "papers.csv")
        draw_papers(settings, papers)
    everything = [*records.values(), *papers.values()]
    (settings.out / "report.md").write_text(page(settings, table, everything))
    print((settings.out / "report.md").read_text())
    return True


def summary(settings: Settings, name: str, record: Any) -> dict[str, Any]:
    """The numbers of one recorded run, means over its rounds after the first."""
    rounds = record.rounds
    late = after_warm_up(rounds)
    peaks = read(settings.file(f"memory-{name}")) or {}
    accuracy = record.accuracy()["accuracy"]
    sampled_a_second = late["tokens_sampled"].sum() / late["seconds_generate"].sum()
    trained_a_second = late["tokens_trained"].sum() / late["seconds_update"].sum()
    numbers = {
        "rounds": len(rounds),
        "seconds a round": late["seconds"].mean(),
        # Of whole rounds, which is all that TRL tells, to be compared with it.
        "response tokens/s": (late["rollouts"] * late["length"]).sum() / late["seconds"].sum(),
        "sampled tokens/s": sampled_a_second,
        "trained tokens/s": trained_a_second,
        # A sampled token over a trained one, in seconds, as `analysis.cost` has it. Where all
        # advantages were 0 nothing was trained, and there is no price.
        "price of sampling": trained_a_second / sampled_a_second or nan,
        **{f"{phase} [s]": late[f"seconds_{phase}"].mean() for phase in PHASES if has(late, phase)},
        "a rollout sampled [s]": late["seconds_generate"].sum() / late["rollouts"].sum(),
        "a rollout trained [s]": late["seconds_update"].sum() / (late["trained"].sum() or nan),
        "sampling's share": late["seconds_generate"].sum() / late["seconds"].sum(),
        "reward": late["reward"].mean(),
        "accuracy first": accuracy.iloc[0] if len(accuracy) else nan,
        "accuracy last": accuracy.iloc[-1] if len(accuracy) else nan,
        **in_gb(peaks),
    }
    if "sampler_gap" in late:
        numbers["sampler gap [nats]"] = late["sampler_gap"].mean()
    return numbers


def papers_runs(settings: Settings) -> dict[str, Any]:
    """The records of the papers' methods, by name; on a shelf once all of them are complete."""
    import workbench as wb
    from workbench.records import pack

    place = settings.out / PAPERS
    found = {}
    for name in settings.papers:
        if wb.records.exists(place / name):
            found[name] = wb.load(place / name)
    complete = [len(record.rounds) >= settings.paper_rounds for record in found.values()]
    if len(found) == len(settings.papers) and all(complete):
        pack(place, ("problem", "round", "correct", "stage", "selected", "length"))
        found = {name: wb.load(place / name) for name in found}
    return found


def papers_table(settings: Settings, papers: dict[str, Any]) -> pd.DataFrame:
    """A row a run of a paper's method: what it sampled and trained on, its time and accuracy."""
    rows = {}
    for name, record in papers.items():
        method, rate = settings.papers[name]
        accuracy = record.accuracy()["accuracy"]
        rows[name] = {
            "method": method,
            "learning_rate": rate,
            "rounds": len(record.rounds),
            "rollouts a round": record.rounds["rollouts"].mean(),
            "trained a round": record.rounds["trained"].mean(),
            "seconds a round": after_warm_up(record.rounds)["seconds"].mean(),
            "accuracy first": accuracy.iloc[0] if len(accuracy) else nan,
            "accuracy last": accuracy.iloc[-1] if len(accuracy) else nan,
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def summary_of_trl(settings: Settings, beside: dict[str, Any]) -> dict[str, Any]:
    """The numbers of TRL's trainer, means over its steps after the first.

    It tells no seconds of sampling alone, and its tokens a second are those of whole steps.
    """
    steps = pd.DataFrame(beside["steps"])
    late = after_warm_up(steps)
    rows = settings.sampled * settings.problems_per_round
    return {
        "rounds": len(steps),
        "seconds a round": late["seconds"].mean(),
        "response tokens/s": rows * late["length"].sum() / late["seconds"].sum(),
        "reward": late["reward"].mean(),
        **in_gb(beside["memory"]),
    }


def after_warm_up(rounds: pd.DataFrame) -> pd.DataFrame:
    """The rounds that means are taken over; all of them where there are no more."""
    return rounds.iloc[WARM_UP:] if len(rounds) > WARM_UP else rounds


def has(rounds: pd.DataFrame, phase: str) -> bool:
    """Whether a run has a phase: `rescore` is there only where another program samples."""
    return f"seconds_{phase}" in rounds


def in_gb(peaks: dict[str, int]) -> dict[str, float]:
    """Peaks of memory for the table."""
    return {f"{name} [GB]": value / 1e9 for name, value in peaks.items()}


def draw(settings: Settings, records: dict[str, Any]) -> None:
    """phases.svg: seconds of each round, by phase."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(records), figsize=(4 * len(records), 3), squeeze=False)
    for axis, (name, record) in zip(axes[0], records.items()):
        rounds = record.rounds
        below = 0 * rounds["seconds"]
        for phase in PHASES:
            if has(rounds, phase):
                axis.bar(rounds["round"], rounds[f"seconds_{phase}"], bottom=below, label=phase)
                below = below + rounds[f"seconds_{phase}"]
        axis.set(title=name, xlabel="round", ylabel="seconds")
    axes[0][0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(settings.out / "phases.svg")
    plt.close(figure)


def draw_papers(settings: Settings, papers: dict[str, Any]) -> None:
    """papers.svg: held-out accuracy by rounds and by rollouts, a panel a learning rate."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from workbench.plots import learning_curve, save

    rates = settings.rates
    figure, axes = plt.subplots(2, len(rates), figsize=(5 * len(rates), 7), squeeze=False)
    for column, rate in enumerate(rates):
        arms = {
            settings.papers[name][0]: record
            for name, record in papers.items()
            if settings.papers[name][1] == rate
        }
        for axis, unit in zip(axes[:, column], ("round", "rollouts")):
            if arms:
                learning_curve(arms, x=unit, ax=axis)
            axis.set_title(f"learning rate {rate:g}")
    figure.tight_layout()
    save({"papers": axes[0][0]}, settings.out)
    plt.close(figure)


def page(settings: Settings, table: pd.DataFrame, records: list[Any]) -> str:
    """The report as Markdown."""
    told = read(settings.file("doctor")) or {}
    machine = told.get("machine", {})
    gpus = ", ".join(gpu["name"] for gpu in machine.get("gpus", [])) or "none: this ran on a CPU"
    made = read(settings.file("model"))
    model = f"`{settings.model}`"
    if made is not None and not settings.model:
        model = (
            f"made here: {made['family']} with {made['parameters']:,} parameters, "
            f"{made['steps']} training steps, loss {made['first_loss']:.2f} to "
            f"{made['last_loss']:.2f}"
        )
    lines = [
        "# The first GPU run",
        "",
        f"- GPU: {gpus}",
        f"- Python {machine.get('python')}, torch {machine.get('torch')}",
        f"- model: {model}",
        f"- problems: {settings.problems}; {settings.problems_per_round} a round, "
        f"{settings.sampled} rollouts each, PODS keeps {settings.kept}; at most "
        f"{settings.new_tokens} new tokens",
        "",
        "Means leave out the first round, in which kernels are compiled.",
        "",
    ]
    if table.empty:
        lines.append("Nothing has been run yet.")
    else:
        rows = table.T
        lines.append("| | " + " | ".join(rows.columns) + " |")
        lines.append("| --- |" + " --- |" * len(rows.columns))
        for name, values in rows.iterrows():
            cells = ["" if pd.isna(value) else f"{value:.4g}" for value in values]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for part, text in failures(settings).items():
        lines += ["", f"**{part} has failed:** `{text}`"]
    if "grpo" in table.index and "pods" in table.index:
        lines += ["", price(table)]
    if records:
        lines += ["", fitted_price(records)]
    return "\n".join(lines) + "\n"


def price(table: pd.DataFrame) -> str:
    """One sentence on what sampling costs in comparison with training."""
    sampling = table.loc["pods", "a rollout sampled [s]"]
    update = table.loc["pods", "a rollout trained [s]"]
    if pd.isna(update):
        return "The price of sampling: none, since PODS had no rollout with a gradient to train on."
    return (
        f"The price of sampling: PODS spends {sampling:.4g} s on a rollout that it samples and "
        f"{update:.4g} s on one that it trains on, a ratio of {sampling / update:.3g}."
    )


def fitted_price(records: list[Any]) -> str:
    """One sentence on the cost model of this machine, from all rounds of all runs."""
    from workbench.analysis.cost import of_machine

    try:
        model = of_machine(records)
    except ValueError as error:
        return f"No cost model of this machine: {error}."
    return (
        f"Over all {len(records)} runs a sampled token costs {model.price:.3g} of a trained one, "
        f"and every problem of a round as much as {model.fixed:.4g} trained tokens, however little "
        "is sampled for it."
    )


def failures(settings: Settings) -> dict[str, str]:
    """The last line of each part that has failed."""
    found = {}
    for path in sorted((settings.out / "logs").glob("*.failed")):
        lines = path.read_text().strip().splitlines()
        found[path.stem] = lines[-1] if lines else "no message"
    return found
