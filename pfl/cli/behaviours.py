"""The command `pfl behaviours`, which accepts the digests of edited code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pfl.testing.battery import Difference
    from pfl.testing.entering import EditOutcome

SHOWN = 2  # maximum number of cases shown, and of values per case


def behaviours(
    check: Annotated[bool, typer.Option("--check", help="Only list the components with new code.")] = False,
) -> None:
    """Check that edited code leaves results unchanged.

    Runs short simulations of the components whose code is not in behaviours.json, and adds their digests:
    under the existing names if all results agree, and under new names if they do not. Commit the file with
    the edit.
    """
    from pfl.run import fingerprint

    new = fingerprint.unknown()
    if check:
        for component in new:
            print(f"{component}: its code is not in behaviours.json; run `pfl behaviours`")
        raise typer.Exit(bool(new))

    from pfl.testing.entering import enter, examine, files

    status = 0
    for file, everything in files().items():
        accepted = fingerprint.AcceptedCode.load(file)
        unknown = accepted.unknown(fingerprint.components(file))
        outcome = examine(accepted, everything, unknown)
        _report(outcome, unknown)
        if outcome.mistakes:
            print(f"nothing was written to {file}")
            status = 1
        elif outcome.answers or unknown:
            enter(accepted, everything, outcome, file)
            print(f"written to {file}; commit it with the edit")
    raise typer.Exit(status)


def _report(outcome: EditOutcome, unknown: dict[str, str]) -> None:
    for answer in outcome.mistakes:
        print(f"{answer.case.name}: backends disagree, or the code raises")
        _show([*answer.disagreeing, *(answer.moved or [])], "  ")
    for subject, moved in outcome.moved.items():
        print(f"{subject}: results changed; recorded under new names; {len(moved)} cases, among them")
        for answer in moved[:SHOWN]:
            print(f"  {answer.case.name}{'' if answer.moved else ', of which there are no earlier results'}")
            _show(answer.moved or [], "    ")
    for component in unknown:
        if component not in outcome.moved:
            others = component in ("engine", "kernels") and outcome.moved
            print(f"{component}: {'all else agrees' if others else 'agrees'}, and keeps its names")
    fresh = sum(answer.moved is None for answer in outcome.answers)
    if fresh:
        print(f"new cases of the battery: {fresh}")
    if not unknown and not outcome.answers:
        print("all code is in behaviours.json")


def _show(differences: Sequence[Difference], indent: str) -> None:
    for difference in differences[:SHOWN]:
        print(f"{indent}{difference}")
