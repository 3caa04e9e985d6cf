"""docs/guides/code.md, followed to the letter: only the model is one that is made here in seconds.

It writes one of two programs whatever it is asked, so that some are right and some are wrong.
"""

import re
import string
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

datasets = pytest.importorskip(
    "datasets", reason="datasets is not installed (pip install datasets)"
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM  # noqa: E402

import workbench as wb  # noqa: E402
from workbench.datasets.hub import CODE  # noqa: E402

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs/guides/code.md").read_text()
SAMPLES = ROOT / "tests/data/hub"
PROGRAMS = ("def double(x):\n    return x + x", "def square(x):\n    return x * x")
CONTEXT = 512  # tokens, each of one character
STEPS = 300

pytestmark = pytest.mark.slow


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    """What datasets keeps of a file stays in the test's directory, and no network is asked."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.fixture(scope="module")
def writes_programs(tmp_path_factory):
    """The directory of a model that answers any text with one of `PROGRAMS`."""
    special = ["<pad>", "<eos>", "<unk>"]
    vocabulary = {token: i for i, token in enumerate([*special, *string.printable])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    words.decoder = decoders.Fuse()
    coder = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(vocabulary),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
            intermediate_size=128,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    )
    # Behind questions of several lengths, which end as those of the guide do.
    ending = coder(CODE.removeprefix("{prompt}"))["input_ids"]
    rng = np.random.default_rng(0)
    answers = [[*coder(f"```python\n{each}\n```")["input_ids"], 1] for each in PROGRAMS]
    width = max(map(len, answers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        length = int(rng.integers(8, 180)) + len(ending)
        ids = torch.as_tensor(rng.integers(3, len(vocabulary), (len(answers), length + width)))
        ids[:, length - len(ending) : length] = torch.as_tensor(ending)
        labels = torch.full_like(ids, -100)
        for row, answer in enumerate(answers):
            ids[row, length : length + len(answer)] = torch.as_tensor(answer)
            labels[row, length : length + len(answer)] = torch.as_tensor(answer)
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    coder.save_pretrained(folder)
    return folder


@pytest.fixture
def names(monkeypatch):
    """What the blocks define. Where bubblewrap cannot run, the programs above are trusted."""
    try:
        wb.verifiers.Code()
    except OSError:
        monkeypatch.setattr(wb.verifiers, "Code", partial(wb.verifiers.Code, sandbox="none"))
    return {"__name__": "guide"}


@pytest.mark.long
def test_the_guide_goes_from_the_sandbox_to_a_run(
    writes_programs, names, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for block in blocks("python"):
        block = block.replace("path/or/model-that-writes-programs", str(writes_programs))
        exec(compile(block, "docs/guides/code.md", "exec"), names)
    told = capsys.readouterr().out
    assert "['ok' 'wrong' 'unparsed']" in told
    assert "such as:\nassert double(3) == 6" in told
    assert "assert double(-2)" not in told, "tests that decide are in no prompt"
    assert len(names["problems"]) == 4, "the reference programs pass"

    rounds = names["again"].record.rounds
    assert rounds["round"].tolist() == [1, 2, 3]
    counts = rounds[[f"status_{status}" for status in wb.verifiers.STATUSES]].sum()
    assert counts.sum() == rounds["rollouts"].sum()
    assert counts["status_ok"] > 0 and counts["status_wrong"] > 0
    assert rounds["reward"].between(0, 1, inclusive="neither").any()
    assert rounds["tokens_trained"].sum() > 0
    # Programs for the other problems are wrong, whatever they are.
    rollouts = names["again"].record.rollouts()
    right = rollouts[rollouts["correct"]]
    assert set(right["problem"]) <= {each.id for each in names["problems"]}
    assert names["again"].record.accuracy()["accuracy"].between(0, 1).all()
    recorded = names["run"].record.manifest["lab"]
    assert recorded["own"] and recorded["verifier"]["is"] == "Code"


def test_the_call_for_a_gpu_reads_its_problems_and_lacks_the_gpu_alone(names, monkeypatch):
    """The sets are samples of theirs, with problems of our own; their programs are run."""
    hub = wb.problems.hub
    pools = {}

    def sample(name, *rest, **options):
        pools[name] = hub(name, *rest, path=SAMPLES / f"{name}.jsonl", **options)
        return pools[name]

    monkeypatch.setattr(wb.problems, "hub", sample)
    monkeypatch.setattr("workbench.policies.checks.no_gpu", lambda: "no NVIDIA GPU is visible")
    (block,) = blocks("py")
    with pytest.raises(ValueError, match="GPU"):
        exec(compile("import workbench as wb\n" + block, "docs/guides/code.md", "exec"), names)
    assert {name: len(pool) for name, pool in pools.items()} == {"mbpp+": 8, "humaneval+": 9}
