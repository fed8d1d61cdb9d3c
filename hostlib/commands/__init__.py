"""Commands of `hostlib`: each module has its own as COMMANDS (hostlib.system.command_group)."""
