"""`python -m corral.cli`, which `corral up` uses to start its worker with the same interpreter."""

from corral.cli import main

if __name__ == "__main__":
    main(prog_name="corral")
