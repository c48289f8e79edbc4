"""The `[metrics]` section."""

from dataclasses import dataclass

OTHER_TENANT = "other"
"""Stands for all tenants that are not configured."""
_MAX_TENANTS = 64
_MAX_NAME = 64


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The `[metrics]` section."""

    tenants: tuple[str, ...] = ()
    """Tenants with metrics of their own, at most 64; all others, and names that nothing trusted vouches for
    (`admission.trust_user_names`), count as "other". Empty: no metrics by tenant."""

    def __post_init__(self) -> None:
        """Check the names: each is the value of a label in some 40 series."""
        if len(self.tenants) > _MAX_TENANTS:
            msg = f"tenants: at most {_MAX_TENANTS} names, got {len(self.tenants)}"
            raise ValueError(msg)
        for name in self.tenants:
            if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
                msg = f"tenants: a name must be 1 to {_MAX_NAME} printable characters, got {name!r}"
                raise ValueError(msg)
            if name == OTHER_TENANT or self.tenants.count(name) > 1:
                why = "stands for all others" if name == OTHER_TENANT else "is there twice"
                msg = f"tenants: {name!r} {why}"
                raise ValueError(msg)
