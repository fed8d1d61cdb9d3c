"""The flight record of a rank."""

from __future__ import annotations

from pathlib import Path


def write_flight_record() -> Path:
    """Write the latest collectives of this rank's process groups of the backend, for torch's `torchfrtrace`.

    The environment says how many are kept (TORCH_FR_BUFFER_SIZE) and where they go (TORCH_FR_DUMP_TEMP_FILE). A rank
    writes them by itself when an operation fails.

    Returns:
        The file.

    Raises:
        RunError: nothing is recorded, as TORCH_FR_BUFFER_SIZE is 0 or not set.
        OSError: the file cannot be written.

    Source: docs/torch.md, "Flight recorder".
    """
    from hostlib.pytorch.flight_recorder import write_flight_record as write

    return write()
