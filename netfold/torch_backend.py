"""The torch.distributed backend `netfold`."""

from __future__ import annotations


def register() -> str:
    """Register the backend `netfold` with torch.distributed; calling it again does no harm.

    `torch.distributed.init_process_group(netfold.register())` makes a group whose all-reduce and reduce-scatter use the
    mechanism that the environment variable NETFOLD_MECHANISM names. docs/torch.md lists the other variables and which
    operations are summed how. If accelerate has been imported (transformers' Trainer does), it takes the name, too:
    `TrainingArguments(ddp_backend=netfold.register())`.

    Returns:
        The backend's name, "netfold".

    Source: docs/torch.md; hostlib/pytorch/backend.py.
    """
    from hostlib.pytorch.accelerate_backend import teach_accelerate
    from hostlib.pytorch.backend import NAME

    teach_accelerate(NAME)

    return NAME
