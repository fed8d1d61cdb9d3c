"""Commands of `controller`: each module has its own as COMMANDS (hostlib.system.command_group)."""
