"""Compile a P4 program (BMv2 JSON) to C, and C to a shared library."""
