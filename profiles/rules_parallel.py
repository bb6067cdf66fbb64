"""Lint rules: ranks over GPUs and nodes, and the modes of data parallel load balancing."""

from __future__ import annotations

from collections.abc import Iterator

from profiles.rules import FAIL, NOTE, Hit, Rule, View

_WITHIN = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")


def local_ranks(view: View) -> int:
    """GPUs that the engine asks for on this machine, as vLLM counts them: the ranks of the
    data-parallel replicas that it runs here, or its share of `nnodes`."""
    within = 1
    for name in _WITHIN:
        within *= _size(view, name)
    replicas, nodes = _size(view, "data_parallel_size"), _size(view, "nnodes")
    if _external(view):
        return max(1, within * replicas // nodes) if nodes > replicas else within
    if nodes > 1:
        return max(1, within * replicas // nodes)
    if view.given("data_parallel_size_local"):
        return within * _local(view)
    return within * replicas


def _size(view: View, name: str) -> int:
    return max(int(view.number(name, 1)), 1)


def _local(view: View) -> int:
    """Replicas on this node, as said: none where it serves the API alone."""
    return max(int(view.number("data_parallel_size_local", 1)), 0)


def _external(view: View) -> bool:
    """One process for each data-parallel rank, balanced by somebody else."""
    return view.args.get("data_parallel_external_lb") is True or view.given("data_parallel_rank")


def _by_ray(view: View) -> bool:
    names = ("distributed_executor_backend", "data_parallel_backend")
    return any(view.args.get(name) == "ray" for name in names)


def _idle_gpus(view: View) -> Iterator[Hit]:
    gpus = len(view.profile.gpus)
    if gpus >= 2 and local_ranks(view) == 1:
        yield "gpus", str(gpus)


def _too_few_gpus(view: View) -> Iterator[Hit]:
    gpus = len(view.profile.gpus) or view.facts.gpu_count
    ranks = local_ranks(view)
    if gpus and ranks > gpus and not _by_ray(view) and view.facts.platform != "cpu":
        yield "gpus", f"{ranks} ranks on {gpus} GPU{'s' if gpus > 1 else ''}"


def _headless_servers(view: View) -> Iterator[Hit]:
    if view.args.get("headless") is not True:
        return
    if view.number("api_server_count", 0) > 0:
        yield "args.api_server_count", str(view.args["api_server_count"])
    if view.args.get("data_parallel_hybrid_lb") is True:
        yield "args.data_parallel_hybrid_lb", "true"


def _silent_node(view: View) -> Iterator[Hit]:
    level = (view.env_text("VLLM_LOGGING_LEVEL") or "").upper()
    if view.args.get("headless") is True and level in ("WARNING", "ERROR", "CRITICAL"):
        yield "env.VLLM_LOGGING_LEVEL", level


def _hybrid_without_local(view: View) -> Iterator[Hit]:
    hybrid = view.args.get("data_parallel_hybrid_lb") is True
    local = view.given("data_parallel_size_local") or _size(view, "nnodes") > 1
    if hybrid and not local and not _external(view):
        yield "args.data_parallel_hybrid_lb", "true"


def _several_modes(view: View) -> Iterator[Hit]:
    modes = {
        name: view.args.get(f"data_parallel_{name}") is True
        for name in ("multi_port_external_lb", "hybrid_lb")
    }
    if not any(modes.values()):
        modes["hybrid_lb (by data_parallel_start_rank)"] = view.given("data_parallel_start_rank")
    modes["external_lb (or data_parallel_rank)"] = _external(view)
    wanted = [name for name, on in modes.items() if on]
    if len(wanted) > 1:
        yield "args.data_parallel_size", " and ".join(wanted)


def _external_local(view: View) -> Iterator[Hit]:
    if _external(view) and _local(view) > 1:
        yield "args.data_parallel_size_local", str(view.args["data_parallel_size_local"])


def _ports_of_replicas(view: View) -> Iterator[Hit]:
    if view.args.get("data_parallel_multi_port_external_lb") is True:
        last = _local(view) - 1
        others = "port + 1" if last <= 1 else f"port + 1 … port + {last}"
        yield "args.data_parallel_multi_port_external_lb", others


def _local_address(view: View) -> Iterator[Hit]:
    """Replicas elsewhere, told of no address: vLLM then waits for them on this machine."""
    replicas, local = _size(view, "data_parallel_size"), _local(view)
    elsewhere = view.given("data_parallel_size_local") and local < replicas
    addressed = view.given("data_parallel_address") or view.given("master_addr")
    if elsewhere and not addressed and not _by_ray(view) and _size(view, "nnodes") == 1:
        yield "args.data_parallel_size_local", f"{replicas - local} of {replicas} replicas"


RULES = (
    Rule(
        id="idle-gpus",
        severity=NOTE,
        when=_idle_gpus,
        what="{detail} GPUs, but no parallelism",
        effect="only one of them is used",
        instead="tensor_parallel_size (or data_parallel_size), or one GPU",
        source="vllm/config/parallel.py",
    ),
    Rule(
        id="too-few-gpus",
        severity=FAIL,
        when=_too_few_gpus,
        what="{detail}",
        effect="the start fails: world size larger than the number of GPUs",
        instead="smaller tensor, pipeline or data parallel sizes, or more gpus",
        source="vllm/config/parallel.py",
    ),
    Rule(
        id="headless-servers",
        severity=FAIL,
        when=_headless_servers,
        what="a headless node has no API server to set up",
        effect="the start fails",
        instead="leave it out here, and set it where the API is served",
        source="vllm/entrypoints/cli/serve.py",
    ),
    Rule(
        id="silent-headless-node",
        severity=NOTE,
        when=_silent_node,
        what="a headless node says in its log that it is ready, which the level {detail} hides",
        effect="Stoker never calls it ready",
        instead="VLLM_LOGGING_LEVEL: INFO",
        source="vllm/v1/engine/core.py",
    ),
    Rule(
        id="hybrid-without-local",
        severity=FAIL,
        when=_hybrid_without_local,
        what="hybrid load balancing needs the number of replicas on this node",
        effect="the start fails",
        instead="data_parallel_size_local",
        source="vllm/engine/arg_utils.py",
    ),
    Rule(
        id="several-balancers",
        severity=FAIL,
        when=_several_modes,
        what="two ways of data parallel load balancing: {detail}",
        effect="the start fails",
        instead="one of them",
        source="vllm/entrypoints/cli/serve.py",
    ),
    Rule(
        id="external-rank-local",
        severity=FAIL,
        when=_external_local,
        what="with data_parallel_rank (external load balancing) a process is one replica",
        effect="the start fails",
        instead="leave data_parallel_size_local out, and start a unit for each rank",
        source="vllm/engine/arg_utils.py",
    ),
    Rule(
        id="ports-of-replicas",
        severity=NOTE,
        when=_ports_of_replicas,
        what="each replica has a port of its own ({detail})",
        effect="Stoker asks the first one: health and figures shown are of it alone",
        instead="data_parallel_hybrid_lb for one port, or a unit for each data_parallel_rank",
        source="vllm/entrypoints/launchers/dp_supervisor.py",
    ),
    Rule(
        id="replicas-elsewhere",
        severity=NOTE,
        when=_local_address,
        what="{detail} run elsewhere, and no data_parallel_address is set",
        effect="they are waited for at 127.0.0.1, where no other machine reaches it",
        instead="data_parallel_address: the first node's address, the same on every node",
        source="vllm/config/parallel.py",
    ),
)
