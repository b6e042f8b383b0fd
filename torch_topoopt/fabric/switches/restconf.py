"""RESTCONF (RFC 8040) as the switch drivers need it: JSON over HTTPS with Basic authentication.

A failure becomes a SwitchError with the device's own words. A request without an answer is retried:
drivers only send requests that may arrive twice, see `RestconfSession`. The certificate of the
device is verified unless the cluster file has `insecure: true`. Proxies and .netrc of the
environment are ignored, so that passwords reach only the device.
"""

from __future__ import annotations

import json
import logging
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from torch_topoopt.fabric.clock import Clock, SystemClock
from torch_topoopt.fabric.credentials import Password, PasswordSource, scrub
from torch_topoopt.fabric.switches.switch import (
    AuthenticationFailed,
    SwitchError,
    SwitchUnreachable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

log = logging.getLogger("torch_topoopt")

_MEDIA_TYPE = "application/yang-data+json"
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_AWAY = frozenset({502, 503, 504})  # a starting server, or a proxy without its server
_LONGEST_TEXT = 300


class PreconditionFailed(SwitchError):  # noqa: N818 - named as HTTP names it
    """The device refused a request whose If-Match or If-None-Match did not hold (412)."""


@dataclass(frozen=True)
class RestconfOptions:
    """Access to a device; times in seconds.

    `ca_file` holds the certificate that signed the device's (None: the system's are trusted);
    `insecure` accepts any, and plain http. One answer may take `timeout_s`. A device that has
    answered before and no longer does is asked again for `patience_s`: it may be restarting.
    """

    ca_file: str | None = None
    insecure: bool = False
    timeout_s: float = 10.0
    patience_s: float = 180.0


class RestconfSession:
    """Requests to one device. Each may be sent twice, so only send those that are idempotent.

    `name` is the switch in messages, `address` its host, host:port or https://host:port. Connects
    when it first must.
    """

    def __init__(
        self,
        name: str,
        address: str,
        *,
        user: str | None = None,
        password: PasswordSource | None = None,
        options: RestconfOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.options = RestconfOptions() if options is None else options
        self.clock = SystemClock() if clock is None else clock
        self._base = _base_url(name, address, self.options.insecure)
        if (user is None) != (password is None):
            raise SwitchError(f"{name}: user and password belong together; one of them is missing")
        self._user = user
        self._source = password
        self._secret: Password | None = None
        self._client: httpx.Client | None = None
        self._answered = False

    def get(self, path: str) -> Any | None:
        """The JSON at `path`; None if the device says (404, as RFC 8040) that nothing is there."""
        return self.get_tagged(path)[0]

    def get_tagged(self, path: str) -> tuple[Any | None, str | None]:
        """The result of `get`, and its entity tag (RFC 8040, 3.4.1.2) if the device gives one."""
        response = self._send("GET", path, None)
        if response.status_code == 404 and _errors(response) is not None:
            return None, None
        return self._content("GET", path, response), response.headers.get("ETag")

    def post(self, path: str, body: object) -> Any | None:
        """Calls an operation or creates; returns the JSON of the answer, None if it has none."""
        return self._content("POST", path, self._send("POST", path, body))

    def put(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> Any | None:
        """Creates or replaces; raises PreconditionFailed if one among `headers` does not hold."""
        return self._content("PUT", path, self._send("PUT", path, body, headers))

    def delete(self, path: str, headers: Mapping[str, str] | None = None) -> bool:
        """Deletes `path`; False if it did not exist. `headers`: see put."""
        response = self._send("DELETE", path, None, headers)
        if response.status_code == 404 and _errors(response) is not None:
            return False
        self._content("DELETE", path, response)
        return True

    def close(self) -> None:
        """Ends the connection; the next request opens another."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def failure(self, what: str) -> SwitchError:
        """A SwitchError that names the device, without its password."""
        return SwitchError(self._clean(f"{self.name}: {what}"))

    def _send(
        self, method: str, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        import httpx

        client = self._connected()
        content = None if body is None else json.dumps(body).encode()
        deadline = self.clock.now() + self.options.patience_s
        pause_s = _FIRST_PAUSE_S
        tries = 0
        while True:
            tries += 1
            try:
                response = client.request(method, path, content=content, headers=headers)
                if response.status_code not in _AWAY:
                    self._answered = True
                    return response
                problem = _problem_of(response)
            except httpx.RequestError as error:
                if (certificate := _certificate_problem(error)) is not None:
                    raise SwitchError(self._clean(self._not_trusted(certificate))) from None
                problem = self._in_words(error)
            # one that never answered is more likely a wrong address than a restart
            if self.clock.now() >= deadline or (tries > 1 and not self._answered):
                times = "once" if tries == 1 else f"{tries} times"
                raise SwitchUnreachable(
                    self._clean(
                        f"{self.name}: no answer from {self._base} ({problem}; asked {times})"
                    )
                ) from None
            self.clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _connected(self) -> httpx.Client:
        import httpx

        if self._client is None:
            auth = None
            if self._source is not None and self._user is not None:
                self._secret = self._source.read()
                auth = httpx.BasicAuth(self._user, self._secret.reveal())
            self._client = httpx.Client(
                base_url=self._base,
                auth=auth,
                verify=self._trust(),
                timeout=self.options.timeout_s,
                headers={"Accept": _MEDIA_TYPE, "Content-Type": _MEDIA_TYPE},
                trust_env=False,
            )
        return self._client

    def _trust(self) -> ssl.SSLContext:
        if self.options.insecure:
            log.warning(
                "%s: insecure: true, so any server that answers at %s is trusted with the password",
                self.name,
                self._base,
            )
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            return context
        try:
            return ssl.create_default_context(cafile=self.options.ca_file)
        except (OSError, ssl.SSLError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise SwitchError(f"{self.name}: ca_file {self.options.ca_file}: {why}") from None

    def _content(self, method: str, path: str, response: httpx.Response) -> Any | None:
        status = response.status_code
        if status == 401:
            raise AuthenticationFailed(
                self._clean(
                    f"{self.name}: the device does not accept user {self._user!r} with the "
                    f"password from {self._source} (401: {_problem_of(response)})"
                    if self._source is not None
                    else f"{self.name}: the device wants a user and a password (401); give both "
                    "in the cluster file"
                )
            )
        if status == 403:
            raise AuthenticationFailed(
                self._clean(
                    f"{self.name}: user {self._user!r} may not {method} {path} "
                    f"(403: {_problem_of(response)})"
                )
            )
        if status == 412:
            raise PreconditionFailed(
                self._clean(f"{self.name}: {method} {path}: 412: {_problem_of(response)}")
            )
        if not 200 <= status < 300:
            raise self.failure(f"{method} {path}: {status}: {_problem_of(response)}")
        if not response.content.strip():
            return None
        try:
            return response.json()
        except ValueError:
            raise self.failure(
                f"{method} {path}: the answer is not JSON: {_short(response.text)!r}"
            ) from None

    def _in_words(self, error: httpx.RequestError) -> str:
        import httpx

        if isinstance(error, httpx.TimeoutException):
            return f"nothing came within {self.options.timeout_s:g} s"
        return str(error) or type(error).__name__

    def _not_trusted(self, why: str) -> str:
        return (
            f"{self.name}: the certificate of {self._base} is not trusted ({why}); give "
            "options.ca_file the certificate that signed it (or, if no other server can answer at "
            "that address, options.insecure: true)"
        )

    def _clean(self, text: str) -> str:
        return text if self._secret is None else scrub(text, self._secret, self._user)


def _base_url(name: str, address: str, insecure: bool) -> str:
    text = address if "://" in address else f"https://{address}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise SwitchError(f"{name}: address: the port is not a number from 0 to 65535") from None
    if "@" in parts.netloc:  # may hold a password, so it is not shown
        raise SwitchError(f"{name}: address: give user and password as fields of their own")
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.path.strip("/"):
        raise SwitchError(
            f"{name}: address: {address!r} is not a host, host:port or https://host:port"
        )
    if parts.scheme == "http" and not insecure:
        raise SwitchError(
            f"{name}: address: over http any host on the way reads the password; use https, or say "
            "options.insecure: true"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")


def _certificate_problem(error: BaseException | None) -> str | None:
    """Why the device's certificate was refused, if that is what happened."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return str(error.verify_message)
        error = error.__cause__ or error.__context__
    return None


def _errors(response: httpx.Response) -> list[dict[str, Any]] | None:
    """The errors of an RFC 8040 error body (section 7.1); None if it is not one."""
    try:
        errors = response.json()["ietf-restconf:errors"]["error"]
    except (ValueError, KeyError, TypeError):
        return None
    return errors if isinstance(errors, list) and all(isinstance(e, dict) for e in errors) else None


def _problem_of(response: httpx.Response) -> str:
    """The device's own description of an error, in one line."""
    errors = _errors(response)
    if errors:
        return "; ".join(
            str(e.get("error-message") or e.get("error-tag") or "no reason given") for e in errors
        )
    text = _short(" ".join(response.text.split()))
    return text or response.reason_phrase or "no reason given"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"
