"""A host's end of the switches: jobs, aggregation, multicast, servers, and what to do when a switch dies."""
