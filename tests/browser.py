"""A browser that opens a page and says what it shows: headless Chromium, without a driver and without a network."""

import html
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_ANSWER = '<pre id="answer">', "</pre>"
_FRAME = """<!doctype html>
<iframe src="{address}" width="1280" height="900" style="border: 0"></iframe>
<script>
  addEventListener("message", event => {{
    const answer = document.createElement("pre");
    answer.id = "answer";
    answer.textContent = event.data;
    document.body.append(answer);
  }});
</script>
"""


def ask(page: Path, script: str, place: Path) -> Any:
    """Opens a copy of a page in a frame, runs the body of a JavaScript function, and returns its JSON."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser is installed ({', '.join(BROWSERS)})")
    place.mkdir(parents=True, exist_ok=True)
    asking = f"""<script>
      addEventListener("load", () => {{
        let answer;
        try {{ answer = (() => {{ {script} }})(); }}
        catch (error) {{ answer = "" + error; }}
        parent.postMessage(JSON.stringify(answer), "*");
      }});
    </script>"""
    text = page.read_text(encoding="utf-8")
    assert text.count("</body>") == 1
    (place / page.name).write_text(text.replace("</body>", f"{asking}</body>"), encoding="utf-8")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000"]
    options += [f"--user-data-dir={place / 'profile'}", "--window-size=1400,1000"]
    options.append("--host-resolver-rules=MAP * ~NOTFOUND")
    frame = place / "frame.html"
    frame.write_text(_FRAME.format(address=(place / page.name).as_uri()))
    opened = [program, *options, "--dump-dom", frame.as_uri()]
    done = subprocess.run(opened, capture_output=True, text=True, timeout=120)
    _, start, rest = done.stdout.rpartition(_ANSWER[0])
    assert start, done.stderr[-2000:]
    answer = rest.partition(_ANSWER[1])[0]
    return json.loads(html.unescape(answer)) if answer else None
