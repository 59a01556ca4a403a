"""Sentences that tests of rewritten views share: odd ones, and those of the package."""

from raysed import bundled

ODD = [
    *("", "   ", "!", "[SEP] [MASK] <mask>"),
    "Two  blanks,\ta tab and a dash \u2014 “quoted”.",
    "Café naïve, ½ of it; 🎸🎸 and \u0101\u0304 or 日本語.",
    "THE CAT'S 3 DOGS",
    "a very long sentence " * 40,
]


def generated(count: int) -> list[str]:
    return bundled.corpus()[:count]
