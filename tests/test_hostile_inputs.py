"""Hostile and mistaken input as one table: bytes, command, sentence. No row needs Ray, and none changes a file.

Rows of settings are about `raysed run --plan`, which makes every check of a run without starting anything. Where the
same input is right under another setting, the reader's own tests show both.
"""

import gzip
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysed import bundled, cli
from raysed.store.storage import Storage

PAIRS = b"subset\tscore\tsentence1\tsentence2\n"
NLI = b"label\tpremise\thypothesis\n"
LABELS = b"text\tlabel\n"
MINE, TASK = "evaluation.tasks.everyday-dev", r"evaluation\.tasks\.everyday-dev"
VIEWS = "recipes=[bsl]; bsl.views=[files]; views.files="
TEACHER = "recipes=[teachers-sed]; teachers="
EVALUATE = "evaluate --model bundled:encoder --task "
CHOICES = "evaluation.dev=null; ct.keep=isotropic"
ENCODER = r"'bundled:encoder' has \d+ layers"
BOMB = "a0: &a0 x\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
LONG = 300 * "n"
"""Longer than any disk takes a name."""

Content = bytes | Callable[[Path], object]
"""Of a file, or what makes one that is none."""
Row = tuple[dict[str, Content], str, str]
"""Files by name; settings, or a command; and the sentence, of which all must match."""


def given(command: str, *rows: tuple[str, Content, str]) -> list[Row]:
    """Rows of a file's name, its content and the sentence; the name ends the command, or stands where a % does."""
    return [
        ({name: content}, command.replace("%", name) if "%" in command else command + name, sentence)
        for name, content, sentence in rows
    ]


def table(**columns: object) -> bytes:
    """A Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def vectors(embedding: object, sentence: object = ("a", "b")) -> bytes:
    """A file of embeddings."""
    return table(sentence=sentence, embedding=embedding)


def column(kind: pa.DataType, *values: object) -> pa.Array:
    return pa.array(values, kind)


def beir(documents: str = "d1 d2", queries: str = "q1 q2", qrels: str = "q1 d1 2", split: str = "test") -> dict:
    """A directory in BEIR's layout: ids, and judgements with `; ` between them."""
    files = {"b/corpus.jsonl": documents, "b/queries.jsonl": queries}
    files = {name: "".join(f'{{"_id": "{i}", "text": "x"}}\n' for i in ids.split()) for name, ids in files.items()}
    judged = [line.replace(" ", "\t") for line in ["query-id corpus-id score", *qrels.split("; ")]]
    return {name: text.encode() for name, text in {**files, f"b/qrels/{split}.tsv": "\n".join(judged)}.items()}


RUN_NAMES = ("", "..", ".", "../x", "a/b", "/a", ".hidden", "-x", "a b", "a\n", "a\nb", "a\0b", "ä", 101 * "x", "a\\b")
RECIPES = {
    "ct-sedflow": r"'sedflow' is not a stage; the stages are base, teachers, bsl, contrastive, ct, mlm, nli, sts, sed, "
    r"flow, natsv, sn, whiten",
    **dict.fromkeys(("", "-", "ct-", "ct--sed"), "'' is not a stage; .*"),
    " ct": r"' ct' is not a stage; .*",
    "CT-SED": r"'CT' is not a stage; .*",
    "../ct": r"'\.\./ct' is not a stage; .*",
    **dict.fromkeys(("sed", "base-sed", "sed-ct"), "sed needs an ensemble before it, for example ct-sed"),
    "flow": r"'flow' needs a model before it, for example base-flow",
    "sn-natsv": r"'sn' needs a model before it, for example base-sn-natsv",
    "ct-flow-sed": r"'sed' is in the wrong place; the order is member stages, sed, calibration",
    "ct-sed-sed": r"'sed' is in the wrong place; .*",
    **dict.fromkeys(("ct-sed-ct", "base-ct"), r"'ct' is in the wrong place; .*"),
    "ct-nli-ct": r"'ct' appears twice; use each stage once",
    "ct-sed-nli": r"'nli' is in the wrong place; .*",
    "ct-base": r"'base' is in the wrong place; .*",
    **dict.fromkeys(
        ("ct-flow-flow", "ct-sn-flow", "base-sn-sn"),
        "use one flow, or a chain of different calibrations from natsv, sn, whiten",
    ),
    "teachers-whiten": r"what follows teachers is sed, for example teachers-sed",
    "teachers-sed": r"teachers names no model; list at least one there",
}

SETTINGS = [
    # unknown ones, anywhere
    ("ct.step=5", r"unknown setting ct\.step: did you mean ct\.steps\?"),
    ("recipe=[]", r"unknown setting recipe: did you mean recipes\?"),
    ("members.cuont=1; members.count=x", r"unknown setting members\.cuont: did you mean members\.count\?"),
    ("evaluation.tasks.mine.sorce=x", r"unknown setting (.*)\.sorce: did you mean \1\.source\?"),
    ("encoder.static.widht=2", r"unknown setting encoder\.static\.widht: did you mean encoder\.static\.width\?"),
    ("export.zzz=1", r"unknown setting export\.zzz; .* are export\.recipe, export\.allow_worse, export\.formats"),
    ("nothing.like.it=5", r"unknown setting nothing; the settings here are run, storage, seed, recipes, .*"),
    # wrong types
    *((f"ct={value}", r"ct is a block of settings: ct\.dropout, ct\.steps, .*") for value in ("5", "null")),
    ("evaluation.tasks.mine=5", r"evaluation\.tasks\.mine is a block of settings: .*"),
    ("evaluation.tasks.mine={}", r"setting evaluation\.tasks\.mine\.source: field required"),
    ("members.count=many", r"setting members\.count: input should be a valid integer, .* \(got 'many'\)"),
    ("members.count=1.5", r"setting members\.count: .*fractional part \(got 1\.5\)"),
    ("members.count=true", r"setting members\.count: yes, no, true and false are not allowed here \(got True\)"),
    ("members.count=.nan", r"setting members\.count: .*"),
    (f"members.count='{5000 * '9'}x'", r"setting members\.count: .* \(got '9+\.\.\.\)"),
    ("evaluation.layers=[true]", r"setting evaluation\.layers: yes, no, true and false .*"),
    ("sed.dropout=maybe", r"setting sed\.dropout: input should be a valid boolean.* \(got 'maybe'\)"),
    ("recipes=ct-sed", r"setting recipes: input should be a valid list \(got 'ct-sed'\)"),
    ("recipes=[ct, 5]", r"setting recipes\.1: input should be a valid string \(got 5\)"),
    ("corpus.source=5", r"setting corpus\.source: .*valid string, or .*valid list \(got 5\)"),
    ("encoder.layers=many", r"setting encoder\.layers: .*integer.*, or input should be 'first_last' \(got 'many'\)"),
    ("storage=null", r"setting storage: input should be a valid string \(got None\)"),
    (
        "sed.loss=l1",
        r"setting sed\.loss: input should be 'mse', 'unit_mse', 'nll' or 'contrastive', or .* list \(got 'l1'\)",
    ),
    # wrong ranges
    ("members.count=0", r"setting members\.count: input should be greater than or equal to 1 \(got 0\)"),
    ("seed=-1", r"setting seed: input should be greater than or equal to 0 .*"),
    ("sed.learning_rate=0", r"setting sed\.learning_rate: input should be greater than 0 .*"),
    ("sed.learning_rate=.nan", r"setting sed\.learning_rate: input should be a finite number .*"),
    ("flow.epochs=.inf", r"setting flow\.epochs: input should be a finite number .*"),
    ("sed.warmup=1.1", r"setting sed\.warmup: input should be less than or equal to 1 .*"),
    ("sed.zero_stage=3", r"setting sed\.zero_stage: input should be 0, 1 or 2 \(got 3\)"),
    ("sed.target=median", r"setting sed\.target: input should be 'mean' or 'centred_mean' .*"),
    ("ct.learning_rates=[1, 1, 1, 1, -1]", r"setting ct\.learning_rates\.4: input should be greater than 0 .*"),
    ("encoder.max_length=2", r"setting encoder\.max_length: input should be greater than or equal to 3 .*"),
    ("resources.gpus_per_member=0", r"setting resources\.gpus_per_member: input should be greater than 0 .*"),
    ("sts.lower_bounds=[0, 1]", r"setting sts\.lower_bounds\.1: input should be less than 1 \(got 1\)"),
    ("sts.lower_bounds=[-0.1]", r"setting sts\.lower_bounds\.0: input should be greater than or equal to 0 .*"),
    (f"{MINE}.score_range=[5, 0]", r"setting .*\.score_range: write the lowest score first, .* \(got \[5, 0\]\)"),
    (f"{MINE}.kind=pears", r"evaluation\.tasks\..*\.kind: .*'pears'; write one of classification, clustering, .*"),
    *((f"run={json.dumps(name)}", r"setting run: use only letters, digits, '\.', .* \(got .*\)") for name in RUN_NAMES),
    *(
        (
            f"evaluation.tasks={{{json.dumps(name)}: bundled:dev}}",
            r"evaluation\.tasks has the name .*; use a short one that can be printed",
        )
        for name in ("", ".", "..", LONG, "a\nb", "\x1b[2J", 100 * "ä")
    ),
    *(
        (text, r"setting .*: it is larger than 1e\+18 \(got .*\)")
        for text in ("sts.epochs=1e308", "corpus.sentences=1" + 30 * "0", "resources.silence_seconds=1e300")
    ),
    # numbers of things that would be listed before anybody could stop it
    *(
        (f"{name}=1000000000", rf"setting {re.escape(name)}: input should be less than or equal to .*")
        for name in ("members.count", "sts.models", "sed.learners", "flow.fits")
    ),
    # no settings
    *(
        (text, rf"--set '{re.escape(text)}': write it as block\.key=value, for example --set ct\.steps=1000")
        for text in ("ct.steps", "=5", "ct.=5", ".steps=5", "ct..steps=5", "")
    ),
    ("ct.steps=1; ct.steps.x=5", r"--set 'ct\.steps\.x=5': steps is a value, not a block of settings"),
    ("seed=null; seed.x=1", r"setting seed: input should be a valid integer \(got \{'x': 1\}\)"),
    *(
        (f"ct.steps={text}", r"--set .ct\.steps=.*: the value is not valid YAML")
        for text in ("[1", "&a [*a]", 9000 * "[", 5000 * "9", "2026-99-99", "!!int ''", "!!timestamp x", "!!bool x")
    ),
    # recipes
    *((f"recipes=[{json.dumps(text)}]", f"recipe {text!r}: {sentence}") for text, sentence in RECIPES.items()),
    ("recipes=[]", r"recipes is empty; name at least one, for example ct-sed-flow"),
    ("export.recipe=ct", r"export\.recipe is 'ct', which is not in recipes \(.*\)"),
    ("recipes=[nli-ct]", r"recipe 'nli-ct': nli needs labelled sentence pairs; name them in nli\.train"),
    ("recipes=[sts-sed]; sts.train=[]", r"recipe 'sts-sed': sts needs labelled sentence pairs; .* sts\.train"),
    (f"recipes=[sts]; {CHOICES}", r"recipe 'sts': sts chooses its lower bound on evaluation\.dev; name a dev task"),
    (
        "recipes=[ct-sts]; sts.models=3; members.count=2",
        r"sts\.models is 3, but in recipe 'ct-sts' each lower bound continues the 2 members .*; set .* most 2",
    ),
    ("recipes=[ct-sed]; sed.start=mlm", r"sed\.start is mlm, but recipe 'ct-sed' does not begin with mlm; .*"),
    (
        "recipes=[bsl]; bsl.views=[files]",
        r"recipe 'bsl': bsl\.views has files, whose pairs come from views\.files; name them there",
    ),
    (
        "recipes=[contrastive]; contrastive.views=[entailment]",
        r"recipe 'contrastive': contrastive\.views has entailment, whose pairs come from nli\.train; .*",
    ),
    # teachers
    ("teachers=[A]", r"teachers is set, but no recipe uses it; add teachers-sed to recipes"),
    (f"{TEACHER}[A, B]; combination.weights=[1]", r"combination\.weights has 1 weights for 2 teachers; give one .*"),
    (f"{TEACHER}[members]", r"teachers: members needs a recipe that trains members; add one to recipes, such as ct"),
    (
        "recipes=[ct, mlm, teachers-sed]; teachers=[members]",
        r"teachers: members names no ensemble of the recipes; write members:ct or members:mlm",
    ),
    (f"{TEACHER}[/no/A]", r"teachers: '/no/A': there is no such directory"),
    (
        f"{TEACHER}[bundled:other]",
        r"teachers: 'bundled:other': .* is unknown; the bundled models are bundled:encoder and bundled:raw",
    ),
    # the encoder
    *(
        (f"encoder.path={path}", rf"encoder\.path: '{path}' is neither a model directory nor a hub id that can be .*")
        for path in ("/no/such/model", "nobody/no-such-model", "package:raysed/no", LONG)
    ),
    (
        "encoder.path=bundled:x",
        r"encoder\.path: 'bundled:x' is unknown; the bundled models are bundled:encoder and bundled:raw",
    ),
    ("encoder.path=package:no_such_one/x", r"encoder\.path: .*; install it with pip install no-such-one"),
    ("encoder.path=package:/x", r"encoder\.path: .* does not name a Python package; write it as package:NAME/DIR"),
    ("encoder.layers=99", rf"encoder\.layers is 99, but {ENCODER}"),
    ("encoder.layers=0", rf"encoder\.layers is 0, but {ENCODER}"),
    ("encoder.keep_layers=[2, 0]", r"setting encoder\.keep_layers: .*|encoder\.keep_layers .*"),
    (
        "encoder.static={}; encoder.layers=2",
        r"encoder\.layers is 2, but encoder\.static has no layers to choose from; set it to 1",
    ),
    ("evaluation.layers=[1, 99]", rf"evaluation\.layers has 99, but {ENCODER}"),
    ("encoder.max_length=999", r"encoder\.max_length is 999, but 'bundled:encoder' takes at most \d+ tokens"),
    # other blocks that do not go together
    ("ct.boundaries=[1, 2]", r"ct\.boundaries must increase, and ct\.learning_rates must have exactly one more .*"),
    ("ct.boundaries=[4, 3, 2, 1]", r"ct\.boundaries must increase, .*"),
    (
        "sed.workers=33; sed.batch_size=32",
        r"sed\.workers is 33, which is more than sed\.batch_size \(32\); set it to at most 32",
    ),
    ("members.min_members=99", r"members\.min_members is 99, which is more than members\.count \(10\); lower it"),
    ("evaluation.dev=mine", r"evaluation\.dev names 'mine', which is not in .*; name one of .*, or use null for none"),
    ("evaluation.report=[x]", r"evaluation\.report names 'x', which is not in .* everyday-dev, everyday-test"),
    ("evaluation.tasks={}", r"evaluation\.tasks is empty; name at least one file of graded sentence pairs"),
    ("corpus.min_characters=3000", r"corpus\.min_characters is 3000, which is more than corpus\.max_characters .*"),
    ("sts.lower_bounds=[0, 0.5, 0.5]", r"setting sts\.lower_bounds: list at least one, and each once \(got .*\)"),
    ("bsl.momentum=1.5", r"setting bsl\.momentum: input should be less than or equal to 1 \(got 1\.5\)"),
    ("bsl.batch_size=1", r"setting bsl\.batch_size: input should be greater than or equal to 2 \(got 1\)"),
    ("bsl.views=[]", r"setting bsl\.views: list at least one, and each once \(got \[\]\)"),
    ("bsl.views=[mlm, mlm]", r"setting bsl\.views: list at least one, and each once \(got \['mlm', 'mlm'\]\)"),
    ("contrastive.batch_size=1", r"setting contrastive\.batch_size: input should be greater than .* 2 \(got 1\)"),
    ("contrastive.dropout=false", r"contrastive\.views has same, whose two views differ only by .*dropout: true"),
    ("views.pivots=[]", r"setting views\.pivots: list should have at least 1 item .* \(got \[\]\)"),
    ("views.pivots=[[a, b], [c, d], [e, f]]", r"setting views\.pivots: list should have at most 2 items .*"),
    (
        f"recipes=[bsl]; bsl.keep=best_on_dev; {CHOICES}",
        r"bsl\.keep: best_on_dev needs evaluation\.dev; set it, or leave bsl\.keep out",
    ),
    ("recipes=[bsl]; views.mlm_model=/no/model", r"views\.mlm_model: '/no/model' cannot be loaded: .*"),
    (
        "recipes=[bsl]; bsl.views=[back_translation]; views.pivots=[[/no/there, /no/back]]",
        r"views\.pivots: '/no/there' cannot be loaded: .*",
    ),
    # machines
    ("resources.gpu=true", r"resources\.gpu is true, but the cluster has no GPU \(1 node, 2 CPUs, 0 GPUs\); set .*"),
    ("resources.gpu=false; resources.gpus_per_member=1", r"resources\.gpus_per_member is set but resources\.gpu is .*"),
    ("resources.gpus_per_member=1.5", r"resources\.gpus_per_member is 1\.5; above 1 it must be a whole number"),
    ("resources.cpus_per_member=8", r"resources\.cpus_per_member is 8, but the largest node has 2 CPUs; lower it"),
    ("sed.workers=4", r"sed\.workers is 4, but the cluster has 2 CPUs \(1 node, 2 CPUs, 0 GPUs\); lower it"),
    ("sed.workers=2; resources.engine=local", r"sed\.workers needs Ray, but resources\.engine is local; leave one .*"),
    ("resources.engine=local", r"sts\.scheduler: asha needs Ray, but resources\.engine is local; leave one .*"),
    # secrets, of which no message says more than the name
    *(
        (f"encoder.model_kwargs={text}", r"setting encoder\.model_kwargs: \w+ may hold a secret; remove it, because .*")
        for text in ("{token: hush}", "{use_auth_token: hush}", "{hub: {headers: [{api_key: hush}]}}")
    ),
    (f"encoder.model_kwargs{2000 * '.a'}=1", r"--set '.*: .*"),
    *(
        (f"corpus.source={uri}", r"setting corpus\.source: a URI has at most 2,000 characters")
        for uri in (2000 * "a://?a=", f"s3://{50_000 * ':'}x")
    ),
    *(
        (f'{name}="a\\0b"', r"setting .*: it holds a zero byte, which no name can")
        for name in ("storage", "corpus.source", "encoder.path", MINE, "views.mlm_model", "nli.train", "views.files")
    ),
    # places
    *(
        (f"{setting}=/no/x.tsv", rf"{where}: /no/x\.tsv does not exist; name an existing file.*or a hub dataset")
        for setting, where in (
            ("corpus.source", r"corpus\.source"),
            ("flow.fit_on", r"flow\.fit_on"),
            (MINE, re.escape(MINE)),
            ("recipes=[sts]; sts.train", r"sts\.train\[0\]"),
            ("recipes=[nli]; nli.train", r"nli\.train"),
            ("recipes=[bsl]; bsl.views=[files]; views.files", r"views\.files"),
        )
    ),
    *(
        (f"corpus.source={text}", rf"corpus\.source: {re.escape(text)} does not exist; name an existing file, .*")
        for text in ("no/*.txt", "some dir/no", "file:///nowhere/no.txt")
    ),
    *(
        (f"corpus.source={text}", r"corpus\.source: it is empty; name a file, a directory, a hub .*")
        for text in ("''", "[]", "['']")
    ),
    *(
        (f"corpus.source={text}", rf"corpus\.source: {text.partition('?')[0]} cannot be read: .*")
        for text in ("foo://host/a.txt?shown=no", "file:///a b.txt", f"{LONG}.txt", f"/{LONG}")
    ),
    ("corpus.source=bundled:x", r"corpus\.source: bundled:x is unknown; the bundled corpus is bundled:everyday"),
    (f"{MINE}=/no/x", rf"{re.escape(MINE)}: /no/x does not exist; name .*"),
    (f"{MINE}=bundled:x", rf"{re.escape(MINE)}: bundled:x does not exist; use bundled:train, bundled:dev or .*"),
    *((f"{MINE}={text}", rf"{re.escape(MINE)}: .*") for text in (f"{LONG}.tsv", f"/{LONG}", "''")),
    *((f"{TEACHER}[{text}]", r"teachers: .*") for text in (f"{LONG}.parquet", LONG, "''")),
]
"""Settings and the sentence about them."""

YAML = [
    (b"ct:\n  steps: [1\nseed: 2\n", r", line 3 is not valid YAML: expected ',' or '\]', but got ':'"),
    (b"a: 1\n\tb: 2\n", r", line 2 is not valid YAML: found character '\\t' that cannot start any token"),
    (b"a: b: c\n", r", line 1 is not valid YAML: mapping values are not allowed here"),
    (b"a: \x00\n", r" is not valid YAML: unacceptable character #x0000.*"),
    (b"a: \xff\n", r" is not UTF-8 text"),
    (b"- ct\n", r" must hold settings as 'key: value', not a list"),
    (b"ct\n", r" must hold settings as 'key: value', not a str"),
    (b"run: &a [*a]\n", r" is not valid YAML: one of its aliases contains itself"),
    (b"&a ? *a\n: 1\n", r".* is not valid YAML: .*"),
    (b"run: " + 50_000 * b"[", r" is not valid YAML: it is nested too deeply"),
    (50_000 * b"- ", r" is not valid YAML: it is nested too deeply"),
    (BOMB.encode(), r" is not valid YAML: its aliases stand for more than 100,000 values"),
    (100_000 * b"# \n", r" is not valid YAML: it has more than 200,000 characters"),
    (b"run: " + 5000 * b"1", r" is not valid YAML: Exceeds the limit \(4300 digits\) .*"),
    *(
        (b"run: " + text, r".* is not valid YAML: .*")
        for text in (
            *(b"2026-99-99", b"!!int ''", b"!!int x", b"!!float ''", b"!!timestamp x", b"!!bool x", b"=", b"{<<: 5}"),
            *(b"!!python/object/apply:os.system [ls]", b"!!python/name:os.system", b"{[a]: b}", b"*gone"),
        )
    ),
    (b"5: 1\n", r"setting 5: keys should be strings .*"),
    (b"a: 1\n", r"unknown setting a; .*"),
    (b"based_on: gone\n", r": based_on names 'gone', which is not a config; the configs are .*, c, .*, quickstart, .*"),
    (b"based_on: [a]\n", r": based_on names \['a'\], which is not a config; .*"),
    (b"based_on: c\n", r": based_on names the file itself; name another config"),
    (b"based_on: bert-base-unsupervised\n", r": based_on names .* itself based on .*; name a config without based_on"),
]
"""Configs, and what follows the name in the sentence."""

CORPORA = [
    ("a.txt", b"", r"corpus\.source: no sentences in a\.txt; name text .*|corpus\.source: no usable sentence in .*"),
    ("a.csv", b"", r"corpus\.source: no usable sentence in a\.csv \(0 lines: .*"),
    ("a.csv", b"text\n", r"corpus\.source: no usable sentence in a\.csv \(0 lines: .*"),
    ("a.jsonl", b"", r"corpus\.source: no usable sentence in a\.jsonl \(0 lines: .*"),
    ("a.txt", b"x\n\ny\n", r"corpus\.source: no usable sentence in a\.txt \(3 lines: 1 empty, 2 too short, .*"),
    ("a.txt", 3000 * b"y", r".* in a\.txt \(1 lines: .*, 1 too long, .* sentence of 2 to 2,000 char.*"),
    ("a.txt", b"a" + 1_000_000 * "\u0301".encode(), r".* in a\.txt \(1 lines: .*, 1 too long, .*"),
    ("a.txt", b"fine\nalso fine\nbr\xffken\n", r"a\.txt, line 3: not valid UTF-8 \(byte 0xff\); save .* as UTF-8"),
    ("a.txt", "fine\n".encode("utf-16"), r"a\.txt, line 1: not valid UTF-8 .*"),
    ("a.txt", lambda path: path.symlink_to("/dev/zero"), r".*a\.txt.*"),
    ("a.txt", os.mkfifo, r".*a\.txt.*"),
    ("a.txt", lambda path: path.symlink_to("a.txt"), r".*a\.txt.*"),
    ("a.txt", Path.mkdir, r"corpus\.source: a\.txt neither is nor contains a file of sentences; supported endings .*"),
    ("a.md", b"no corpus", r"corpus\.source: a\.md neither is .* \.txt, \.jsonl, \.csv, \.tsv, \.parquet, and .*"),
    ("a.txt.gz", gzip.compress(b"fine\n" * 10_000, mtime=0)[:60], r"a\.txt\.gz cannot be read: .*"),
    ("a.txt.gz", b"no gzip", r"a\.txt\.gz cannot be read: .*"),
    ("a.txt.gz", gzip.compress(bytes(1 << 27)), r"a\.txt\.gz, line 1 is longer than 64 MiB; put one sentence .*"),
    ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl, line 2: not valid JSON: .*"),
    ("a.jsonl", b'{"text": "a"}\n\n["b"]\n', r"a\.jsonl, line 3: expected an object .*, found a list"),
    ("a.jsonl", b'{"text": "a"}\n{"body": "b"}\n', r"a\.jsonl, line 2: no field 'text'; found body"),
    ("a.jsonl", b'{"text": "a"}\n{}\n', r"a\.jsonl, line 2: no field 'text'; found none"),
    ("a.jsonl", b'{"text": "a"}\n{"text": 5}\n', r"a\.jsonl, line 2: a sentence must be text, .* int; name another .*"),
    ("a.jsonl", b'{"text": "a"}\n{"text": "\\ud83d"}\n', r"a\.jsonl, line 2: half a surrogate pair .* not valid text"),
    ("a.jsonl", b'{"text": %s}' % (5000 * b"9"), r"a\.jsonl, line 1: not valid JSON: Exceeds the limit .*"),
    ("a.jsonl", b'{"text": %s' % (10**6 * b"["), r"a\.jsonl, line 1: not valid JSON: .*"),
    ("a.jsonl", b'{"\x1b]0;owned\x07\\u001b[2J": 1}', r"a\.jsonl, line 1: .*"),
    (
        "a.jsonl",
        b'{"\\u001b[2Jx": 1}',
        r"a\.jsonl, line 1: columns sentence or text are needed, found \S+\[2Jx; name .*",
    ),
    (
        "a.jsonl",
        json.dumps(dict.fromkeys(map(str, range(10_000)))).encode(),
        r"a\.jsonl, line 1: columns .* found 0, .*",
    ),
    ("a.csv", b"id,n\nT-1,5\n", r"a\.csv, line 1: .* found id, n; name another column in corpus\.column"),
    ("a.csv", b",".join(b"%d" % n for n in range(10_000)), r"a\.csv, line 1: columns .* found 0, .*"),
    ("a.csv", b"n,text\n1,a\n2\n", r"a\.csv, line 3: 1 fields, but the header has 2; quote fields .*"),
    ("a.csv", b'text,n\n"a\nb",1\nc, d,2\n', r"a\.csv, line 4: 3 fields, but the header has 2; .*"),
    ("a.csv", b'text,n\na,1\n"b,2\nc,3\n', r"a\.csv, line 3: .*; check for quotation marks .*"),
    ("a.csv", b'text,n\na,1\n"b"c,2\n', r"a\.csv, line 3: .*; check for quotation marks .*"),
    ("a.csv", b"text,n\n%s,1\n" % (200_000 * b"x"), r"a\.csv, line 2: field larger than field limit .*"),
    ("a.csv", b"text\na\n\xe9\n", r"a\.csv, line 3: not valid UTF-8 \(byte 0xe9\); .*"),
    ("a.tsv", b"n\ttext\n1\ta\tb\n", r"a\.tsv, line 2: 3 tab-separated columns, but the header has 2"),
    ("a.parquet", b"no parquet file at all", r"a\.parquet cannot be read: .*"),
    ("a.parquet", b"PAR1\xff\xff\xff\x7fPAR1", r"a\.parquet cannot be read: .*"),
    ("a.parquet", table(text=["Nine."] * 9)[:-20], r"a\.parquet cannot be read: .*"),
    ("a.parquet", table(body=["a"], n=[1]), r"a\.parquet: columns sentence or text are needed, found body, n; .*"),
    ("a.parquet", table(text=[b"a"]), r"a\.parquet, row 1: a sentence must be text, not of type bytes; .*"),
    ("a.parquet", table(text=[["a"]]), r"a\.parquet, row 1: a sentence must be text, not of type list; .*"),
    ("a.parquet", table(text=[{"a": 1}]), r"a\.parquet, row 1: a sentence must be text, not of type dict; .*"),
    *(
        ("a.parquet", table(text=column(pa.int32(), 0, days).cast(pa.date32())), r"a\.parquet, rows 1 to 2: a value .*")
        for days in (2**31 - 1, 3_000_000)
    ),
    (
        "a.parquet",
        table(text=column(pa.int64(), 2**50).cast(pa.timestamp("ms"))),
        r"a\.parquet, rows 1 to 1: a value .*",
    ),
]
"""Files of sentences."""

SCORED = [
    ("a.tsv", PAIRS + b"all\t2.5\ta\tb\nall\tfive\ta\tb\n", r"a\.tsv, line 3: score 'five' is not a number; write .*"),
    (
        "a.csv",
        b"score;sentence1;sentence2\n3,5;A.;B.\n",
        r"a\.csv, line 1: columns are separated by semicolons; save .*",
    ),
    ("a.tsv", PAIRS + b"x\t,5\tA\tB\n", r"a\.tsv, line 2: score ',5' has a decimal comma; write \.5"),
    ("a.csv", b"score,sentence1,sentence2\n3,5,A,B\n", r"a\.csv, line 2: 4 fields, but the header has 3; .*"),
    ("a.csv", b'score,sentence1,sentence2\n3,"A,B\n', r"a\.csv, line 2: .*quotation marks that are not closed .*"),
    (
        "a.csv",
        b"score,sentence1\n3,A\n",
        r"a\.csv, line 1: columns score \(or label\), sentence1 and sentence2 \(or text1 and text2\) are needed, found "
        rf"score, sentence1; name yours in {TASK}\.columns",
    ),
    ("a.csv", b"", r"a\.csv, line 1: columns .* are needed, found none; .*"),
    (
        "a.jsonl",
        b'{"label": "entails", "sentence1": "a", "sentence2": "b"}\n',
        rf"a\.jsonl, line 1: score 'entails' is not a number; .* in {TASK}\.columns",
    ),
    (
        "a.jsonl",
        b'{"score": true, "text1": "a", "text2": "b"}\n',
        r"a\.jsonl, line 1: score 'True' is not a number; .*",
    ),
    (
        "a.jsonl",
        b'{"score": 1%s, "text1": "a", "text2": "b"}' % (400 * b"0"),
        r"a\.jsonl, line 1: score '10+' is too l.*",
    ),
    (
        "a.jsonl",
        b'{"score": 1e999, "text1": "a", "text2": "b"}',
        r"a\.jsonl, line 1: score 'inf' is too large or not finite; .*",
    ),
    *(
        (
            "a.tsv",
            PAIRS + b"x\t%s\ta\tb\n" % score.encode(),
            rf"a\.tsv, line 2: score '{score}' is too large or not finite; .*",
        )
        for score in ("nan", "-inf", "1e999")
    ),
    ("a.tsv", PAIRS + b"x\t5.5\ta\tb\n", rf"a\.tsv, line 2: score 5\.5 is outside {TASK}\.score_range, 0 to 5"),
    ("a.tsv", PAIRS + b"x\t\ta\tb\n", rf"{TASK}: \S+a\.tsv has no pair with a gold score \(1 blank\)"),
    ("a.en-de.txt", b"a\tb\t1\nc\td\n", r"a\.en-de\.txt, line 2: 2 tab-separated columns instead of 3"),
    ("a.en-de.txt", b"sentence1\tsentence2\tscore\n", r"a\.en-de\.txt, line 1: score 'score' is not a number; .*"),
    ("a.en-de.txt", b"", rf"{TASK}: .*a\.en-de\.txt has no pair with a gold score .*"),
    ("a.xlsx", b"x", rf"{TASK}: .*a\.xlsx is not a file of a task; supported endings .*"),
    ("a.tsv", os.mkfifo, r".*a\.tsv.*"),
    (
        "a.parquet",
        table(text1=["a"], text2=[1], score=[1.0]),
        r"a\.parquet, row 1: a sentence must be text, .* int; .*",
    ),
    (
        "a.parquet",
        table(text1=["a"], text2=["b"], score=[[1]]),
        r"a\.parquet, row 1: score '\[1\]' is not a number; .*",
    ),
    ("STS.input.s.txt", b"a\tb\n", r"STS\.gs\.s\.txt cannot be read: .*"),
]
"""Files of graded pairs."""

SENTEVAL = [
    (b"a\tb\nc\td\n", b"1\n", r"\S+STS\.input\.s\.txt has 2 lines, but STS\.gs\.s\.txt beside it has 1"),
    (b"a\tb\n", b"x\n", r"\S+STS\.gs\.s\.txt, line 1: score 'x' is not a number; .*"),
    (b"a b\n", b"1\n", r"\S+STS\.input\.s\.txt, line 1: 1 tab-separated columns instead of 2"),
]
"""Pairs, their scores beside them, and the sentence."""

LABELLED = [
    *(
        (
            name,
            content,
            rf"{place}: label 'Maybe' is unknown; use one of contradiction, entailment, neutral, 0 .*, or '-' .*",
        )
        for name, content, place in (
            ("n.tsv", NLI + b"neutral\tA.\tB.\nMaybe\tC.\tD.\n", r"n\.tsv, line 3"),
            ("n.jsonl", b'{"label": "Maybe", "premise": "a", "hypothesis": "b"}', r"n\.jsonl, line 1"),
            ("n.parquet", table(label=["-", "Maybe"], premise=["a", "b"], hypothesis=["c", "d"]), r"n\.parquet, row 2"),
        )
    ),
    (
        "n.tsv",
        NLI + b"-\ta\tb\n\tc\td\n0\t\te\n",
        r"nli\.train: \S+n\.tsv has no usable pair \(.* 1 with an empty .*\)",
    ),
    ("n", Path.mkdir, r"nli\.train: .*n is not a file of labelled pairs; supported endings .*"),
]
"""Files of pairs with a class."""

NEEDED = r"view1 and view2 \(or sentence1 and sentence2, or two that the source's `columns` name\)"
HINT = rf"instead of 2; separate them by tabs, or name the columns in the first line: {NEEDED}"
TWO_VIEWS = [
    ("v.txt", b"\na\tb\nIt rains.\n", rf"v\.txt, line 3: 1 tab-separated columns {HINT}"),
    ("v.tsv", b"a\tb\tc\n", rf"v\.tsv, line 1: 3 tab-separated columns {HINT}"),
    ("v.tsv", b"view1\tview2\na\n", r"v\.tsv, line 2: 1 tab-separated columns, but the header has 2"),
    ("v.tsv", b"", r"views\.files: \S+v\.tsv has no pairs of views"),
    ("v.txt", b"view1\tview2\n", r"views\.files: \S+v\.txt has no pairs of views"),
    ("v.jsonl", b'{"view1": "a", "view2": 3}', r"v\.jsonl, line 1: a sentence must be text, not of type int"),
    ("v.csv", b"a,b\n", rf"v\.csv, line 1: columns {NEEDED} are needed, found a, b"),
    ("v.xlsx", b"a,b\n", r"views\.files: .*v\.xlsx is not a file of pairs of views; supported endings .*"),
    (
        "v.txt",
        b"a\ta\n \tb\nc\td\n",
        r"views\.files \(.*v\.txt\): 2 of 3 pairs are unusable, 1 with an empty view and 1 with two identical views, "
        r"which is more than views\.max_unusable \(0\.5\) allows; fix the views, or raise it",
    ),
]
"""Files of two views."""

NUMBERS = "must hold lists of numbers in its column embedding, which has the type .*"
TAUGHT = [
    (
        vectors([[1.0], [2.0]], ["a", "a"]),
        r"rows 1 and 2 of X have the same sentence and different embeddings; keep one .*",
    ),
    (vectors([[1.0], [2.0, 3.0]]), "the embeddings of X must all have the same width, with none missing"),
    (vectors([[1.0, 2.0, 3.0], [4.0]]), "the embeddings of X must all have the same width, .*"),
    (vectors([[1.0], None]), "the embeddings of X must all have the same width, .*"),
    *(
        (vectors([[1.0], [number]]), "row 2 of X has an embedding that is not finite")
        for number in (float("nan"), float("inf"), 1e300, None)
    ),
    (vectors(column(pa.list_(pa.float32()), [], [])), "'X' has embeddings of width 0"),
    (vectors(column(pa.list_(pa.float32())), column(pa.string())), "X has no rows"),
    (vectors([[1.0], [2.0]], [1, 2]), "X needs text in its column sentence, which has the type int64"),
    *(
        (vectors(embedding), f"X {NUMBERS}")
        for embedding in (
            *([1.0, 2.0], ["1", "2"], [["1"], ["2"]], [{"x": 1.0}, {"x": 2.0}], [[[1.0]], [[2.0]]], [[True], [False]]),
            *(column(pa.list_(kind), [1], [2]) for kind in (pa.decimal128(5, 2), pa.timestamp("s"))),
        )
    ),
    (
        table(line=["a"], embedding=[[1.0]]),
        r"X needs the columns sentence \(or text\) and embedding; it has line, emb.*",
    ),
    (table(sentence=["a"]), r"X needs the columns sentence \(or text\) and embedding; it has sentence"),
    (b"no parquet", "X cannot be read as a Parquet file: .*"),
    *((made, "X is not a file") for made in (os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"))),
]
"""Files of embeddings, X, and what follows `teachers: `."""

CLASSES = [
    (
        9 * b"same\tx\n",
        r"evaluation\.tasks\.t: all 9 texts of t\.tsv have the label 'x'; at least two labels are needed",
    ),
    (b"".join(b"t%d\t%d\n" % (n, n) for n in range(9)), r".*: the label '0' of t\.tsv has 1 of 9 texts, but each .*"),
    (3 * b"\t\n", r"evaluation\.tasks\.t: t\.tsv has no text with a label; at least two labels are needed"),
]
"""Labelled texts, and the sentence."""

RETRIEVAL = [
    (
        beir(qrels="q1 d1 1; q9 d1 1"),
        r"\S+test\.tsv, line 3: the id 'q9' is not in \S+queries\.jsonl; add it, or leave .*",
    ),
    (beir(qrels="q1 d7 1"), r"\S+test\.tsv, line 2: the id 'd7' is not in \S+corpus\.jsonl; add it, or leave .*"),
    (beir(qrels="q1 d1 much"), r"\S+test\.tsv, line 2: score 'much' is not a number; write 1 for relevant and 0 .*"),
    *(
        (beir(qrels=f"q1 d1 {n}"), rf"\S+test\.tsv, line 2: score '{n}' is too large or not finite; .*")
        for n in ("inf", "nan", "1e999")
    ),
    (beir(qrels="q1 d1 1e308; q1 d2 1e308"), r".*test\.tsv, line 2: .*"),
    (beir(qrels="q1 d1 0"), r"evaluation\.tasks\.b: \S+ names no relevant document for any query of \S+queries\.jsonl"),
    (beir(documents="d1 d1"), r"\S+corpus\.jsonl, line 2: the id 'd1' is there twice; every text needs one of its own"),
    (beir(documents=""), r"evaluation\.tasks\.b: \S+corpus\.jsonl has no document; it must hold at least one"),
    (
        beir(split="a") | beir(split="b"),
        r"evaluation\.tasks\.b: \S+qrels has no test\.tsv; there are a, b \(split .*\)",
    ),
    (
        {**beir(), "b/queries.jsonl": b'{"text": "a"}\n'},
        r"\S+queries\.jsonl, line 1: columns _id and text are needed, found text",
    ),
    (
        {"b/corpus.jsonl": b""},
        r"evaluation\.tasks\.b: b has no queries\.jsonl; BEIR's layout has it beside corpus\.jsonl",
    ),
]
"""Directories in BEIR's layout, and the sentence."""

TEXT = "\n".join(f"Ticket {n} says that nothing works." for n in range(20)).encode()
SPLIT = b"split\t" + NLI + b"dev\tneutral\ta\tb\n\tneutral\ta\tb\n"
SAME = b"score\tsentence1\tsentence2\n" + 5 * b"3\tA cat.\tA dog.\n"
COMMANDS = [
    ({"s/x": b""}, f"{MINE}=s", r"\S+/s is not a SentEval directory: it has no STS\.input\.<subset>\.txt"),
    (
        {"n.tsv": SPLIT},
        "recipes=[nli]; nli.train={source: n.tsv, split: test}",
        r"nli\.train: \S+n\.tsv has no rows of the split 'test'; its splits are '', 'dev'",
    ),
    (
        {"v.tsv": b"a\tb\n"},
        "recipes=[bsl]; bsl.views=[files]; views.files={source: v.tsv, split: train}",
        r"views\.files: \S+v\.tsv has no column split; remove split: train",
    ),
    (
        {"d.tsv": b"id\ttext\na\tb\n"},
        "evaluation.tasks.x={source: d.tsv, queries: d.tsv}",
        r"evaluation\.tasks\.x\.qrels is missing; a retrieval task needs documents, queries and qrels",
    ),
    (
        {"x.parquet": vectors([[1.0], [2.0]])},
        f"{TEACHER}[bundled:encoder, x.parquet]; combination.how=mean",
        r"combination\.how is mean, which needs teachers of one width, but they have .*; use concatenated",
    ),
    *(
        (
            {"a.tsv": PAIRS + b"".join(b"x\t%s\ta\tb\n" % score for score in (b"0", b"1e308", b"-1e308"))},
            command,
            r".*a\.tsv, line 3: score '1e308' is .*",
        )
        for command in (f"{EVALUATE}a.tsv", f"{MINE}={{source: a.tsv, score_range: null}}")
    ),
    *(
        (
            {"m": lambda path: shutil.copytree(bundled.ENCODER, path), f"m/{file}": content},
            command,
            rf".*m.*: {sentence}",
        )
        for file, content, sentence in (
            ("config.json", 10**5 * b"[", ".*"),
            ("config.json", b"[]", ".*"),
            ("config.json", b'{"model_type": 5}', ".*"),
            ("config.json", b'{"model_type": "bert", "hidden_size": -1}', ".*"),
            ("config.json", b'{"model_type": "bert", "vocab_size": "many"}', ".*"),
            ("config.json", b'{"model_type": "bert", "num_attention_heads": 0}', ".*"),
            ("config.json", b"\xff", ".*"),
            ("tokenizer.json", b"{", ".*"),
            ("tokenizer.json", 10**5 * b"[", ".*"),
            ("tokenizer.json", b"[]", ".*"),
            ("tokenizer_config.json", b"[]", ".*"),
            ("model.safetensors", 8 * b"\xff", ".*"),
            ("modules.json", 10**5 * b"[", ".*"),
            ("modules.json", b'[{"type": "os.system", "path": ""}]', ".*"),
            ("modules.json", b'[{"type": "sentence_transformers.models.Transformer", "path": "\\u0000"}]', ".*"),
        )
        for command in ("evaluate --model m", f"{TEACHER}[m]", "encoder.path=m; recipes=[base]")
        if file == "config.json" or "path" not in command
    ),
    ({}, "run --config quickstrat", r"--config quickstrat: there is no such file, .* configs are .*quickstart.*"),
    *(
        ({}, f"run --config {name}", rf"--config {name}: there is no such file, .*")
        for name in (".", LONG, "/dev/zero")
    ),
    ({"f": b""}, "run --storage f", r"storage: .*f/quickstart cannot be written: .*"),
    ({"f": b""}, "run --storage f/below", r"storage: .*f/below/quickstart cannot be written: .*"),
    *(
        ({}, f"run --storage {place}", rf"storage: .*{place}/quickstart cannot be written: .*")
        for place in ("/proc", "/proc/runs", "/dev/full", LONG)
    ),
    ({}, "status --storage /dev/full", r"storage: /dev/full cannot be reached: .*"),
    ({}, f"status --storage {LONG}", r"storage: .* cannot be reached: .*"),
    *(
        ({}, f"run --storage {uri}", r"storage: .* is not a usable directory or URI: .*")
        for uri in ("nosuch://bucket/runs", "file://relative/runs", "s3://[", "http://example.org/x")
    ),
    ({}, "distill --teachers A --corpus c.txt --dev no.csv", r"--task no\.csv: no\.csv does not exist; .*"),
    ({}, "distill --teachers A --corpus c.txt --set x=1", r"unknown setting x; .*"),
    ({}, "evaluate --model /no/model", r"--model /no/model: there is no such directory"),
    ({}, "evaluate --model ./absent", r"--model \./absent: there is no such directory"),
    ({"x": b""}, "evaluate --model .", r"--model \.: .*cannot be loaded: .*"),
    ({}, "evaluate --model ''", r"--model : .*"),
    *(
        ({}, f"evaluate --model '{name}'", rf"--model {name}: neither a directory nor a hub id that can be reached: .*")
        for name in ("somebody/not-cached", "no such name!", LONG)
    ),
    ({}, "evaluate --model package:no_such_one/x", r"--model package:no_such_one/x: .* pip install no-such-one"),
    ({}, f"{EVALUATE}no.csv", r"--task no\.csv: no\.csv does not exist; .*"),
    ({}, f"{EVALUATE}{LONG}.csv", r"--task n+\.csv: .*"),
    ({}, f"{EVALUATE}''", r"--task : .*"),
    *(
        ({}, f"evaluate --model bundled:encoder --layers {count}", rf".*: {count} layers cannot be pooled: .* has \d.*")
        for count in (9, 0, -1)
    ),
    *(
        (
            {"a.txt": TEXT},
            f"{command} --output {place}",
            rf"--output {re.escape(place)}: no file can be written there; name one in a directory that exists",
        )
        for command in ("evaluate --model bundled:encoder", "init a.txt")
        for place in ("no/o.json", ".", "/dev/full", "/proc/o", LONG)
    ),
    ({}, "init no.txt", r"corpus\.source: no\.txt does not exist; name an existing file, directory or pattern, or .*"),
    (
        {"a.txt": TEXT},
        "init a.txt --pairs no.csv",
        r"--pairs: no\.csv does not exist; name an existing file or a hub .*",
    ),
    ({"a.txt": TEXT, "p.tsv": b"a\tb\n1\t2\n"}, "init a.txt --pairs p.tsv", r".*found a, b; rename yours"),
    (
        {"a.txt": TEXT, "p.tsv": SAME},
        "init a.txt --pairs p.tsv",
        r"--pairs: all 5 pairs of p\.tsv have the score 3, .*",
    ),
    (
        {"a.txt": TEXT},
        "init a.txt --encoder no/model",
        r"encoder\.path: 'no/model' is neither a model directory nor .*",
    ),
    ({"a.txt": TEXT, "c.yaml": b"x"}, "init a.txt --output c.yaml", r"c\.yaml is there already; name another .*"),
    (
        {f"{n}.txt": b"x\n\ny\n" for n in range(5)},
        "init .",
        r".*: no usable sentence in \S+0\.txt, .* and 2 more \(15 .*",
    ),
    ({}, "status nothing", r"there is no run at .*"),
    ({}, "status --watch", r"--watch follows one run; name it"),
]
"""Files by name, a command line and the sentence about them."""

ROWS: list[Row] = [
    *(({}, settings, sentence) for settings, sentence in SETTINGS),
    *(({"c.yaml": text}, "run --config c.yaml", rf"(config file c\.yaml)?{sentence}") for text, sentence in YAML),
    *given("init ", *CORPORA),
    *given(f"{MINE}=", *((name, content, rf"\S*{sentence}") for name, content, sentence in SCORED)),
    *(
        ({"s/STS.input.s.txt": pairs, "s/STS.gs.s.txt": golds}, f"{MINE}=s", sentence)
        for pairs, golds, sentence in SENTEVAL
    ),
    *given("recipes=[nli]; nli.train=", *((name, content, rf"\S*{sentence}") for name, content, sentence in LABELLED)),
    *given(VIEWS, *((name, content, rf"\S*{sentence}") for name, content, sentence in TWO_VIEWS)),
    *given(
        f"{TEACHER}[%]",
        *(("x.parquet", made, f"teachers: {text.replace('X', '.*x.parquet')}") for made, text in TAUGHT),
    ),
    *given(EVALUATE, *(("t.tsv", LABELS + content, sentence) for content, sentence in CLASSES)),
    *((files, f"{EVALUATE}b", sentence) for files, sentence in RETRIEVAL),
    *COMMANDS,
]


def words_of(command: str) -> list[str]:
    """A command line; `a=1; b=2` is one of settings."""
    if command.split(" ")[0] in cli.COMMANDS:
        return shlex.split(command)
    options = [part for setting in command.split("; ") for part in ("--set", setting)]
    return ["run", "--plan", *options]


@pytest.fixture
def refused(undone, monkeypatch, tmp_path, capfd):
    """Runs a command in an empty directory; returns its one line on stderr, without `error: `."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["raysed", *words])
        code, said = cli.main(), capfd.readouterr().err
        assert code == 2 and said.startswith("error: ") and said.count("\n") == 1, said
        return said.removeprefix("error: ").rstrip("\n")

    return call


@pytest.mark.parametrize(("files", "command", "sentence"), ROWS, ids=[command[:60] for _, command, _ in ROWS])
@pytest.mark.timeout(20)
def test_a_mistake_is_one_sentence_and_changes_nothing(refused, tmp_path, files, command, sentence):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        content(tmp_path / name) if callable(content) else (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    line = refused(*words_of(command))
    assert re.fullmatch(sentence, line), line
    assert len(line) < 1500 and line.isprintable() and "hush" not in line
    assert sorted(tmp_path.rglob("*")) == before


def test_synonyms_without_wordnet_are_refused_before_anything_starts(refused, monkeypatch, tmp_path):
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    line = refused(*words_of("recipes=[bsl]; bsl.views=[synonym]"))
    assert "python -m nltk.downloader wordnet" in line and "mlm" in line


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("./no --corpus bundled:everyday", "teachers: './no': there is no such directory"),
        ("no/body --corpus bundled:everyday", "teachers: 'no/body': neither a directory nor a hub id that can be "),
        ("v.parquet --corpus bundled:everyday", "teachers: v.parquet is not a file"),
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


@pytest.mark.usefixtures("undone")
@pytest.mark.parametrize("words", [["status", "x"], ["status"], ["init", "a.jsonl", "--output", "a.yaml"]])
def test_what_somebody_else_wrote_moves_no_cursor(monkeypatch, tmp_path, capfd, words):
    monkeypatch.chdir(tmp_path)
    status = {"state": "failed", "since": 1, "told": 2, "every": 5, "host": "a", "pid": 1, "error": "\x1b[2J"}
    (tmp_path / "runs/x").mkdir(parents=True)
    (tmp_path / "runs/x/status.json").write_text(json.dumps(status))
    rows = ({"text": f"Sentence {n}.", "\x1b[2J": n} for n in range(20))
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setattr(sys, "argv", ["raysed", *words])
    assert cli.main() in (0, 1)
    said = capfd.readouterr().out
    assert "\\x1b[2J" in said and said.replace("\n", "").isprintable()


# -- what shows only when a run has begun ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "settings", "sentence"),
    [
        (
            {"c.txt": b"One sentence.\nAnother one.\nOne sentence.\n"},
            ["corpus.source=c.txt", "corpus.sentences=3"],
            r"3 sentences are to be drawn, but corpus\.source has only 2 usable ones \(3 lines: .*\); lower corpus\..*",
        ),
        (
            {"v.tsv": b"A car.\tA wagon.\n"},
            f"{VIEWS}v.tsv".split("; "),
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
