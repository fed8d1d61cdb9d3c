"""STF conformance tests of the embedded switch."""
