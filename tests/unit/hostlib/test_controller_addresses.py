"""Who of several controllers is asked."""

from __future__ import annotations

import httpx
import pytest

from hostlib.system.http_client import HANGING_S, PRIMARY, ControllerAddresses

A, B, C = "http://192.0.2.1:1", "http://192.0.2.2:2", "https://192.0.2.3:3"


class World:
    """Controllers that are primary, standby, or dead, and who has been asked."""

    def __init__(self, **roles: str) -> None:
        self.roles = {url: roles.get(name, "dead") for name, url in (("a", A), ("b", B), ("c", C))}
        self.asked: list[str] = []

    def send(self, url: str) -> httpx.Response:
        self.asked.append(url)
        role = self.roles[url]
        if role == "dead":
            raise httpx.ConnectError(f"{url} is dead")
        return httpx.Response(503, headers={PRIMARY: A}) if role == "standby" else httpx.Response(409)


def test_the_primary_is_found_and_remembered() -> None:
    world, controllers = World(a="standby", b="dead", c="primary"), ControllerAddresses(f"{A}, {B}/,{C},{A}")
    assert controllers.ask(world.send).status_code == 409
    assert controllers.ask(world.send).status_code == 409
    assert world.asked == [A, B, C, C]
    world.roles |= {A: "primary", C: "dead"}
    assert controllers.ask(world.send).status_code == 409
    assert world.asked[4:] == [C, A]


def test_without_a_primary_a_standby_says_so_and_else_the_first_failure_does() -> None:
    world, controllers = World(b="standby"), ControllerAddresses(f"{A},{B},{C}")
    assert controllers.ask(world.send).status_code == 503
    with pytest.raises(httpx.ConnectError, match=f"{A} is dead"):
        controllers.ask(World().send)


def test_who_has_another_to_ask_waits_less() -> None:
    assert ControllerAddresses(A).patience_s(30) == 30
    assert ControllerAddresses(f"{A},{B}").patience_s(30) == HANGING_S
    assert ControllerAddresses(f"{A},{B}").patience_s(2) == 2
    assert ControllerAddresses(f"{A},{C}").strictest == C and ControllerAddresses(A).strictest == A
    assert str(ControllerAddresses(f"{A},{B}")) == f"{A} or {B}"
