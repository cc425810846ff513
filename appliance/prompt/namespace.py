"""Names of who may share cached tokens. Never: the model fingerprint, which the engine adds."""

from __future__ import annotations

PUBLIC = b"public"
"""The operator's own text: formats and characters. Shared by all tenants."""

_TENANT = b"tenant:"


def tenant_namespace(tenant: str) -> bytes:
    """The namespace of a tenant's private tokens; distinct tenants never share one."""
    return _TENANT + tenant.encode("utf-8", errors="surrogatepass")
