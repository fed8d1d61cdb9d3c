"""torch.distributed's backend `netfold`."""

from __future__ import annotations


def register() -> str:
    """Register the backend with torch.distributed; once or more often.

    `torch.distributed.init_process_group(netfold.register())` makes a group whose all-reduce and reduce-scatter go by the
    mechanism that NETFOLD_MECHANISM names; docs/torch.md has the other variables and what is summed how.

    Returns:
        Its name, "netfold".

    Source: docs/torch.md; hostlib/pytorch/backend.py.
    """
    from hostlib.pytorch.backend import NAME

    return NAME
