"""The command line: ``parser`` has the subcommands, one module for each group of them.

Decisions:

- argparse, because it belongs to the base install, which has four packages. Options that may stand before the
  subcommand are moved behind it before parsing, so that a subcommand that does not have one rejects it. Tables are
  plain text: they are piped, compared and pasted.
- Completion is argcomplete (Apache-2.0): it runs the command itself at each TAB, so that names of the running group
  are completed. A script generated once, as shtab makes it, cannot know them.
- The library's errors name arguments and settings, for programs that embed it. ``errors.OptionNames`` puts options in
  their place wherever a command prints such a text. It knows them from the parser, so a new option needs no entry.
- The servers raise the soft limit of open files to what their own limits need.
"""
