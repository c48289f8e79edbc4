"""What the rooms' settings refuse, said in the same words everywhere: the key, the limit, what was given."""


def require_at_least(settings: object, **lows: float) -> None:
    """Check that each named setting is its lower limit or more.

    Raises:
        ValueError: one is not; NaN never is.

    """
    for name, low in lows.items():
        if not getattr(settings, name) >= low:
            msg = f"{name}: must be at least {low}, got {getattr(settings, name)}"
            raise ValueError(msg)


def require_positive(settings: object, *names: str) -> None:
    """Check that each named setting is above 0.

    Raises:
        ValueError: one is not; NaN never is.

    """
    for name in names:
        if not getattr(settings, name) > 0:
            msg = f"{name}: must be above 0, got {getattr(settings, name)}"
            raise ValueError(msg)
