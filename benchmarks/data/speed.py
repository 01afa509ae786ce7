"""Encoding, from text to ids on disk, on two cores: `dragoman prepare` beside its peers, in turn."""

from __future__ import annotations

import statistics
from pathlib import Path

from common.results import Ratio, Section, Table
from common.usage import CommandError, Usage, run

from .corpora import Base, Text, warm
from .ours import command, fate, settings, took_given_pieces
from .peers import Peer, clear, find_peers

# Of either build of SentencePiece: the program may be years older than the library, and slower.
ASKED_OF_SENTENCEPIECE = 0.8


def measure_speed(base: Base, text: Text, recipe: Path, work: Path, *, rounds: int, quick: bool) -> Section:
    """So many rounds in which each has its turn; medians."""
    section = Section()
    found = find_peers(base, text, work, quick=quick)
    section.remarks += [f"{name}: {reason}" for name, reason in found.absent.items()]
    (work / "out").mkdir(exist_ok=True)
    prepared = work / "out" / "prepare"
    ours = Peer("dragoman prepare", [command("prepare", recipe, settings(base, text, prepared))], [prepared])
    competitors = [ours, *found.peers]
    used: dict[str, list[Usage]] = {peer.name: [] for peer in competitors}
    for _ in range(rounds):
        for peer in list(competitors):
            clear(peer.outputs)
            warm(*text.files, base.model)
            try:
                usage = run(*peer.commands, environment=peer.environment)
            except CommandError as error:
                if peer is ours:
                    raise
                section.remarks.append(f"{peer.name}: {error}")
                competitors.remove(peer)
                continue
            used[peer.name].append(usage)
    _tell_tokens(section, ours, competitors, used, prepared, base)
    _tell_rates(section, text, ours, competitors, used)
    for peer in competitors:
        clear(peer.outputs)
    return section


def _tell_tokens(
    section: Section, ours: Peer, competitors: list[Peer], used: dict[str, list[Usage]], prepared: Path, base: Base
) -> None:
    """Say so where the peers did not do the same work."""
    told = fate(used[ours.name][-1].output)
    tokens = told["source_tokens"] + told["target_tokens"] - 2 * told["kept"]  # less the end tokens
    for peer in competitors:
        if peer.count_tokens is not None and (counted := peer.count_tokens()) != tokens:
            section.remarks.append(f"{peer.name} wrote {counted:,} tokens, dragoman {tokens:,}: not quite the same work")
    if not took_given_pieces(base, prepared):
        section.remarks.append("dragoman prepare learnt pieces anew: its time holds that, and the peers' does not")
    section.figures["tokens"] = tokens


def _tell_rates(section: Section, text: Text, ours: Peer, competitors: list[Peer], used: dict[str, list[Usage]]) -> None:
    rates = {}
    table = Table(
        f"Text to ids, {text.pairs:,} pairs, two cores, median of {len(used[ours.name])}",
        ["program", "seconds", "CPU seconds", "pairs/s", "pairs/s per core", "spread"],
    )
    for peer in competitors:
        wall = statistics.median(usage.seconds for usage in used[peer.name])
        cpu = statistics.median(usage.cpu_seconds for usage in used[peer.name])
        spread = [usage.cpu_seconds for usage in used[peer.name]]
        rates[peer.name] = text.pairs / cpu
        table.rows.append(
            [
                peer.name,
                f"{wall:.2f}",
                f"{cpu:.2f}",
                f"{text.pairs / wall:,.0f}",
                f"{text.pairs / cpu:,.0f}",
                f"{min(spread):.2f}–{max(spread):.2f}",
            ]
        )
        section.figures[peer.name] = {
            "seconds": [usage.seconds for usage in used[peer.name]],
            "cpu_seconds": [usage.cpu_seconds for usage in used[peer.name]],
            "pairs_per_second": text.pairs / wall,
            "pairs_per_cpu_second": text.pairs / cpu,
        }
    section.tables.append(table)
    section.figures["pairs"] = text.pairs
    for peer in competitors[1:]:
        name = "per_core_vs_" + peer.name.split()[0].lower().replace("python", "sentencepiece_api")
        asked = ASKED_OF_SENTENCEPIECE if peer.name.startswith(("spm_encode", "Python API")) else None
        section.ratios.append(Ratio(name, rates[ours.name] / rates[peer.name], asked))
