"""Distil one or several models into one small model, on text without labels.

    raysed distill --teachers A B C --corpus tickets.txt
    raysed distill --teachers A vectors.parquet --corpus tickets.txt --learner MODEL --keep-layers 3

A teacher is a sentence-transformers model or a plain transformer (directory or hub id), or a .parquet file
with the columns sentence and embedding. The same command continues a stopped run. With another teacher or more text it
computes only the missing parts. Exit code 3: the run is complete, but its model is worse than its encoder or TF-IDF on
the --dev task and is not exported (see --allow-worse).
"""

import argparse
from typing import Any

from raysed.cli import code_of
from raysed.commands import add_names, add_shared, add_tasks, parser_of, print_plan
from raysed.errors import RunFailed, UserError


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = parser_of(__doc__)
    group = result.add_argument_group("input")
    add_names(group, "--teachers", "MODEL", "models, or files of embeddings", required=True)
    add_names(group, "--corpus", "SOURCE", "sentences without labels", required=True)
    group.add_argument(
        "--queries", metavar="SOURCE", help="queries for the sentences, one per line, with prompts of their own"
    )
    group = result.add_argument_group("learner")
    group.add_argument("--learner", metavar="MODEL", help="model to train; default: half of the first teacher's layers")
    group.add_argument(
        "--keep-layers", metavar="LAYERS", type=_layers, help="keep N layers of the learner, or these: 0,2,5"
    )
    group.add_argument("--static", action="store_true", help="train a static model: one vector per token")
    group = result.add_argument_group("evaluation")
    group.add_argument("--dev", metavar="TASK", help="choose the checkpoint and check the export on this task")
    add_tasks(group, "report this task, too")
    add_shared(group, "--allow-worse")
    group = result.add_argument_group("hub")
    group.add_argument("--push", metavar="REPO", help="upload the exported model and its card to the Hugging Face hub")
    group.add_argument("--public", action="store_true", help="let everybody read it; default: a private repository")
    group = result.add_argument_group("run")
    group.add_argument("--run", help="name of the run; default: the names of corpus, teachers and learner")
    add_shared(group, "--storage", "--set", "--plan", "--verbose")
    add_shared(result.add_argument_group("cluster"), "--address", "--take-over")
    return result


def _layers(text: str) -> int | list[int]:
    """Parse a number of layers, or a list with commas."""
    try:
        return [int(part) for part in text.split(",") if part] if "," in text else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of layers nor a list of them: 0,2,5") from None


def job(arguments: argparse.Namespace) -> int:
    """Distil, or show the plan; return the exit code."""
    from raysed.api import distill, distillation
    from raysed.config_text import apply_override
    from raysed.store.hub import hub_problem
    from raysed.store.push import check_push

    options = vars(arguments)
    plan, repo, public = options.pop("plan"), options.pop("push"), options.pop("public")
    if public and not repo:
        raise UserError("--public is for --push REPO; add it")
    settings: dict[str, Any] = {"corpus": {"source": options.pop("corpus")}}
    del options["address"]  # `main_of` has used it
    allow_worse = ["export.allow_worse=true"] if options.pop("allow_worse") else []
    for override in [*options.pop("overrides"), *allow_worse]:
        apply_override(settings, override)
    options |= {"settings": settings, "verbose": True}
    if plan:
        print_plan(distillation(**options))
        return 0
    if repo:
        check_push(repo, public)
    result = distill(**options)
    if repo and result.path:
        try:
            url = result.push_to_hub(repo, private=not public, exist_ok=True)
        except Exception as error:  # the hub's libraries raise a dozen unrelated types
            problem = f"the model in {result.path} is complete, but cannot be pushed to {repo}: {hub_problem(error)}"
            raise RunFailed(f"{problem}; the same command tries again") from None
        print(f"pushed: {url}")
    return code_of(result)
