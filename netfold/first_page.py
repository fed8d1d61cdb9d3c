"""What one sees first: questions, and the commands that answer them."""

from __future__ import annotations

import click

from hostlib.system.command import continued
from hostlib.system.command_group import FolderGroup

QUESTIONS = (
    (
        "Which mechanism suits my model and my network, and by how much?",
        "netfold ask --model resnet50 --workers 16 --bandwidth 25gbit",
    ),
    (
        "How long does an iteration take with one mechanism?",
        "netfold simulate --model resnet50 --workers 32 --mechanism ring",
    ),
    (
        "Is in-network aggregation faster, with real packets on this machine?",
        "netfold emulate fabric-vs-host",
    ),
    ("Which mechanisms and strategies are there?", "netfold mechanisms"),
    ("Who sends what to whom in a mechanism, and does that sum correctly?", "netfold schedule ring --draw"),
    ("How fast does a mechanism sum between processes or hosts?", "netfold bench --mechanism ring,gloo"),
    ("How does a model train with a mechanism?", "netfold train --mechanism ring"),
    ("How do I start a switch that sums?", "netfold controller start"),
    ("What is slow or broken on this host?", "netfold doctor"),
)


class FirstPage(FolderGroup):
    """The questions, then the commands."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Questions, and the commands that answer them"):
            for question, command in QUESTIONS:
                formatter.write_text(question)
                formatter.indent()
                for line in continued(command, formatter.width - formatter.current_indent):
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")
                formatter.dedent()
        super().format_commands(ctx, formatter)
