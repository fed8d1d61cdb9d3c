"""What one sees first: questions, and the commands that answer them."""

from __future__ import annotations

import click

from hostlib.system.command_group import FolderGroup

QUESTIONS = (
    (
        "What would an iteration of a model take on a network that is not here?",
        "netfold simulate --model resnet50 --workers 32 --bandwidth 25gbit",
    ),
    (
        "Does the fabric beat the hosts, with real packets on this machine?",
        "netfold emulate fabric-vs-host",
    ),
    ("Which mechanisms and strategies are there?", "netfold mechanisms"),
    ("Who sends what to whom in a mechanism, and is that an all-reduce?", "netfold schedule ring --draw"),
    ("How fast does a mechanism sum between these processes or hosts?", "netfold bench --mechanisms ring,gloo"),
    ("How does a model train with it?", "netfold train --mechanism ring"),
    ("Where does a switch come from that sums?", "netfold controller start"),
    ("What is slow or broken here?", "netfold doctor"),
)


class FirstPage(FolderGroup):
    """The questions, then the commands."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("What one may want to know"):
            for question, command in QUESTIONS:
                formatter.write_text(question)
                formatter.indent()
                formatter.write(f"{'':{formatter.current_indent}}{command}\n")
                formatter.dedent()
        super().format_commands(ctx, formatter)
