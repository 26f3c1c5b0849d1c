"""Connection to a Ray cluster, for work that exceeds one machine. Ray is optional, and imported on demand only."""

from __future__ import annotations

import os
from typing import Any

from steptime.errors import CommandError, UsageError

LOOPBACK = "127.0.0.1"


def import_ray(option: str) -> Any:
    """Module `ray`. option: the user's option that needs it. Raises UsageError (ray-missing)."""
    try:
        import ray
    except ImportError:
        raise UsageError(
            "ray-missing",
            f"{option} needs Ray, which is not installed: pip install 'steptime[ray]'. Without the option, "
            "steptime works on this machine.",
        ) from None
    return ray


def connect(ray: Any) -> bool:
    """Connects to the cluster of RAY_ADDRESS, else to one that runs on this machine, else to a new private one. Returns
    True if the caller has to shut it down. Raises CommandError (ray-unreachable, ray-not-private)."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    common = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(address=os.environ.get("RAY_ADDRESS") or "auto", **common)
    except ConnectionError as error:
        if os.environ.get("RAY_ADDRESS"):
            raise CommandError(
                "ray-unreachable",
                f"The Ray cluster at {os.environ['RAY_ADDRESS']} (RAY_ADDRESS) cannot be reached ({error}). "
                "Start it, or unset the variable.",
            ) from None
        _start_own(ray, common)
    return True


def _start_own(ray: Any, common: dict[str, Any]) -> None:
    """Starts a cluster on the loopback address only. Ray uses that only if it believes that it cannot form a cluster
    (ray._private.services, get_node_ip_address, of Ray 2.9 to 2.60), so the addresses are checked after the start."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    constants: Any = getattr(ray._private, "ray_constants", None)
    if hasattr(constants, "ENABLE_RAY_CLUSTER"):
        constants.ENABLE_RAY_CLUSTER = False
    ray.init(address="local", include_dashboard=False, _node_ip_address=LOOPBACK, **common)
    addresses = {node["NodeManagerAddress"] for node in ray.nodes()}
    if addresses != {LOOPBACK}:
        ray.shutdown()
        raise CommandError(
            "ray-not-private",
            f"This version of Ray would listen on {', '.join(sorted(addresses))}, open to other machines, so "
            "steptime did not start it. Start a cluster yourself, and set RAY_ADDRESS.",
        )
