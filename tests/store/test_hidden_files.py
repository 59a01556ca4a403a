"""Hidden files, such as the `._NAME` of macOS, are never data, wherever a directory is listed."""

import re
import shutil
from pathlib import Path

import raysed
from raysed.config import EncoderConfig, TeacherConfig
from raysed.model.teacher import load_teacher
from raysed.store.files import flush_and_hash
from raysed.store.hub import model_identity


def hide(path: Path, *names: str) -> None:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X")


def test_hidden_files_are_no_part_of_a_model(tiny_encoder_dir, tmp_path):
    path = shutil.copytree(tiny_encoder_dir, tmp_path / "model")

    def about() -> list[object]:
        teacher = load_teacher(TeacherConfig(path=str(path), max_length=12))
        identity = model_identity(EncoderConfig(path=str(path)))
        return [teacher.identity, identity, teacher.weights_bytes(), teacher.embed(["The cat sat."]).tolist()]

    before = about()
    hide(
        path,
        "._model.safetensors",
        "._config.json",
        ".git/a.json",
        "1_Pooling/._config.json",
        "._own.py",
        "._vocab.txt",
    )
    assert about() == before


def test_hidden_files_are_no_part_of_an_artefact(tmp_path):
    (tmp_path / "a").write_text("a")
    hide(tmp_path, "._a")
    assert list(flush_and_hash(tmp_path)) == ["a"]


def test_what_users_give_is_listed_in_the_place_that_skips_hidden_files():
    """Elsewhere, only what raysed itself wrote is listed."""
    listing = re.compile(r"\.(iterdir|rglob|glob)\(|os\.(walk|listdir|scandir)")
    package = Path(raysed.__file__).parent
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if listing.search(path.read_text())}
    own = {"runner.py", "config.py", "make/scores.py", "store/cache.py"}
    assert found - own - {"store/metrics.py"} == {"store/files.py", "config_text.py", "data/sources.py"}
