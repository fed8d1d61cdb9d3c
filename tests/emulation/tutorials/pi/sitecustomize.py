"""Gives the tutorials the package p4.tmp, which comes with PI, where that is not installed."""

import importlib.util
from pathlib import Path

import p4

if importlib.util.find_spec("p4.tmp") is None:
    p4.__path__.append(str(Path(__file__).parent))
