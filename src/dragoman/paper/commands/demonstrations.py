"""Commands `paper scaling`, `paper positions` and `paper example`: claims of the text, computed beside their closed forms."""

from __future__ import annotations

from pathlib import Path

import click

from dragoman.console.options import json_option, output_path_option, overwrite_option, usage_error


@click.command()
@output_path_option("Draw the rows as an SVG to this file.")
@overwrite_option()
@json_option()
def scaling(output: Path | None, overwrite: bool, as_json: bool) -> None:
    """Measure the variance of q·k for growing d_k beside its closed form d_k, with and without division by √d_k (footnote 4).

    All numbers of q and k are drawn from N(0, 1). The last columns show the softmax over 32 such products: its largest weight,
    and the trace of its gradient, which vanishes without the division.

    \b
    Example:  dragoman paper scaling -o scaling.svg
    """
    from dragoman.console.figure_files import check_chart, write_chart
    from dragoman.console.terminal import print_json, print_table
    from dragoman.paper.scaling import NUM_DOT_PRODUCTS, draw_scaling, measure_scaling

    check_chart(output, overwrite=overwrite)
    rows = measure_scaling()
    write_chart(output, lambda: draw_scaling(rows), overwrite=overwrite)
    if as_json:
        print_json({"products": NUM_DOT_PRODUCTS, "rows": rows})
        return
    header = ["d_k", "mean", "variance", "± s.e.", "largest weight", "gradient", "variance / d_k", "largest weight", "gradient"]
    cells = [
        (
            str(row.d_k), f"{row.mean:.2f}", f"{row.variance:.2f}", f"{row.standard_error:.2f}", f"{row.weight:.2f}",
            f"{row.gradient:.3f}", f"{row.scaled_variance:.3f}", f"{row.scaled_weight:.2f}", f"{row.scaled_gradient:.3f}",
        )
        for row in rows
    ]  # fmt: skip
    print_table(f"Footnote 4: {NUM_DOT_PRODUCTS:,} products q·k, and q·k / √d_k in the last three columns", header, cells)


@click.command()
@click.option(
    "--layout",
    type=click.Choice(["interleaved", "concatenated", "halves"]),
    default="interleaved",
    show_default=True,
    help="Order of sines and cosines, as in model.position_encoding.",
)
@click.option("--d-model", type=click.IntRange(2, 1024), default=128, show_default=True, help="Width of the encodings, even.")
@output_path_option("Draw the rows as an SVG to this file.")
@overwrite_option()
@json_option()
def positions(layout: str, d_model: int, output: Path | None, overwrite: bool, as_json: bool) -> None:
    """Show that PE(pos+k) is a linear function of PE(pos): the rotation matrix M_k, and its error over all positions (3.5).

    Least squares find the same function from the encodings alone. For random vectors they find none. The last columns show that
    PE(pos)·PE(pos+k) is Σ cos(ωk), and depends on the distance k alone.

    \b
    Example:  dragoman paper positions --d-model 512 -o positions.svg
    """
    from dragoman.console.figure_files import check_chart, write_chart
    from dragoman.console.terminal import print_json, print_table
    from dragoman.paper.relative_positions import NUM_POSITIONS_FACTOR, draw_offsets, measure_offsets

    check_chart(output, overwrite=overwrite)
    if d_model % 2:
        raise usage_error(f"--d-model {d_model}: is odd, but sinusoids come in pairs; give an even number")
    num_positions = NUM_POSITIONS_FACTOR * d_model
    rows = measure_offsets(layout=layout, d_model=d_model, num_positions=num_positions)
    write_chart(output, lambda: draw_offsets(rows, d_model=d_model), overwrite=overwrite)
    if as_json:
        print_json({"layout": layout, "d_model": d_model, "positions": num_positions, "rows": rows})
        return
    header = ["k", "|M_k·PE(pos) − PE(pos+k)|", "least squares", "random vectors", "PE(pos)·PE(pos+k)", "range", "Σ cos(ωk)"]
    cells = [
        (
            str(row.offset), f"{row.rotation_error:.1e}", f"{row.fitted_error:.1e}", f"{row.random_error:.2f}",
            f"{row.dot_product:.4f}", f"{row.dot_product_range:.1e}", f"{row.expected_dot_product:.4f}",
        )
        for row in rows
    ]  # fmt: skip
    title = f"Section 3.5: {layout} sinusoids, d_model {d_model}, largest errors over {num_positions:,} positions"
    print_table(title, header, cells)


@click.command()
@output_path_option("Draw the weights as an SVG to this file.")
@overwrite_option()
@json_option()
def example(output: Path | None, overwrite: bool, as_json: bool) -> None:
    """Compute equation 1 by hand-sized numbers: from 112 and 96 to 0.88 and 0.12, to z₁ = 0.88·v₁ + 0.12·v₂, to all heads.

    \b
    Example:  dragoman paper example -o example.svg
    """
    from dragoman.console.figure_files import check_chart, write_chart
    from dragoman.console.terminal import print_json, print_table
    from dragoman.paper.worked_example import compute_example, draw_example

    check_chart(output, overwrite=overwrite)
    worked_example = compute_example()
    write_chart(output, lambda: draw_example(worked_example), overwrite=overwrite)
    if as_json:
        print_json(worked_example)
        return
    first = worked_example.heads[0]
    click.echo(f"q·k₁, q·k₂        {first.products[0]:g}, {first.products[1]:g}")
    click.echo(f"/ √{worked_example.d_k}             {first.scaled[0]:g}, {first.scaled[1]:g}")
    click.echo(f"softmax           {first.weights[0]:.2f}, {first.weights[1]:.2f}")
    for number, value in enumerate(worked_example.values, start=1):
        click.echo(f"v{'₁₂'[number - 1]}                ({', '.join(f'{x:g}' for x in value)})")
    vector = ", ".join(f"{x:.2f}" for x in first.output)
    click.echo(f"z₁                {first.weights[0]:.2f}·v₁ + {first.weights[1]:.2f}·v₂ = ({vector})\n")
    cells = [
        (
            str(head.head), ", ".join(f"{x:g}" for x in head.products), ", ".join(f"{x:g}" for x in head.scaled),
            ", ".join(f"{x:.2f}" for x in head.weights), ", ".join(f"{x:.2f}" for x in head.output),
        )
        for head in worked_example.heads
    ]  # fmt: skip
    print_table("The same values in eight heads", ["head", "products", "/ √64", "weights", "z"], cells)
    click.echo(f"Concat(z₁ … z₈)   {len(worked_example.concatenated)} numbers: the last column from top to bottom")
    mean = ", ".join(f"{x:.2f}" for x in worked_example.output)
    click.echo(f"· W^O             ({mean}), for a W^O that takes the mean of the heads")
