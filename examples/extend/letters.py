# raysed/model/teachers/letters.py
"""Teachers that count letters."""

import numpy as np

from raysed.model.teacher import Teacher


class Letters(Teacher):
    """How often each letter occurs."""

    identity, width = "letters-1", 26

    @classmethod
    def takes(cls, path):
        return path == "letters"

    def embed(self, sentences, role=""):
        counts = [[sentence.lower().count(chr(97 + i)) for i in range(26)] for sentence in sentences]
        return np.array(counts, np.float32)
