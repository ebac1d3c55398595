"""`holdfast topology generate`: random topologies by the papers' recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.output import json_option, print_json, print_table
from holdfast.cli.topology_files import write_text

if TYPE_CHECKING:
    from holdfast_lab.random_topologies import Recipe


@click.command("generate")
@click.argument("recipe", required=False)
@click.option("--seed", default=1, show_default=True, help="The same seed gives the same topology on any machine.")
@click.option("--set", "given", multiple=True, metavar="KEY=VALUE", help="A setting of the recipe; may be repeated.")
@click.option("--out", type=click.Path(dir_okay=False), help="Write it to this file (.json, or .yaml / .yml).")
@click.option("--settings", "only_settings", is_flag=True, help="List the recipes, or one recipe's settings.")
@json_option
def generate_command(
    recipe: str | None, seed: int, given: tuple[str, ...], out: str | None, only_settings: bool, as_json: bool
) -> None:
    """Make a random topology by a recipe of the papers, from a seed; prints the topology file.

    \b
    Examples:
      holdfast topology generate --settings
      holdfast topology generate dag --settings
      holdfast topology generate dag --seed 7 --out dag.json
      holdfast topology generate queries --set queries=18 | holdfast topology show -
    """
    from holdfast.errors import BadInput
    from holdfast.topology import to_document, to_json, to_yaml
    from holdfast_lab.random_topologies import RECIPES, generate
    from holdfast_lab.random_topologies import recipe as named_recipe

    if only_settings or recipe is None:
        if recipe is None and not only_settings:
            raise BadInput(
                "no recipe is named",
                where="topology generate",
                remedy=f"choose {', '.join(RECIPES)} (`--settings` lists their settings)",
            )
        chosen = list(RECIPES.values()) if recipe is None else [named_recipe(recipe)]
        print_recipes(chosen, as_json)
        return
    settings: dict[str, object] = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise BadInput(f"{one!r} is not a setting", field="--set", remedy="write KEY=VALUE")
        settings[key.strip()] = value.strip()
    made = generate(recipe, seed, settings)
    if out is not None:
        write_text(out, to_yaml(made) if out.lower().endswith((".yaml", ".yml")) else to_json(made))
        if not as_json:
            click.echo(f"Written: {out} ({len(made):,} partitions, {made.task_edges:,} edges)")
    if as_json:
        print_json(to_document(made))
    elif out is None:
        click.echo(to_json(made), nl=False)


def print_recipes(chosen: list[Recipe], as_json: bool) -> None:
    """Print recipes with what can be set."""
    if as_json:
        print_json(
            [
                {
                    "recipe": one.name,
                    "help": one.help,
                    "origin": one.origin,
                    "settings": [
                        {"name": s.name, "default": s.default, "help": s.help, "choices": list(s.choices)}
                        for s in one.settings
                    ],
                }
                for one in chosen
            ]
        )
        return
    for one in chosen:
        print_table(
            f"{one.name}: {one.help} ({one.origin})",
            ["setting", "default", "what it is"],
            [
                (s.name, str(s.default), s.help + (f" ({', '.join(s.choices)})" if s.choices else ""))
                for s in one.settings
            ],
        )
