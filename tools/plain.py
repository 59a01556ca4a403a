"""Install `.` and `.[all]` into fresh environments, and run the commands of pages, jobs and examples in one or both.

    python3 tools/plain.py

Commands are the shell and Python blocks of `PAGES`, the docstrings of jobs/ and the files in examples/; new ones run
without a change here. The files that they name (`A`, `tickets.txt`, `my-search/`) lie where they run: the
package's text, small models with random weights, and the package's encoder with three more such layers.
"""

import csv
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/plain"
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    ROOT / "papers/README.md",
    ROOT / "raysed/bundled/README.md",
]
INSTALLS = {"plain": ".", "all": ".[all]"}
"""Requirement to install, by environment."""
ON_RAY = {"docs/cluster.md", "docs/ray.md"}
"""Pages whose commands need Ray, which `.[all]` has."""
IN_BOTH = re.compile(r"README\.md$|docs/quickstart\.md$|jobs/|extras$")
"""Files whose commands run with Ray and without. All others run without, where a missing package shows."""
AT_A_TIME = 2  # commands
TIMEOUT = 600  # seconds
LEFT_OUT = {
    r"^pip install '?\.": "it makes the environments",
    r"^make ": "it installs into .venv; jobs and benchmarks are the commands",
    r"^ray |^kubectl |^export RAY_AUTH_MODE": "it needs a cluster",
    r"^GROUP=|^aws |^echo |^\$QUOTA ": "it needs an account",
    r"^python tools/bundled_(encoder|head)\.py": "it writes the bundled encoder",
    r"^python jobs/reproduce\.py sed-table-1": "it trains for minutes, on data that the repository lacks",
    r"^python - .*\n(?!import |from )": "it needs names that its page does not define",
    r"\nimport ray\n|ray_template\.": "it needs Ray; tests/cluster/ runs it",
    r"push_to_hub\(|load_dataset\(|--push |--task mteb/": "it needs the hub",
    r"backend=\"onnx|fastembed|^pip install 'optimum": "it needs an environment of its own, in which they ran once",
    r"examples/mteb_scores\.py": "it needs mteb and the hub",
    r"^python examples/write_queries\.py (?!--help)": "it needs a server; tests/test_examples.py runs it",
    r"^python -m papers\.views ": "it needs WordNet or translation models; tests/papers/ runs it",
}
"""Reasons to leave out commands, by pattern."""
SUBSTITUTES = {
    r"^ray job submit .*? -- ": "",
    r"^uv run --no-project --with-requirements \S+ ": "python ",  # uv may be missing; the libraries are installed
    r" --set resources\.gpu=true": "",
    r"s3://(BUCKET|bucket)/": "",
    r"\b(NAME|kubernetes)\b": "quickstart",
}
_TASKS = " --set evaluation.tasks.generated-dev=dev.csv --set evaluation.tasks.generated-test=test.csv"
_SHORT = " --allow-worse --set corpus.sentences=150 --set sed.epochs=1 --set sed.learners=1"
_TRAINS = _TASKS + _SHORT
_TRAINS_MEMBERS = _TRAINS + " --set members.count=2 --set ct.steps=2 --set flow.epochs=1"
_ONE_RECIPE = _TRAINS_MEMBERS + " --set recipes=[ct-sed-flow]"
ENDINGS = {
    r"^(raysed|python jobs/)\s*distill.* --dev ": _SHORT,
    r"^(raysed|python jobs/)\s*distill": _TRAINS,
    r"^raysed run .*\brecipes=": _TRAINS_MEMBERS + " --set sts.lower_bounds=[0] --set sts.models=2",
    r"^raysed run .*\bbsl\.": _TRAINS_MEMBERS + " --set recipes=[bsl]",
    r"^raysed run|^python jobs/ensemble_then_distill\.py": _ONE_RECIPE,
}
"""Options that make commands take seconds, by pattern."""
NEEDS_EXTRA = {
    "raysed run --config my-run.yaml --run on-ray --set resources.engine=ray": {"plain": "[ray]'"},
    "raysed distill --teachers A --corpus me/text": {
        "plain": "[datasets]'",
        "all": "cannot be read as a hub dataset",
    },
}
"""Further commands, with a part of the error that ends them with exit code 2, by environment."""


# -- what runs -------------------------------------------------------------------------------------------------------


def shell_commands(text: str) -> list[str]:
    r"""Return the commands of a shell block, without comments and with continued lines joined.

    >>> shell_commands("# all runs\nraysed status  # now\nraysed run --config \\\n  a.yaml\n")
    ['raysed status', 'raysed run --config a.yaml']
    """
    lines = [re.sub(r"(^|\s+)#\s.*", "", line) for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines()]
    return [line.strip() for line in lines if line]


def commands() -> dict[str, list[str]]:
    """Return the commands by file, in the file's order."""
    found: dict[str, list[str]] = {}
    for path in PAGES:
        lines = found[path.relative_to(ROOT).as_posix()] = []
        for _, language, text in re.findall(r"^( *)```(sh|python)\n(.*?)^\1```", path.read_text(), re.S | re.M):
            lines += shell_commands(text) if language == "sh" else [f"python - <<'END'\n{text}END"]
    for path in sorted(ROOT.glob("jobs/*.py")):
        shown = re.findall(r"(?:python jobs|ray job submit).*?[^\\]\n", path.read_text().split('"""')[1], re.S)
        found[f"jobs/{path.name}"] = shell_commands("".join(shown))
    for path in sorted(ROOT.glob("examples/*.*")):
        has_arguments = "argparse" in path.read_text()  # which name a server
        own = f"python examples/{path.name} --help"
        found[f"examples/{path.name}"] = [
            own if has_arguments else f"python tools/plain.py on-less-text examples/{path.name}"
        ]
    return {**found, "extras": [*NEEDS_EXTRA]}


def why_left_out(command: str) -> str | None:
    """Return why a command is left out, or None. Of `ray job submit`, only the entrypoint counts."""
    return next((reason for pattern, reason in LEFT_OUT.items() if re.search(pattern, substituted(command))), None)


def substituted(command: str) -> str:
    """Return a command without placeholders and clusters."""
    for pattern, replacement in SUBSTITUTES.items():
        command = re.sub(pattern, replacement, command)
    return command


def environments(name: str) -> list[str]:
    """Return where a file's commands run.

    >>> environments("README.md"), environments("docs/ray.md"), environments("docs/distill.md")
    (['plain', 'all'], ['all'], ['plain'])
    """
    if IN_BOTH.match(name):
        return [*INSTALLS]
    return ["all"] if name in ON_RAY else ["plain"]


# -- where it runs ---------------------------------------------------------------------------------------------------


def make_directory(path: Path) -> None:
    """Write the files that commands name, from the package's text; needs an environment with raysed."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    from raysed import bundled

    sentences = bundled.corpus()[:150]
    for name in ("data/tickets", "text", "SentEval/data/downstream/TREC", "my-search/qrels"):
        (path / name).mkdir(parents=True)
    for name in ("tickets.txt", "documents.txt", "questions.txt", "queries.txt", "text/1.txt"):
        (path / name).write_text("".join(f"{sentence}\n" for sentence in sentences))
    for name in ("tickets.jsonl", "data/tickets/1.jsonl"):
        (path / name).write_text("".join(json.dumps({"text": sentence}) + "\n" for sentence in sentences))
    for name in ("pairs.csv", "pairs-dev.csv", "dev.csv", "test.csv", "pairs.tsv", "pairs-dev.tsv", "pairs-test.csv"):
        pairs = bundled.pairs("dev" if "dev" in name else "test")[:150]
        write_table(path / name, [("score", "sentence1", "sentence2"), *pairs])
    neighbours = list(pairwise(sentences))
    write_table(path / "nli.tsv", [("premise", "hypothesis", "label"), *((*two, "entailment") for two in neighbours)])
    languages = [("sentence", "de", "fr"), *zip(sentences, sentences[::-1], sentences[50:] + sentences[:50])]
    for name in ("verses.tsv", "scored.tsv"):
        write_table(path / name, languages)
    views = [{"view1": first, "view2": second} for first, second in neighbours]
    pq.write_table(pa.Table.from_pylist(views), path / "synonyms.parquet")
    write_table(path / "labelled.tsv", [("label", "text"), *((text.split()[0] == "The", text) for text in sentences)])
    for name, some in (("train_5500", sentences[:60]), ("TREC_10", sentences[60:90])):
        questions = [f"{'NUM' if text.startswith('The ') else 'HUM'}:of {text}\n" for text in some]
        (path / f"SentEval/data/downstream/TREC/{name}.label").write_text("".join(questions))
    documents = [{"_id": str(place), "title": "", "text": text} for place, text in enumerate(sentences)]
    for name, some in (("corpus", documents), ("queries", documents[:20])):
        (path / f"my-search/{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in some))
    qrels = [("query-id", "corpus-id", "score"), *((str(place), str(place + 1), 1) for place in range(20))]
    write_table(path / "my-search/qrels/test.tsv", qrels)

    write_models(path)
    for name in ("docs", "examples", "jobs", "papers", "tools"):
        (path / name).symlink_to(ROOT / name)
    own = f"--set encoder.path=A --set nli.train=[nli.tsv]{_TRAINS_MEMBERS} --set recipes=[ct-sed]"
    run_or_raise(f"raysed run {own}", "plain", path)
    for name in ("my-run.yaml", "my-config.yaml", "tickets.yaml"):
        shutil.copy2(path / "runs/quickstart/config.yaml", path / name)


def write_models(path: Path) -> None:
    """Write small models with random weights, and some with the names of published ones."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    from raysed import bundled

    encoder = Path(bundled.__file__).parent / "encoder"
    sizes = {"hidden_size": 32, "num_attention_heads": 1, "intermediate_size": 64}
    small = AutoConfig.from_pretrained(encoder, trust_remote_code=False, **sizes)
    small.num_hidden_layers = 6
    published = ("all-MiniLM-L6-v2", "all-mpnet-base-v2", "paraphrase-MiniLM-L3-v2")
    hub = [f"sentence-transformers/{name}" for name in published]
    for seed, name in enumerate(["A", "B", "C", "MODEL_A", "MODEL_B", "OLD", "MULTILINGUAL", *hub]):
        torch.manual_seed(seed)
        model = AutoModel.from_config(small, trust_remote_code=False)
        if name in hub:
            model = AutoModel.from_pretrained(encoder, num_hidden_layers=6, trust_remote_code=False)
        model.save_pretrained(path / name)
        AutoTokenizer.from_pretrained(encoder, trust_remote_code=False).save_pretrained(path / name)


def write_table(path: Path, rows: list[tuple]) -> None:
    """Write rows, separated by tabs in a .tsv, else by commas."""
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows(rows)


def on_less_text(path: Path) -> None:
    """Run an example or a notebook's cells on a few of the package's sentences and pairs."""
    from raysed import bundled

    sentences, pairs = bundled.corpus()[:150], {split: bundled.pairs(split)[:250] for split in ("dev", "test")}
    bundled.corpus, bundled.pairs, sys.argv = lambda: sentences, pairs.get, [str(path)]
    if path.suffix == ".ipynb":
        cells = [cell["source"] for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        exec("\n".join(map("".join, cells)), {"__name__": "__main__"})
    else:
        runpy.run_path(str(path), run_name="__main__")


# -- running it ------------------------------------------------------------------------------------------------------


def run(command: str, environment: str, directory: Path) -> tuple[int, str]:
    """Run a command as a user of an environment would; return its exit code and output."""
    own = ("PYTHONPATH", "PYTHONHOME", "RAY_ADDRESS", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if name not in own}
    variables["PATH"] = f"{BUILD / environment}/bin:{os.environ['PATH']}"
    # Threads that wait for a busy core would spin unless they are passive.
    variables |= {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        ["timeout", str(TIMEOUT), "bash", "-c", command],
        cwd=directory,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout.decode(errors="replace")


def install(environment: str) -> None:
    """Make a fresh environment."""
    shutil.rmtree(ROOT / "build/lib", ignore_errors=True)  # pip would install deleted modules from there
    begun = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", BUILD / environment], check=True)
    run_or_raise(f"python -m pip --quiet install -c constraints.txt '{INSTALLS[environment]}'", environment, ROOT)
    print(f"installed '{INSTALLS[environment]}' in {time.monotonic() - begun:.0f} s", flush=True)


def run_or_raise(command: str, environment: str, directory: Path) -> None:
    """Run a command; raise `RuntimeError` if it fails."""
    code, text = run(command, environment, directory)
    if code:
        raise RuntimeError(f"{command}\n{text}\nit ended with {code}")


def copy(source: str, target: str) -> None:
    """Copy a file, or link weights, which no command changes."""
    (os.link if source.endswith(".safetensors") else shutil.copy2)(source, target)


def check(name: str, environment: str) -> list[bool]:
    """Run a file's commands one after another in a fresh directory; return which ended as expected."""
    directory, outcomes = BUILD / "at" / environment / name, []
    shutil.copytree(BUILD / "directory", directory, symlinks=True, copy_function=copy)
    for line in filter(lambda line: not why_left_out(line), commands()[name]):
        refusal, command = NEEDS_EXTRA.get(line, {}).get(environment, ""), substituted(line)
        command += next((ending for pattern, ending in ENDINGS.items() if re.search(pattern, command)), "")
        begun = time.monotonic()
        code, text = run(command, environment, directory)
        outcomes.append(code == (2 if refusal else 0) and refusal in text)
        title = f"{time.monotonic() - begun:5.1f} s  {INSTALLS[environment]:6}  {name}: {line.splitlines()[0]}"
        failure = f"{command}\n{text}\nit ended with {code}; expected {f'2 and {refusal!r}' if refusal else 0}"
        print(f"passed {title}" if outcomes[-1] else f"FAILED {title}\n{failure}", flush=True)
    return outcomes


def main() -> int:
    """Run all commands; return 1 if one failed, else 0."""
    shutil.rmtree(BUILD, ignore_errors=True)
    install("plain")
    run_or_raise(f"python {shlex.quote(__file__)} directory {shlex.quote(f'{BUILD}/directory')}", "plain", ROOT)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        second = pool.submit(install, "all")
        checks = [pool.submit(check, name, "plain") for name in commands() if "plain" in environments(name)]
        second.result()
        checks += [pool.submit(check, name, "all") for name in commands() if "all" in environments(name)]
        outcomes = [outcome for each in checks for outcome in each.result()]
    failed = outcomes.count(False)
    print(f"{len(outcomes) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["directory", path]:
            make_directory(Path(path))
        case ["on-less-text", path]:
            on_less_text(Path(path))
        case _:
            sys.exit(main())
