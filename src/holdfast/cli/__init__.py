"""The command line. Each command is a module of its own, imported only when it runs."""
