"""The wire format: constants, header, and block floating point."""
