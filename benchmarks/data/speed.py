"""Encoding speed from text to ids on disk, on two cores: `dragoman prepare` and its peers, alternating."""

from __future__ import annotations

import statistics
from pathlib import Path

from common.results import Ratio, Section, Table
from common.usage import CommandError, ResourceUsage, run_commands

from .corpora import BaseCorpus, TextCorpus, fill_page_cache
from .dragoman_runner import build_command, build_settings, read_pair_counts, used_configured_model
from .peers import EncodingPeer, clear, find_peers

# Least ratio over either build of SentencePiece; the program may be older and slower than the library.
MIN_SENTENCEPIECE_RATIO = 0.8


def measure_speed(base: BaseCorpus, text: TextCorpus, recipe: Path, work: Path, *, rounds: int, quick: bool) -> Section:
    """Run each program once a round, alternating, and report medians."""
    section = Section()
    peers = find_peers(base, text, work, quick=quick)
    section.notes += [f"{name}: {reason}" for name, reason in peers.absent.items()]
    (work / "out").mkdir(exist_ok=True)
    prepared = work / "out" / "prepare"
    dragoman = EncodingPeer(
        "dragoman prepare", [build_command("prepare", recipe, build_settings(base, text, prepared))], [prepared]
    )
    encoders = [dragoman, *peers.peers]
    used: dict[str, list[ResourceUsage]] = {peer.name: [] for peer in encoders}
    for _ in range(rounds):
        for peer in list(encoders):
            clear(peer.outputs)
            fill_page_cache(*text.files, base.model)
            try:
                usage = run_commands(*peer.commands, environment=peer.environment)
            except CommandError as error:
                if peer is dragoman:
                    raise
                section.notes.append(f"{peer.name}: {error}")
                encoders.remove(peer)
                continue
            used[peer.name].append(usage)
    _report_tokens(section, dragoman, encoders, used, prepared, base)
    _report_rates(section, text, dragoman, encoders, used)
    for peer in encoders:
        clear(peer.outputs)
    return section


def _report_tokens(
    section: Section,
    dragoman: EncodingPeer,
    encoders: list[EncodingPeer],
    used: dict[str, list[ResourceUsage]],
    prepared: Path,
    base: BaseCorpus,
) -> None:
    """Add a note if a peer wrote another number of tokens."""
    counts = read_pair_counts(used[dragoman.name][-1].output)
    tokens = counts["source_tokens"] + counts["target_tokens"] - 2 * counts["kept"]  # without the end tokens
    for peer in encoders:
        if peer.count_tokens is not None and (counted := peer.count_tokens()) != tokens:
            section.notes.append(f"{peer.name} wrote {counted:,} tokens, dragoman {tokens:,}: they did not do the same work")
    if not used_configured_model(base, prepared):
        section.notes.append("dragoman prepare trained a tokenizer, which the peers did not")
    section.figures["tokens"] = tokens


def _report_rates(
    section: Section,
    text: TextCorpus,
    dragoman: EncodingPeer,
    encoders: list[EncodingPeer],
    used: dict[str, list[ResourceUsage]],
) -> None:
    rates = {}
    table = Table(
        f"Text to ids, {text.pairs:,} pairs, two cores, median of {len(used[dragoman.name])}",
        ["program", "seconds", "CPU seconds", "pairs/s", "pairs/s per core", "spread"],
    )
    for peer in encoders:
        wall = statistics.median(usage.seconds for usage in used[peer.name])
        cpu = statistics.median(usage.cpu_seconds for usage in used[peer.name])
        cpu_seconds = [usage.cpu_seconds for usage in used[peer.name]]
        rates[peer.name] = text.pairs / cpu
        table.rows.append(
            [
                peer.name,
                f"{wall:.2f}",
                f"{cpu:.2f}",
                f"{text.pairs / wall:,.0f}",
                f"{text.pairs / cpu:,.0f}",
                f"{min(cpu_seconds):.2f}–{max(cpu_seconds):.2f}",
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
    for peer in encoders[1:]:
        name = "per_core_vs_" + peer.name.split()[0].lower().replace("python", "sentencepiece_api")
        target = MIN_SENTENCEPIECE_RATIO if peer.name.startswith(("spm_encode", "Python API")) else None
        section.ratios.append(Ratio(name, rates[dragoman.name] / rates[peer.name], target))
