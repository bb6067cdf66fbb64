"""TLS to this machine's own engines.

Standard library only: also runs under the shim's interpreter (Python 3.10 and newer)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl

_context: ssl.SSLContext | None = None


def unverified() -> ssl.SSLContext:
    """No verification: it is our own engine, on this machine, often with its own certificate."""
    global _context
    if _context is None:
        import ssl  # megabytes, and few engines speak it

        _context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _context.check_hostname = False
        _context.verify_mode = ssl.CERT_NONE
    return _context
