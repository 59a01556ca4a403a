"""The verdict: the exported model or why there is none, its gain, size and speed, and how to use it."""

from collections.abc import Iterator, Mapping
from typing import Any

from raysed.report.results import RunResults
from raysed.report.section import Block, Code, Section
from raysed.report.verdict import comparisons, comparisons_table, verdict
from raysed.store.text import sentence, size

_USE = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer({place!r}{trust})
embeddings = model.encode(["A man plays the guitar.", "Someone is making music."])"""


def _refused(run: RunResults) -> dict[str, Any]:
    if not run.choice.refusal:
        return {}
    return {
        "chosen": run.choice.words(),
        "why": run.choice.refusal,
        "worth": verdict(run),
        "against": comparisons(run),
    }


def _exported(run: RunResults) -> dict[str, Any]:
    if run.choice.refusal:
        return {}
    encoder = run.exported_model.encoder
    return {
        "recipe": run.choice.model.recipe,
        "why": run.choice.words(),
        "warning": run.choice.warning,
        "worth": verdict(run),
        "against": comparisons(run),
        "width": encoder.width,
        "parameters": run.exported_model.parameters,
        "bytes": sum(tensor.nbytes for tensor in encoder.parameters()),
        "sentences_per_second": run.speed,
    }


def _refused_blocks(refused: Mapping[str, Any], run: RunResults) -> Iterator[Block]:
    yield f"{sentence(refused['why'])} The best candidate: {refused['chosen']}. {refused['worth']}".strip()
    yield comparisons_table(refused["against"], run.scores)


def _exported_blocks(exported: Mapping[str, Any], run: RunResults) -> Iterator[Block]:
    recipe, count = exported["recipe"], exported["parameters"] / 1e6
    speed = float(f"{exported['sentences_per_second']:.2g}")  # further digits would differ between measurements
    yield exported["worth"]
    if exported["warning"]:
        yield f"Warning: {exported['warning']}."
    yield comparisons_table(exported["against"], run.scores)
    yield (
        f"Size: {count:,.1f} million parameters ({size(exported['bytes'])}), {exported['width']} numbers per sentence. "
        f"Speed: about {speed:,.0f} sentences per second in one process on this machine."
    )
    if run.caveat:
        yield run.caveat
    yield f"Exported: {exported['why']}."
    yield "Use it wherever sentence-transformers is installed:"
    trust = ", trust_remote_code=True" if "flow" in recipe.split("-") or run.config.encoder.trust_remote_code else ""
    yield Code(_USE.format(place=run.storage.uri("model"), trust=trust), "python")


SECTIONS = [
    Section("exported", "The model", 5, _exported, blocks=_exported_blocks),
    Section("refused", "", 6, _refused, blocks=_refused_blocks, is_part=True),
]
