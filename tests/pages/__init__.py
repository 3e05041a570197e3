"""The commands and snippets of the pages, run as they stand, in order, in a bare shell: `page` has the rules."""
