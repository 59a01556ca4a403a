"""What a worker needs; nothing here knows of Ray, so that trainings can say it."""

from dataclasses import dataclass

PROCESS_BYTES = 7e8
"""Of a process that has loaded torch and transformers and works on a batch, beside its weights."""


@dataclass(frozen=True)
class Need:
    """What one training worker needs at its peak, in bytes.

    Attributes:
        what: is trained, for messages.
        device: of its GPU; 0 where it trains on the CPU.
        host: of its machine.
        least: of its GPU, when batches are cut into the smallest parts.
    """

    what: str = ""
    device: float = 0.0
    host: float = PROCESS_BYTES
    least: float = 0.0
