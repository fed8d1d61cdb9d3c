"""A host's use of the switches: jobs, aggregation, multicast, servers, and failover."""
