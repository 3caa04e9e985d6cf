"""One HTML file that shows one or several runs: `report(records, "report.html")`.

What was run, in words; curves; where gradients came from; how problems moved between statuses; sample responses with
their rewards and whether they were trained on, filterable in the page. The file loads nothing: figures are SVG in it,
and its policy lets no script run but its own, by hash. Responses are text that a model wrote: all of it is escaped.
"""

import base64
import hashlib
import json
from pathlib import Path

import numpy as np

from workbench import __version__
from workbench.analysis import comparisons, metrics
from workbench.records.record import Record
from workbench.reports import figures as report_figures

TEMPLATES = Path(__file__).parent / "templates"
SLOTS = {
    "allocator": "how many rollouts (allocator)",
    "reuse": "old responses that join (reuse)",
    "selector": "which are trained on (selector)",
    "advantage": "advantage",
    "objective": "objective",
    "reward": "reward",
}
ROWS = {
    "Counts": {
        "problems": "problems",
        "rollouts": "rollouts sampled",
        "selected": "rollouts selected",
        "trained": "rollouts trained on",
        "steps": "optimizer steps",
        "tokens_sampled": "tokens sampled",
        "tokens_trained": "tokens trained on",
    },
    "Gradient": {
        "effective_gradient_ratio": "effective-gradient ratio",
        "all_positive": "problems all right",
        "all_negative": "problems all wrong",
        "gradient_norm": "gradient norm",
        "clip_ratio": "clip ratio",
    },
    "Responses": {
        "reward": "reward",
        "length": "tokens",
        "entropy": "token entropy (nats)",
        "truncated": "truncated",
        "status_unparsed": "unparsed",
        "status_timeout": "verifier timeouts",
        "status_crash": "verifier crashes",
    },
    "Seconds": {f"seconds_{phase}": phase for phase in comparisons.PHASES} | {"seconds": "in all"},
}
ROUNDS_SHOWN = 6  # rounds of a run that sample responses come from
HEAD, LIMIT = 240, 4000  # characters of a response shown at once, and at all


def report(records, path, *, title=None, rows=300):
    """Writes the report and returns its path.

    records: a `Record`, a list of them (grouped by `comparisons.labelled`), or a dict from label to either. title: None
    for the labels. rows: most sample responses, over all runs.
    """
    groups = _groups(records)
    if rows < 0:
        raise ValueError(f"rows={rows}: a number of at least 0 is needed")
    table, notes = _comparison(groups)
    trained = {label: [r for r in group if len(r.rounds)] for label, group in groups.items()}
    trained = {label: group for label, group in trained.items() if group}
    content = {
        "title": title or ", ".join(groups),
        "lead": _lead(groups),
        "warnings": _warnings(groups),
        "results": _results(groups),
        "comparison": table,
        "notes": notes,
        "curves": report_figures.curves(trained),
        "mechanisms": report_figures.mechanisms(trained),
        "rounds": _rounds(trained),
        "transitions": _transitions(trained),
        "responses": _responses(trained, rows),
        "runs": [_words(label, group) for label, group in groups.items()],
    }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_render(content), encoding="utf-8", errors="replace")
    return path


def _groups(records):
    if isinstance(records, dict):
        groups = {
            str(label): [group] if isinstance(group, Record) else list(group)
            for label, group in records.items()
        }
    else:
        groups = comparisons.labelled([records] if isinstance(records, Record) else records)
    if not groups or not all(groups.values()):
        raise ValueError(f"records={records!r}: at least one record is needed, for every label")
    return groups


def _render(content):
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True
    )
    script, style = (Markup((TEMPLATES / f"report.{kind}").read_text()) for kind in ("js", "css"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sections = [
        "Results",
        "What was run",
        *(name for name in ("Curves", "Mechanisms", "Transitions") if content[name.lower()]),
        "Responses",
    ]
    return environment.get_template("report.html").render(
        content,
        sections=sections,
        script=script,
        style=style,
        script_hash=f"sha256-{digest}",
        version=__version__,
    )


# results


def _lead(groups):
    manifests = [record.manifest for _, record in _each(groups)]
    labs = ", ".join(dict.fromkeys(manifest["lab"]["lab"] for manifest in manifests))
    days = sorted({manifest["started"][:10] for manifest in manifests if "started" in manifest})
    started = f", started {' to '.join(dict.fromkeys([days[0], days[-1]]))}" if days else ""
    return f"{len(manifests)} run{'s' * (len(manifests) > 1)} in the lab {labs}{started}."


def _results(groups):
    samples = {
        int(k)
        for _, record in _each(groups)
        if len(evals := record.evals)
        for k in evals["samples"].unique()
    }
    sampled = f"avg@{samples.pop()}" if len(samples) == 1 else "sampled"
    heads = [
        "",
        "runs",
        "rounds",
        f"{sampled} before",
        f"{sampled} after",
        "greedy before",
        "greedy after",
        "rollouts",
        "training time",
    ]
    return {
        "caption": "Held-out accuracy at the first and the last evaluation; ± is the 95 % interval over seeds",
        "heads": heads,
        "groups": [(None, [[label, *_result(group)] for label, group in groups.items()])],
    }


def _result(group):
    curves = [curve for record in group if len(curve := record.accuracy())]
    ends = [
        _interval([curve[y].iloc[place] for curve in curves])
        for y in ("accuracy", "greedy")
        for place in (0, -1)
    ]
    rounds = [record.rounds for record in group if len(record.rounds)]
    lengths = sorted({len(record.rounds) for record in group})
    cost = [_mean([table[name].sum() for table in rounds]) for name in ("rollouts", "seconds")]
    return [len(group), _span(lengths), *ends, f"{cost[0]:,.0f}", _duration(cost[1])]


def _comparison(groups):
    """The table at the common budget of rollouts and of seconds, None with one label, and notes."""
    if len(groups) < 2:
        return None, []
    try:
        comparisons.comparable(groups)
    except ValueError as error:
        return None, [f"No comparison at an equal budget: {error}."]
    baseline, parts = next(iter(groups)), []
    for unit, name in (("rollouts", "rollouts"), ("seconds", "seconds of training")):
        budget = comparisons.common_budget(groups, unit)
        table = comparisons.at_budget(groups, unit, budget, baseline=baseline)
        rows = [[label, *_compared(row)] for label, row in table.iterrows()]
        parts.append((f"at {budget:{',.0f' if budget >= 100 else '.3g'}} {name}", rows))
    heads = ["", "runs", "held-out accuracy", f"minus {baseline}", "95 % interval", "seeds ahead"]
    notes = [
        "Budgets are the most that every run reached. Differences are paired: the same seeds and problems, "
        "two-way bootstrap."
    ]
    machines = {
        json.dumps(r.manifest.get("hardware"), sort_keys=True)
        for group in groups.values()
        for r in group
    }
    if len(machines) > 1:
        notes.append("The runs come from different machines, so their seconds are not comparable.")
    return {
        "caption": "Held-out accuracy when all had spent the same",
        "heads": heads,
        "groups": parts,
    }, notes


def _compared(row):
    shown = [f"{row['n']:.0f}", _pm(row["mean"], row["half"])]
    if not np.isfinite(row.get("difference", np.nan)):
        return [*shown, "", "", ""]
    return [
        *shown,
        f"{row['difference']:+.3f}",
        f"{row['low']:+.3f} to {row['high']:+.3f}",
        f"{row['better']:.0%}",
    ]


def _warnings(groups):
    """What the rounds tables say in their column `warnings`, and rounds that stopped."""
    found = []
    for label, record in _each(groups):
        lines = [
            f"round {number}: {line}" for number, line in record.warnings.itertuples(index=False)
        ]
        lines += [
            f"a round stopped; its rollouts are in {path.name}"
            for path in sorted(record.path.glob("failed-*.parquet"))
        ]
        found += [f"{label}, seed {record.manifest['seed']}, {line}" for line in lines]
    return found


# mechanisms


def _rounds(groups):
    present = (
        set.intersection(*(_numbers(record.rounds) for _, record in _each(groups)))
        if groups
        else set()
    )
    table = comparisons.means(groups, sorted(present))
    parts = []
    for title, names in ROWS.items():
        kept = {column: name for column, name in names.items() if column in present}
        rows = [
            [
                name,
                *(
                    _pm(table[column, "mean"][label], table[column, "half"][label])
                    for label in groups
                ),
            ]
            for column, name in kept.items()
        ]
        parts += [(title, rows)] if rows else []
    return {
        "caption": "Means over all rounds; ± is the 95 % interval over seeds",
        "heads": ["", *groups],
        "groups": parts,
    }


def _numbers(table):
    return {name for name in table if table[name].dtype.kind in "iuf" and table[name].notna().any()}


def _transitions(groups):
    """Matrices of training problems drawn at least twice, where the rollouts say it, and of held-out problems."""
    found = []
    for label, group in groups.items():
        for name, pairs in (
            ("training problems, first and last visit", [_visited(record) for record in group]),
            (
                "held-out problems, first and last evaluation",
                [_evaluated(record) for record in group],
            ),
        ):
            pairs = [pair for pair in pairs if pair is not None]
            if pairs:
                before, after = (np.concatenate(part) for part in zip(*pairs))
                seeds = f", {len(pairs)} seeds together" if len(pairs) > 1 else ""
                found.append(
                    _matrix(
                        f"{label}: {name}",
                        f"{len(before)} problems{seeds}: counts, shaded by the share of a row",
                        before,
                        after,
                    )
                )
    return found


def _matrix(label, caption, before, after):
    counts, shares = (
        metrics.transition_matrix(before, after, normalize) for normalize in (None, "rows")
    )
    names = [name.replace("-", " ") for name in metrics.STATUS]
    rows = [
        (name, [(int(count), round(float(share), 3)) for count, share in zip(*pair)])
        for name, pair in zip(names, zip(counts, shares))
    ]
    return {"label": label, "caption": caption, "names": names, "rows": rows}


def _visited(record):
    """(rates at the first visit, at the last) of problems drawn more than once; None without any."""
    frame = _kept(record, ("problem", "round", "correct", "age"))
    if frame is None:
        return None
    drawn = comparisons.visits(frame[frame["age"] == 0])["rate"].groupby("problem")
    again = drawn.size() > 1
    return (
        (drawn.first()[again].to_numpy(), drawn.last()[again].to_numpy()) if again.any() else None
    )


def _evaluated(record):
    evals = record.evals
    if evals["round"].nunique() < 2:
        return None
    rates = evals.assign(rate=evals["correct"] / evals["samples"]).pivot_table(
        index="problem", columns="round", values="rate"
    )
    return rates.iloc[:, 0].to_numpy(), rates.iloc[:, -1].to_numpy()


def _kept(record, columns, rounds=None):
    """These columns of the rollouts, a DataFrame; None where the record kept no rollouts or not all of the columns."""
    parts = _parts(record)
    if not parts or not set(columns) <= set(record.rollouts(parts[:1])):
        return None
    return record.rollouts(rounds, list(columns))


def _parts(record):
    """Rounds whose rollouts the record has."""
    return sorted(int(part.stem) for part in (record.path / "rollouts").glob("*.parquet"))


# responses


def _responses(groups, rows):
    """Sample responses: whole groups of rounds spread over each run."""
    records = list(_each(groups))
    share = rows // max(1, len(records))
    shown = [row for label, record in records for row in _sampled(label, record, share)][:rows]
    several = len(records) > 1
    heads = [
        *(["run"] if several else []),
        "round",
        "problem",
        "response",
        "verdict",
        "reward",
        "advantage",
        "training",
    ]
    named = (("run", "run"), ("round", "round"), ("bucket", "reward"), ("training", "training"))
    filters = [
        (
            "reward" if key == "bucket" else key,
            head,
            list(dict.fromkeys(row[key] for row in _ordered(shown, key))),
        )
        for key, head in named
        if key != "run" or several
    ]
    note = (
        "The first problems of rounds spread over each run, all rollouts of each; nothing is picked by quality. "
        "“Chosen” was selected but its advantage was zero or its gradient stopped."
    )
    if not shown:
        note = "The record kept no texts of responses." if records else "No round yet."
    return {"rows": shown, "several": several, "heads": heads, "filters": filters, "note": note}


def _ordered(shown, key):
    return sorted(shown, key=lambda row: row[key]) if key == "round" else shown


def _sampled(label, record, share):
    parts = _parts(record)
    places = np.unique(
        np.linspace(0, len(parts) - 1, min(ROUNDS_SHOWN, len(parts), max(1, share // 16))).astype(
            int
        )
    )
    needed = [
        "problem",
        "text",
        "reward",
        "status",
        "advantage",
        "selected",
        "trained",
        "round",
        "age",
    ]
    rows = []
    for number in (parts[place] for place in places):
        frame = _kept(record, needed, [number])
        if frame is not None:
            first = _whole_groups(frame, share // len(places))
            rows += [
                _row(f"{label}, seed {record.manifest['seed']}", number, row)
                for row in first.to_dict("records")
            ]
    return rows


def _whole_groups(frame, size):
    """The rollouts of the first problems, at most `size` rows; the last problem is cut only if it is the first as well."""
    place = frame["problem"].factorize()[0]
    ends = np.bincount(place).cumsum()
    whole = ends[ends <= size]
    return frame.iloc[np.argsort(place, kind="stable")[: whole[-1] if len(whole) else size]]


def _row(run, number, row):
    text, reward = row["text"], row["reward"]
    rest = text[HEAD:LIMIT] + (
        f"\n… {len(text) - LIMIT} characters more" if len(text) > LIMIT else ""
    )
    training = "trained" if row["trained"] else "chosen" if row["selected"] else "left out"
    return {
        "run": run,
        "round": number,
        "sampled": row["round"] if row["age"] else None,
        "problem": row["problem"],
        "text": text[:HEAD],
        "rest": rest,
        "status": row["status"],
        "reward": f"{reward:.3g}",
        "bucket": "above 0" if reward > 0 else "0 or below",
        "training": training,
        "advantage": ""
        if np.isnan(row["advantage"])
        else f"{row['advantage']:+.3f}"
        if row["advantage"]
        else "0",
    }


# what was run


def _words(label, group):
    """The manifest in plain words: pairs of name and value."""
    first, seeds = group[0].manifest, sorted({record.manifest["seed"] for record in group})
    arguments, method = first.get("arguments", {}), first["method"]
    lab = {name: value for name, value in first["lab"].items() if name != "lab"}
    slots = [
        (SLOTS[name], _expression(method[name]))
        for name in SLOTS
        if name in method and name != "reward"
    ]
    slots.append((SLOTS["reward"], " + ".join(map(_expression, method.get("reward", ())))))
    settings = [
        f"{name.replace('_', ' ')} {_expression(value)}"
        for name, value in arguments.items()
        if name != "seed"
    ]
    lab = [
        f"{name.replace('_', ' ')} {_expression(value)}"
        for name, value in lab.items()
        if value is not None
    ]
    if "pool" in first["lab"] and first["lab"]["pool"] is None:
        lab.insert(0, "fresh problems every round")
    machine, software = first.get("hardware", {}), first.get("versions", {})
    words = [
        ("method", method["name"]),
        *slots,
        ("lab", "; ".join([first["lab"]["lab"], *lab])),
        ("training", "; ".join(settings)),
        ("seed" if len(seeds) == 1 else "seeds", _span(seeds)),
        (
            "machine",
            ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine.items()),
        ),
        ("software", ", ".join(f"{name} {value}" for name, value in software.items())),
        ("started", first.get("started")),
        ("commit", first.get("commit")),
        ("records", ", ".join(str(record.path) for record in group)),
    ]
    return {
        "label": label,
        "words": [(name, value) for name, value in words if value],
        "code": list(SLOTS.values()),
        "path": group[0].path,
        "manifest": json.dumps(first, indent=1),
    }


def _expression(value):
    """A description of `describe` as the expression it stands for: `Uniform(n=8)`."""
    if isinstance(value, dict) and "is" in value:
        inner = ", ".join(
            f"{name}={_expression(inner)}" for name, inner in value.items() if name != "is"
        )
        return f"{value['is'].rpartition('.')[2]}({inner})"
    if isinstance(value, list):
        return f"({', '.join(map(_expression, value))})"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


# numbers as text


def _each(groups):
    return ((label, record) for label, group in groups.items() for record in group)


def _mean(values):
    return float(np.mean(values)) if values else 0.0


def _interval(values):
    return _pm(*metrics.mean_interval(values)) if values else "–"


def _pm(mean, half):
    """A mean with about three digits, and its interval with as many decimals unless it is 0 or unknown."""
    if not np.isfinite(mean):
        return "–"
    spread = np.isfinite(half) and half > 0
    if not spread and mean == int(mean):
        return f"{mean:,.0f}"
    decimals = 4 if abs(mean) < 0.01 else 3 if abs(mean) < 10 else 1 if abs(mean) < 1000 else 0
    return f"{mean:,.{decimals}f}" + (f" ± {half:,.{decimals}f}" if spread else "")


def _span(numbers):
    """0, 1, 2 as "0 to 2", other numbers one by one."""
    numbers = list(numbers)
    straight = len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]} to {numbers[-1]}" if straight else ", ".join(map(str, numbers))


def _duration(seconds):
    return (
        f"{seconds:.1f} s"
        if seconds < 120
        else f"{seconds / 60:.1f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )
