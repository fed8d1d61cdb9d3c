"""How long ranks wait for each other and for the switch, unless they are told otherwise. Torch-free.

Source: docs/failures.md, "How long is waited".
"""

PATIENCE_S = 2.0  # the switch is silent, and every rank waits for it: it is dead
SILENCE_S = 1.5  # a rank gives no sign of life: it is missing
BEAT_S = 0.25  # between a rank's signs of life
