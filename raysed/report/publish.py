"""Turn finished artefacts into the exported model, the report with its charts, and a summary on the terminal."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from raysed.config import stable_hash
from raysed.made import Made
from raysed.plan.check import Job
from raysed.plan.results import Results
from raysed.report.card import write_card
from raysed.report.document import Document
from raysed.report.findings import findings
from raysed.report.results import RunResults
from raysed.report.section import all_sections
from raysed.report.sections.scores import headline_table, layers_table, widths_table
from raysed.report.verdict import verdict
from raysed.store.progress import emit, steps
from raysed.store.status import REPORT
from raysed.store.storage import Storage

_FURTHER_STEPS = 4
"""Steps besides models and sections: lexical baselines, intervals, export, charts."""
_PARITY_SENTENCES = 64
_PARITY, _CALIBRATED_PARITY = 1e-4, 1e-3
"""Whitening amplifies the rounding of weak directions, 100-fold or more if fitted on few sentences."""


def publish(
    job: Job, storage: Storage, results: Results, ensure: Callable[[Made], None], write_line: Callable[[str], None]
) -> None:
    """Score all models, export one unless refused, write the report and summarise it.

    Args:
        ensure: makes what is to be read if its files are gone.
    """
    emit(stage="report")
    count = len(results.models) + sum(section.data is not None for section in all_sections())
    with steps("score and report", count + _FURTHER_STEPS) as begin:
        run = RunResults(job, storage, results, begin, ensure, write_line)
        begin("export")
        if run.choice.refusal:
            storage.remove("model")  # left by other settings or inputs
        else:
            _export(run)
        report = Document.of(run)
        begin("charts")

        def write(path: Path) -> None:
            path.mkdir(parents=True, exist_ok=True)
            for chart in report.charts():
                chart.save(path / f"{chart.name}.png")
            for name, text in zip(REPORT, texts, strict=True):
                storage.write_text(name, text)

        # Written before the manifest lists the plots, so a run that counts as complete has a report.
        texts = [report.to_html(), report.to_markdown(), report.to_json()]
        meta = {"refusal": run.choice.refusal, "report": stable_hash(texts)}
        storage.commit("plots", write, job.depends, meta)
    _summarize(run, report.data, write_line)


def publish_failure(settings: Mapping[str, Any], storage: Storage, error: Exception) -> None:
    """Write the `report.json` of a failed run."""
    failed = {"run": storage.run, "status": "failed", "error": str(error), "config": settings}
    storage.write_text("report.json", json.dumps(failed, indent=1))


def _export(run: RunResults) -> None:
    """Publish `model/` after comparing its vectors with those of the model in memory."""
    from raysed.model.library import export_model, parity  # takes seconds

    config, chosen, model = run.config, run.choice.model, run.exported_model
    tolerance = _PARITY if model.calibration is None else _CALIBRATED_PARITY

    def write(path: Path) -> None:
        export_model(
            model.encoder,
            model.tokenizer,
            path,
            layers=config.encoder.pool_layers,
            max_length=config.encoder.max_length,
            calibration=model.calibration,
            prompts=run.prompts,
        )
        write_card(run, path)
        compared = run.evaluation.sentences[:_PARITY_SENTENCES]
        expected_ND = model.embed(compared)
        difference = parity(path, compared, expected_ND, config.encoder.trust_remote_code)
        if not difference < tolerance:
            raise RuntimeError(f"the exported model's vectors differ from the trained model's by {difference:.2g}")

    run.storage.commit("model", write, run.job.depends, {"recipe": chosen.recipe, "index": chosen.index})


def _summarize(run: RunResults, data: Mapping[str, Any], write_line: Callable[[str], None]) -> None:
    choice, storage = run.choice, run.storage
    write_line(f"\n{headline_table(run.scores).plain()}")
    tables = {"by pooled layers": layers_table(run.scores), "by width": widths_table(data["widths"], run)}
    for title, table in tables.items():
        if table:
            write_line(f"\n{title}\n{table.plain()}")
    write_line("")
    for finding in findings(run):
        write_line(finding.text)
    write_line(f"TensorBoard: tensorboard --logdir {storage.uri('logs')}\n")
    if choice.warning:
        write_line(f"warning: {choice.warning}")
    write_line(f"{choice.model.recipe}: {verdict(run)}")
    write_line(choice.refusal or f"model: {storage.uri('model')}: {choice.words()}")
    write_line(f"report: {storage.uri('report.html')}   as text: {storage.uri('report.md')}")
