"""What commands' tables share."""

PLAIN_WIDTH = 110  # of tables that go to a file
