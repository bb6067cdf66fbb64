"""Actions of one screen alone: its own keys, offered there by its title, the palette and help."""

from __future__ import annotations

from functools import partial

from console.actions.action import Action

_why = partial(Action, group="Failure card", scope="screen", screen="why")
_tune = partial(Action, group="Tune", scope="screen", screen="tune")
_profiles = partial(Action, group="Profiles", scope="screen", screen="profiles")

SCREENS: tuple[Action, ...] = (
    _why("why_apply", "a", "apply", "Write the first proposed value and restart; asked first."),
    _why("why_in_log", "enter", "in the log", "Open the log at the line that is the cause."),
    _tune("tune_chart", "c", "chart", "The next chart; after the last one, none."),
    _tune("tune_save_best", "B", "save best", "Save the best point as a profile of that name."),
    _tune("tune_report", "X", "export", "Write all points to a file, with the commands."),
    _profiles("profiles_edit", "enter,E", "edit", "Edit the profile; a built-in one is copied."),
    _profiles(
        "profiles_difference",
        "d",
        "difference",
        "What would change if the selected unit ran this profile, and what that costs.",
    ),
    _profiles("profiles_copy", "c", "copy", "Copy the profile under another name."),
    _profiles("profiles_create", "n", "new unit", "Make a unit of the profile; s starts it."),
    _profiles("profiles_other_side", "tab", "other side", "To the list, or to the profile."),
)
