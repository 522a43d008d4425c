"""Entry point of ``fedpriv`` and ``python -m fedpriv``; handles Ctrl-C also while modules are imported."""

import io
import sys


def main() -> None:
    """Run the command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error, if the locale cannot encode a letter
    try:
        from fedpriv.cli import main as command

        command()
    except KeyboardInterrupt:
        print("fedpriv: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
