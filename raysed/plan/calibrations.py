"""The calibrations of a run's models."""

from collections.abc import Iterator, Mapping

from raysed.config import CorpusConfig, derive_seed, fitted_on
from raysed.made import Made, made
from raysed.make.scores import calibration, has_dropout, poolings_without_fit
from raysed.plan.check import Job
from raysed.plan.results import EvaluatedModel
from raysed.plan.tables import CORPUS
from raysed.recipe import BASE, Recipe, parse_recipe
from raysed.store.storage import Entry


def calibrations_of_base(job: Job) -> list[Recipe]:
    """Return the base with every calibration of the run."""
    texts = ["-".join([BASE, *recipe.calibration]) for recipe in job.recipes if recipe.calibration]
    return [parse_recipe(text) for text in dict.fromkeys(texts)]


def calibrated(
    job: Job, recipe: Recipe, models: list[EvaluatedModel], tables: Mapping[str, Made], may_fail: bool = True
) -> list[EvaluatedModel]:
    """Describe a recipe's calibrations of the models that it calibrates.

    Collapsed ones are left out: equal vectors cannot be calibrated. A single model gets `flow.fits` flows.
    """
    fits = job.config.flow.fits if "flow" in recipe.calibration and len(models) == 1 else 1
    sound = [model for model in models if not model.left_out]
    return [_calibrated(job, recipe, model, fit, tables, may_fail) for model in sound for fit in range(fits)]


def _calibrated(
    job: Job, recipe: Recipe, model: EvaluatedModel, fit: int, tables: Mapping[str, Made], may_fail: bool
) -> EvaluatedModel:
    config, flow, text = job.config, job.config.flow, None
    if flow.fit_on not in fitted_on():
        text = job.external("fit_on", CorpusConfig(source=flow.fit_on))
    elif flow.fit_on != "tasks":
        text = tables[CORPUS if flow.fit_on == CORPUS else f"pairs/{flow.fit_on}"]
    # Side tables show only the first fit.
    main, index = config.encoder.pool_layers, model.index + fit
    poolings = model.poolings if fit == 0 else [main]
    inputs = {"embeddings": model.embeddings, "model": model.weights, "sentences": job.sentences}
    inputs |= {"encoder": job.encoder, "text": text}
    if "natsv" in recipe.calibration and config.calibration.natsv_k == "dev":
        inputs["dev"] = job.dev
    seed = derive_seed(config.seed, recipe.text, model.index, *([fit] if fit else []))
    settings = {"stages": list(recipe.calibration), "flow": flow, "calibration": config.calibration, "seed": seed}
    settings |= {"layers": poolings, "main": poolings.index(main)}
    if flow.fit_on != "tasks":
        settings["run_seed"] = config.seed
    needs_encoder = flow.fit_on != "tasks" or has_dropout(flow, recipe.calibration)
    name, title = f"{recipe.text}/calibrations/{index:02d}", f"calibration {index:02d} of {recipe.text}"
    found = made(
        name,
        title,
        "calibration",
        calibration,
        inputs,
        settings,
        {"poolings": model.poolings},
        how="worker" if needs_encoder else "cpu",
        group=model.embeddings.name,
        may_fail=may_fail,
        lines=_unfitted_line,
    )
    return EvaluatedModel(recipe.text, model.kind, index, found, poolings, model.weights)


def _unfitted_line(entry: Entry) -> Iterator[str]:
    if why := poolings_without_fit(entry.meta):
        yield f"left out: {entry.name}: {why}"
