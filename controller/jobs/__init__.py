"""Jobs: ranks that join, slots, and each switch's share of a job."""
