"""Whatever becomes of packets and jobs: the exact sum or nothing, no silent drop, and never stuck for good.

Hypothesis drives the machines of machine.py: the compiled program, packet by packet beside the model of it.

NETFOLD_PROPERTY_EXAMPLES=5000   so many examples of each machine, instead of a few
NETFOLD_PROPERTY_SEED=1234       the run that printed this seed, once more
A failure also prints the shortest sequence that was found and an @reproduce_failure line for the machine's class.
Other switches than the embedded one: see switch.py.
"""

from __future__ import annotations

import os
import secrets

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.machine import Chunks, OneSwitch, Shared, SlotMachine, Tree, ViaServer
from tests.property.model import Fault
from tests.property.switch import KIND, Violation

EXAMPLES = int(os.environ.get("NETFOLD_PROPERTY_EXAMPLES", "40"))
EXAMPLE_S = {"embedded": 2, "tofino": 200}  # at most: a tree's is one of four models
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]
BUDGET = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    derandomize=False,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=SLOW,
)
# Only whether they are found counts: no time for shrinking, nothing to remember.
HUNT = settings(BUDGET, max_examples=2000, phases=[Phase.generate], database=None, print_blob=False)


def drive(machine: type[SlotMachine], budget: settings) -> None:
    number = int(os.environ.get("NETFOLD_PROPERTY_SEED") or secrets.randbits(32))
    print(f"NETFOLD_PROPERTY_SEED={number} runs this again")
    run_state_machine_as_test(seed(number)(machine), settings=budget)


@pytest.mark.timeout(420 + EXAMPLE_S[KIND] * EXAMPLES)  # shrinking a failure may take five minutes
@pytest.mark.parametrize("machine", [OneSwitch, Tree, ViaServer, Shared, Chunks])
def test_the_sum_or_nothing(machine: type[SlotMachine]) -> None:
    drive(machine, BUDGET)


@pytest.mark.parametrize(
    ("machine", "fault"),
    [
        (OneSwitch, Fault.ADDS_DUPLICATES),
        (OneSwitch, Fault.VOUCHES_FOR_DUPLICATES),
        (OneSwitch, Fault.IGNORES_GENERATIONS),
        (OneSwitch, Fault.IGNORES_EPOCHS),
        (OneSwitch, Fault.ACCEPTS_STALE),
        (OneSwitch, Fault.ACCEPTS_FUTURE),
        (OneSwitch, Fault.ANSWERS_WITH_QUESTION),
        (OneSwitch, Fault.NEVER_ANSWERS),
        (OneSwitch, Fault.LAST_EXPONENT),
        (OneSwitch, Fault.FORGETS_CHECK),
        (OneSwitch, Fault.SATURATES),
        (OneSwitch, Fault.FORGETS_REPLICA),
        (OneSwitch, Fault.DROPS_SILENTLY),
        (OneSwitch, Fault.ADMITS_ANY_SOURCE),
        (OneSwitch, Fault.ADMITS_ANY_UDP_PORT),
        (OneSwitch, Fault.FORWARDS_FORGERIES),
        (OneSwitch, Fault.ADMITS_ENDED_JOBS),
        (Tree, Fault.ACCEPTS_UNASKED),
        (Tree, Fault.NEVER_SENDS_UP_AGAIN),
        (ViaServer, Fault.ACCEPTS_UNASKED),
        (ViaServer, Fault.NEVER_SENDS_UP_AGAIN),
        (Shared, Fault.IGNORES_OWNERS),
        (Shared, Fault.LOSES_COLLISIONS),
        (Chunks, Fault.ANSWERS_NACK_WITH_ANY),
        (Chunks, Fault.ACCEPTS_FUTURE),
    ],
    ids=lambda each: each.name.lower() if isinstance(each, Fault) else each.__name__,
)
def test_a_wrong_switch_is_found_out(machine: type[SlotMachine], fault: Fault) -> None:
    planted = type(f"{machine.__name__}That{fault.name.title().replace('_', '')}", (machine,), {"fault": fault})
    with pytest.raises(Violation):
        drive(planted, HUNT)
