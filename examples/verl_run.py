"""A method in verl's trainer on one CPU: Ray, FSDP and the tiny model, at the smallest scale.

    python examples/verl_run.py --method pods --arguments '{"n": 8, "m": 4}' --out runs/verl

It needs the environment of `make test-verl`. The two lines that matter are `configuration(method)`
and `run_ppo`. All the rest is what every run of verl says of model, data and machine, here as small
as it goes. On GPUs use verl_pods.yaml instead.
"""

import argparse
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

# Set before verl is imported here. Ray hands the environment on to every worker.
os.environ["VERL_PLATFORM"] = "cpu"
os.environ["VERL_USE_EXTERNAL_MODULES"] = "verl_cpu"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent)])
sys.path.insert(0, str(HERE))

PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def write_data(path, n, levels):
    """n arithmetic problems as a parquet file with the columns that verl reads."""
    import pandas as pd

    from workbench.problems import arithmetic

    rows = []
    for i, problem in enumerate(arithmetic(n, levels=levels)):
        rows.append(
            {
                "prompt": [{"role": "user", "content": problem.prompt}],
                "data_source": "arithmetic",
                "reward_model": {"style": "rule", "ground_truth": problem.answer},
                "extra_info": {"index": i},
            }
        )
    pd.DataFrame(rows).to_parquet(path)
    return str(path)


def small_run(out, steps, problems, levels, resume):
    """Model, data, batch sizes and machine, for the tiny model on one CPU."""
    from workbench.labs import shipped

    data = write_data(out / "train.parquet", problems, levels)
    model = "actor_rollout_ref.model"
    actor = "actor_rollout_ref.actor"
    rollout = "actor_rollout_ref.rollout"
    return {
        "data.train_files": data,
        "data.val_files": data,
        "data.train_batch_size": 4,
        "data.shuffle": False,
        "data.max_prompt_length": 32,
        "data.max_response_length": 24,
        "data.dataloader_num_workers": 0,
        f"{model}.path": str(shipped("models/tiny")),
        f"{model}.custom_chat_template": PLAIN_TEMPLATE,
        f"{model}.override_config.attn_implementation": "eager",
        f"{model}.use_remove_padding": False,
        f"{model}.enable_gradient_checkpointing": False,
        f"{actor}.strategy": "fsdp2",
        f"{actor}.fsdp_config.model_dtype": "fp32",
        f"{actor}.fsdp_config.dtype": "float32",
        f"{actor}.fsdp_config.use_torch_compile": False,
        f"{actor}.use_torch_compile": False,
        f"{actor}.optim.lr": 1e-4,
        f"{actor}.ppo_mini_batch_size": 4,
        # Methods differ in how many rows they train on, and 1 divides any number of them.
        f"{actor}.ppo_micro_batch_size_per_gpu": 1,
        f"{rollout}.name": "transformers",
        f"{rollout}.free_cache_engine": False,
        f"{rollout}.agent.num_workers": 1,
        f"{rollout}.tensor_model_parallel_size": 1,
        f"{rollout}.log_prob_micro_batch_size_per_gpu": 1,
        "reward.num_workers": 1,
        "reward.custom_reward_function.path": "pkg://verl_cpu",
        "reward.custom_reward_function.name": "reward",
        "trainer.device": "cpu",
        "trainer.n_gpus_per_node": 1,
        "trainer.nnodes": 1,
        "trainer.logger": ["console"],
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": 1,
        "trainer.total_epochs": 100,
        "trainer.total_training_steps": steps,
        "trainer.default_local_dir": str(out / "checkpoints"),
        "trainer.resume_mode": "auto" if resume else "disable",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "ray_kwargs.ray_init.num_cpus": 32,
        "ray_kwargs.ray_init.num_gpus": 1,
        "ray_kwargs.ray_init.include_dashboard": False,
    }


def composed(keys):
    """verl's default configuration with these dotted keys set."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer")
    OmegaConf.set_struct(config, False)
    for key, value in keys.items():
        OmegaConf.update(config, key, value)
    OmegaConf.set_struct(config, True)
    return config


def name_or_json(text):
    """A paper's name as it is, and what `configuration` describes as data."""
    return json.loads(text) if text.startswith("{") else text


def main():
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--method", default="pods", type=name_or_json, help="a paper's name, or JSON"
    )
    parser.add_argument("--arguments", type=json.loads, default={}, help="its arguments, as JSON")
    parser.add_argument("--steps", type=int, default=2, help="training steps in all")
    parser.add_argument("--problems", type=int, default=16, help="problems of the data set")
    parser.add_argument(
        "--levels", type=int, nargs="+", default=[1, 2, 3], help="their levels of difficulty"
    )
    parser.add_argument("--set", type=json.loads, default={}, help="further keys of verl, as JSON")
    parser.add_argument("--out", type=Path, required=True, help="folder of data and checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    given = parser.parse_args()

    from workbench import verl
    from workbench.verl.compatibility import check_installed

    try:
        method = verl.method_of({"method": given.method, "arguments": given.arguments})
        keys = verl.configuration(method)
        check_installed("TransferQueue")
    except ValueError as error:
        parser.error(str(error))
    except ImportError as error:
        raise SystemExit(f"error: {error}; `make test-verl` makes it in .venv-verl") from None
    from verl.trainer import main_ppo

    given.out.mkdir(parents=True, exist_ok=True)
    out = given.out.resolve()
    machine = small_run(out, given.steps, given.problems, given.levels, given.resume)
    config = composed({**machine, **keys, **given.set})
    main_ppo.run_ppo(config, task_runner_class=main_ppo.TaskRunnerV1)


if __name__ == "__main__":
    main()
