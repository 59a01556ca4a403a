"""Mistakes of a user: one sentence and exit code 2, before anything is trained and mostly before the first stage."""

import contextlib
import importlib.util
import json
import logging
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raysed.pipeline
from raysed.cli import main_of
from raysed.cluster.resources import Cluster
from raysed.config import find_config
from raysed.errors import RunFailed, UserError
from raysed.store.storage import Storage

ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "jobs/ensemble_then_distill.py"
PAIRS = "subset\tscore\tsentence1\tsentence2\n"


def load_job() -> Any:
    spec = importlib.util.spec_from_file_location("ensemble_then_distill", JOB)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def command_line(monkeypatch):
    """Calls `main_of` as the shell would, and undoes what it does to this process."""
    logger = logging.getLogger("raysed")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def call(job: Callable, parser: Any, *arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["job.py", *map(str, arguments)])
        with warnings.catch_warnings():
            return main_of(job, parser)

    yield call
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)
    for number, handler in signals.items():
        signal.signal(number, handler)


@pytest.fixture
def refused(command_line, monkeypatch, tmp_path, capfd):
    """Runs the main job in this process; returns its one line on stderr, without `error: `."""

    def no_stages(*arguments: Any) -> None:
        pytest.fail("the stages began")

    def call(*settings: str, stages_begin: bool = False, storage: str | Path = tmp_path / "runs") -> str:
        # Everything is real but Ray itself, which would take seconds.
        monkeypatch.setattr(raysed.pipeline, "ray_session", lambda meanwhile: contextlib.nullcontext())
        if stages_begin:
            for module in ("cluster.autoscaling", "stages.stages"):
                monkeypatch.setattr(f"raysed.{module}.current_cluster", lambda: Cluster(((2, 0),)))
            monkeypatch.setattr("raysed.stages.stages.check_versions", lambda models: None)
        else:
            monkeypatch.setattr(raysed.pipeline, "_run_stages", no_stages)
        job = load_job()
        arguments = [part for setting in settings for part in ("--set", setting)]
        code = command_line(job.job, job.parser(), "--storage", str(storage), *arguments)
        said = capfd.readouterr().err
        assert code == 2, said
        lines = said.splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: "), said
        assert not [*Path(storage).glob("*/ct"), *Path(storage).glob("*/manifest/ct")]
        return lines[0].removeprefix("error: ")

    return call


@pytest.fixture
def write(tmp_path):
    def text_file(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return text_file


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("ct.step=5", r"unknown setting ct\.step: did you mean ct\.steps\?"),
        ("members.count=many", r"setting members\.count: input should be a valid integer, .* \(got 'many'\)"),
        ("members.count=0", r"setting members\.count: input should be greater than or equal to 1 \(got 0\)"),
        ("run=../elsewhere", r"setting run: use only letters, .* \(got '\.\./elsewhere'\)"),
        ("ct.steps", r"--set 'ct\.steps': write it as block\.key=value, for example --set ct\.steps=1000"),
        (
            "recipes=[ct-sedflow]",
            r"recipe 'ct-sedflow': 'sedflow' is not a stage; the stages are base, teachers, mlm, nli, .*",
        ),
        ("recipes=[sed-ct]", r"recipe 'sed-ct': sed needs an ensemble before it, for example ct-sed"),
        ("recipes=[]", r"recipes is empty; name at least one, for example ct-sed-flow"),
        ("export.recipe=ct", r"export\.recipe is 'ct', which is not in recipes \(.*\)"),
        ("evaluation.dev=mine", r"evaluation\.dev names 'mine', which is not in evaluation\.tasks; name one of .*"),
        ("evaluation.tasks={}", r"evaluation\.tasks is empty; name at least one file of graded sentence pairs"),
        ("sed.workers=33", r"sed\.workers is 33, which is more than sed\.batch_size \(32\); .*"),
        ("ct.boundaries=[1, 2]", r"ct\.boundaries must increase, and ct\.learning_rates must have exactly one more .*"),
        (
            "encoder.path=/no/such/model",
            r"encoder\.path: '/no/such/model' is neither a model directory nor a hub id .*",
        ),
        ("encoder.path=nobody/no-such-model", r"encoder\.path: 'nobody/no-such-model' is neither a model dir.*"),
        ("encoder.path=bundled:x", r"encoder\.path: 'bundled:x' is unknown; the bundled model is bundled:encoder"),
        ("encoder.path=package:no_such_one/x", r"encoder\.path: .* needs the Python package 'no_such_one'; install .*"),
        ("encoder.layers=99", r"encoder\.layers is 99, but 'bundled:encoder' has \d+ layers"),
        ("encoder.layers=0", r"encoder\.layers is 0, but 'bundled:encoder' has \d+ layers"),
        (
            "evaluation.layers=[1, 99]",
            r"evaluation\.layers has 99, but 'bundled:encoder' has \d+ layers",
        ),
        ("encoder.max_length=999", r"encoder\.max_length is 999, but 'bundled:encoder' takes at most \d+ tokens"),
        ("corpus.source=/no/such/file.txt", r"corpus\.source: /no/such/file\.txt does not exist; name an existing .*"),
        ("corpus.source=bundled:x", r"corpus\.source: bundled:x is unknown; the bundled corpus is bundled:everyday"),
        (
            "corpus.min_characters=3000",
            r"corpus\.min_characters is 3000, which is more than corpus\.max_characters \(2000\), .*",
        ),
        ("flow.fit_on=/no/such/file.txt", r"flow\.fit_on: /no/such/file\.txt does not exist; name an existing .*"),
        (
            "evaluation.tasks.everyday-dev=/no/x.tsv",
            r"evaluation\.tasks\.everyday-dev: /no/x\.tsv does not exist; name an existing file or a hub dataset",
        ),
        ("evaluation.tasks.everyday-dev=/no/x", r"evaluation\.tasks\.everyday-dev: /no/x does not exist; name .*"),
    ],
)
def test_a_wrong_setting_is_named(refused, setting, sentence):
    line = refused(setting)
    assert re.fullmatch(sentence, line), line


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["recipes=[nli-ct]"], r"recipe 'nli-ct': nli needs labelled sentence pairs; name them in nli\.train"),
        (["recipes=[sts-sed]", "sts.train=[]"], r"recipe 'sts-sed': sts needs labelled sentence pairs; .* sts\.train"),
        (
            ["recipes=[sts]", "evaluation.dev=null", "ct.keep=second"],
            r"recipe 'sts': sts chooses its lower bound on evaluation\.dev; name a dev task",
        ),
        (
            ["recipes=[ct-sts]", "sts.models=3", "members.count=2"],
            r"sts\.models is 3, but in recipe 'ct-sts' each lower bound continues the 2 members .*; set .* most 2",
        ),
        (["sts.lower_bounds=[0, 0.5, 0.5]"], r"sts\.lower_bounds has 0\.5 more than once; list different values .*"),
        (["sts.lower_bounds=[0, 1]"], r"setting sts\.lower_bounds\.1: input should be less than 1 \(got 1\)"),
        (["sts.lower_bounds=[-0.1]"], r"setting sts\.lower_bounds\.0: input should be greater than or equal to 0 .*"),
        (["recipes=[sts]", "sts.train=/no/x.tsv"], r"sts\.train\[0\]: /no/x\.tsv does not exist; name an existing .*"),
        (["recipes=[nli]", "nli.train=/no/x.tsv"], r"nli\.train: /no/x\.tsv does not exist; name an existing file .*"),
        (["recipes=[ct-sed]", "sed.start=mlm"], r"sed\.start is mlm, but recipe 'ct-sed' does not begin with mlm; .*"),
        (
            ["recipes=[sts-sed]", "sed.zero_stage=3"],
            r"recipe 'sts-sed' keeps the learner's best weights, .*; use sed\.zero_stage: 2 or less",
        ),
        (["flow.fit_on=nli"], r"flow\.fit_on is nli, but nli\.train names no sentence pairs; list them there"),
        (
            ["flow.fit_tasks=[mine]"],
            r"flow\.fit_tasks names 'mine', which is not in evaluation\.tasks; the tasks .*",
        ),
        (
            ["flow.per_task=true", "flow.fit_on=tasks", "export.recipe=ct-sed-flow"],
            r"export\.recipe is ct-sed-flow, but flow\.per_task makes .*; export ct-sed",
        ),
        (
            ["calibration.natsv_k=dev", "evaluation.dev=null", "ct.keep=second"],
            r"calibration\.natsv_k: dev needs evaluation\.dev; set it, or give a number",
        ),
        (["bsl.momentum=1.5"], r"bsl\.momentum is 1\.5; it must be between 0 and 1 \(the paper uses 0\.999\)"),
        (["bsl.batch_size=1"], r"bsl\.batch_size is 1; it must be at least 2, because the predictor .* the batch"),
        (["bsl.views=[]"], r"bsl\.views is \[\]; list at least one kind, and each kind once"),
        (["bsl.views=[mlm, mlm]"], r"bsl\.views is \['mlm', 'mlm'\]; list at least one kind, and each kind once"),
        (["contrastive.batch_size=1"], r"contrastive\.batch_size is 1; it must be at least 2, because .* negatives"),
        (["contrastive.dropout=false"], r"contrastive\.views has same, whose two views differ only by .*dropout: true"),
        (["views.pivots=[]"], r"views\.pivots has 0 pairs of models; list one or two"),
        (
            ["recipes=[bsl]", "bsl.keep=best_on_dev", "evaluation.dev=null", "ct.keep=second"],
            r"bsl\.keep: best_on_dev needs evaluation\.dev; set it, or use bsl\.keep: last",
        ),
        (
            ["recipes=[bsl]", "bsl.views=[files]"],
            r"recipe 'bsl': bsl\.views has files, whose pairs come from views\.files; name them there",
        ),
        (
            ["recipes=[contrastive]", "contrastive.views=[entailment]"],
            r"recipe 'contrastive': contrastive\.views has entailment, whose pairs come from nli\.train; .*",
        ),
        (
            ["recipes=[bsl]", "bsl.views=[files]", "views.files=/no/x.tsv"],
            r"views\.files: /no/x\.tsv does not exist; name .*",
        ),
        (["recipes=[bsl]", "views.mlm_model=/no/model"], r"views\.mlm_model: '/no/model' cannot be loaded: .*"),
        (
            ["recipes=[bsl]", "bsl.views=[back_translation]", "views.pivots=[[/no/there, /no/back]]"],
            r"views\.pivots: '/no/there' cannot be loaded: .*",
        ),
        (["evaluation.transfer.layers=9"], r"evaluation\.transfer\.layers is 9, but the encoder has \d+ layers"),
        (["evaluation.transfer.source=/no/data"], r".*/no/data.*"),
        (["evaluation.analysis.qnli=/no/dev.tsv"], r"evaluation\.analysis\.qnli: /no/dev\.tsv does not exist; name .*"),
    ],
)
def test_a_stage_without_what_it_needs_is_refused(refused, settings, sentence):
    line = refused(*settings)
    assert re.fullmatch(sentence, line), line


def test_a_wrong_label_or_score_is_named_by_file_and_line(refused, write):
    nli = write("nli.tsv", "label\tpremise\thypothesis\nneutral\tA.\tB.\nperhaps\tC.\tD.\n")
    line = refused("recipes=[nli-ct]", f"nli.train={nli}")
    assert f"{nli}, line 3" in line and "perhaps" in line and "entailment" in line
    sts = write("sts.tsv", "subset\tscore\tsentence1\tsentence2\na\t3\tA.\tB.\na\t7\tC.\tD.\n")
    line = refused("recipes=[sts]", f"sts.train={sts}")
    assert f"{sts}, line 3" in line and "7" in line and "0 to 5" in line


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("A car.\tA wagon.\nA bus.\n", r"{path}, line 2: 1 tab-separated columns instead of 2; .*"),
        ("A car.\nA bus.\n", r"{path}, line 1: 1 tab-separated columns instead of 2; .*"),
        ("", r"views\.files: {path} has no pairs of views"),
        (
            "A car.\tA car.\nA bus.\t\nA bike.\tA bicycle.\n",
            r"views\.files \({path}\): 2 of 3 pairs are unusable, 1 with an empty view and 1 with two identical views, "
            r".*views\.max_unusable.*",
        ),
    ],
)
def test_a_broken_file_of_views_is_named(refused, write, text, sentence):
    path = write("views.tsv", text)
    line = refused("recipes=[bsl]", "bsl.views=[files]", f"views.files={path}")
    assert re.fullmatch(sentence.format(path=path), line), line


def test_synonyms_without_wordnet_are_refused_before_anything_starts(refused, monkeypatch, tmp_path):
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    line = refused("recipes=[bsl]", "bsl.views=[synonym]")
    assert "python -m nltk.downloader wordnet" in line and "mlm" in line


def test_one_pair_of_views_is_too_few(refused, write):
    path = write("views.tsv", "A car.\tA wagon.\n")
    settings = ("recipes=[bsl]", "bsl.views=[files]", f"views.files={path}")
    line = refused(*settings, stages_begin=True)
    assert line == "recipe 'bsl': bsl needs at least 2 pairs of views, but 1 were found"


def test_a_transfer_task_without_a_split_is_refused(refused, write, tmp_path):
    (tmp_path / "SICK").mkdir()
    write("SICK/SICK_train.txt", "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n")
    line = refused(f"evaluation.transfer.source={tmp_path}", "evaluation.transfer.tasks=[SICKEntailment]")
    assert "SICK" in line and str(tmp_path) in line


def test_an_unknown_config_lists_the_known_ones(command_line, capfd):
    job = load_job()
    assert command_line(job.job, job.parser(), "--config", "quickstrat") == 2
    line = capfd.readouterr().err
    assert re.fullmatch(r"error: --config quickstrat: there is no such file, and .*; the named configs are .+\n", line)
    assert "quickstart" in line.split("configs are ")[1].strip().split(", ")


def test_a_config_file_that_is_no_yaml_is_named_with_the_line(command_line, capfd, write):
    path = write("mine.yaml", "ct:\n  steps: [1\n")
    job = load_job()
    assert command_line(job.job, job.parser(), "--config", path) == 2
    assert re.fullmatch(rf"error: config file {path}, line 3 is not valid YAML: .+\n", capfd.readouterr().err)


# -- inputs ----------------------------------------------------------------------------------------------------------


def test_an_empty_corpus_is_named(refused, write):
    path = write("empty.txt", "")
    assert refused(f"corpus.source={path}") == f"corpus.source: no sentences in {path}; name text that has some"


def test_a_corpus_without_the_column_is_named(refused, tmp_path):
    path = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"body": ["a sentence"], "n": [1]}), path)
    line = refused(f"corpus.source={path}")
    found = "are needed, found body, n; name another column in corpus.column"
    assert line == f"{path}: columns sentence or text {found}"
    assert refused(f"corpus.source={path}", "corpus.column=txt") == f"{path}: columns txt {found}"


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            "all\t2.5\ta\tb\nall\tfive\ta\tb\n",
            r"{path}, line 3: score 'five' is not a number; write it as 3\.5, leave it blank, or name .*dev\.columns",
        ),
        (
            "all\t2.5\ta\tb\nall\t5.5\ta\tb\n",
            r"{path}, line 3: score 5\.5 is outside evaluation\.tasks\.everyday-dev\.score_range, 0 to 5",
        ),
        ("all\tnan\ta\tb\n", r"{path}, line 2: score 'nan' is not finite; .*"),
        ("all\t2.5\ta\n", r"{path}, line 2: 3 tab-separated columns, but the header has 4"),
        ("all\t\ta\tb\n", r"evaluation\.tasks\.everyday-dev: {path} has no pair with a gold score \(1 blank\)"),
        ("all\t2\ta\tb\nall\t3\ta\tc\n", r"evaluation\.tasks\.everyday-dev: {path} has 2 pairs .*"),
    ],
)
def test_a_wrong_line_of_a_task_is_named(refused, write, rows, sentence):
    path = write("pairs.tsv", PAIRS + rows)
    line = refused(f"evaluation.tasks.everyday-dev={path}")
    assert re.fullmatch(sentence.format(path=re.escape(str(path))), line), line


def test_a_corpus_that_is_too_small_for_the_draw_is_named(refused, write):
    """It has to be read for that, which is the first thing that a started run does."""
    path = write("small.txt", "One sentence.\nAnother one.\nOne sentence.\n")
    line = refused(f"corpus.source={path}", "corpus.sentences=3", stages_begin=True)
    assert re.fullmatch(
        r"corpus\.sentences is 3, but corpus\.source has only 2 usable sentences \(3 lines: .*\); lower it or add .*",
        line,
    )


# -- machines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (
            "resources.gpu=true",
            r"resources\.gpu is true, but the cluster has no GPU \(1 node, 2 CPUs, 0 GPUs\); set .*",
        ),
        ("resources.cpus_per_member=8", r"resources\.cpus_per_member is 8, but the largest node has 2 CPUs; lower it"),
        ("sed.workers=4", r"sed\.workers is 4, but the cluster has 2 CPUs \(1 node, 2 CPUs, 0 GPUs\); lower it"),
    ],
)
def test_what_the_cluster_never_has_is_named(refused, tmp_path, setting, sentence):
    line = refused(setting, stages_begin=True)
    assert re.fullmatch(sentence, line), line
    report = json.loads((tmp_path / "runs/quickstart/report.json").read_text())
    assert report["status"] == "failed" and report["error"] == line


def test_a_disk_that_is_too_small_is_named(refused, monkeypatch):
    monkeypatch.setattr(Storage, "free_bytes", lambda self: 10**6)
    line = refused(stages_begin=True)
    assert re.fullmatch(
        r"storage: .*/runs/quickstart has 0\.0 GB free, but this run needs .* [\d.]+ GB, .* for models; free .*", line
    )


def test_a_storage_that_cannot_be_written_is_named(refused, write):
    path = write("file", "")
    assert re.fullmatch(rf"storage: {path}/quickstart cannot be written: .*", refused(storage=path))
    assert re.fullmatch(
        r"storage: 'nosuch:/.*' is not a usable directory or URI: .*", refused(storage="nosuch://bucket/runs")
    )


def test_a_run_that_is_in_use_is_named(refused, tmp_path):
    with Storage(str(tmp_path / "runs"), "quickstart").lock():
        assert refused().startswith("run 'quickstart' is in use by another process; wait for it, or choose another")


# -- the command line itself -----------------------------------------------------------------------------------------


class _Parser:
    def parse_args(self, arguments: Any) -> None:
        return None


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        (None, 0, ""),
        (UserError("a.b is wrong:\n  because"), 2, "error: a.b is wrong: because\n"),
        (RunFailed("2 of 3 members\nwere trained"), 1, "failed: 2 of 3 members were trained\n"),
        (KeyboardInterrupt(), 130, "\nstopped; the same command continues from here\n"),
    ],
)
def test_outcomes_become_exit_codes_and_one_line(command_line, capfd, outcome, code, said):
    def job(arguments: Any) -> None:
        if outcome:
            raise outcome

    assert command_line(job, _Parser()) == code
    assert capfd.readouterr().err == said


def test_a_polite_kill_ends_like_ctrl_c(command_line, capfd):
    def job(arguments: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("it went on")

    assert command_line(job, _Parser()) == 143
    assert "the same command continues from here" in capfd.readouterr().err


def test_an_interrupt_that_python_drops_comes_again(command_line, capfd, monkeypatch):
    """Raised inside a destructor, the first KeyboardInterrupt never reaches the job."""
    monkeypatch.setattr("raysed.interrupts._AGAIN_AFTER", 0.1)
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)

    class Dropping:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def job(arguments: Any) -> None:
        thing = Dropping()
        del thing
        time.sleep(5)
        pytest.fail("it went on")

    assert command_line(job, _Parser()) == 130


def test_other_errors_are_not_hidden(command_line):
    def job(arguments: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        command_line(job, _Parser())


def test_a_config_is_a_file_or_a_name(tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    for name in ("a.yaml", "configs/b.yaml"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    assert find_config("a.yaml", tmp_path / "configs") == Path("a.yaml")
    assert find_config("b", tmp_path / "configs") == tmp_path / "configs/b.yaml"
    with pytest.raises(UserError, match=r"^--config a: there is no such file, .* name; the named configs are b$"):
        find_config("a", tmp_path / "configs")


def test_results_do_not_go_with_an_uploaded_working_directory(refused, monkeypatch, tmp_path):
    """Where `ray job submit --working-dir .` unpacks it."""
    place = tmp_path / "ray/session_2026/runtime_resources/working_dir_files/_ray_pkg_0123456789abcdef"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    assert refused(storage="runs") == (
        "storage is 'runs', which is inside Ray's temporary copy of the working directory and will be deleted with it; "
        "name a permanent place, such as --storage /shared/directory or --storage s3://BUCKET/runs"
    )
    assert not any(place.iterdir())


def test_a_shared_directory_is_a_place_that_stays(monkeypatch, tmp_path):
    from raysed.store.storage import check_stays

    place = tmp_path / "runtime_resources/working_dir_files/_ray_pkg_0123456789abcdef"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    for storage in (str(tmp_path / "shared"), "s3://bucket/runs", "~/runs"):
        check_stays(storage)
    monkeypatch.chdir(tmp_path)  # an entrypoint may go elsewhere
    check_stays("runs")


def test_the_job_as_a_process(tmp_path):
    """From another directory, with nothing on the terminal but the sentence."""
    command = [sys.executable, str(JOB), "--storage", str(tmp_path / "runs"), "--set", "ct.step=5"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert (done.stdout, done.stderr) == ("", "error: unknown setting ct.step: did you mean ct.steps?\n")
    assert not (tmp_path / "runs").exists()
