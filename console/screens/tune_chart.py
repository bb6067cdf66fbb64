"""A chart of measured points in the terminal."""

from __future__ import annotations

from textual_plotext import PlotextPlot

from engine_ctl.tune.shapes import Chart

# The shapes differ as well as the colours, so that neither is needed to tell them apart.
BEST, MEETS, MISSES = ("★", "green"), ("●", "blue"), ("×", "red")


class ChartWidget(PlotextPlot):
    """Dots, and the line through those that matter."""

    def __init__(self, chart: Chart) -> None:
        super().__init__()
        self._chart = chart

    def on_mount(self) -> None:
        super().on_mount()
        self.draw(self._chart)

    def draw(self, chart: Chart) -> None:
        """Show another chart in this one's place."""
        self._chart = chart
        plot = self.plt
        plot.clear_data()
        plot.clear_figure()
        if len(chart.line) > 1:
            plot.plot([x for x, _ in chart.line], [y for _, y in chart.line], marker="braille")
        for (marker, colour), dots in (
            (MISSES, [d for d in chart.dots if not d.meets and not d.best]),
            (MEETS, [d for d in chart.dots if d.meets and not d.best]),
            (BEST, [d for d in chart.dots if d.best]),
        ):
            if dots:
                plot.scatter([d.x for d in dots], [d.y for d in dots], marker=marker, color=colour)
        if chart.limit is not None:
            plot.vline(chart.limit)
        if chart.ticks:
            plot.xticks([x for x, _ in chart.ticks], [text for _, text in chart.ticks])
        plot.title(f"{chart.title}   ★ best  ● meets the goal  × misses it")
        plot.xlabel(chart.x_label)
        plot.ylabel(chart.y_label)
        self.refresh()
