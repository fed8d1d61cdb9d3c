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
# A request may be well-formed and yet impossible (a rank that its job does not have), or come when the fabric is full. A
# request that is repeated without its token may find nobody: tests/unit/controller/test_identity.py is about tokens.
OWN_CHECKS = [
    schemathesis.checks.positive_data_acceptance,
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.ignored_auth,
]


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
    """All that the controller keeps."""
    return copy.deepcopy(API.service.jobs.dump())


def authorization(case: Any) -> dict[str, str]:
    """Mostly the token that the request needs; else none, or a stranger's."""
    drawn = zlib.crc32(repr((case.path_parameters, case.body)).encode()) % 6
    own = API.tokens.get(case.formatted_path.removesuffix("/heartbeat"), API.service.operator)
    token = {0: None, 1: "a-stranger-s"}.get(drawn, own)
    return {} if token is None else {"Authorization": f"Bearer {token}"}


@schema.hook
def map_case(context: Any, case: Any) -> Any:
    """Ask mostly for jobs, ranks and switches that there are, and join them with numbers that may fit."""
    if case.meta.generation.mode is not schemathesis.GenerationMode.POSITIVE:
        return case
    drawn = zlib.crc32(repr((case.path_parameters, case.body)).encode())
    for name, there in (("job", JOBS), ("rank", (0, 1)), ("switch", ("switch",))):
        if name in case.path_parameters and drawn % 5:
            case.path_parameters[name] = there[drawn // 5 % len(there)]
    if isinstance(case.body, dict) and "world_size" in case.body and drawn % 3:
        same = {"world_size": 1 + drawn // 15 % 2, "address": "127.0.0.1", "policy": ("sum", "server")[drawn // 30 % 2]}
        case.body |= {**same, "slots": 128, "udp_ports": case.body["udp_ports"][:1]}
    return case


@schema.parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_answers_are_documented_and_refusals_change_nothing(case: Any) -> None:
    populate(API)
    before = state()
    response = case.call(headers=authorization(case))
    case.validate_response(response, excluded_checks=OWN_CHECKS)
    assert response.status_code < 500 or response.status_code == 503
    if response.status_code >= 400:
        assert state() == before
