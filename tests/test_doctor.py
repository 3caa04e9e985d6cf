"""What doctor finds here, what it says of other machines, and its exit status."""

import json
import os
import platform
import subprocess
import sys
from importlib import metadata

import pytest
from click.testing import CliRunner

from workbench.__main__ import main
from workbench.cli import doctor
from workbench.policies import memory

NVIDIA_SMI = """#!/bin/sh
echo "0, GPU-aaaa, NVIDIA L40S, 46068, 45000, 580.95.05"
echo "1, GPU-bbbb, NVIDIA H200, 143771, 143000, 580.95.05"
"""


def invoke(*arguments):
    return CliRunner().invoke(main, ["doctor", *arguments])


@pytest.fixture
def no_gpu(monkeypatch, tmp_path):
    """A search path without nvidia-smi and without a compiler."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(doctor, "_gpus_of_torch", list)
    return tmp_path


@pytest.fixture
def two_gpus(no_gpu, monkeypatch):
    """A program nvidia-smi that reports two cards."""
    program = no_gpu / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(platform, "system", lambda: "Linux")


def installed(monkeypatch, **versions):
    """Pretends that these distributions have these versions, None for missing; the others are as they are."""
    real = metadata.version

    def version(name):
        found = versions[name] if name in versions else real(name)
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(metadata, "version", version)


EVERYTHING = {
    "unsloth": "2026.10.7",
    "unsloth-zoo": "2026.10.7",
    "vllm": "0.30.0",
    "bitsandbytes": "0.50.2",
    "torch": "2.13.0",
    "peft": "0.21.2",
    "trl": "1.14.2",
    "accelerate": "1.15.0",
}


# --- the machine


def test_this_machine():
    here = doctor.machine()
    assert here["python"] == platform.python_version() and 1 <= here["cores"] <= os.cpu_count()
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 2**28 < here["memory"] <= physical and here["disk"] > 0
    assert here["torch"] == metadata.version("torch") and here["model"].endswith("models/tiny")


def test_the_tiny_lab_runs_here():
    assert doctor.obstacles("tiny") == doctor.obstacles("transformers") == []


def test_gpus_as_nvidia_smi_prints_them(two_gpus):
    first, second = doctor.gpus()
    assert first == {
        "name": "NVIDIA L40S",
        "bytes": 46068 * 2**20,
        "free": 45000 * 2**20,
        "driver": "580.95.05",
    }
    assert second["name"] == "NVIDIA H200"


@pytest.mark.parametrize(
    "visible, names",
    [
        (None, ["L40S", "H200"]),
        ("1", ["H200"]),
        ("0,1", ["L40S", "H200"]),
        ("", []),
        ("-1", []),
        ("GPU-bb", ["H200"]),
        ("7", []),
    ],
)
def test_only_visible_gpus_count(two_gpus, monkeypatch, visible, names):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu["name"].removeprefix("NVIDIA ") for gpu in doctor.gpus()] == names


def test_unified_memory_is_no_crash():
    assert doctor.parse_gpus("0, GPU-a, NVIDIA GB10, [N/A], [N/A], 580.1")[0]["bytes"] == 0


def test_compiler(no_gpu, monkeypatch):
    assert doctor.compiler() is None
    program = no_gpu / "clang"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert doctor.compiler() == str(program)
    monkeypatch.setenv("CC", "clang -O2")
    assert doctor.compiler() == str(program)


# --- packages


def test_packages_of_pyproject():
    found = {entry["name"]: entry for entry in doctor.packages()}
    assert found["torch"]["state"] == "ok" and found["torch"]["extras"] == [""]
    assert found["peft"]["extras"] == ["lora", "gpu"] and found["numpy"][
        "version"
    ] == metadata.version("numpy")


def test_versions_out_of_bounds_are_seen(monkeypatch):
    installed(monkeypatch, torch="2.4.0", peft=None)
    found = {entry["name"]: entry["state"] for entry in doctor.packages()}
    assert found["torch"] == "out of bounds" and found["peft"] == "missing"


def test_metadata_of_an_installed_package_says_the_same():
    lines = [
        "click<9,>=8.1",
        "peft<1,>=0.19; extra == 'lora'",
        "vllm>=0.27; (sys_platform == 'linux') and extra == 'gpu'",
        "never>=1; (sys_platform == 'plan9') and extra == 'gpu'",
    ]
    found = doctor.parse_requirements(lines)
    names = {extra: [r.name for r in group] for extra, group in found.items()}
    assert names == {
        "": ["click"],
        "lora": ["peft"],
        **({"gpu": ["vllm"]} if sys.platform == "linux" else {}),
    }


def test_install_command_has_the_bounds():
    assert (
        doctor.install_command(["peft", "something-else"])
        == "pip install 'peft<0.22,>=0.19' something-else"
    )


# --- what a lab needs


def test_missing_packages_come_with_the_command(monkeypatch):
    installed(monkeypatch, **{**EVERYTHING, "peft": None, "trl": None})
    last = doctor.obstacles("unsloth")[-1]
    assert (
        last.startswith("missing: peft, trl; install with: pip install 'peft<") and "\n" not in last
    )


def test_without_a_gpu(no_gpu, monkeypatch):
    installed(monkeypatch, **EVERYTHING)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert doctor.no_gpu().startswith("an NVIDIA GPU is needed, and nvidia-smi shows none")
    assert [line[:12] for line in doctor.obstacles("unsloth")] == ["an NVIDIA GP", "no C compile"]
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert doctor.no_gpu() == "Linux with an NVIDIA GPU is needed, this is Darwin"


def test_a_gpu_and_the_wrong_torch(two_gpus, monkeypatch):
    installed(monkeypatch, **{**EVERYTHING, "torch": "2.13.0+cpu"})
    assert doctor.no_gpu().startswith(
        "torch 2.13.0+cpu has no CUDA; get the build that has: pip install"
    )


@pytest.mark.parametrize(
    "gone, options, missing",
    [
        ("vllm", {}, True),
        ("vllm", {"fast_inference": False}, False),
        ("bitsandbytes", {}, False),
        ("bitsandbytes", {"load_in_4bit": True}, True),
        ("unsloth", {}, True),
        ("unsloth-zoo", {}, True),
    ],
)
def test_what_unsloth_needs(two_gpus, monkeypatch, gone, options, missing):
    installed(monkeypatch, **{**EVERYTHING, gone: None})
    told = [line for line in doctor.obstacles("unsloth", **options) if "install with" in line]
    assert [
        line.startswith(f"missing: {gone}; install with: pip install '{gone}") for line in told
    ] == [True] * missing


def test_unknown_labs():
    with pytest.raises(ValueError, match="lab='cloud': there are tiny, transformers, unsloth"):
        doctor.obstacles("cloud")


# --- reports and the command line


def test_a_model_is_held_against_the_largest_gpu(two_gpus, monkeypatch, tmp_path):
    installed(monkeypatch, **EVERYTHING)
    monkeypatch.setenv("CC", sys.executable)  # any program that is there
    fits = doctor.report("unsloth", "Qwen/Qwen2.5-3B-Instruct", load_in_4bit=True)
    assert (
        fits["can_run"]
        and fits["model"]["device"] == "NVIDIA H200"
        and fits["model"]["lora_parameters"] == 119_734_272
    )
    assert fits["model"]["total"] == sum(memory.estimate("Qwen2.5-3B", load_in_4bit=True).values())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    small = doctor.report("unsloth", "Llama-3.1-8B", lora_rank=0)
    assert (
        not small["can_run"]
        and "does not fit" in small["obstacles"][0]
        and not small["model"]["fits"]
    )
    assert doctor.report("tiny", "Llama-3.1-8B", lora_rank=0)["can_run"], (
        "the tiny lab does not load it"
    )


def test_command_line_without_a_gpu(no_gpu, monkeypatch):
    installed(monkeypatch, unsloth=None)
    result = invoke("--lab", "unsloth")
    assert (
        result.exit_code == 1
        and "lab unsloth: cannot run here" in result.output
        and "gpu       none" in result.output
    )
    assert "unsloth             -" in result.output and "pip install" in result.output
    assert invoke().exit_code == 0


def test_json_is_the_report():
    result = invoke("--json", "--model", "SmolLM2-135M", "--lora-rank", "8", "--max-length", "256")
    told = json.loads(result.output)
    assert result.exit_code == 0 and told["can_run"] and told["lab"] == "tiny"
    assert told["model"]["parameters"] == 134_515_008 and told["model"]["max_length"] == 256
    assert told["model"]["total"] == sum(told["model"]["bytes"].values())


def test_text_names_every_part():
    output = invoke("--model", "SmolLM2-135M").output
    assert (
        all(part in output for part in memory.estimate("SmolLM2-135M"))
        and "134,515,008 parameters" in output
    )


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["--model", "no/such"], 1, "error: model='no/such'"),
        (["--model", "SmolLM2-135M", "--max-length", "0"], 1, "max_length=0"),
        (["--model", "SmolLM2-135M", "--load-in-4bit", "--lora-rank", "0"], 1, "quantised"),
        (["--lab", "cloud"], 2, "'cloud' is not one of"),
    ],
)
def test_errors_are_one_line(arguments, code, message):
    result = invoke(*arguments)
    assert (
        result.exit_code == code and message in result.output and "Traceback" not in result.output
    )


def test_nothing_heavy_is_loaded():
    code = (
        "import sys; from workbench import doctor; doctor.report('tiny', 'Qwen2.5-3B'); "
        "heavy = {'torch', 'transformers', 'vllm', 'unsloth', 'pandas', 'datasets'}; print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "doctor", "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["machine"]["python"] == platform.python_version()
