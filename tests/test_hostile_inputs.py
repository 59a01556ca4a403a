r"""Hostile and mistaken input as one table: what is given, and the sentence. No row needs Ray, and none changes a file.

In a sentence `...` stands for any text; «x»9 is nine times x, and LONG a longer name than any disk takes. Settings are
for `raysed run --plan`, which makes every check of a run without starting anything.
"""

import argparse
import gzip
import json
import os
import pickle
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysed import bundled, cli
from raysed.config import make_config
from raysed.data.corpus import CorpusReport, sentence_chunks
from raysed.store.storage import Storage, check_stays

MINE = "evaluation.tasks.generated-dev"

Content = bytes | Callable[[Path], object]
"""Of a file, or what makes one that is none."""
AROUND: dict[str, dict[str, Content]] = {
    "m": {"m": lambda path: shutil.copytree(bundled.ENCODER, path)},
    "b": {
        "b/corpus.jsonl": b'{"_id": "d1", "text": "x"}\n',
        "b/queries.jsonl": b'{"_id": "q1", "text": "x"}\n',
        "b/qrels/test.tsv": b"query-id\tcorpus-id\tscore\nq1\td1\t1\n",
    },
    "d": {f"d/{n}.txt": b"x\n\ny\n" for n in range(4)},
    "s": {"s/STS.input.s.txt": b"a\tb\n", "s/STS.gs.s.txt": b"1\n"},
}
"""What else is in a directory: a model, a task in BEIR's layout, a corpus, a task in SentEval's."""


def rows(table: str) -> Iterator[list[str]]:
    """The parts of each line, between arrows."""
    for name, value in (("LONG", "«n»300"), ("MINE", MINE), ("QRELS", r"query-id\tcorpus-id\tscore\n")):
        table = table.replace(name, value)
    for line in table.strip().splitlines():
        if not line.startswith("#"):
            yield re.sub("«(.+?)»([0-9]+)", lambda repeated: repeated[1] * int(repeated[2]), line).split(" -> ")


def files(table: str) -> Iterator[tuple[str, str, bytes, str]]:
    r"""Command, name, content and sentence; the content has escapes such as \xff."""
    for what, *sentence in rows(table):
        if not sentence:
            command = what.removeprefix("> ")
            continue
        name, _, content = what.partition(":")
        content = content.removeprefix(" ").encode().decode("unicode_escape").encode("latin-1")
        yield command.replace("%", name), name, content, *sentence


def parquet(**columns: object) -> bytes:
    return written(pa.table(columns))


def twice(**columns: object) -> bytes:
    return written(pa.table([*columns.values()] * 2, [*columns] * 2))


def written(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def vectors(embedding: object, sentence: object = ("a", "b")) -> bytes:
    return parquet(sentence=sentence, embedding=embedding)


SETTINGS = r"""
# unknown ones go first
members.cuont=1; members.count=x -> unknown setting members.cuont: did you mean members.count?
evaluation.tasks.mine.sorce=x -> unknown setting evaluation.tasks.mine.sorce: did you mean evaluation.tasks.mine.source?
nothing.like.it=5 -> unknown setting nothing; the settings here are run, storage, seed, recipes, ...
# types
ct=5 -> ct is a block of settings: ct.dropout, ct.steps, ...
evaluation.tasks.mine={} -> setting evaluation.tasks.mine.source: field required
members.count=many -> setting members.count: input should be a valid integer, ... (got 'many')
members.count=true -> setting members.count: yes, no, true and false are not allowed here (got True)
corpus.source=5 -> setting corpus.source: ...valid string, or ...valid list (got 5)
# ranges
members.count=0 -> setting members.count: input should be greater than or equal to 1 (got 0)
sed.learning_rate=.nan -> setting sed.learning_rate: input should be a finite number (got nan)
bsl.views=[] -> setting bsl.views: list at least one, and each once (got [])
sed.widths=[128, 64] -> setting sed.widths: name each once and in ascending order (got [128, 64])
evaluation.report=[generated-test, generated-test] -> setting evaluation.report: list each once (got ...)
encoder.keep_layers=[2, 0] -> setting encoder.keep_layers: name each once and in ascending order (got [2, 0])
MINE.score_range=[5, 0] -> setting MINE.score_range: write the lowest score first, ... (got [5, 0])
MINE.kind=pears -> MINE.kind: ...'pears'; write one of neighbours, pairs, ...
sts.epochs=1e308 -> setting sts.epochs: it is larger than 1e+18 (got 1e+308)
# what would be listed before anybody could stop it
members.count=1000000000 -> setting members.count: input should be less than or equal to 1000 ...
# no settings
ct.steps -> --set 'ct.steps': write it as block.key=value, for example --set ct.steps=1000
ct..steps=5 -> --set 'ct..steps=5': write it as block.key=value, ...
ct.steps=1; ct.steps.x=5 -> --set 'ct.steps.x=5': steps is a value, not a block of settings
ct.steps=[1 -> --set 'ct.steps=[1': the value is not valid YAML
# recipes
recipes=[] -> recipes is empty; name at least one, for example ct-sed-flow
recipes=[''] -> recipe '': '' is not a stage; ...
recipes=[sed] -> recipe 'sed': sed needs an ensemble before it, for example ct-sed
recipes=[sn-natsv] -> recipe 'sn-natsv': 'sn' needs a model before it, for example base-sn-natsv
recipes=[ct-flow-sed] -> recipe 'ct-flow-sed': 'sed' is in the wrong place; the order is member stages, sed, calibration
recipes=[ct-nli-ct] -> recipe 'ct-nli-ct': 'ct' appears twice; use each stage once
recipes=[ct-sn-flow] -> recipe 'ct-sn-flow': use one flow, or a chain of different calibrations from natsv, sn, whiten
recipes=[teachers-whiten] -> recipe 'teachers-whiten': teachers must be followed by sed, for example teachers-sed
recipes=[teachers-sed] -> recipe 'teachers-sed': teachers names no model; list at least one there
recipes=[nli-ct] -> recipe 'nli-ct': nli needs labelled sentence pairs; name them in nli.train
export.recipe=ct -> export.recipe is 'ct', which is not in recipes (...)
# settings that do not go together
recipes=[sts]; evaluation.dev=null; ct.copy=closest -> recipe 'sts': sts chooses its ... on evaluation.dev; ...
recipes=[ct-sts]; sts.models=3; members.count=2 -> sts.models is 3, but in recipe 'ct-sts' ... 2 members ... most 2
recipes=[ct-sed]; sed.start=mlm -> sed.start is mlm, but recipe 'ct-sed' does not begin with mlm; ...
recipes=[bsl]; bsl.views=[files] -> recipe 'bsl': ... has files, whose pairs come from views.files; name them there
recipes=[contrastive]; contrastive.views=[entailment] -> recipe ... has entailment, whose pairs come from nli.train; ...
contrastive.dropout=false -> contrastive.views has same, whose two views differ only by ...dropout: true
ct.boundaries=[1, 2] -> ct.boundaries must increase, and ct.learning_rates must have exactly one more ...
sed.sentences=9; corpus.sentences=8 -> sed.sentences is 9, but corpus.sentences draws only 8; ...
sed.workers=33; sed.batch_size=32 -> sed.workers is 33, which is more than sed.batch_size (32); set it to at most 32
members.min_members=99 -> members.min_members is 99, which is more than members.count (10); lower it
evaluation.dev=everyday-dev -> evaluation.dev names ...; name one of generated-dev, generated-test, or use null ...
evaluation.report=[x] -> evaluation.report names 'x', which is not in ... generated-dev, generated-test
evaluation.tasks={} -> evaluation.tasks is empty; name at least one file of graded sentence pairs
encoder.static={}; encoder.pool_layers=2 -> encoder.pool_layers is 2, but encoder.static has no layers ...; set it to 1
encoder.model_kwargs={num_hidden_layers: 0} -> encoder.model_kwargs.num_hidden_layers is 0; it must be 1 or more
encoder.model_kwargs={allow_all_kernels: true} -> setting encoder.model_kwargs: allow_all_kernels cannot be set; use ...
encoder.model_kwargs={attn_implementation: a/b} -> setting encoder.model_kwargs: attn_implementation cannot be set; ...
encoder.pool_layers=99 -> encoder.pool_layers is 99, but 'bundled:encoder' has 3 layers
encoder.keep_layers=[0, 7] -> encoder.keep_layers has 7, but 'bundled:encoder' has 3 layers; use 0 to 2
encoder.keep_layers=4; encoder.pool_layers=1 -> encoder.keep_layers is 4, but 'bundled:encoder' has 3 layers; ...
encoder.model_kwargs={num_hidden_layers: two} -> encoder.model_kwargs.num_hidden_layers is 'two'; it must be 1 or more
evaluation.pool_layers=[1, 4] -> evaluation.pool_layers has 4, but 'bundled:encoder' has 3 layers
recipes=[ct-sed]; encoder.static={}; encoder.pool_layers=1 -> recipe 'ct-sed' trains members, which cannot be static...
recipes=[base]; encoder.static={}; encoder.pool_layers=1; evaluation.pool_layers=[2] -> evaluation.pool_layers has 2...
recipes=[base]; encoder.static={width: 999}; encoder.pool_layers=1 -> encoder.static.width is 999, but ...192; ...
encoder.max_length=999 -> encoder.max_length is 999, but 'bundled:encoder' takes at most 96 tokens
teachers=[A] -> teachers is set, but no recipe uses it; add teachers-sed to recipes
recipes=[teachers-sed]; teachers=[A]; encoder.query_prompt=Q -> encoder.query_prompt is set, but ...no queries; ...
recipes=[teachers-sed, ct-sed]; teachers=[A]; corpus.queries=q -> corpus.queries ... for teachers-sed, which recipe ...
recipes=[teachers-sed]; teachers=[members] -> teachers: members needs a recipe that trains members; ..., such as ct
recipes=[ct, mlm, teachers-sed]; teachers=[members] -> teachers: members names no ...; write members:ct or members:mlm
# machines
resources.gpu=true -> resources.gpu is true, but the cluster has no GPU (1 node, ..., 0 GPUs); set ...
resources.gpu=false; resources.gpus_per_member=1 -> resources.gpus_per_member is set but resources.gpu is ...
resources.gpus_per_member=1.5 -> resources.gpus_per_member is 1.5; above 1 it must be a whole number
sed.workers=2; resources.engine=local -> sed.workers needs Ray, but resources.engine is local; leave one ...
# secrets, of which no message says more than the name
encoder.model_kwargs={token: hush} -> setting encoder.model_kwargs: token cannot be set; use cache_dir, ...
encoder.model_kwargs={hub: {headers: [{api_key: hush}]}} -> setting encoder.model_kwargs: hub cannot be set; use ...
storage=s3://me:hush@b/a -> setting storage: the URI contains a password; remove it, because ... find them
corpus.source=[a.txt, s3://me:hush@b/a] -> setting corpus.source: the URI contains a password; ...
evaluation.tasks.mine={source: a, qrels: s3://me:hush@b/a} -> setting evaluation.tasks.mine.qrels: the URI contains ...
nli.train=[{source: a.tsv}, {source: s3://me:hush@b/a}] -> setting nli.train.1.source: the URI contains a password; ...
teachers=[a, {path: s3://me:hush@b/a}] -> setting teachers.1.path: the URI contains a password; ...
encoder.model_kwargs={proxies: {https: s3://me:hush@b/a}} -> setting encoder.model_kwargs: the URI contains ...
encoder.path=s3://b/a?session_token=hush -> setting encoder.path: the URI contains the parameter session_token; ...
# what is not there, or cannot be read
corpus.source="a\ud800" -> setting corpus.source: it contains half a surrogate pair (...), which is not valid text
teachers=[{path: bundled:encoder, query_prompt: "\ud800"}] -> setting teachers.0.query_prompt: it contains half a ...
corpus.source="a\0b" -> setting corpus.source: it contains a zero byte, which no name may contain
corpus.source=/no/x.tsv -> corpus.source: /no/x.tsv does not exist; name an existing file, directory ... hub dataset
corpus.source=no/*.txt -> corpus.source: no/*.txt does not exist; ...
corpus.source=[] -> corpus.source: it is empty; name a file, a directory, a hub ...
corpus.source='' -> setting corpus.source: it is empty; ...
corpus.source=[a.txt, ''] -> setting corpus.source: input should be a valid string, or it is empty; ...
storage='' -> setting storage: it is empty; leave it out, or name something (got '')
encoder.path='' -> setting encoder.path: it is empty; ...
teachers=[{path: ''}] -> setting teachers.0.path: it is empty; ...
corpus.source=foo://host/a.txt?shown=no -> corpus.source: foo://host/a.txt cannot be read: ...
corpus.source=LONG.txt -> corpus.source: LONG.txt cannot be read: ...
corpus.source=bundled:everyday -> corpus.source: bundled:everyday is unknown; the ... is bundled:generated-text
flow.fit_on=/no/x.tsv -> flow.fit_on: /no/x.tsv does not exist; name an existing file...or a hub dataset
MINE=/no/x.tsv -> MINE: /no/x.tsv does not exist; name an existing file or a hub dataset
MINE=bundled:dev -> MINE: bundled:dev does not exist; use bundled:generated-train, bundled:generated-dev or ...
recipes=[teachers-sed]; teachers=[/no/A] -> teachers: '/no/A': there is no such directory
recipes=[teachers-sed]; teachers=[bundled:other] -> teachers: ... the bundled models are bundled:encoder and bundled:raw
encoder.path=nobody/no-such-model -> encoder.path: 'nobody/no-such-model' is neither a model directory nor a hub id ...
encoder.path=bundled:x -> encoder.path: 'bundled:x' is unknown; the bundled models are bundled:encoder and bundled:raw
encoder.path=package:raysed/no -> encoder.path: 'package:raysed/no' is neither a model directory nor a hub id ...
encoder.path=package:no_such_one/x -> encoder.path: ...; install it with pip install no-such-one
encoder.path=package:/x -> encoder.path: ... does not name a Python package; write it as package:NAME/DIR
# names, and what nobody writes
run=../x -> setting run: use only letters, ... (got '../x')
run="a\n" -> setting run: use only letters, ... (got 'a\n')
evaluation.tasks={..: bundled:generated-dev} -> evaluation.tasks has the name '..'; ...
evaluation.tasks={mean: bundled:generated-dev} -> evaluation.tasks has the name 'mean', a column of the tables; use ...
evaluation.tasks={"\e[2J": bundled:generated-dev} -> evaluation.tasks has the name '\x1b[2J'; ...
members.count='«9»5000x' -> setting members.count: ... (got '999...)
encoder.model_kwargs«.a»2000=1 -> --set '...: write it as block.key=value, ...
corpus.source=«a://?a=»2000 -> setting corpus.source: a URI has at most 2,000 characters
"""

FILES = r"""
> run --config %
c.yaml: ct:\n  steps: [1\nseed: 2\n -> config file c.yaml, line 3 is not valid YAML: expected ',' or ']', but got ':'
c.yaml: ct:\n  steps: 1\nseed: 2\nct: {}\n -> config file c.yaml, line 4 is not valid YAML: 'ct' is given twice
c.yaml: a: \x00\n -> config file c.yaml is not valid YAML: unacceptable character #x0000...
c.yaml: a: \xff\n -> config file c.yaml is not UTF-8 text
c.yaml: - ct\n -> config file c.yaml must hold settings as 'key: value', not a list
c.yaml: run: &a [*a]\n -> config file c.yaml is not valid YAML: one of its aliases contains itself
c.yaml: run: !!python/object/apply:os.system [ls] -> config file c.yaml... is not valid YAML: ...
c.yaml: run: {[a]: b} -> config file c.yaml... is not valid YAML: ...
c.yaml: 5: 1\n -> setting 5: keys should be strings ...
c.yaml: based_on: gone\n -> config file c.yaml: based_on names 'gone', ... the configs are ..., c, ..., quickstart, ...
c.yaml: based_on: [a]\n -> config file c.yaml: based_on names ['a'], which is not a config; ...
c.yaml: based_on: c\n -> config file c.yaml: based_on names the file itself; name another config
c.yaml: based_on: bert-base-unsupervised\n -> config file c.yaml: based_on names ... itself based on ...; name ...
c.yaml: run: «[»50000 -> config file c.yaml is not valid YAML: it is nested too deeply
c.yaml: «# \n»100000 -> config file c.yaml is not valid YAML: it has more than 200,000 characters
c.yaml: run: «1»5000 -> config file c.yaml is not valid YAML: Exceeds the limit (4300 digits) ...
> corpus %
a.csv:  -> corpus.source: no usable sentence in a.csv (0 lines: ...
a.txt: x\n\ny\n -> corpus.source: no usable sentence in a.txt (3 lines: 1 empty, 2 too short, ...
a.txt: fine\nalso fine\nbr\xffken\n -> a.txt, line 3: not valid UTF-8 (byte 0xff); save ... as UTF-8
a.docx: no corpus -> corpus.source: a.docx neither is ... .txt, .jsonl, .csv, .tsv, .parquet, and ...
a.md: # A\n -> corpus.source: a.md neither is ...; pandoc -t plain --wrap=none turns Markdown into text
a.txt.gz: no gzip -> a.txt.gz cannot be read: ...
a.jsonl: {"text": "a"}\n{"text": \n -> a.jsonl, line 2: not valid JSON: ...
a.jsonl: {"text": "a"}\n\n["b"]\n -> a.jsonl, line 3: expected an object ..., found a list
a.jsonl: {"text": "a"}\n{"body": "b"}\n -> a.jsonl, line 2: no field 'text'; found body
a.jsonl: {"text": "a"}\n{"text": 5}\n -> a.jsonl, line 2: a sentence must be text, ... int; name another ...
a.jsonl: {"text": "a"}\n{"text": "\\ud83d"}\n -> a.jsonl, line 2: it contains half a surrogate pair ... not valid text
a.jsonl: {"\\u001b[2Jx": 1} -> a.jsonl, line 1: columns sentence or text are needed, found ...[2Jx; name ...
a.csv: id,n\nT-1,5\n -> a.csv, line 1: ... found id, n; name another column in corpus.column
a.csv: text,n\na,1\n"b,2\nc,3\n -> a.csv, line 3: ...; check for quotation marks that are not closed ...
a.tsv: n\ttext\n1\ta\tb\n -> a.tsv, line 2: 3 tab-separated columns, but the header has 2
a.parquet: PAR1\xff\xff\xff\x7fPAR1 -> a.parquet cannot be read: ...
a.jsonl: {"text": «9»5000} -> a.jsonl, line 1: not valid JSON: Exceeds the limit ...
a.jsonl: {"text": «[»1000000 -> a.jsonl, line 1: not valid JSON: ...
a.csv: «n,»10000 -> a.csv, line 1: columns ... found n, n, ...
a.csv: text,n,text\na,1,b\n -> a.csv, line 1: 2 columns are named 'text'; rename all but one
a.jsonl: {"text": "a", "text": "b"}\n -> a.jsonl, line 1: not valid JSON: field 'text' occurs more than once
> MINE=%
a.tsv: score\ttext1\ttext2\n2.5\ta\tb\nfive\ta\tb\n -> a.tsv, line 3: score 'five' is not a number; write ...
a.tsv: score\ttext1\ttext2\n,5\ta\tb\n -> a.tsv, line 2: score ',5' has a decimal comma; write .5
a.tsv: score\ttext1\ttext2\nnan\ta\tb\n -> a.tsv, line 2: score 'nan' is too large or not finite; ...
a.tsv: score\ttext1\ttext2\n5.5\ta\tb\n -> a.tsv, line 2: score 5.5 is outside MINE.score_range, 0 to 5
a.tsv: score\ttext1\ttext2\n\ta\tb\n -> MINE: ...a.tsv has no pair with a gold score (1 blank)
a.tsv: Score\tSCORE\ttext1\ttext2\n1\t2\ta\tb\n -> a.tsv, line 1: 2 columns are named 'Score'; rename all but one
a.csv: score;sentence1;sentence2\n3,5;A.;B.\n -> a.csv, line 1: columns are separated by semicolons; save ...
a.csv: score,sentence1\n3,A\n -> a.csv, line 1: columns ... needed, found score, sentence1; name yours in MINE.columns
a.csv:  -> a.csv, line 1: columns ... are needed, found none; ...
a.jsonl: {"score": true, "text1": "a", "text2": "b"}\n -> a.jsonl, line 1: score 'True' is not a number; ...
a.en-de.txt: a\tb\t1\nc\td\n -> a.en-de.txt, line 2: 2 tab-separated columns instead of 3
a.xlsx: x -> MINE: ...a.xlsx is not a file of a task; supported endings ...
STS.input.s.txt: a\tb\n -> STS.gs.s.txt cannot be read: ...
> recipes=[nli]; nli.train=%
n.tsv: label\tpremise\thypothesis\nMaybe\tC\tD\n -> n.tsv, line 2: label 'Maybe' is unknown; use one of ... or '-' ...
n.tsv: label\tpremise\thypothesis\n-\ta\tb\n0\t\te\n -> nli.train: ...n.tsv has no usable pair (... 1 with an empty ...)
> recipes=[bsl]; bsl.views=[files]; views.files=%
v.txt: \na\tb\nIt rains.\n -> v.txt, line 3: 1 tab-separated columns instead of 2; separate them by tabs, or name ...
v.tsv:  -> views.files: ...v.tsv has no pairs of views
> recipes=[teachers-sed]; teachers=[bundled:encoder]; corpus.queries=%
asked.txt:  -> corpus.queries: no queries in ...asked.txt; name a file with queries
asked.tsv: title\tbody\na\tb\n -> asked.tsv, line 1: columns query or text are needed, found title, body
asked.md: # Why? -> corpus.queries: ...asked.md is not a file of queries; supported endings ...
> evaluate --models bundled:encoder --task %
t.tsv: text\tlabel\na\tx\nb\tx\n -> evaluation.tasks.t: all 2 texts of t.tsv have the label 'x'; ... labels are needed
t.tsv: text\tlabel\na\t0\nb\t1\n -> ...: the label '0' of t.tsv has 1 of 2 texts, but each ...
t.tsv: text\tlabel\n\t\n -> evaluation.tasks.t: t.tsv has no text with a label; at least two labels are needed
> evaluate --models m
m/config.json: «[»100000 -> teachers: 'm': ...
m/config.json: {"model_type": "bert", "num_attention_heads": 0} -> teachers: 'm': ...
m/tokenizer.json: [] -> teachers: 'm': ...
m/model.safetensors: «\xff»8 -> teachers: 'm': ...
m/modules.json: «[»100000 -> teachers: 'm': ...
m/modules.json: {} -> teachers: 'm': ...
m/modules.json: [{"type": 5}] -> teachers: 'm': ...
m/modules.json: [{"type": "sentence_transformers.models.Transformer", "path": "\\u0000"}] -> teachers: 'm': ...
> encoder.path=m; recipes=[base]
m/config.json: «[»100000 -> encoder.path: ...m' is neither a model directory nor ...
> recipes=[teachers-sed]; teachers=[m]
m/config.json: «[»100000 -> teachers: ...m/config.json: it cannot be read as a JSON object: ...
> recipes=[nli]; nli.train={source: %, split: test}
n.tsv: split\tlabel\tpremise\thypothesis\ndev\t0\ta\tb\n\t0\ta\tb\n -> nli.train: ... it has '', 'dev'
> recipes=[bsl]; bsl.views=[files]; views.files={source: %, split: train}
v.tsv: a\tb\n -> views.files: no row of ...v.tsv has 'train' in the column split; it has no such ...
> evaluation.tasks.x={source: %, queries: %}
d.tsv: id\ttext\na\tb\n -> evaluation.tasks.x.qrels is missing; a retrieval task needs documents, queries and qrels
> evaluate --models bundled:encoder --task b
b/qrels/test.tsv: QRELSq1\td7\t1\nq9\td1\t1 -> ...: no query of b/queries.jsonl has a relevant document in b/...
b/qrels/test.tsv: q1 0 d1 1\nq1 d1 1 -> ...test.tsv, line 2: 3 tab-separated columns instead of 4; ..., or name the ...
b/qrels/test.tsv: QRELSq1\td1\tmuch -> ...test.tsv, line 2: score 'much' is not a number; write 1 for relevant ...
b/corpus.jsonl: «{"_id": "d1", "text": "x"}\n»2 -> ...corpus.jsonl, line 2: the id 'd1' appears twice; every ...
b/queries.jsonl: {"text": "a"}\n -> ...queries.jsonl, line 1: columns _id and text are needed, found text
> evaluation.tasks.x={source: b, split: a}
b/qrels/b.tsv: QRELS -> evaluation.tasks.x: ...qrels has no a.tsv; it has b, test (split names another)
> MINE=s
s/STS.gs.s.txt: 1\n2\n -> ...STS.input.s.txt has 1 lines, but STS.gs.s.txt beside it has 2
s/STS.gs.s.txt: x\n -> ...STS.gs.s.txt, line 1: score 'x' is not a number; ...
s/STS.input.s.txt: a b\n -> ...STS.input.s.txt, line 1: 1 tab-separated columns instead of 2
> corpus d
d/4.txt: x\n\ny\n -> ...: no usable sentence in ...0.txt, ... and 2 more (15 ...
> MINE=t
t/x:  -> ...t is no task: it has no STS.input.<subset>.txt (SentEval), no corpus.jsonl ...; for de-corpus, ...
> evaluate --models bundled:encoder --task c
c/corpus.jsonl:  -> evaluation.tasks.c: c has no queries.jsonl; in BEIR's layout it is beside corpus.jsonl
"""
"""Below each command, `name: content -> sentence`; % is the name. «x»9, here and below, is nine times x."""


def saved(**changes: dict[str, object]) -> Callable[[Path], object]:
    """Makes the bundled encoder a model of sentence-transformers, with changes to its files, which have these stems."""
    types = {"": "Transformer", "1": "Pooling", "2": "Dense"}
    modules = [
        {"name": kind, "path": place, "type": f"sentence_transformers.models.{kind}"} for place, kind in types.items()
    ]
    dense = {"in_features": 192, "out_features": 2, "activation_function": "torch.nn.modules.linear.Identity"}

    def make(path: Path) -> None:
        shutil.copytree(bundled.ENCODER, path)
        for place, settings in (("1", {"word_embedding_dimension": 192}), ("2", dense)):
            (path / place).mkdir()
            (path / place / "config.json").write_text(json.dumps(settings))
        (path / "2/pytorch_model.bin").write_bytes(pickle.dumps(shutil.rmtree, 2))
        (path / "modules.json").write_text(json.dumps(modules[: 3 - bool(changes)]))
        for stem, settings in changes.items():
            file = path / f"{stem}.json"
            file.write_text(json.dumps({**(json.loads(file.read_text()) if file.exists() else {}), **settings}))

    return make


WORDS = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "a": 5, "sentence": 9000}
NUMBERED = {"type": "WordLevel", "vocab": WORDS, "unk_token": "[UNK]"}
NO_UNKNOWN = {**NUMBERED, "vocab": {**WORDS, "sentence": 6, ".": 7}, "unk_token": "[NONE]"}
NO_PADDING = dict.fromkeys(("pad_token", "sep_token", "unk_token"))
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + 64 * b"0" + b"\nsize 90868376\n"


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


BOMB = "a0: &a0 x\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
BEYOND_9999 = pa.array([0, 3_000_000], pa.int32()).cast(pa.date32())
FLOATS = pa.list_(pa.float32())
MADE: list[tuple[str, str, Content, str]] = [
    ("run --config c.yaml", "c.yaml", BOMB.encode(), "...: its aliases stand for more than 100,000 values"),
    *(
        (f"corpus {name}", name, content, sentence)
        for name, content, sentence in (
            ("a.txt", lambda path: path.symlink_to("/dev/zero"), "...a.txt..."),
            ("a.txt", lambda path: path.symlink_to("a.txt"), "...a.txt..."),
            (
                "e",
                lambda path: path.mkdir() or (path / "\udce9.txt").touch(),
                "...: the name ...\ufffd.txt is not UTF-8; ...",
            ),
            ("a\udce9.txt", b"x\n", "setting corpus.source: it contains half a surrogate pair ..."),
            ("a.txt", pipe, "corpus.source: a.txt is neither a file nor a directory; name one of these"),
            ("a.jsonl", POINTER, "corpus.source: a.jsonl is a Git LFS pointer; run git lfs pull to get the file"),
            ("a.txt.gz", gzip.compress(bytes(1 << 27)), "a.txt.gz, line 1 is longer than 64 MiB; put one ..."),
            ("a.parquet", parquet(body=["a"], n=[1]), "a.parquet: columns sentence or ... found body, n; ..."),
            ("a.parquet", twice(text=["a"]), "a.parquet: 2 columns are named 'text'; rename all but one"),
            ("a.parquet", parquet(text=[["a"]]), "a.parquet, row 1: a sentence must be text, not of type list; ..."),
            ("a.parquet", parquet(text=BEYOND_9999), "a.parquet, rows 1 to 2: a value cannot be read: ..."),
        )
    ),
    *(
        ("recipes=[teachers-sed]; teachers=[x.parquet]", "x.parquet", content, f"teachers: {sentence}")
        for content, sentence in (
            (vectors([[1.0, 2.0], [4.0]]), "...x.parquet must have embeddings of the same width, with none missing"),
            (vectors([[1.0], [None]]), "...x.parquet has an embedding that is not finite in row 2"),
            (vectors(pa.array([[], []], FLOATS)), "'...x.parquet' has embeddings of width 0"),
            (vectors(pa.array([], FLOATS), pa.array([], pa.string())), "...x.parquet has no rows"),
            (vectors([[1.0], [2.0]], [1, 2]), "... needs text in its column sentence, which has the type int64"),
            (vectors([1.0, 2.0]), "... must hold lists of numbers in its column embedding, which has the type double"),
            (parquet(sentence=["a"]), "... needs the columns sentence (or text) and embedding; it has sentence"),
            (twice(sentence=["a"], embedding=[[1.0]]), "...x.parquet has more than one column sentence; rename ..."),
            (b"no parquet", "...x.parquet cannot be read as a Parquet file: ..."),
            (pipe, "...x.parquet is neither a file nor a directory of .parquet files"),
            (POINTER, "...x.parquet is a Git LFS pointer; run git lfs pull to get the file"),
        )
    ),
    *(
        (command, "m", saved(**changes), sentence)
        for changes, sentence in (
            ({"sentence_bert_config": {"max_seq_length": -1}}, "...: its transformer has max_seq_length -1; ..."),
            ({"tokenizer_config": NO_PADDING}, "...m' has no token for padding; add a pad_token to its files"),
            ({"tokenizer": {"model": NUMBERED}}, "...m' has 9001 tokens, but its model has only 8000; use both ..."),
            ({"tokenizer": {"model": NO_UNKNOWN}}, "...m' fails on the text ...: WordLevel error: Missing [UNK] ..."),
            ({"tokenizer_config": {"model_max_length": -1}}, "...m' fails on the text ...: can't convert negative ..."),
            ({"config_sentence_transformers": {"truncate_dim": "x"}}, "...m' fails on the text '...': slice ..."),
            ({}, "...: 2/pytorch_model.bin contains more than weights; save it as model.safetensors"),
        )
        for command in ("recipes=[teachers-sed]; teachers=[m]", "evaluate --models m")
    ),
    *(
        (command, name, content, f"{setting}...{name} {sentence}")
        for content, sentence in (
            (pipe, "is neither a file nor a directory; name one of these"),
            (POINTER, "is a Git LFS pointer; run git lfs pull to get the file"),
        )
        for command, name, setting in (
            ("corpus 'd/*.txt'", "d/4.txt", "corpus.source"),
            ("encoder.path=m; recipes=[base]", "m/config.json", "encoder.path"),
            ("recipes=[teachers-sed]; teachers=[m]", "m/model.safetensors", "teachers: ...m'"),
            ("evaluate --models m", "m/tokenizer.json", "teachers: 'm'"),
            ("evaluate --models bundled:encoder --task s", "s/STS.gs.s.txt", ""),
            (f"{MINE}=s", "s/STS.input.s.txt", ""),
            (
                f"{MINE}={{source: b/corpus.jsonl, queries: b/queries.jsonl, qrels: b/x.tsv}}",
                "b/x.tsv",
                f"{MINE}.qrels",
            ),
        )
    ),
    *(
        (
            command,
            "saved/train/data-00000-of-00001.arrow",
            b"",
            f"{setting}: ... was written by ...save_to_disk; write ...",
        )
        for command, setting in (("corpus saved", "corpus.source"), (f"{MINE}=saved", MINE))
    ),
    (
        "recipes=[teachers-sed]; teachers=[bundled:encoder, x.parquet]; combination.how=mean",
        "x.parquet",
        vectors([[1.0], [2.0]]),
        "combination.how: mean needs teachers of equal width, but they have ...; use concatenated",
    ),
]
"""Commands, a name, what is there, and sentences."""

COMMANDS = """
run --config LONG -> --config LONG: there is no file or config ...
run --config /dev/zero -> --config /dev/zero: there is no file or config ... configs are ...quickstart...
run --storage used.yaml -> storage: ...used.yaml/quickstart cannot be written: ...
run --storage /proc -> storage: /proc/quickstart cannot be written: ...
run --storage LONG -> storage: ...LONG/quickstart cannot be written: ...
run --storage nosuch://bucket/runs -> storage: ... is not a usable directory or URI: ...
distill --teachers A --corpus c.txt --dev no.csv -> --dev no.csv: no.csv does not exist; ...
evaluate --models . -> teachers: '.': ...cannot be loaded: ...
evaluate --models /no/model -> teachers: '/no/model': there is no such directory
evaluate --models somebody/not-cached -> teachers: 'somebody/not-cached': neither a directory nor a hub id ...
evaluate --models bundled:encoder --pool-layers 9 -> ...: 9 layers cannot be pooled: ... choose fewer with --pool...
evaluate --models bundled:encoder --task no.csv -> --task no.csv: no.csv does not exist; ...
evaluate --models bundled:encoder --task s3://me:hush@b/a -> --task: the URI contains a password; remove it, ...
evaluate --models s3://me:hush@b/a -> ...the URI contains a password; ...
evaluate --models bundled:encoder --output no/o.json -> --output no/o.json: cannot write a file there; name one in ...
evaluate --models bundled:encoder --output /dev/full -> --output /dev/full: cannot write a file there; ...
status nothing -> there is no run at ...
status nothing --json -> there is no run at ...
status --json -> --json is for one run; name it: raysed status NAME --json
table nothing -> ...runs/nothing is not complete: it has no report.json of a complete run; complete it with the ...
status --storage LONG -> storage: ... cannot be reached: ...
status NAME --watch -> --watch is no option: follow a run with watch raysed status NAME, or in TensorBoard
"""
BESIDE = {
    "a.txt": "\n".join(f"Ticket {n} says that nothing works." for n in range(20)).encode(),
    "same.tsv": b"score\tsentence1\tsentence2\n" + 5 * b"3\tA cat.\tA dog.\n",
    "used.yaml": b"x",
}
"""What is in the directory of these commands."""

ROWS: list[tuple[str, dict[str, Content], str]] = [
    *((settings, {}, sentence) for settings, sentence in rows(SETTINGS)),
    *(
        (command, {**AROUND.get(name.split("/")[0], {}), name: content}, sentence)
        for command, name, content, sentence in [*files(FILES), *MADE]
    ),
    *((command, BESIDE, sentence) for command, sentence in rows(COMMANDS)),
]
"""A command or settings, files by name, and the sentence that the whole message must be."""


def words_of(command: str) -> list[str]:
    """A command line; `a=1; b=2` is one of settings, and `corpus SOURCE` reads one."""
    if command.split(" ")[0] in (*cli.COMMANDS, "corpus"):
        return shlex.split(command)
    options = [part for setting in command.split("; ") for part in ("--set", setting)]
    return ["run", "--plan", *options]


def read_corpus(source: str) -> int:
    """Reads a corpus as a run does; returns the exit code of a command that would."""

    def job(arguments: argparse.Namespace) -> None:
        for _ in sentence_chunks(make_config({"corpus": {"source": source}}).corpus, 0, CorpusReport()):
            pass

    return cli.main_of(job, argparse.ArgumentParser(), arguments=[])


@pytest.fixture
def refused(undone, monkeypatch, tmp_path, capfd):
    """Runs a command in an empty directory; checks that stderr has one line, `error: ` and this sentence."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("raysed.cluster.session._start", lambda address: Future())  # none of these needs Ray

    def call(sentence: str, *words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["raysed", *words])
        main = partial(read_corpus, *words[1:]) if words[0] == "corpus" else cli.main
        code, said = main(), capfd.readouterr().err
        assert code == 2 and said.count("\n") == 1, said
        expected = re.escape(sentence).replace(r"\.\.\.", ".*")
        assert re.fullmatch(rf"error: (/\S*/)?{expected}\n", said), said
        assert len(said) < 1500 and said[:-1].isprintable() and "hush" not in said

    return call


@pytest.mark.parametrize(("command", "given", "sentence"), ROWS, ids=[command[:60] for command, *_ in ROWS])
@pytest.mark.timeout(60)
def test_a_mistake_is_one_sentence_and_changes_nothing(refused, tmp_path, command, given, sentence):
    for name, content in given.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        content(tmp_path / name) if callable(content) else (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    refused(sentence, *words_of(command))
    assert sorted(tmp_path.rglob("*")) == before


BEGUN = """
run --set corpus.source=c.txt --set corpus.sentences=3 -> 3 sentences are needed, but ... only 2 usable ones ...
run --set recipes=[bsl] --set bsl.views=[files] --set views.files=v.tsv -> recipe 'bsl': ...2 pairs..., but 1 were found
run --set recipes=[teachers-sed] --set teachers=[x.parquet] -> teachers: ...x.parquet has no embedding for ...
run --set seed=1 -> storage: ...runs/quickstart has 0.0 GB free, but this run needs ... GB, ... for models; ...
distill --teachers no/body --corpus bundled:generated-text -> teachers: 'no/body': neither a directory nor a hub id ...
distill --teachers bundled:encoder --corpus no.txt -> corpus.source: no.txt does not exist; ...
"""


@pytest.mark.parametrize(("command", "sentence"), [*rows(BEGUN)])
def test_a_mistake_that_shows_when_a_run_has_begun_is_in_its_report(refused, monkeypatch, tmp_path, command, sentence):
    """What is not there is refused earlier."""
    is_run = command.startswith("run")
    (tmp_path / "c.txt").write_text("One sentence.\nAnother one.\nOne sentence.\n")
    (tmp_path / "v.tsv").write_text("A car.\tA wagon.\n")
    (tmp_path / "x.parquet").write_bytes(vectors([[1.0, 2.0], [2.0, 1.0]]))
    if "GB free" in sentence:
        monkeypatch.setattr(Storage, "free_bytes", lambda self: 10**6)
    refused(sentence, *command.split(), *(is_run * ["--set", "resources.engine=local"]))
    reports = [path.read_text() for path in Path("runs").glob("*/report.json")]
    assert ['"status": "failed"' in report for report in reports] == is_run * [True]
    assert not list(Path("runs").glob("*/ct"))


def test_results_do_not_go_with_an_uploaded_working_directory(refused, monkeypatch, tmp_path):
    """Where `ray job submit --working-dir .` unpacks it."""
    place = tmp_path / "ray/session_2026/runtime_resources/working_dir_files/_ray_pkg_0123456789abcdef"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    refused("storage is 'runs', which is inside Ray's temporary copy ...; name a permanent place, ...", "run")
    assert not any(place.iterdir())
    for storage in (str(tmp_path / "shared"), "s3://bucket/runs", "~/runs"):
        check_stays(storage)
    monkeypatch.chdir(tmp_path)  # an entrypoint may go elsewhere
    check_stays("runs")


@pytest.mark.usefixtures("undone")
@pytest.mark.parametrize("words", [["status", "x"], ["status"]])
def test_what_somebody_else_wrote_moves_no_cursor(monkeypatch, tmp_path, capfd, words):
    monkeypatch.chdir(tmp_path)
    status = {"state": "failed", "since": 1, "told": 2, "every": 5, "host": "a", "pid": 1, "error": "\x1b[2J"}
    (tmp_path / "runs/x").mkdir(parents=True)
    (tmp_path / "runs/x/status.json").write_text(json.dumps(status))
    (tmp_path / "runs/\x1b[2J").mkdir()
    (tmp_path / "runs/\x1b[2J/status.json").write_text("damaged")
    monkeypatch.setattr(sys, "argv", ["raysed", *words])
    assert cli.main() in (0, 1)
    said = capfd.readouterr().out
    assert "\\x1b[2J" in said and said.replace("\n", "").isprintable()
