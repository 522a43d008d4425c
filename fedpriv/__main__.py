"""``fedpriv``, which is ``python -m fedpriv``, begins here: Ctrl-C may come while its modules are imported."""

import io
import sys


def main() -> None:
    """Run the command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error: a locale may not have the letters of a name
    try:
        from fedpriv.cli import main as command

        command()
    except KeyboardInterrupt:
        print("fedpriv: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
