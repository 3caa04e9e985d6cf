"""`wb.push_to_hub`: a record, or the model or adapter of a run, on the hub of Hugging Face.

Everything is first written to a folder, with a card that says what was run and what came of it.
Without a network the folder is all there is, and a warning says how to upload it.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

from httpx import TransportError
from huggingface_hub import HfApi
from huggingface_hub.errors import LocalTokenNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id

from workbench import plots
from workbench.records import Record
from workbench.records.files import JOURNAL, MANIFEST
from workbench.reports.page import TEMPLATES
from workbench.reports.tables import configuration, results
from workbench.run import Run
from workbench.utils.validation import cause_of, instance_of


class HubWarning(UserWarning):
    """A folder was written, and could not be uploaded."""


def push_to_hub(what: Run | Record, repo: str, *, out: Any = None, private: bool = True) -> str:
    """Put a record, or the model or adapter that a run has trained, on the hub, with a card.

    The card has the method and the lab in words, the curves, accuracies and costs, the commands
    that read it or make it again, and the versions of packages. A record goes into a repository of
    data sets, without its checkpoint.

    Parameters
    ----------
    what : Record or Run
        Of a run, the model as trained so far, from its checkpoint where this process has not
        trained it.
    repo : str
        Such as "me/pods-on-arithmetic"; made where it is missing.
    out : path, optional
        The folder, which must be empty or not there. Default: `hub/` and the name of the
        repository.
    private : bool
        Whether a repository that is made is private.

    Returns
    -------
    str
        The address of what was uploaded; the folder where there is no network or no token, with a
        `HubWarning` that has the command to upload it.

    Raises
    ------
    ValueError
        For a packed record, which has no directory, and for a folder that holds something.
    OSError
        Where the hub refuses it. The folder is there.
    """
    instance_of("what", what, (Run, Record), 'wb.load("runs/pods"), or a Run')
    # The hub's own rules for names, checked before anything is written.
    validate_repo_id(repo)
    record = what.record if isinstance(what, Run) else what
    if record.is_packed:
        raise ValueError(f"what={record!r}: it is packed, and only a directory can be pushed")
    folder = Path("hub", repo) if out is None else Path(out)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"out={str(folder)!r}: it holds something already; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    kind = "model" if isinstance(what, Run) else "dataset"
    if isinstance(what, Run):
        if what.policy is None:
            # No round is made: the run is opened at its checkpoint.
            list(what.rounds(what.round, progress=False))
        what.policy.save(folder)
    else:
        # Neither the checkpoint nor the lock.
        for name in (MANIFEST, JOURNAL):
            shutil.copy(record.path / name, folder)
        shutil.copytree(record.path / "rollouts", folder / "rollouts")
    plots.save({"curves": plots.overview([record])}, folder)
    (folder / "README.md").write_text(_card(record, repo, kind, folder), encoding="utf-8")
    return _uploaded(folder, repo, kind, private)


def _card(record: Record, repo: str, kind: str, folder: Path) -> str:
    """The text of the page that the hub shows."""
    import jinja2

    words = configuration([record])
    # Where the record lies here is nobody's concern.
    del words["records"]
    text = (TEMPLATES / "card.md").read_text(encoding="utf-8")
    return jinja2.Template(text, trim_blocks=True, lstrip_blocks=True).render(
        repo=repo,
        kind=kind,
        adapter=(folder / "adapter_config.json").exists(),
        rounds=len(record.rounds),
        results=results({record.label: [record]}).T.to_string(),
        words=words,
    )


def _uploaded(folder: Path, repo: str, kind: str, private: bool) -> str:
    """Upload a folder; its path where nobody can be reached, or nobody is logged in."""
    hub = HfApi()
    try:
        hub.create_repo(repo, repo_type=kind, private=private, exist_ok=True)
        return str(hub.upload_folder(repo_id=repo, folder_path=folder, repo_type=kind))
    except (TransportError, LocalTokenNotFoundError, OfflineModeIsEnabled) as error:
        warnings.warn(
            f"{folder} is written, and was not uploaded ({cause_of(error)}); with a network, and "
            f"after `hf auth login`: hf upload {repo} {folder} --repo-type {kind}",
            HubWarning,
            stacklevel=3,
        )
        return str(folder)
