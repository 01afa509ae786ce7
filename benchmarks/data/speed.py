"""Encoding speed from text to ids on disk, on two cores: `dragoman prepare` and its peers, alternating."""

from __future__ import annotations

import statistics
from pathlib import Path

from common.results import Ratio, Section, Table
from common.usage import CommandError, ResourceUsage, run_commands

from .corpora import BaseCorpus, TextCorpus, fill_page_cache
from .dragoman_runner import build_command, build_settings, read_pair_counts, used_given_model
from .peers import EncodingPeer, clear, find_peers

# Of either build of SentencePiece: the program may be years older than the library, and slower.
ASKED_OF_SENTENCEPIECE = 0.8


def measure_speed(base: BaseCorpus, text: TextCorpus, recipe: Path, work: Path, *, rounds: int, quick: bool) -> Section:
    """Run each program once a round, alternating, and report medians."""
    section = Section()
    peers = find_peers(base, text, work, quick=quick)
    section.notes += [f"{name}: {reason}" for name, reason in peers.absent.items()]
    (work / "out").mkdir(exist_ok=True)
    prepared = work / "out" / "prepare"
    ours = EncodingPeer(
        "dragoman prepare", [build_command("prepare", recipe, build_settings(base, text, prepared))], [prepared]
    )
    competitors = [ours, *peers.peers]
    used: dict[str, list[ResourceUsage]] = {peer.name: [] for peer in competitors}
    for _ in range(rounds):
        for peer in list(competitors):
            clear(peer.outputs)
            fill_page_cache(*text.files, base.model)
            try:
                usage = run_commands(*peer.commands, environment=peer.environment)
            except CommandError as error:
                if peer is ours:
                    raise
                section.notes.append(f"{peer.name}: {error}")
                competitors.remove(peer)
                continue
            used[peer.name].append(usage)
    _report_tokens(section, ours, competitors, used, prepared, base)
    _report_rates(section, text, ours, competitors, used)
    for peer in competitors:
        clear(peer.outputs)
    return section


def _report_tokens(
    section: Section,
    ours: EncodingPeer,
    competitors: list[EncodingPeer],
    used: dict[str, list[ResourceUsage]],
    prepared: Path,
    base: BaseCorpus,
) -> None:
    """Add a note if a peer wrote another number of tokens."""
    counts = read_pair_counts(used[ours.name][-1].output)
    tokens = counts["source_tokens"] + counts["target_tokens"] - 2 * counts["kept"]  # less the end tokens
    for peer in competitors:
        if peer.count_tokens is not None and (counted := peer.count_tokens()) != tokens:
            section.notes.append(f"{peer.name} wrote {counted:,} tokens, dragoman {tokens:,}: not quite the same work")
    if not used_given_model(base, prepared):
        section.notes.append("dragoman prepare learnt pieces anew: its time holds that, and the peers' does not")
    section.figures["tokens"] = tokens


def _report_rates(
    section: Section,
    text: TextCorpus,
    ours: EncodingPeer,
    competitors: list[EncodingPeer],
    used: dict[str, list[ResourceUsage]],
) -> None:
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
