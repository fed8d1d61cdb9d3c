"""One file per mechanism, each with a SPEC (hostlib.mechanisms.mechanism_spec.MechanismSpec)."""
