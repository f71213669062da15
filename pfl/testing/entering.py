"""Acceptance of the digests of edited code, after a comparison by the battery (`pfl behaviours`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from pfl.core.errors import Conflict, InvalidInput
from pfl.run import fingerprint
from pfl.run.fingerprint import SHARED, AcceptedCode
from pfl.testing.battery import Answer, answers, concerned, kernels_are_usable, subjects
from pfl.testing.cases import Case, cases


@dataclass
class EditOutcome:
    """The outcome of the battery for edited components.

    Attributes:
        answers: the answers to the cases that were run.
        moved: methods and networks whose results have changed, and the answers that show it.
    """

    answers: list[Answer] = field(default_factory=list)
    moved: dict[str, list[Answer]] = field(default_factory=dict)

    @property
    def mistakes(self) -> list[Answer]:
        """Cases whose ways disagree, and those that now raise an error but did not before."""
        return [
            answer
            for answer in self.answers
            if answer.disagreeing or (answer.moved and "error" in answer.values)
        ]


def files() -> dict[Path, list[Case]]:
    """The files of accepted digests and the cases of each: ours, and the user's for plugins."""
    everything = cases()
    theirs = [case for case in everything if any(map(fingerprint.is_plugin, _named(case)))]
    ours = [case for case in everything if case not in theirs]
    if not theirs:
        return {fingerprint.BUILTIN: ours}
    known = fingerprint.project_files()
    return {fingerprint.BUILTIN: ours, next(filter(Path.exists, known), known[-1]): theirs}


def examine(accepted: AcceptedCode, everything: Sequence[Case], unknown: Collection[str]) -> EditOutcome:
    """Run the cases that an edit of the components ``unknown`` may affect, and those without records.

    Args:
        everything: all cases of the file.

    Raises:
        InvalidInput: edited kernels do not run on this machine.
    """
    # A new file of a project lists no kernels yet, although nobody has edited them.
    edited = "kernels" in unknown and "kernels" in AcceptedCode.load(fingerprint.BUILTIN).unknown(
        fingerprint.components()
    )
    if edited and not kernels_are_usable():
        accepted_here = "a machine with a C++ compiler and AVX2, as the edited kernels do not run on this one"
        raise InvalidInput("kernels", "no kernels", accepted_here)
    chosen = concerned(unknown, everything)
    chosen += [case for case in everything if case.key not in accepted.battery and case not in chosen]
    outcome = EditOutcome()
    names = {key.rpartition(" #")[0] for key in accepted.battery}
    bar = tqdm(desc="battery", unit="case", disable=None)

    def is_needed(case: Case) -> bool:
        """Whether nothing proves that results are unchanged if those of a case were not recorded."""
        changed = case.name in names  # together with the code
        # The cases of an earlier version lack options of the engine, which plugins' methods are tried with.
        listed = case.subject in accepted.components and fingerprint.is_plugin(case.subject)
        return changed or (listed and bool({*SHARED} & {*unknown}))

    def run(chosen: Sequence[Case]) -> None:
        bar.total = bar.n + len(chosen)
        for answer in answers(chosen, accepted.battery):
            outcome.answers.append(answer)
            bar.update()
            unproven = answer.moved is None and (is_needed(answer.case) or "error" in answer.values)
            if answer.moved or unproven:
                for subject in subjects(answer.case, unknown) if unknown else ():
                    outcome.moved.setdefault(subject, []).append(answer)

    with bar:
        run(chosen)
        # The recorded results of these cases come from the network before the edit.
        moved = [case for case in everything if f"network {case.model}" in outcome.moved]
        run([case for case in moved if case not in chosen])
    return outcome


def enter(accepted: AcceptedCode, everything: Sequence[Case], outcome: EditOutcome, file: Path) -> None:
    """Accept the components' current digests and the new results in ``file``; removed components and results
    of removed cases are dropped. Methods and networks with moved results get new names; all others keep
    theirs, also those that are accepted for the first time.

    Raises:
        Conflict: results may have changed by the edit of the engine or by another one.
    """
    moved, today = outcome.moved, fingerprint.components(file)
    new = accepted.unknown(today)
    _check_causes(outcome, new)
    accepted.components = {name: known for name, known in accepted.components.items() if name in today}
    first = [name for name in today if name not in (*SHARED, *accepted.components)]
    for subject in dict.fromkeys([*moved, *first]):
        kind, _, name = subject.partition(" ")
        place = 0 if kind == "method" else 1
        accepted.names = {
            question: known
            for question, known in accepted.names.items()
            if question.split(", ")[place] != name
        }
        accepted.revisions[subject] = fingerprint.revision(subject, today)
    for name, digest in new.items():
        moves = bool(moved) if name in SHARED else name in moved
        accepted.components[name] = [*([] if moves else accepted.components.get(name, [])), digest]
    keys = {case.key for case in everything}
    accepted.battery = {key: values for key, values in accepted.battery.items() if key in keys}
    accepted.battery |= {answer.case.key: answer.values for answer in outcome.answers if answer.new}
    accepted.save(file)
    fingerprint.forget()


def _check_causes(outcome: EditOutcome, edited: Collection[str]) -> None:
    """Check that no results of an edited engine are also those of another component that has changed its own.

    Raises:
        Conflict: there are such results.
    """
    cases = [answer.case for answers in outcome.moved.values() for answer in answers]
    own = {case.subject for case in cases} & set(edited)
    for shared in (name for name in SHARED if name in edited):
        for case in cases:
            for part in own & {*_named(case)} - {case.subject}:
                reason = f"the results of {case.name!r} may have changed by that of the {shared} or of {part}"
                raise Conflict("edits", reason, "accept one of the two edits first")


def _named(case: Case) -> tuple[str, str]:
    return f"method {case.method}", f"network {case.model}"
