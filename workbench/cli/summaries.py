"""A record in numbers: as a dict for machines, and as the text that commands print."""

import json
import math

from workbench.analysis.comparisons import PHASES


def summary(record):
    """JSON-ready dict: what was run, held-out accuracy at the first and last evaluation, rollouts, seconds a round."""
    rounds, manifest = record.rounds, record.manifest
    found = {
        "path": str(record.path),
        "method": record.label,
        "lab": manifest["lab"]["lab"],
        "seed": manifest["seed"],
        "rounds": len(rounds),
        "held_out": _held_out(record),
        "rollouts": None,
    }
    if len(rounds):
        found |= {
            "rollouts": int(rounds["rollouts"].sum()),
            "effective": float(rounds["effective_gradient_ratio"].mean()),
            "seconds": {name: float(rounds[f"seconds_{name}"].mean()) for name in PHASES},
            "seconds_round": float(rounds["seconds"].mean()),
        }
    return found


def text(found):
    """The summary as lines: before and after, then what it took."""
    lines = []
    if found["held_out"]:
        k, first, last = (
            found["held_out"]["k"],
            found["held_out"]["first"],
            found["held_out"]["last"],
        )
        heads = f"round {first['round']}", f"round {last['round']}"
        rows = [
            (f"avg@{k}", first["accuracy"], last["accuracy"], 3),
            ("greedy", first["greedy"], last["greedy"], 3),
        ]
        rows += [
            (f"level {level}, avg@{k}", rate, last["levels"][level], 2)
            for level, rate in first["levels"].items()
        ]
        lines += ["", f"{'held-out accuracy':<28}{heads[0]:>12}{heads[1]:>12}"]
        lines += [
            f"{f'  {name}':<28}{a:>12.{digits}f}{b:>12.{digits}f}" for name, a, b, digits in rows
        ]
    if found["rounds"]:
        shares = "  ".join(f"{name} {value:.3f}" for name, value in found["seconds"].items())
        lines += [
            "",
            f"rollouts {found['rollouts']}, of those trained on {found['effective']:.0%} with a gradient",
            f"seconds a round {found['seconds_round']:.2f}: {shares}",
        ]
    return "\n".join(lines) or "\nno round yet"


def dump(value):
    """JSON text of dicts, lists and numbers; what is not finite becomes null, which every reader understands."""
    return json.dumps(_plain(value), indent=2, allow_nan=False)


def _held_out(record):
    curve, evals = record.accuracy(), record.evals
    if not len(curve):
        return None
    rates = evals.assign(rate=evals["correct"] / evals["samples"]).pivot_table(
        index="round", columns="level", values="rate"
    )
    ends = (
        {
            "round": int(row["round"]),
            "accuracy": float(row["accuracy"]),
            "greedy": float(row["greedy"]),
            "levels": {str(level): float(rate) for level, rate in rates.loc[row["round"]].items()},
        }
        for _, row in curve.iloc[[0, -1]].iterrows()
    )
    return {"k": int(evals["samples"].iloc[0]), **dict(zip(("first", "last"), ends))}


def _plain(value):
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
