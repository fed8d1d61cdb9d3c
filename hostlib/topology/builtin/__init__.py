"""The kinds of topology: each module of this package is one."""
