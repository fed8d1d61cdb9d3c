"""The kinds of switch port, one module each: whatever module here has a KIND is one (spec.Kind, registry.kinds).

Its C is runtime/ports/NAME.h, whose nf_*_port() its attach() calls.
"""
