"""Parsing and formatting of quantities with units and names with options."""
