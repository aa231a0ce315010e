"""Figures as text. Needs nothing."""


def change(before, after):
    """"24.4 % less", or "75.6 % more"."""
    percent = 100 * (1 - after / before) if before else 0.0
    return f"{abs(percent):.1f} % {'less' if percent >= 0 else 'more'}"
