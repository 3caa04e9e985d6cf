"""`wb.push_to_hub`: the folder that it writes, the card, and what it says without a network."""

import json
from types import SimpleNamespace

import pytest
import torch
from conftest import go, same_record, small_lab
from contract import LORA
from huggingface_hub.errors import HfHubHTTPError
from transformers import AutoModelForCausalLM

import workbench as wb
from workbench.labs import shipped
from workbench.problems import arithmetic
from workbench.reports import hub


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "pods"
    options = {"problems_per_round": 4, "evaluate_every": 2, "checkpoint_every": 1}
    run = wb.Run(small_lab(), wb.methods.pods(8, 4), out=path, **options)
    go(run, 2)
    return run


def pushed(what, folder, repo="me/pods"):
    """The card; fails unless a warning says how the folder is uploaded."""
    with pytest.warns(hub.HubWarning, match=f"hf upload {repo} {folder} --repo-type"):
        assert wb.push_to_hub(what, repo, out=folder) == str(folder)
    card = (folder / "README.md").read_text()
    assert (folder / "curves.svg").read_text().startswith("<?xml")
    for said in ("MaxVariance(m=4", "torch 2", "rollouts"):
        assert said in card
    return card


@pytest.mark.slow
def test_a_record_is_a_data_set_that_can_be_read_again(run, tmp_path):
    card = pushed(run.record, tmp_path / "hub")
    same_record(wb.load(tmp_path / "hub"), run.record)
    assert not (tmp_path / "hub" / "checkpoint").exists()
    assert "--repo-type dataset" in card and str(run.path) not in card
    # What the card says makes the same run.
    code = card.split("```python\n")[1].split("```")[0]
    places = {'"record"': repr(str(tmp_path / "hub")), '"runs/again"': repr(str(tmp_path / "re"))}
    for name, place in places.items():
        code = code.replace(name, place)
    exec(code, {})
    same_record(wb.load(tmp_path / "re"), run.record)


@pytest.mark.slow
def test_a_model_comes_from_memory_or_from_the_checkpoint(run, tmp_path):
    card = pushed(run, tmp_path / "now")
    pushed(wb.Run.resume(run.path), tmp_path / "later")
    assert 'AutoModelForCausalLM.from_pretrained("me/pods")' in card
    for folder in ("now", "later"):
        weights = AutoModelForCausalLM.from_pretrained(tmp_path / folder).state_dict()
        for name, value in run.policy.state_dict().items():
            assert torch.equal(weights[name], value)


@pytest.mark.slow
def test_an_adapter_says_so(tmp_path):
    model = str(shipped("models/tiny"))
    lab = wb.labs.transformers(
        model,
        arithmetic(8),
        lora=LORA,
        device="cpu",
        sampling=wb.policies.Sampling(max_new_tokens=16),
    )
    run = wb.Run(lab, wb.methods.pods(8, 4), out=tmp_path / "run", problems_per_round=2)
    go(run, 1)
    card = pushed(run, tmp_path / "hub")
    assert "AutoPeftModelForCausalLM" in card and "library_name: peft" in card
    assert json.loads((tmp_path / "hub/adapter_config.json").read_text())["r"] == LORA["r"]


@pytest.mark.slow
def test_what_is_uploaded_and_what_is_refused(run, tmp_path, monkeypatch):
    calls = []

    class Hub:
        def create_repo(self, repo, **options):
            calls.append((repo, options))

        def upload_folder(self, **options):
            calls.append(options)
            return "https://huggingface.co/datasets/me/pods/tree/main"

    monkeypatch.setattr(hub, "HfApi", Hub)
    address = wb.push_to_hub(run.record, "me/pods", out=tmp_path / "hub")
    assert address.startswith("https://")
    assert calls[0] == ("me/pods", {"repo_type": "dataset", "private": True, "exist_ok": True})
    assert calls[1]["folder_path"] == tmp_path / "hub"

    def refuse(*_, **__):
        raise HfHubHTTPError("403 Forbidden", response=SimpleNamespace(headers={}, request=None))

    monkeypatch.setattr(Hub, "create_repo", refuse)
    with pytest.raises(OSError, match="403"):
        wb.push_to_hub(run.record, "me/pods", out=tmp_path / "other")
    assert (tmp_path / "other" / "README.md").exists()


def test_what_cannot_work_is_named(run, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"^out="):
        wb.push_to_hub(run.record, "me/pods", out=tmp_path / "full")
    with pytest.raises(ValueError, match=r"^what="):
        wb.push_to_hub(str(run.path), "me/pods", out=tmp_path / "new")
    with pytest.raises(ValueError, match="a/b/c"):
        wb.push_to_hub(run.record, "a/b/c", out=tmp_path / "new")
    assert not (tmp_path / "new").exists()
