"""The kinds of switch port: each module with a KIND is one (port_spec.Kind, registry.kinds).

Its C code is runtime/ports/NAME.h, whose nf_*_port() its attach() calls.
"""
