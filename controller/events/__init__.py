"""What happened: the event log, and the history of ended jobs, as files of JSON lines."""
