"""Upkeep: workers, schedules, figures, alerts, the tick. These rooms use base, store and tasks."""
