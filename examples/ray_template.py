"""The mean of several models in a Ray Data pipeline of your own, and a small model distilled from it.

python examples/ray_template.py --text tickets.txt --models models/a models/b --vectors vectors
ray job submit --working-dir . -- python examples/ray_template.py --text s3://bucket/text.txt --vectors /shared/vectors
"""

import argparse
from os.path import abspath

import ray
from ray.data import SaveMode

import raysed
from raysed.bundled import CORPUS
from raysed.ray import MeanOfTeachers


def main(text: str, models: list[str], vectors: str, gpus: float) -> None:
    """Embed a text with all models, and distil their mean."""
    # Ray Data embeds the lines of the text. Readers and writers need no CPU, so actors may take all.
    vectors = abspath(vectors)
    ray.data.read_text(text, num_cpus=0).map_batches(
        MeanOfTeachers,
        fn_constructor_args=(models, "text"),
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=4),
        num_cpus=1,
        num_gpus=gpus,
        batch_size=1024,
        batch_format="pyarrow",
    ).write_parquet(vectors, mode=SaveMode.OVERWRITE, ray_remote_args={"num_cpus": 0})

    # The directory is a teacher, and the text that a small model learns on.
    result = raysed.distill([vectors], corpus=vectors)
    print(result.scores)
    print("model:", result.path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default=str(CORPUS), help="a file or URI with a sentence per line")
    parser.add_argument("--models", nargs="+", default=["bundled:encoder", "bundled:raw"], help="paths or hub ids")
    parser.add_argument("--vectors", default="vectors", help="a directory that all machines reach")
    parser.add_argument("--gpus", type=float, default=0, help="GPUs per actor; a fraction lets actors share one")
    main(**vars(parser.parse_args()))
