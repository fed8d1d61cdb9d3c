"""Text that people write and read: quantities with units, names with options."""
