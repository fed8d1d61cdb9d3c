"""What every room needs of the operating system: processes, namespaces, interfaces, exit codes."""
