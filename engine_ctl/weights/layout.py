"""Which rank runs on which GPU of which node, and the command of each node, before anything runs.

vLLM numbers ranks by data, pipeline, then tensor parallel place. Nodes join in one of two ways:
`--nnodes` hands each node a contiguous block of all ranks; without it each node is given a range
of data-parallel ranks (`--data-parallel-start-rank`, `--data-parallel-size-local`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine_ctl.model import Reason

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_MASTER_PORT = 29501
MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Placement:
    """One rank on one device. `local_rank` counts the node's devices from 0; `expert_rank` is
    its place among the experts' owners of its pipeline stage (None without expert parallel)."""

    node: int
    local_rank: int
    global_rank: int
    dp_rank: int
    pp_rank: int
    tp_rank: int
    expert_rank: int | None = None
    gpu: int | str | None = None

    @property
    def label(self) -> str:
        """As vLLM names its workers: DP1 PP0 TP3 EP7."""
        parts = [f"DP{self.dp_rank}", f"PP{self.pp_rank}", f"TP{self.tp_rank}"]
        if self.expert_rank is not None:
            parts.append(f"EP{self.expert_rank}")
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Seeding:
    """Daemon-to-daemon seeding of warm-up caches (0.33). The token itself is never here: `token`
    is how a shell would get it (`"$NAME"`, `"$(cat FILE)"`)."""

    listen: tuple[str, int] | None = None
    source: tuple[str, int] | None = None
    token: str | None = None
    incomplete: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallel sizes and nodes. `by_nnodes` False: nodes are ranges of data-parallel ranks.

    `start_rank` and `local_dp` say this node's range in that case (None: by node number).
    Ports and addresses are None where the command does not give them."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    expert_parallel: bool = False
    nodes: int = 1
    node_rank: int = 0
    by_nnodes: bool = True
    local_dp: int | None = None
    start_rank: int | None = None
    master_addr: str = "127.0.0.1"
    master_port: int = DEFAULT_MASTER_PORT
    dp_address: str | None = None
    dp_rpc_port: int | None = None
    cache_port: int | None = None
    draft_port: int | None = None
    draft: bool = False
    gpus: tuple[int | str, ...] = ()
    seeding: Seeding = field(default_factory=Seeding)

    @property
    def world(self) -> int:
        return self.dp * self.pp * self.tp

    @property
    def roles(self) -> int:
        return 2 if self.draft else 1


def from_arguments(
    args: Mapping[str, Any],
    *,
    gpus: Sequence[int | str] = (),
    seed_token: str | None = None,
    draft: bool = False,
) -> Layout:
    """The layout that `vllm preload` arguments (underscored long names) mean.

    Nodes of a data-parallel range are counted from the sizes, as vLLM does."""

    def number(name: str, default: int) -> int:
        value = args.get(name)
        return default if value is None else int(value)

    def maybe(name: str) -> int | None:
        value = args.get(name)
        return None if value is None else int(value)

    def text(name: str) -> str | None:
        value = args.get(name)
        return None if value is None else str(value)

    dp, nnodes = number("data_parallel_size", 1), number("nnodes", 1)
    local_dp, start = maybe("data_parallel_size_local"), maybe("data_parallel_start_rank")
    external = maybe("data_parallel_rank")
    if external is not None and nnodes == 1 and dp > 1:
        local_dp, start = 1, external  # a process of its own for each rank
    nodes = nnodes
    if nnodes == 1 and dp > 1 and local_dp:
        nodes = max(1, dp // local_dp)
    node_rank = number("node_rank", 0)
    if nnodes == 1 and start is not None and local_dp:
        node_rank = start // local_dp
    return Layout(
        tp=number("tensor_parallel_size", 1),
        pp=number("pipeline_parallel_size", 1),
        dp=dp,
        expert_parallel=bool(args.get("enable_expert_parallel")),
        nodes=nodes,
        node_rank=node_rank,
        by_nnodes=nnodes > 1 or dp == 1,
        local_dp=local_dp,
        start_rank=start,
        master_addr=text("master_addr") or "127.0.0.1",
        master_port=number("master_port", DEFAULT_MASTER_PORT),
        dp_address=text("data_parallel_address"),
        dp_rpc_port=maybe("data_parallel_rpc_port"),
        cache_port=maybe("weight_cache_master_port"),
        draft_port=maybe("weight_cache_draft_master_port"),
        draft=draft,
        gpus=tuple(gpus),
        seeding=_seeding(args, seed_token),
    )


def placements(layout: Layout, node: int | None = None) -> tuple[Placement, ...]:
    """Ranks of the local devices of one node (default: the layout's own)."""
    node = layout.node_rank if node is None else node
    stage = layout.pp * layout.tp
    if layout.by_nnodes and layout.nodes > 1:
        count = layout.world // layout.nodes
        first = node * count
    elif layout.by_nnodes:
        count, first = layout.world, 0
    else:
        local = layout.local_dp if layout.local_dp is not None else layout.dp
        start = layout.start_rank if node == layout.node_rank else None
        count = local * stage
        first = (node * local if start is None else start) * stage
    result = []
    for local_rank in range(count):
        rank = first + local_rank
        dp_rank, place = divmod(rank, stage)
        pp_rank, tp_rank = divmod(place, layout.tp)
        result.append(
            Placement(
                node=node,
                local_rank=local_rank,
                global_rank=rank,
                dp_rank=dp_rank,
                pp_rank=pp_rank,
                tp_rank=tp_rank,
                expert_rank=dp_rank * layout.tp + tp_rank if layout.expert_parallel else None,
                gpu=layout.gpus[local_rank] if local_rank < len(layout.gpus) else None,
            )
        )
    return tuple(result)


def problems(layout: Layout) -> tuple[Reason, ...]:
    """What vLLM would refuse, or hang on, for this layout; () when nothing."""
    found = [*_size_problems(layout), *_port_problems(layout), *_seed_problems(layout)]
    return tuple(Reason("bad_value", hint, line) for line, hint in found)


def _size_problems(layout: Layout) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    sizes = (("tensor", layout.tp), ("pipeline", layout.pp), ("data", layout.dp))
    for name, size in sizes:
        if size < 1:
            found.append((f"{name}-parallel-size {size} is below 1", "use 1 or more"))
    if found:
        return found
    if layout.by_nnodes and layout.nodes > 1:
        if layout.world % layout.nodes:
            found.append(
                (
                    f"nnodes {layout.nodes} does not divide {layout.world} ranks "
                    f"(dp {layout.dp} x pp {layout.pp} x tp {layout.tp})",
                    "choose sizes whose product is a multiple of the nodes",
                )
            )
        if not 0 <= layout.node_rank < layout.nodes:
            found.append(
                (
                    f"node-rank {layout.node_rank} is not one of {layout.nodes} nodes",
                    f"use 0 to {layout.nodes - 1}",
                )
            )
    if not layout.by_nnodes:
        local = layout.local_dp if layout.local_dp is not None else layout.dp
        start = layout.start_rank or 0
        if start < 0 or local < 1 or start + local > layout.dp:
            found.append(
                (
                    f"data-parallel ranks {start} to {start + local - 1} are not within "
                    f"data-parallel-size {layout.dp}",
                    "lower data-parallel-start-rank or data-parallel-size-local",
                )
            )
        elif layout.dp % local:
            found.append(
                (
                    f"data-parallel-size-local {local} does not divide {layout.dp}",
                    "give every node the same number of ranks",
                )
            )
    if not found and layout.gpus:
        wanted = len(placements(layout))
        if wanted > len(layout.gpus):
            found.append(
                (
                    f"{wanted} ranks on this node, but {len(layout.gpus)} GPUs in the profile",
                    f"name {wanted} GPUs or lower the parallel sizes",
                )
            )
    return found


def _port_problems(layout: Layout) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if layout.nodes > 1 and layout.cache_port is None:
        found.append(
            (
                f"{layout.nodes} nodes need --weight-cache-master-port",
                "give every node the same free port, e.g. 29600",
            )
        )
    if layout.cache_port is not None and layout.cache_port == layout.master_port:
        found.append(
            (
                f"--weight-cache-master-port {layout.cache_port} is the engine's --master-port",
                "choose another: daemons and engine meet at the same time",
            )
        )
    if layout.cache_port is not None and layout.cache_port == layout.dp_rpc_port:
        found.append(
            (
                f"--weight-cache-master-port {layout.cache_port} is the data-parallel-rpc-port",
                "choose another port",
            )
        )
    draft_port = layout.draft_port
    if layout.draft and draft_port is None and layout.nodes > 1 and layout.cache_port is not None:
        draft_port = layout.cache_port + 1
    if layout.draft and draft_port is not None:
        taken = {layout.cache_port: "--weight-cache-master-port", layout.master_port: "master-port"}
        if draft_port in taken:
            found.append(
                (f"the draft daemons' port {draft_port} is {taken[draft_port]}", "choose another")
            )
    if layout.nodes > 1:
        flag = "--master-addr" if layout.dp == 1 else "--data-parallel-address"
        address = layout.master_addr if layout.dp == 1 else (layout.dp_address or "127.0.0.1")
        if address in LOOPBACK:
            found.append(
                (f"{layout.nodes} nodes cannot meet at {address}", f"set {flag} to node 0's")
            )
    return found


def _seed_problems(layout: Layout) -> list[tuple[str, str]]:
    seeding = layout.seeding
    found = [
        (f"--{name}-host and --{name}-port must be given together", "give both or neither")
        for name in seeding.incomplete
    ]
    ends = seeding.listen is not None or seeding.source is not None or bool(seeding.incomplete)
    if ends and not seeding.token:
        found.append(("seeding needs a token", "set preload.seed_token to a reference"))
    if seeding.token and not ends:
        found.append(("a seed token without --seed-listen or --seed-source", "add one of them"))
    for name, end in (("listen", seeding.listen), ("source", seeding.source)):
        if end is None:
            continue
        last = end[1] + layout.roles * layout.world - 1
        if not 1 <= end[1] <= MAX_PORT or last > MAX_PORT:
            found.append((f"seed {name} ports {end[1]} to {last} do not exist", "start lower"))
    return found


def _seeding(args: Mapping[str, Any], token: str | None) -> Seeding:
    ends: dict[str, tuple[str, int] | None] = {}
    incomplete = []
    for name in ("listen", "source"):
        host, port = args.get(f"seed_{name}_host"), args.get(f"seed_{name}_port")
        if (host is None) != (port is None):
            incomplete.append(f"seed-{name}")
        ends[name] = None if host is None or port is None else (str(host), int(port))
    return Seeding(ends["listen"], ends["source"], token, tuple(incomplete))


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """What to run on one node. Words as a shell would get them, except a seed token, which stays
    a reference. `places` are the ranks that it serves."""

    node: int
    preload: tuple[str, ...]
    serve: tuple[str, ...]
    places: tuple[Placement, ...]


_PLACING = (
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--data-parallel-size-local",
    "--data-parallel-start-rank",
    "--data-parallel-address",
    "--weight-cache-master-port",
    "--weight-cache-draft-master-port",
    "--headless",
    "--seed-token",
)


def node_commands(
    layout: Layout, preload: Sequence[str], serve: Sequence[str]
) -> tuple[NodeCommand, ...]:
    """The exact command of every node, from the argument words of one (`["preload", …]`,
    `["serve", …]`). Raises ValueError when `problems` finds any."""
    if bad := problems(layout):
        raise ValueError(bad[0].line)
    result = []
    for node in range(layout.nodes):
        placing = _placing_words(layout, node)
        ports: list[str] = []
        if layout.cache_port is not None:
            ports += ["--weight-cache-master-port", str(layout.cache_port)]
        if layout.draft and layout.draft_port is not None:
            ports += ["--weight-cache-draft-master-port", str(layout.draft_port)]
        if layout.seeding.token:
            ports += ["--seed-token", layout.seeding.token]
        headless = ["--headless"] if node > 0 else []
        result.append(
            NodeCommand(
                node=node,
                preload=("vllm", *_without_placing(preload), *placing, *ports),
                serve=("vllm", *_without_placing(serve), *placing, *headless),
                places=placements(layout, node),
            )
        )
    return tuple(result)


def _placing_words(layout: Layout, node: int) -> list[str]:
    if layout.nodes == 1:
        words = []
        if layout.local_dp is not None and not layout.by_nnodes:
            words = ["--data-parallel-size-local", str(layout.local_dp)]
        return words
    words = []
    if layout.by_nnodes:
        words += ["--nnodes", str(layout.nodes), "--node-rank", str(node)]
        words += ["--master-addr", layout.master_addr]
    else:
        local = layout.local_dp if layout.local_dp is not None else layout.dp
        words += ["--data-parallel-size-local", str(local)]
        words += ["--data-parallel-start-rank", str(node * local)]
    if layout.dp > 1 and layout.dp_address:
        words += ["--data-parallel-address", layout.dp_address]
    return words


def _without_placing(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in words:
        if skip and not word.startswith("--"):
            skip = False
            continue
        skip = False
        name = word.split("=", 1)[0]
        if name in _PLACING:
            skip = "=" not in word and name != "--headless"
            continue
        kept.append(word)
    return kept
