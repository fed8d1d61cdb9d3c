"""The embedded switch: BMv2 JSON translated to C, compiled, and run behind a P4Runtime server."""
