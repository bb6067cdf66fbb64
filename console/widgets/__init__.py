"""Widgets: they show what view/ made and decide nothing."""
