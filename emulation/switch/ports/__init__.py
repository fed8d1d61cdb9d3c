"""The kinds of switch port, one module each: whatever module here has a KIND is one (port_spec.Kind, registry.kinds).

Its C is runtime/ports/NAME.h, whose nf_*_port() its attach() calls.
"""
