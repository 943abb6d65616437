"""Errors of refused requests in OpenAI's form: a status, a message, and the field at fault."""

from typing import Any

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "method_not_allowed_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large_error",
    429: "rate_limit_error",
    431: "request_too_large_error",
    503: "unavailable_error",
    504: "timeout_error",
}


class Refused(Exception):
    """A refused request. Its `args` hold everything, so that it can be sent between processes."""

    def __init__(self, status: int, message: str, param: str | None = None, retry_after: int | None = None) -> None:
        """Set what the client gets.

        Args:
            status: of HTTP.
            message: what is wrong and what to do.
            param: the field of the body, or the parameter, at fault.
            retry_after: seconds after which the same request may be answered.
        """
        super().__init__(status, message, param, retry_after)
        self.status = status
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.message

    @property
    def body(self) -> dict[str, Any]:
        return make_error_body(self.status, self.message, self.param)

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


class Ended(Refused):
    """The process of the model is gone."""

    def __init__(self) -> None:
        message = "the model's process ended while answering; it restarts, so try again"
        super().__init__(503, message, None, retry_after=5)


# For bugs in this service. It is never raised: an exception that is raised again keeps the frames, and thus the bodies,
# of all earlier requests.
FAILED = Refused(500, "the service failed on this request; its log says why")


def make_error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """Return the body of an error response.

    Args:
        status: of HTTP.
        message: what is wrong and what to do.
        param: the field of the body, or the parameter, at fault; None if it is the request as a whole.
    """
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}
