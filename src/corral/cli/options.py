"""Options that several commands share."""

from pathlib import Path
from typing import Any

import click

config_option: Any = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings file; corral.example.yaml shows every setting.",
)
data_option: Any = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Data folder of `corral up`.  [default: ~/.local/share/corral; root: /var/lib/corral]",
)
json_option: Any = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
