"""Sequences that a state machine found, told step by step."""

from __future__ import annotations

from tests.property.network import Network, Shape
from tests.property.switch import Twin


def test_a_late_first_packet_that_claims_a_finished_shared_slot_blocks_nobody() -> None:
    """Rank 0's first packet is slow, its second one is summed, the result gets lost, and then the first arrives.

    It claims the slot again, alone: rank 1 has its result and will not come. What rank 0 asks must still be answered.
    """
    network = Network(Shape("shared", leaves=0, ranks=2, seats=1, window=1, first_generation=0), Twin)
    network.add_tensor(0, 1)
    slow, punctual = network.seats[0].hosts.values()
    network.send(slow)
    network.hold(0)
    network.lose(0)
    network.send(punctual)
    network.resend(slow, 0)
    for _ in range(4):  # both contributions, the sum to the server, its result to the switch
        network.deliver(0)
    network.lose(0)  # slow's copy of the result
    network.deliver(0)
    assert punctual.codes and not slow.codes
    network.release(0)
    network.deliver(0)
    network.settle()
