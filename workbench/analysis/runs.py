"""Which records belong together: seeds of one setting, and settings of one comparison.

Two records are *seeds of one another* if everything but the seed is the same: method with all its
arguments, lab, model and training arguments, code of one's own, and the conditions: versions of
packages, code of this package, device. How often a run was evaluated or checkpointed does not
count. Records of different settings are never averaged, whatever their names say. A dict from label
to records is the caller's word that conditions may differ, and a warning then names them.

A comparison is a dict from label to the records of its seeds, as `load_all` and `labelled` return
it; the labels are the arms of the comparison.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.records import Record, RecordError, RecordWarning, examined, record_paths
from workbench.utils.descriptions import differences
from workbench.utils.labels import from_folder

Arms = Mapping[str, Sequence[Record]]

# Characters of a label in which differences are spelled out; beyond it the path is clearer, since
# figures cut out the middle of longer ones.
LONGEST_LABEL = 48

# What two runs may differ in and still be seeds of one another.
FREE_ARGUMENTS = ("seed", "evaluate_every", "checkpoint_every")


def load_all(*paths: Any) -> dict[str, list[Record]]:
    """All records at or under some paths, packed ones included, by label; see `labelled`.

    Parameters
    ----------
    *paths : path
        Of records, or of folders of records such as `folder/label/seed-0`.

    Returns
    -------
    dict from label to a list of Record
        Labels in alphabetical order, the records of each in the order of their seeds.

    Raises
    ------
    ValueError
        For a path without any record.
    RecordError
        Where all records are damaged, or the only one cannot be read.

    Warns
    -----
    RecordWarning
        Of several records the damaged ones are left out and named.
    """
    places: dict[Path, Path] = {}
    for path in map(Path, paths):
        there = record_paths(path)
        if not there:
            raise ValueError(f"path={str(path)!r}: no record there, nor in its folders")
        # By its real path, so that overlapping arguments give a record once.
        places |= {each.resolve(): each for each in there}
    if len(places) == 1:
        return labelled(map(Record, places.values()))
    found = {each: examined(each) for each in places.values()}
    whole = [record for record, damage in found.values() if record and not damage]
    if not whole:
        raise RecordError(next(iter(found.values()))[1])
    for each, (_, damage) in found.items():
        if damage:
            text = f"{damage}; {each} is left out, and the other {len(whole)} runs are read"
            warnings.warn(text, RecordWarning, stacklevel=2)
    return labelled(whole)


def labelled(records: Record | Iterable[Record]) -> dict[str, list[Record]]:
    """Group records into settings and their seeds.

    The label is that of the manifest. Records without one have that of their directories
    label/seed-0, label/seed-1, ..., and others the name of the method. Where several settings share
    a name, what differs between them stands behind it, as in "grpo (allocator.n=4)"; where that is
    not enough, or a seed occurs twice, the path does.

    Parameters
    ----------
    records : one or more Record

    Returns
    -------
    dict from label to a list of Record
        In the order of first appearance, the records of each in the order of their seeds.
    """
    records = _listed(records)
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        name = record.manifest.get("label")
        folder = ""
        # Directories of one name in different places are different labels: whoever made them
        # meant so.
        if name is None and (name := _folder_label(record)):
            folder = str(record.path.resolve().parent)
        key = folder + _setting(record) + json.dumps(conditions(record), sort_keys=True)
        groups.setdefault((name or record.label, key), []).append(record)
    parts = []
    for (name, _), group in groups.items():
        # A seed that occurs twice is another run of the same setting. Where a label was given to
        # both, the directory above tells whose seed it is, and otherwise each stands alone.
        by_folder: dict[Path, list[Record]] = {}
        for record in group:
            is_split = len(by_seed(group)) < len(group) and record.manifest.get("label")
            by_folder.setdefault(record.path.parent if is_split else Path(), []).append(record)
        for each in by_folder.values():
            is_arm = len(by_seed(each)) == len(each)
            parts += [(name, each)] if is_arm else [(name, [record]) for record in each]
    labels = _distinct_labels(parts)
    return {label: _in_order(group) for label, (_, group) in zip(labels, parts)}


def arms(records: Any) -> dict[str, list[Record]]:
    """A comparison from whatever a function was given.

    Parameters
    ----------
    records : Record, list of Record, or dict from label to either
        A dict keeps its labels; a list is grouped by `labelled`.

    Returns
    -------
    dict from label to a list of Record

    Raises
    ------
    ValueError
        When a label of a dict holds no run, runs of different settings, or one seed twice.
    TypeError
        For anything but records, such as paths.
    """
    if not isinstance(records, Mapping) or not records:
        return labelled(records)
    # The labels of a dict are the caller's word; that each holds one setting is checked.
    return {str(label): one_setting(group, f"label {label!r}") for label, group in records.items()}


def one_setting(records: Any, what: str = "records") -> list[Record]:
    """The records as a list; ValueError unless they are seeds of one setting.

    Parameters
    ----------
    records : Record or list of Record
    what : str
        How the message names them.
    """
    records = _listed(records)
    first, *others = records
    mixed = ""
    for other in others:
        both = f"{first.path} and {other.path} differ in"
        lines = "; ".join(differences(settings(first), settings(other))[:3])
        if lines:
            by_label = labelled(records)
            raise ValueError(
                f"{what}: runs of {len(by_label)} different settings ({', '.join(by_label)}) are "
                f"no seeds of one another, so they are not averaged; {both} {lines}; pass a dict "
                "from label to records"
            )
        lines = "; ".join(differences(conditions(first), conditions(other))[:3])
        mixed = mixed or (lines and f"{what}: {both} {lines}")
    if mixed:
        warnings.warn(mixed, RecordWarning, stacklevel=3)
    if len(by_seed(records)) < len(records):
        raise ValueError(f"{what}: a seed occurs twice; give the runs labels of their own")
    return _in_order(records)


def by_seed(records: Sequence[Record]) -> dict[int, Record]:
    """The records of one setting by their seed."""
    return {record.seed: record for record in records}


def settings(record: Record) -> dict[str, Any]:
    """What makes a run's setting, as its manifest has it: method, lab, problems and arguments.

    A lab of one's own says nothing of its problems, so their digest is among them, as are digests
    of its model, of code of one's own and of files that were read.
    """
    manifest = record.manifest
    arguments = dict(manifest.get("arguments", {}))
    for name in FREE_ARGUMENTS:
        arguments.pop(name, None)
    problems = (manifest.get("data") or {}).get("problems")
    return {
        "method": manifest["method"],
        "lab": manifest.get("lab"),
        "problems": problems,
        "arguments": arguments,
        # Records of earlier versions have none of these.
        **{name: manifest[name] for name in ("policy", "code", "files") if name in manifest},
    }


def conditions(record: Record) -> dict[str, Any]:
    """Under which conditions a run was made; empty for records of earlier versions."""
    manifest = record.manifest
    hardware = {name: manifest["hardware"].get(name) for name in ("device", "gpu")}
    return {"versions": manifest["versions"], **hardware} if "policy" in manifest else {}


def _setting(record: Record) -> str:
    """The settings as sorted text, since nested dicts are neither hashable nor in a fixed order."""
    return json.dumps(settings(record), sort_keys=True)


def _folder_label(record: Record) -> str | None:
    """The label that a directory label/seed-N gives, None for another directory."""
    folder = record.path.resolve()
    return from_folder(folder.parent.name) if re.fullmatch(r"seed-\d+", folder.name) else None


def _distinct_labels(parts: list[tuple[str, list[Record]]]) -> list[str]:
    """One label for each group: the name, what distinguishes its settings, or its path."""
    labels = [name for name, _ in parts]
    # Only names that occur more than once are lengthened, by what differs between their settings.
    for name in {label for label in labels if labels.count(label) > 1}:
        alike = [i for i, label in enumerate(labels) if label == name]
        table = pd.DataFrame({i: all_settings(parts[i][1][0]) for i in alike}).sort_index()
        differing = table[table.nunique(axis=1, dropna=False) > 1].fillna("none")
        # What a lab or method says comes before the digests that follow from it.
        told = differing[~differing.index.str.match("(policy|code|files)\\.")]
        differing = told if len(told) else differing
        for i in alike if len(differing) else ():
            shown = ", ".join(f"{_short(key)}={text}" for key, text in differing[i].items())
            labels[i] = f"{name} ({shown})"
    # Equal settings in different places have nothing that differs, and some differences are longer
    # than any figure has room for. Paths tell these apart.
    return [
        label
        if labels.count(label) == 1 and len(label) <= LONGEST_LABEL
        else f"{name} ({group[0].path})"
        for label, (name, group) in zip(labels, parts)
    ]


def all_settings(record: Record) -> dict[str, str]:
    """Settings and conditions of a run in one level, see `flatten`."""
    return flatten(settings(record) | conditions(record))


def flatten(value: Any, path: str = "") -> dict[str, str]:
    """A nested description as one level: dotted path to text."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        return {path: str(value)}
    flat: dict[str, str] = {}
    for name, item in value.items():
        flat |= flatten(item, f"{path}.{name}".lstrip("."))
    return flat


def _short(key: str) -> str:
    """A dotted path without its first part, which tells nothing apart."""
    return re.sub(r"^(method|lab|arguments)\.", "", key)


def _in_order(records: Sequence[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record.seed)


def _listed(records: Any) -> list[Record]:
    """One or more records as a list; TypeError for paths and other things."""
    if isinstance(records, Record):
        return [records]
    listed = list(records) if isinstance(records, Iterable) else [records]
    if not all(isinstance(record, Record) for record in listed):
        raise TypeError(
            f"records={records!r}: a Record, a list of them, or a dict from label to either is "
            "needed, as wb.load(path) and wb.load_all(path) give them"
        )
    if not listed:
        raise ValueError("records: at least one is needed")
    return listed
