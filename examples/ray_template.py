"""raysed's five pieces in a Ray program of your own: an ensemble, its mean as targets, a learner and a flow.

python examples/ray_template.py --text tickets.txt --encoder models/mine --storage /shared/runs
ray job submit --working-dir . -- python examples/ray_template.py --text s3://bucket/text.txt --storage s3://bucket/runs

All results are in one run. `raysed run` with its `config.yaml` makes the rest, and the report.
"""

import argparse
import json
from os.path import abspath, exists
from pathlib import Path

import ray
from ray import tune
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from raysed.ray import MeanOfTeachers, TargetSink, distill_loop, fit_flow, prepare_member, train_member


def main(text: str, encoder: str, storage: str, members: int, steps: int, gpus: float) -> None:
    """Run the pieces one after the other, and print the paths of their results."""
    # Workers have other working directories, so paths are made absolute.
    text, encoder = (abspath(path) if exists(path) else path for path in (text, encoder))
    storage = storage if "://" in storage else abspath(storage)
    run = {
        "run": "template",
        "storage": storage,
        "recipes": ["ct-sed-flow"],
        "corpus": {"source": text},
        "encoder": {"path": encoder},
        "members": {"count": members},
        "ct": {"steps": steps, "schedule": "scaled"},
    }
    prepare_member({"run": run, "node": "ct", "seed": 0})  # reads the text; mistakes end the program here

    # Ray Tune trains the members: a trial for each.
    retries = tune.FailureConfig(max_failures=3)
    results = tune.Tuner(
        tune.with_resources(train_member, {"CPU": 1, "GPU": gpus}),
        param_space={"run": run, "node": "ct", "seed": tune.grid_search(list(range(members)))},
        run_config=tune.RunConfig(name="members", storage_path=f"{storage}/template/tune", failure_config=retries),
    ).fit()
    table = results.get_dataframe()[["config/node", "config/seed", "step", "loss", "dev", "path"]]
    print(table.to_string(index=False))

    # Ray Data averages the members' embeddings: rows with a running sum pass through the object store.
    targets = TargetSink({"run": run, "node": "ct-sed"}, workers=members)
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    sentences = ray.data.read_parquet(targets.sentences).select_columns(["id", "input_ids"])
    sentences.repartition(target_num_rows_per_block=targets.size).materialize().map_batches(
        MeanOfTeachers,
        fn_constructor_args=(targets.teachers, "target", len(targets.teachers)),
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=members),
        num_cpus=1,
        num_gpus=gpus,
        batch_format="pyarrow",
        batch_size=targets.size,
    ).write_datasink(targets, ray_remote_args={"num_cpus": 0})

    # Ray Train distils the mean into a learner, with DeepSpeed in its worker.
    restarts = FailureConfig(max_failures=3)
    learner = TorchTrainer(
        distill_loop,
        train_loop_config={"run": run, "node": "ct-sed", "seed": 0},
        scaling_config=ScalingConfig(num_workers=1, use_gpu=gpus > 0),
        run_config=RunConfig(name="learner", storage_path=f"{storage}/template/train", failure_config=restarts),
    ).fit()
    with learner.checkpoint.as_directory() as directory:
        print("learner:", json.loads(Path(directory, "learner.json").read_text())["path"])

    # A task fits the flow.
    print("flow:", ray.get(ray.remote(fit_flow).remote({"run": run, "node": "ct-sed-flow", "seed": 0})))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default="bundled:generated-text", help="a file or URI with a sentence per line")
    parser.add_argument("--encoder", default="bundled:raw", help="a directory or hub id")
    parser.add_argument("--storage", default="runs", help="a directory or URI that all machines reach")
    parser.add_argument("--members", type=int, default=4, help="members to train")
    parser.add_argument("--steps", type=int, default=300, help="updates per member")
    parser.add_argument("--gpus", type=float, default=0, help="GPUs per worker; a fraction lets workers share one")
    main(**vars(parser.parse_args()))
