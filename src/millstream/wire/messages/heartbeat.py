"""API key 12, Heartbeat: keep a member of a classic group alive. Version 3 brought static members."""

from typing import Annotated

from millstream.wire.schema import F, Int16, Int32, Request, Response


class HeartbeatRequest(Request, api_key=12, versions=(0, 4), flexible=4):
    """The member is alive."""

    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: Annotated[str | None, F("3+")] = None


class HeartbeatResponse(Response, api_key=12, versions=(0, 4), flexible=4):
    """Continue, or rejoin."""

    throttle_time_ms: Annotated[Int32, F("1+")] = 0
    error_code: Int16 = 0
