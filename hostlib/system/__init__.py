"""Operating-system helpers: processes, namespaces, interfaces, exit codes."""
