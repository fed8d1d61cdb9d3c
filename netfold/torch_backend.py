"""The torch.distributed backend `netfold`."""

from __future__ import annotations


def register() -> str:
    """Register the backend `netfold` with torch.distributed; calling it again does no harm.

    `torch.distributed.init_process_group(netfold.register())` makes a group whose all-reduce and reduce-scatter use the
    mechanism that the environment variable NETFOLD_MECHANISM names. docs/torch.md lists the other variables and which
    operations are summed how.

    Returns:
        The backend's name, "netfold".

    Source: docs/torch.md; hostlib/pytorch/backend.py.
    """
    from hostlib.pytorch.backend import NAME

    return NAME
