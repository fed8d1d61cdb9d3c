"""The host side: mechanisms, wire format, packet engine, torch integration, training."""
