"""docs/size.md shows what `--plan` says."""

import size_page


def test_the_page_has_the_plans_of_today():
    text = size_page.PAGE.read_text(encoding="utf-8")
    assert size_page.page(text) == text, "run python tools/size_page.py"


def test_every_config_of_a_paper_that_trains_is_there():
    from raysed.config import CONFIGS

    names = {path.stem for path in CONFIGS.glob("*bert*.yaml")}
    assert names - {"bert-base-flow"} == set(size_page.PLANNED)  # which trains nothing
