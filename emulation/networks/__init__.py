"""Networks for experiments: realisations of a topology (hostlib/topology)."""
