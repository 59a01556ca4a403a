"""Hostile and mistaken input as one table: bytes, command, sentence. None needs Ray, and nothing is written.

A row without a command is about `raysed run`: its settings are given by `--set`, and `--plan`
makes every check of a run without starting anything.
"""

import logging
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysed import cli
from raysed.store.storage import Storage

PAIRS = b"subset\tscore\tsentence1\tsentence2\n"
NLI = b"label\tpremise\thypothesis\n"
NOTHING: dict[str, bytes] = {}
DEV = "evaluation.tasks.everyday-dev"
VIEWS = "recipes=[bsl]; bsl.views=[files]; views.files=v.tsv"
CHOICES = "evaluation.dev=null; ct.keep=second"
ENCODER = r"'bundled:encoder' has \d+ layers"


def table(**columns: list) -> bytes:
    """A Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


SETTINGS = [
    ("ct.step=5", r"unknown setting ct\.step: did you mean ct\.steps\?"),
    ("nothing.like.it=5", r"unknown setting nothing; the settings here are .*"),
    ("members.count=many", r"setting members\.count: input should be a valid integer, .* \(got 'many'\)"),
    ("members.count=0", r"setting members\.count: input should be greater than or equal to 1 \(got 0\)"),
    ("members.count=true", r"setting members\.count: .*"),
    ("members.count=.nan", r"setting members\.count: .*"),
    ("ct=5", r"ct is a block of settings: .*"),
    ("run=../elsewhere", r"setting run: use only letters, .* \(got '\.\./elsewhere'\)"),
    ("run=", r"setting run: .*"),
    ("ct.steps", r"--set 'ct\.steps': write it as block\.key=value, for example --set ct\.steps=1000"),
    ("=5", r"--set '=5': write it as block\.key=value, .*"),
    ("ct..steps=5", r"--set 'ct\.\.steps=5': write it as block\.key=value, .*"),
    ("ct.steps.x=5", r"unknown setting ct\.steps\.x.*|setting ct\.steps: .*|--set .*"),
    ("ct.steps=[1", r"--set 'ct\.steps=\[1': the value is not valid YAML"),
    ("ct.steps=&a [*a]", r"--set 'ct\.steps=&a \[\*a\]': the value is not valid YAML"),
    ("recipes=" + 9000 * "[", r"--set 'recipes=\[+\.\.\.: the value is not valid YAML"),
    ("ct.steps=" + 5000 * "9", r"--set 'ct\.steps=9+\.\.\.: the value is not valid YAML"),
    ("run=2026-99-99", r"--set 'run=2026-99-99': the value is not valid YAML"),
    ("recipes=[ct-sedflow]", r"recipe 'ct-sedflow': 'sedflow' is not a stage; the stages are base, teachers, .*"),
    ("recipes=[sed-ct]", r"recipe 'sed-ct': sed needs an ensemble before it, for example ct-sed"),
    ("recipes=[flow]", r"recipe 'flow': 'flow' needs a model before it, for example base-flow"),
    ("recipes=['']", r"recipe '': '' is not a stage; .*"),
    ("recipes=[ct-ct]", r"recipe 'ct-ct': 'ct' appears twice; use each stage once"),
    ("recipes=[ct-flow-whiten]", r"recipe 'ct-flow-whiten': use one flow, or a chain of different calibrations .*"),
    ("recipes=[ct-flow-sed]", r"recipe 'ct-flow-sed': 'sed' is in the wrong place; the order is .*"),
    ("recipes=[]", r"recipes is empty; name at least one, for example ct-sed-flow"),
    ("recipes=[teachers-sed]", r"recipe 'teachers-sed': .*teachers.*"),
    ("recipes=[teachers-flow]; teachers=[A]", r"recipe 'teachers-flow': what follows teachers is sed, .*"),
    ("export.recipe=ct", r"export\.recipe is 'ct', which is not in recipes \(.*\)"),
    ("evaluation.dev=mine", r"evaluation\.dev names 'mine', which is not in evaluation\.tasks; name one of .*"),
    ("evaluation.tasks={}", r"evaluation\.tasks is empty; name at least one file of graded sentence pairs"),
    ("sed.workers=33", r"sed\.workers is 33, which is more than sed\.batch_size \(32\); .*"),
    ("ct.boundaries=[1, 2]", r"ct\.boundaries must increase, and ct\.learning_rates must have exactly one more .*"),
    ("encoder.path=/no/such/model", r"encoder\.path: '/no/such/model' is neither a model directory nor a hub id .*"),
    ("encoder.path=nobody/no-such-model", r"encoder\.path: 'nobody/no-such-model' is neither a model dir.*"),
    ("encoder.path=bundled:x", r"encoder\.path: 'bundled:x' is unknown; the bundled model is bundled:encoder"),
    ("encoder.path=package:no_such_one/x", r"encoder\.path: .* needs the Python package 'no_such_one'; install .*"),
    ("encoder.layers=99", rf"encoder\.layers is 99, but {ENCODER}"),
    ("encoder.layers=0", rf"encoder\.layers is 0, but {ENCODER}"),
    ("encoder.layers=many", r"setting encoder\.layers: .*"),
    ("encoder.keep_layers=[2, 0]", r"setting encoder\.keep_layers: .*|encoder\.keep_layers .*"),
    ("evaluation.layers=[1, 99]", rf"evaluation\.layers has 99, but {ENCODER}"),
    ("encoder.max_length=999", r"encoder\.max_length is 999, but 'bundled:encoder' takes at most \d+ tokens"),
    ("corpus.source=/no/such/file.txt", r"corpus\.source: /no/such/file\.txt does not exist; name an existing .*"),
    ("corpus.source=''", r"corpus\.source: it is empty; name a file, .*"),
    ("corpus.source=bundled:x", r"corpus\.source: bundled:x is unknown; the bundled corpus is bundled:everyday"),
    ("corpus.min_characters=3000", r"corpus\.min_characters is 3000, which is more than corpus\.max_characters .*"),
    ("flow.fit_on=/no/such/file.txt", r"flow\.fit_on: /no/such/file\.txt does not exist; name an existing .*"),
    (f"{DEV}=/no/x.tsv", r"evaluation\.tasks\.everyday-dev: /no/x\.tsv does not exist; name an existing file or .*"),
    (f"{DEV}=/no/x", r"evaluation\.tasks\.everyday-dev: /no/x does not exist; name .*"),
    (f"{DEV}=bundled:x", r"evaluation\.tasks\.everyday-dev: bundled:x does not exist; use bundled:train, .*"),
    ("recipes=[nli-ct]", r"recipe 'nli-ct': nli needs labelled sentence pairs; name them in nli\.train"),
    ("recipes=[sts-sed]; sts.train=[]", r"recipe 'sts-sed': sts needs labelled sentence pairs; .* sts\.train"),
    (f"recipes=[sts]; {CHOICES}", r"recipe 'sts': sts chooses its lower bound on evaluation\.dev; name a dev task"),
    (
        "recipes=[ct-sts]; sts.models=3; members.count=2",
        r"sts\.models is 3, but in recipe 'ct-sts' each lower bound continues the 2 members .*; set .* most 2",
    ),
    ("sts.lower_bounds=[0, 0.5, 0.5]", r"sts\.lower_bounds has 0\.5 more than once; list different values .*"),
    ("sts.lower_bounds=[0, 1]", r"setting sts\.lower_bounds\.1: input should be less than 1 \(got 1\)"),
    ("sts.lower_bounds=[-0.1]", r"setting sts\.lower_bounds\.0: input should be greater than or equal to 0 .*"),
    ("recipes=[sts]; sts.train=/no/x.tsv", r"sts\.train\[0\]: /no/x\.tsv does not exist; name an existing .*"),
    ("recipes=[nli]; nli.train=/no/x.tsv", r"nli\.train: /no/x\.tsv does not exist; name an existing file .*"),
    ("recipes=[ct-sed]; sed.start=mlm", r"sed\.start is mlm, but recipe 'ct-sed' does not begin with mlm; .*"),
    ("flow.fit_on=nli", r"flow\.fit_on is nli, but nli\.train names no sentence pairs; list them there"),
    ("flow.fit_tasks=[mine]", r"flow\.fit_tasks names 'mine', which is not in evaluation\.tasks; the tasks .*"),
    (
        "flow.per_task=true; flow.fit_on=tasks; export.recipe=ct-sed-flow",
        r"export\.recipe is ct-sed-flow, but flow\.per_task makes .*; export ct-sed",
    ),
    (
        f"calibration.natsv_k=dev; {CHOICES}",
        r"calibration\.natsv_k: dev needs evaluation\.dev; set it, or give a number",
    ),
    ("bsl.momentum=1.5", r"bsl\.momentum is 1\.5; it must be between 0 and 1 \(the paper uses 0\.999\)"),
    ("bsl.batch_size=1", r"bsl\.batch_size is 1; it must be at least 2, because the predictor .* the batch"),
    ("bsl.views=[]", r"bsl\.views is \[\]; list at least one kind, and each kind once"),
    ("bsl.views=[mlm, mlm]", r"bsl\.views is \['mlm', 'mlm'\]; list at least one kind, and each kind once"),
    ("contrastive.batch_size=1", r"contrastive\.batch_size is 1; it must be at least 2, because .* negatives"),
    ("contrastive.dropout=false", r"contrastive\.views has same, whose two views differ only by .*dropout: true"),
    ("views.pivots=[]", r"views\.pivots has 0 pairs of models; list one or two"),
    (
        f"recipes=[bsl]; bsl.keep=best_on_dev; {CHOICES}",
        r"bsl\.keep: best_on_dev needs evaluation\.dev; set it, or use bsl\.keep: last",
    ),
    (
        "recipes=[bsl]; bsl.views=[files]",
        r"recipe 'bsl': bsl\.views has files, whose pairs come from views\.files; name them there",
    ),
    (
        "recipes=[contrastive]; contrastive.views=[entailment]",
        r"recipe 'contrastive': contrastive\.views has entailment, whose pairs come from nli\.train; .*",
    ),
    ("recipes=[bsl]; bsl.views=[files]; views.files=/no/x.tsv", r"views\.files: /no/x\.tsv does not exist; name .*"),
    ("recipes=[bsl]; views.mlm_model=/no/model", r"views\.mlm_model: '/no/model' cannot be loaded: .*"),
    (
        "recipes=[bsl]; bsl.views=[back_translation]; views.pivots=[[/no/there, /no/back]]",
        r"views\.pivots: '/no/there' cannot be loaded: .*",
    ),
    ("resources.gpu=true", r"resources\.gpu is true, but the cluster has no GPU \(1 node, 2 CPUs, 0 GPUs\); set .*"),
    ("resources.cpus_per_member=8", r"resources\.cpus_per_member is 8, but the largest node has 2 CPUs; lower it"),
    ("sed.workers=4", r"sed\.workers is 4, but the cluster has 2 CPUs \(1 node, 2 CPUs, 0 GPUs\); lower it"),
]
"""Settings and the sentence about them."""

FILES = [
    ("c.txt", b"", "corpus.source=c.txt", r"corpus\.source: no sentences in .*/c\.txt; name text that .*"),
    ("c.bin", b"\0\1", "corpus.source=c.bin", r"corpus\.source: .*c\.bin.*"),
    ("c.txt", b"\xff\xfe\0a\n", "corpus.source=c.txt", r".*c\.txt, line 1.*UTF-8.*"),
    ("c.txt.gz", b"no gzip", "corpus.source=c.txt.gz", r".*c\.txt\.gz.*"),
    ("c.jsonl", b"{\n", "corpus.source=c.jsonl", r".*c\.jsonl, line 1.*"),
    (
        "c.parquet",
        table(body=["a sentence"], n=[1]),
        "corpus.source=c.parquet; corpus.column=txt",
        r".*/c\.parquet: columns txt are needed, found body, n; name another column in corpus\.column",
    ),
    ("d.tsv", PAIRS + b"all\t2.5\ta\tb\nall\tfive\ta\tb\n", f"{DEV}=d.tsv", r".*d\.tsv, line 3: score 'five' .*"),
    ("d.tsv", PAIRS + b"all\t2\ta\tb\nall\t3\ta\tc\n", f"{DEV}=d.tsv", r"evaluation\..*d\.tsv has 2 pairs .*"),
    ("n.tsv", NLI + b"neutral\tA.\tB.\nperhaps\tC.\tD.\n", "recipes=[nli]; nli.train=n.tsv", r".*n\.tsv, line 3.*"),
    ("s.tsv", PAIRS + b"a\t3\tA.\tB.\na\t7\tC.\tD.\n", "recipes=[sts]; sts.train=s.tsv", r".*s\.tsv, line 3.*0 to 5"),
    ("v.tsv", b"A car.\tA wagon.\nA bus.\n", VIEWS, r".*v\.tsv, line 2: 1 tab-separated columns instead of 2; .*"),
    (
        "v.tsv",
        b"A car.\tA car.\nA bus.\t\nA bike.\tA bicycle.\n",
        VIEWS,
        r"views\.files \(.*v\.tsv\): 2 of 3 pairs are unusable, 1 with an empty view and 1 with two identical views, "
        r".*views\.max_unusable.*",
    ),
    ("x", b"", "recipes=[teachers-sed]; teachers=[/no/A]", r".*'/no/A'.*"),
    ("t.parquet", b"no parquet", "recipes=[teachers-sed]; teachers=[t.parquet]", r".*t\.parquet.*"),
    ("t.parquet", table(a=[1]), "recipes=[teachers-sed]; teachers=[t.parquet]", r".*t\.parquet.*"),
    ("empty/x", b"", "recipes=[teachers-sed]; teachers=[./empty]", r".*empty.*"),
    ("empty/x", b"", "encoder.path=./empty", r"encoder\.path: '.*/empty' is neither a model directory .*"),
]
"""A file with its bytes, settings and the sentence about them."""

INIT_TEXT = "\n".join(f"Ticket {n} says that nothing works." for n in range(20)).encode()
COMMANDS = [
    (NOTHING, "train", r"'train' is not a command; the commands are init, run, .*"),
    (NOTHING, "run --config quickstrat", r"--config quickstrat: there is no such file, .* configs are .*quickstart.*"),
    ({"m.yaml": b"ct:\n  steps: [1\n"}, "run --config m.yaml", r"config file m\.yaml, line 3 is not valid YAML: .+"),
    ({"m.yaml": b"run: &a [*a]\n"}, "run --config m.yaml", r"config file m\.yaml is not valid YAML: one of its .*"),
    ({"m.yaml": b"\xff"}, "run --config m.yaml", r"config file m\.yaml is not UTF-8 text"),
    ({"m.yaml": b"a: 1\n"}, "run --config m.yaml", r"unknown setting a; .*"),
    ({"m.yaml": b"based_on: m\n"}, "run --config m.yaml", r"config file m\.yaml: based_on names the file itself; .*"),
    ({"m.yaml": b"- ct\n"}, "run --config m.yaml", r"config file m\.yaml must hold settings as 'key: value', .*"),
    (NOTHING, "run --config .", r"--config \.: .*|config file \. .*"),
    ({"f": b""}, "run --storage f", r"storage: .*f/quickstart cannot be written: .*"),
    (NOTHING, "run --storage /proc/runs", r"storage: /proc/runs/quickstart cannot be written: .*"),
    (NOTHING, "run --storage /dev/full", r"storage: /dev/full/quickstart cannot be written: .*"),
    (NOTHING, f"run --storage {300 * 's'}", r"storage: .*s/quickstart cannot be written: .*"),
    (NOTHING, "status --storage /dev/full", r"storage: /dev/full cannot be reached: .*"),
    (NOTHING, "run --storage nosuch://bucket/runs", r"storage: 'nosuch:/.*' is not a usable directory or URI: .*"),
    (NOTHING, "distill --teachers A --corpus c.txt --dev no.csv", r".*no\.csv.*"),
    (NOTHING, "distill --teachers A --corpus c.txt --set x=1", r"unknown setting x; .*"),
    (NOTHING, "evaluate --model ./absent", r".*\./absent.*no such directory.*"),
    (NOTHING, "evaluate --model bundled:encoder --task no.csv", r"--task no\.csv.*"),
    (NOTHING, "evaluate --model bundled:encoder --layers 9", r".*9 layers cannot be pooled: the encoder has \d.*"),
    (NOTHING, "evaluate --model bundled:encoder --output no/o.json", r"--output no/o\.json: no file can be written .*"),
    (NOTHING, "evaluate --model bundled:encoder --output .", r"--output \.: no file can be written there; .*"),
    (NOTHING, "evaluate --model bundled:encoder --output /dev/full", r"--output /dev/full: no file can be written .*"),
    (
        NOTHING,
        "evaluate --model bundled:encoder --output /proc/o",
        r"--output /proc/o: no file can be written there; .*",
    ),
    (
        NOTHING,
        f"evaluate --model bundled:encoder --output {300 * 'o'}",
        r"--output o+: no file can be written there; .*",
    ),
    (
        {"t.tsv": b"text\tlabel\n" + 9 * b"same\tx\n"},
        "evaluate --model bundled:encoder --task t.tsv",
        r".*two labels.*",
    ),
    (NOTHING, "init no.txt", r"corpus\.source: no\.txt does not exist; name an existing file, directory or .*"),
    (
        {"a.csv": b"id,n\nT-1,5\n"},
        "init a.csv",
        r"a\.csv, line 1: .* found id, n; name another column in corpus\.column",
    ),
    ({"a.txt": 3000 * b"y"}, "init a.txt", r".* in a\.txt \(1 lines: .*, 1 too long, .* sentence of 2 to 2,000 char.*"),
    (
        {"a.txt": INIT_TEXT},
        "init a.txt --pairs no.csv",
        r"--pairs: no\.csv does not exist; name an existing file or .*",
    ),
    ({"a.txt": INIT_TEXT, "p.tsv": b"a\tb\n1\t2\n"}, "init a.txt --pairs p.tsv", r".*found a, b; rename yours"),
    ({"a.txt": INIT_TEXT}, "init a.txt --output no/c.yaml", r"--output no/c\.yaml: no file can be written there; .*"),
    ({"a.txt": INIT_TEXT}, "init a.txt --output /dev/full", r"--output /dev/full: no file can be written there; .*"),
    ({"a.txt": INIT_TEXT, "c.yaml": b"x"}, "init a.txt --output c.yaml", r"c\.yaml is there already; name another .*"),
    (NOTHING, "status nothing", r"there is no run at .*"),
    (NOTHING, "status --watch", r"--watch follows one run; name it"),
]
"""Files by name, a command line and the sentence about them."""


def as_options(settings: str) -> list[str]:
    """`a=1; b=2` as the words of a command line."""
    options = [part for setting in settings.split("; ") for part in ("--set", setting)]
    return ["run", "--plan", *options]


ROWS = [
    *((NOTHING, as_options(settings), sentence) for settings, sentence in SETTINGS),
    *(({name: content}, as_options(settings), sentence) for name, content, settings, sentence in FILES),
    *((files, shlex.split(words), sentence) for files, words, sentence in COMMANDS),
]


@pytest.fixture
def process() -> Iterator[None]:
    """Undoes what a command does to its process."""
    logger = logging.getLogger("raysed")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with warnings.catch_warnings():
        yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)
    for number, handler in signals.items():
        signal.signal(number, handler)


@pytest.fixture
def refused(process, monkeypatch, tmp_path, capfd):
    """Runs a command in an empty directory; returns its one line on stderr, without `error: `."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["raysed", *words])
        code, said = cli.main(), capfd.readouterr().err
        assert code == 2 and said.startswith("error: ") and said.count("\n") == 1, said
        return said.removeprefix("error: ").rstrip("\n")

    return call


@pytest.mark.parametrize(("files", "words", "sentence"), ROWS, ids=[f"{' '.join(words)[:60]}" for _, words, _ in ROWS])
@pytest.mark.timeout(20)
def test_a_mistake_is_one_sentence_and_changes_nothing(refused, tmp_path, files, words, sentence):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    line = refused(*words)
    assert re.fullmatch(sentence, line), line
    assert sorted(tmp_path.rglob("*")) == before


def test_synonyms_without_wordnet_are_refused_before_anything_starts(refused, monkeypatch, tmp_path):
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    line = refused(*as_options("recipes=[bsl]; bsl.views=[synonym]"))
    assert "python -m nltk.downloader wordnet" in line and "mlm" in line


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("./no --corpus bundled:everyday", "teachers: './no': there is no such directory"),
        ("no/body --corpus bundled:everyday", "teachers: 'no/body': neither a directory nor a hub id that can be "),
        ("v.parquet --corpus bundled:everyday", "teachers: v.parquet cannot be read as a Parquet file"),
        ("bundled:encoder --corpus no.txt", "corpus.source: no.txt does not exist"),
    ],
)
def test_what_is_not_there_is_refused_before_ray_is_started(refused, monkeypatch, words, sentence):
    monkeypatch.setattr("raysed.pipeline.session", lambda engine: pytest.fail("Ray was started"))
    assert refused("distill", "--teachers", *words.split()).startswith(sentence)


def test_a_run_that_is_in_use_is_named(refused, tmp_path):
    with Storage(str(tmp_path / "runs"), "quickstart").lock():
        assert refused("run").startswith(
            "run 'quickstart' is in use by another process; wait for it, or choose another"
        )


def test_results_do_not_go_with_an_uploaded_working_directory(refused, monkeypatch, tmp_path):
    """Where `ray job submit --working-dir .` unpacks it."""
    from raysed.store.storage import check_stays

    place = tmp_path / "ray/session_2026/runtime_resources/working_dir_files/_ray_pkg_0123456789abcdef"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    assert refused("run", "--storage", "runs") == (
        "storage is 'runs', which is inside Ray's temporary copy of the working directory and will be deleted with it; "
        "name a permanent place, such as --storage /shared/directory or --storage s3://BUCKET/runs"
    )
    assert not any(place.iterdir())
    for storage in (str(tmp_path / "shared"), "s3://bucket/runs", "~/runs"):
        check_stays(storage)
    monkeypatch.chdir(tmp_path)  # an entrypoint may go elsewhere
    check_stays("runs")


# -- what shows only when a run has begun ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "settings", "sentence"),
    [
        (
            {"c.txt": b"One sentence.\nAnother one.\nOne sentence.\n"},
            ["corpus.source=c.txt", "corpus.sentences=3"],
            r"corpus\.sentences is 3, but corpus\.source has only 2 usable sentences \(3 lines: .*\); lower it or .*",
        ),
        (
            {"v.tsv": b"A car.\tA wagon.\n"},
            VIEWS.split("; "),
            r"recipe 'bsl': bsl needs at least 2 pairs of views, but 1 were found",
        ),
        ({}, ["resources.gpu=true"], r"resources\.gpu is true, but the cluster has no GPU .*"),
        ({}, [], r"storage: .*runs/quickstart has 0\.0 GB free, but this run needs .* [\d.]+ GB, .* for models; .*"),
    ],
    ids=["corpus", "views", "GPU", "disk"],
)
def test_a_mistake_that_shows_later_is_told_and_reported(refused, monkeypatch, tmp_path, files, settings, sentence):
    if not settings:
        monkeypatch.setattr(Storage, "free_bytes", lambda self: 10**6)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    settings = [*settings, "resources.engine=local", "sts.scheduler=none"]
    line = refused("run", *(part for setting in settings for part in ("--set", setting)))
    assert re.fullmatch(sentence, line), line
    report = Path("runs/quickstart/report.json").read_text()
    assert '"status": "failed"' in report and not list(Path("runs").glob("*/ct"))
