"""The discrete-event simulator: compiled schedules, networks, workloads, and their execution."""
