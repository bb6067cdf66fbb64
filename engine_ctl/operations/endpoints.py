"""Where a unit's next run listens, and where clients find it."""

from __future__ import annotations

from contextlib import suppress

from engine_ctl.atomic import CorruptRecord
from engine_ctl.errors import Busy, NotFound
from engine_ctl.front import lifecycle as fronts
from engine_ctl.operations import ports
from engine_ctl.operations.context import Context
from engine_ctl.operations.planning import DEFAULT_PORT, Endpoint, endpoint_of, refuse_if
from engine_ctl.operations.runs import is_live
from profiles.model import Profile


def endpoint_for(
    ctx: Context, unit: str, profile: Profile, avoid: frozenset[int] = frozenset()
) -> Endpoint:
    """The address of the next run: the profile's port, else the first free one from 8000 up that
    is not in `avoid`.

    Raises Busy, naming the owner, when the port is taken by somebody else.
    """
    own = endpoint_of(profile, profile.host, profile.port or DEFAULT_PORT)
    if not own.addressed:
        refuse_if([fronts.front_problem(profile)])
        if own.uds is not None:
            ports.refuse_socket(own.uds)
        return own
    front = fronts.live(ctx.store, unit)
    held = front.spec().port if front is not None else None
    port = profile.port or held
    if port is not None:
        problem = None if port == held else ports.port_problem(profile.host, port)
        if problem:
            raise Busy(problem)
        return behind_front(ctx, unit, profile, Endpoint(profile.host, port), avoid)
    port = ports.first_free(profile.host, DEFAULT_PORT, _claimed(ctx, unit) | avoid)
    return behind_front(ctx, unit, profile, Endpoint(profile.host, port), avoid)


def behind_front(
    ctx: Context,
    unit: str,
    profile: Profile,
    public: Endpoint,
    avoid: frozenset[int] = frozenset(),
) -> Endpoint:
    """Where the engine itself listens when clients go to `public`: there, or, with a front, on a
    private port of this machine. Raises Failed when the profile cannot have a front."""
    if not profile.front:
        return public
    refuse_if([fronts.front_problem(profile)])
    taken = _claimed(ctx, unit) | {public.port} | avoid
    port = ports.first_free(fronts.LOOPBACK, fronts.first_private_port(ctx.dirs), taken)
    return Endpoint(fronts.LOOPBACK, port, public.host, public.port)


def _claimed(ctx: Context, but: str) -> frozenset[int]:
    """Ports of other units' live runs, which may not listen yet."""
    claimed = set()
    for record in ctx.store.list_units().units:
        run = ctx.store.current(record.unit) if record.unit != but else None
        with suppress(CorruptRecord, NotFound):
            if run is None or not is_live(run):
                continue
            spec = run.spec()
            claimed |= {port for port in (spec.port, spec.public_port) if port}
    return frozenset(claimed)
