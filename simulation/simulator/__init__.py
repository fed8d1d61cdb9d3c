"""The discrete-event simulator: schedules compiled, networks, workloads, and their play."""
