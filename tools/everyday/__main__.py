"""Write the quickstart's sentences and graded pairs into `raysed/bundled/`.

cd tools && python -m everyday
"""

from pathlib import Path

from everyday.generator import files

BUNDLED = Path(__file__).resolve().parents[2] / "raysed/bundled"

for name, text in files().items():
    (BUNDLED / name).write_text(text, encoding="utf-8")
    print(f"{BUNDLED / name}: {len(text.splitlines()):,} lines")
