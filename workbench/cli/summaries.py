"""A record in numbers: as plain data for machines, and as the text that commands print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.utils.names import TRAINING_PHASES

if TYPE_CHECKING:
    from workbench.records import Record


def summary(record: Record) -> dict[str, Any]:
    """What was run, the accuracy at the first and the last evaluation, and what it took.

    Returns
    -------
    dict
        path, method, lab, seed, rounds, held_out (None without an evaluation), rollouts, and once
        there is a round effective, seconds (a round, by phase) and seconds_round.
    """
    rounds = record.rounds
    manifest = record.manifest
    summarized: dict[str, Any] = {
        "path": str(record.path),
        "method": manifest["method"]["name"],
        "lab": manifest["lab"]["lab"],
        "seed": manifest["seed"],
        "rounds": len(rounds),
        "held_out": _held_out(record),
        "rollouts": None,
    }
    # A record without a round has no means to show.
    if len(rounds):
        summarized["rollouts"] = int(rounds["rollouts"].sum())
        # Of all trained rows together: rounds differ in size, and some train on nothing.
        selected = rounds["selected"]
        trained = (rounds["effective_gradient_ratio"] * selected).sum()
        summarized["effective"] = float(trained / selected.sum()) if selected.any() else None
        phases = [*TRAINING_PHASES, "rescore"] if "seconds_rescore" in rounds else TRAINING_PHASES
        seconds = {phase: rounds[f"seconds_{phase}"].fillna(0).mean() for phase in phases}
        summarized["seconds"] = seconds
        summarized["seconds_round"] = float(rounds["seconds"].mean())
    return summarized


def text(summarized: dict[str, Any]) -> str:
    """A summary as lines: accuracy before and after, then what it took."""
    import pandas as pd

    lines = []
    held_out = summarized["held_out"]
    if held_out:
        sampled = f"avg@{held_out['k']}"
        columns = {}
        for end in (held_out["first"], held_out["last"]):
            # Levels have two decimals: each is the mean of fewer problems.
            levels = {f"level {name}, {sampled}": f"{x:.2f}" for name, x in end["levels"].items()}
            levels = levels if len(levels) > 1 else {}
            scores = {sampled: f"{end['accuracy']:.3f}", "greedy": f"{end['greedy']:.3f}"}
            columns[f"round {end['round']}"] = scores | levels
        frame = pd.DataFrame(columns).rename_axis(columns="held-out accuracy")
        lines += ["", frame.to_string()]
    if summarized["rounds"]:
        if not held_out:
            lines += ["", "no held-out accuracy: nothing was evaluated (run --held-out-data FILE)"]
        phases = "  ".join(f"{name} {value:.3f}" for name, value in summarized["seconds"].items())
        share = summarized["effective"]
        effective = "none was trained on"
        if share is not None:
            effective = f"of those trained on {share:.0%} with a gradient"
        lines += [
            "",
            f"rollouts {summarized['rollouts']}, {effective}",
            f"seconds a round without evaluations {summarized['seconds_round']:.2f}: {phases}",
        ]
    return "\n".join(lines) or "\nno round yet"


def responses(record: Record) -> str:
    """Two responses of the last round that has some, a line each; or why there are none."""
    from workbench.utils.validation import brief

    recorded = record.rounds_with_rollouts()
    if not recorded:
        return record.why_empty or "no responses"
    frame = record.rollouts(recorded[-1:]).head(2)
    names = [name for name in ("question", "gold", "text", "status") if name in frame]
    rows = frame[names].rename(columns={"text": "response"}).to_dict("records")
    return "\n".join(", ".join(f"{name} {brief(row[name])}" for name in row) for row in rows)


def amount(budget: float) -> str:
    """A budget with four digits, FLOPs as a power of ten."""
    # Large numbers of rollouts and seconds are shown in full. FLOPs have far more digits.
    return f"{budget:,.0f}" if 1000 <= budget < 1e7 else f"{budget:.4g}"


def _held_out(record: Record) -> dict[str, Any] | None:
    """Samples a problem, and the scores at the first and the last evaluation."""
    curve = record.accuracy()
    if not len(curve):
        return None
    evals = record.evals
    rates = evals["correct"] / evals["samples"]
    # After a single evaluation both ends are the same one.
    ends = curve[["round", "accuracy", "greedy"]].iloc[[0, -1]].to_dict("records")
    for end in ends:
        end["levels"] = {}
        # Packing may have left the levels out.
        if "level" in evals:
            by_level = rates[evals["round"] == end["round"]].groupby(evals["level"]).mean()
            # Texts, as keys of JSON have to be.
            end["levels"] = {str(level): rate for level, rate in by_level.items()}
    return {"k": int(evals["samples"].iloc[0]), "first": ends[0], "last": ends[1]}
