"""The API keeps what its description promises, whatever is asked."""

from __future__ import annotations

import copy
import os
import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.unit.controller.memory_api import Api, memory_api

schemathesis = pytest.importorskip("schemathesis", reason="Schemathesis needs Python 3.11")

EXAMPLES = int(os.environ.get("NETFOLD_API_EXAMPLES", 40))
JOBS = ("waiting", "ready", "server")
# A request may be well-formed and yet impossible (a rank that its job does not have), or come when the fabric is full.
OWN_CHECKS = [schemathesis.checks.positive_data_acceptance, schemathesis.checks.not_a_server_error]


def populate(api: Api) -> Api:
    """Give an API a job in each state; those that there are stay as they are."""
    api.join(0, job="waiting")
    api.join(0, world_size=1, job="ready")
    api.join(0, world_size=1, job="server", policy="server", udp_ports=[7000])
    return api


API = populate(memory_api())
# A stream does not end; tests/integration/controller/test_streams.py reads some of each.
schema = schemathesis.openapi.from_asgi("/v1/openapi.json", API.app).exclude(path_regex="/stream$")


def state() -> dict[str, Any]:
    """All that the controller keeps, but for the last epoch: none is given twice, even if a job was refused."""
    kept = copy.deepcopy(API.service.jobs.dump())
    del kept["last_epoch"]
    return kept


@schema.hook
def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Ask mostly for jobs that there are."""
    if path_parameters and "job" in path_parameters:
        drawn = zlib.crc32(repr(path_parameters["job"]).encode()) % 4
        path_parameters["job"] = [*JOBS, path_parameters["job"]][drawn]
    return path_parameters


@schema.parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_answers_are_documented_and_refusals_change_nothing(case: Any) -> None:
    populate(API)
    before = state()
    response = case.call()
    case.validate_response(response, excluded_checks=OWN_CHECKS)
    assert response.status_code < 500 or response.status_code == 503
    if response.status_code >= 400:
        assert state() == before
